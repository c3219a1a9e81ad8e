//! A plugin's stderr: shown to the user, and repeated in the error if the plugin fails.

use std::io::Write as _;

/// How much of the stderr an error repeats: the last lines, which usually have the cause.
const MAX_TAIL_BYTES: usize = 4096;

/// The tail of a plugin's stderr, and whether the user has seen it.
#[derive(Debug, Default)]
pub(super) struct StderrCapture {
    /// At most [`MAX_TAIL_BYTES`].
    tail: Vec<u8>,
    display: DisplayMode,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum DisplayMode {
    /// Held back in case the plugin fails soon: then the error repeats it.
    #[default]
    Deferred,
    /// Shown as it is printed: a slow plugin may be prompting the user.
    Immediate,
    /// Not shown: the plugin has become a proxy, and the terminal belongs to another program.
    Suppressed,
}

impl StderrCapture {
    /// Adds output of the plugin.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if self.display == DisplayMode::Immediate {
            write_stderr(bytes);
        }
        self.tail.extend_from_slice(bytes);
        let surplus = self.tail.len().saturating_sub(MAX_TAIL_BYTES);
        self.tail.drain(..surplus);
    }

    /// Shows the output so far and all further output.
    pub(super) fn show_immediately(&mut self) {
        if self.display == DisplayMode::Deferred {
            write_stderr(&self.tail);
        }
        self.display = DisplayMode::Immediate;
    }

    /// Shows the output so far and no further output. A new tail begins.
    pub(super) fn suppress(&mut self) {
        self.show_immediately();
        self.display = DisplayMode::Suppressed;
        self.tail.clear();
    }

    /// The suffix of an error message: empty if the user has seen the output.
    pub(super) fn for_error(&self) -> String {
        let text = String::from_utf8_lossy(&self.tail);
        // A failing plugin must not control the terminal.
        let plain: String = text
            .trim()
            .chars()
            .map(|letter| match letter {
                '\n' => '\n',
                '\t' => ' ',
                letter if letter.is_control() => char::REPLACEMENT_CHARACTER,
                letter => letter,
            })
            .collect();
        if plain.is_empty() || self.display == DisplayMode::Immediate {
            String::new()
        } else {
            format!("; its stderr: {plain}")
        }
    }
}

/// Prints a note for the user, in places from which no caller could return it.
pub(super) fn print_note(text: &str) {
    write_stderr(format!("{text}\n").as_bytes());
}

fn write_stderr(bytes: &[u8]) {
    // A closed stderr is ignored.
    let _ = std::io::stderr().write_all(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_repeats_the_tail_without_control_characters() {
        let mut capture = StderrCapture::default();
        assert_eq!(capture.for_error(), "");
        capture.push(&[b'x'; 2 * MAX_TAIL_BYTES]);
        capture.push(b"\n\x1b[2Jno card\n");
        let message = capture.for_error();
        assert!(message.ends_with("x\n\u{fffd}[2Jno card"), "{message}");
        assert!(message.len() < MAX_TAIL_BYTES + 64);
    }

    #[test]
    fn output_that_the_user_has_seen_is_not_repeated() {
        let mut capture = StderrCapture::default();
        capture.show_immediately();
        capture.push(b"");
        assert_eq!(capture.for_error(), "");
        capture.suppress();
        capture.push(b"the card is gone");
        assert_eq!(capture.for_error(), "; its stderr: the card is gone");
    }
}
