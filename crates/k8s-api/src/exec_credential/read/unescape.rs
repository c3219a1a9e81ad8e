//! Decoding of JSON strings (RFC 8259, 7).

use zeroize::Zeroizing;

/// Decodes the text between two quotes; `None` if it contains an unpaired surrogate. The
/// buffer never grows, so no copies are left behind.
pub(super) fn text(raw: &str) -> Option<Zeroizing<String>> {
    // An escape is longer than the character it encodes.
    let mut text = Zeroizing::new(String::with_capacity(raw.len()));
    let mut rest = raw;
    while let Some((plain, escaped)) = rest.split_once('\\') {
        text.push_str(plain);
        let mut characters = escaped.chars();
        let character = match characters.next()? {
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => {
                let (character, behind) = code_point(characters.as_str())?;
                characters = behind.chars();
                character
            }
            // A quote, a slash or a backslash.
            itself => itself,
        };
        text.push(character);
        rest = characters.as_str();
    }
    text.push_str(rest);
    Some(text)
}

/// Four digits, or a UTF-16 surrogate pair.
fn code_point(digits: &str) -> Option<(char, &str)> {
    let (first, rest) = unit(digits)?;
    if let Some(character) = char::from_u32(first.into()) {
        return Some((character, rest));
    }
    let (second, rest) = unit(rest.strip_prefix("\\u")?)?;
    let character = char::decode_utf16([first, second]).next()?.ok()?;
    Some((character, rest))
}

fn unit(digits: &str) -> Option<(u16, &str)> {
    let (digits, rest) = digits.split_at_checked(4)?;
    let is_number = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let unit = is_number.then(|| u16::from_str_radix(digits, 16).ok());
    Some((unit??, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert_eq, proptest};

    use super::*;

    #[test]
    fn escapes_are_decoded_and_unpaired_surrogates_rejected() {
        let rows = [
            (r"plain", Some("plain")),
            (r#"\"\\\/\b\f\n\r\t"#, Some("\"\\/\u{8}\u{c}\n\r\t")),
            (r"\u00e9 \uD83D\uDE00!", Some("é 😀!")),
            (r"\uD83D", None),
            (r"\uD83D\n", None),
            (r"\uD83D\u0041", None),
            (r"\uDE00", None),
            (r"\u+123", None),
            (r"\u12", None),
        ];
        for (raw, expected) in rows {
            assert_eq!(text(raw).as_deref().map(String::as_str), expected, "{raw}");
        }
    }

    proptest! {
        #[test]
        fn an_encoded_string_is_decoded_unchanged(written in any::<String>()) {
            let quoted = serde_json::to_string(&written).unwrap();
            let read = text(&quoted[1..quoted.len() - 1]).unwrap();
            prop_assert_eq!(&*read, &written);
        }
    }
}
