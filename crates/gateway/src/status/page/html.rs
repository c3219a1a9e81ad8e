//! Text as HTML. Names, paths and messages come from clients and servers: all of them are escaped.

use std::fmt::{self, Display};

/// Text that contains no markup, for element content and for quoted attributes.
pub(super) struct Escaped<'a>(pub(super) &'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                // The placeholders of the page begin with it.
                '{' => f.write_str("&#123;")?,
                other if is_invisible(other) => f.write_str("\u{fffd}")?,
                other => write!(f, "{other}")?,
            }
        }
        Ok(())
    }
}

/// Control characters, and those that change the direction of the text around them.
fn is_invisible(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// At most so many characters, with an ellipsis in place of the others.
pub(crate) fn shortened(text: &str, max_chars: usize) -> String {
    if text.chars().count() <= max_chars {
        return text.to_owned();
    }
    let kept: String = text.chars().take(max_chars.saturating_sub(1)).collect();
    format!("{kept}…")
}

/// The time of day of an RFC 3339 time, in UTC, as an element.
pub(super) fn time_of_day(time: &str) -> String {
    let of_day = time.get(11..19).unwrap_or(time);
    format!(
        "<time datetime=\"{}\">{}</time>",
        Escaped(time),
        Escaped(of_day)
    )
}

/// A number with as many digits as matter.
pub(super) fn short_number(value: f64) -> String {
    // The sum of no values is a negative zero.
    let value = value + 0.0;
    if value >= 100.0 {
        format!("{value:.0}")
    } else if value >= 10.0 || value == 0.0 {
        let text = format!("{value:.1}");
        text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
    } else {
        let text = format!("{value:.2}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_becomes_markup() {
        for (text, expected) in [
            ("cp-1", "cp-1"),
            (
                "<script>alert(1)</script>",
                "&lt;script&gt;alert(1)&lt;/script&gt;",
            ),
            ("\" onload='x' &", "&quot; onload=&#39;x&#39; &amp;"),
            (
                "a\n\0b\u{202e}c\u{feff}",
                "a\u{fffd}\u{fffd}b\u{fffd}c\u{fffd}",
            ),
            ("{{title}}", "&#123;&#123;title}}"),
            ("é 漢", "é 漢"),
        ] {
            assert_eq!(Escaped(text).to_string(), expected);
        }
    }

    #[test]
    fn numbers_are_short() {
        for (value, expected) in [
            (0.0, "0"),
            (-0.0, "0"),
            (0.25, "0.25"),
            (1.5, "1.5"),
            (12.0, "12"),
            (12.34, "12.3"),
            (1234.5, "1234"),
        ] {
            assert_eq!(short_number(value), expected);
        }
    }

    #[test]
    fn long_text_is_shortened_by_characters() {
        assert_eq!(shortened("äöü", 3), "äöü");
        assert_eq!(shortened("äöüß", 3), "äö…");
    }
}
