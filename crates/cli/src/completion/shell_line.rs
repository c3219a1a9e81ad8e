//! A line of a shell: its words without quotes, and candidates as bash takes them. Bash itself splits
//! the line at `=` and `:` too (`COMP_WORDBREAKS`), and inserts candidates as they are.

use super::candidates::Candidates;

/// The line up to the cursor.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ShellLine {
    /// The words after the program, without quotes. The last one is being typed.
    pub(super) words: Vec<String>,
    /// The quote that is open in the last word.
    open_quote: Option<char>,
    /// What is before the part of the last word that bash replaces, without quotes.
    kept: String,
}

/// Characters that need no quotes.
fn is_plain(letter: char) -> bool {
    letter.is_alphanumeric() || "-_./:=@%+,".contains(letter)
}

impl ShellLine {
    pub(super) fn parse(line: &str, word_breaks: &str) -> Self {
        let mut words = vec![String::new()];
        let (mut open_quote, mut kept) = (None, String::new());
        let (mut is_empty, mut letters) = (true, line.chars().peekable());
        while let Some(letter) = letters.next() {
            let Some(word) = words.last_mut() else { break };
            match (open_quote, letter) {
                (Some(quote), letter) if quote == letter => {
                    open_quote = None;
                    is_empty = false;
                }
                (Some('"'), '\\') if letters.peek().is_some_and(|it| "\\\"$`".contains(*it)) => {
                    word.extend(letters.next());
                }
                (Some(_), letter) => word.push(letter),
                (None, '\'' | '"') => {
                    open_quote = Some(letter);
                    kept.clone_from(word);
                }
                (None, '\\') => word.extend(letters.next()),
                (None, ' ' | '\t') => {
                    if !word.is_empty() || !is_empty {
                        words.push(String::new());
                    }
                    is_empty = true;
                    kept.clear();
                }
                (None, letter) => {
                    word.push(letter);
                    if word_breaks.contains(letter) {
                        kept.clone_from(word);
                    }
                }
            }
        }
        words.remove(0);
        Self {
            words,
            open_quote,
            kept,
        }
    }

    /// The reply for the script: what bash should do, as lines that begin with a colon, then the
    /// candidates.
    pub(super) fn bash_reply(&self, candidates: &Candidates) -> String {
        let mut text = String::new();
        if candidates.or_files {
            text += ":files\n";
        }
        if candidates.is_open() {
            text += ":nospace\n";
        }
        for candidate in &candidates.all {
            let Some(rest) = candidate.word.strip_prefix(self.kept.as_str()) else {
                continue;
            };
            if let Some(quoted) = self.quoted(rest) {
                text += &quoted;
                text.push('\n');
            }
        }
        text
    }

    /// The text, so that bash reads it as one word. Readline closes an open quote.
    fn quoted(&self, text: &str) -> Option<String> {
        match self.open_quote {
            Some('\'') => (!text.contains('\'')).then(|| text.to_owned()),
            Some(_) => (!text.contains(['"', '$', '`', '\\', '!'])).then(|| text.to_owned()),
            None => Some(text.chars().fold(String::new(), |mut quoted, letter| {
                if !is_plain(letter) {
                    quoted.push('\\');
                }
                quoted.push(letter);
                quoted
            })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::candidates::Candidate;
    use super::*;

    const WORD_BREAKS: &str = " \t\n\"'@><=;|&(:";

    #[test]
    fn a_line_is_split_as_by_bash() {
        let rows: [(&str, &[&str], &str); 10] = [
            ("skewbridge ex", &["ex"], ""),
            ("skewbridge exec ", &["exec", ""], ""),
            ("  sb   exec  w", &["exec", "w"], ""),
            (
                "sb exec --context=a",
                &["exec", "--context=a"],
                "--context=",
            ),
            (
                "sb exec --context 'my c",
                &["exec", "--context", "my c"],
                "",
            ),
            (
                "sb exec --context=\"my c",
                &["exec", "--context=my c"],
                "--context=",
            ),
            ("sb cp a\\ b web:", &["cp", "a b", "web:"], "web:"),
            ("sb x '' \"a\\\"b\" c", &["x", "", "a\"b", "c"], ""),
            (
                "sb exec --context arn:aws:e",
                &["exec", "--context", "arn:aws:e"],
                "arn:aws:",
            ),
            ("sb", &[], ""),
        ];
        for (line, words, kept) in rows {
            let parsed = ShellLine::parse(line, WORD_BREAKS);
            assert_eq!(parsed.words, words, "{line}");
            assert_eq!(parsed.kept, kept, "{line}");
        }
    }

    #[test]
    fn candidates_are_quoted_for_bash() {
        let rows = [
            ("sb exec ", "web", "web\n"),
            ("sb exec jo", "jobs/", ":nospace\njobs/\n"),
            ("sb exec --context=a", "--context=a@b", "a@b\n"),
            (
                "sb exec --context=",
                "--context=$(x);y z",
                "\\$\\(x\\)\\;y\\ z\n",
            ),
            ("sb exec --context '", "my context", "my context\n"),
            ("sb exec --context '", "it's", ""),
            ("sb exec --context \"", "$(x)", ""),
            ("sb exec --context arn:", "arn:aws:x", "aws:x\n"),
        ];
        for (line, candidate, expected) in rows {
            let found = Candidates::of(vec![Candidate::new(candidate)]);
            let reply = ShellLine::parse(line, WORD_BREAKS).bash_reply(&found);
            assert_eq!(reply, expected, "{line}");
        }
        assert_eq!(
            ShellLine::parse("sb x ", "").bash_reply(&Candidates::files()),
            ":files\n"
        );
    }
}
