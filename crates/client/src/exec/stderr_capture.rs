//! What a plugin writes to standard error: for the user to see, and for the error that
//! says why it failed.

use std::io::Write as _;

/// How much of it an error repeats: the last lines, where causes are.
const MAX_TAIL_BYTES: usize = 4096;

/// The end of what a plugin has said, and whether the user has seen it.
#[derive(Debug, Default)]
pub(super) struct StderrCapture {
    /// At most [`MAX_TAIL_BYTES`].
    tail: Vec<u8>,
    display: DisplayMode,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum DisplayMode {
    /// It waits, in case the plugin fails soon: then the error tells it.
    #[default]
    Deferred,
    /// As it comes: a plugin that takes its time may be asking for something.
    Immediate,
    /// Never: the plugin has become a proxy, and the terminal is somebody else's.
    Suppressed,
}

impl StderrCapture {
    /// Takes what has come.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if self.display == DisplayMode::Immediate {
            write_stderr(bytes);
        }
        self.tail.extend_from_slice(bytes);
        let surplus = self.tail.len().saturating_sub(MAX_TAIL_BYTES);
        self.tail.drain(..surplus);
    }

    /// Shows what has come, and what will.
    pub(super) fn show_immediately(&mut self) {
        if self.display == DisplayMode::Deferred {
            write_stderr(&self.tail);
        }
        self.display = DisplayMode::Immediate;
    }

    /// Shows what has come, and nothing that will. From here on a new tail begins.
    pub(super) fn suppress(&mut self) {
        self.show_immediately();
        self.display = DisplayMode::Suppressed;
        self.tail.clear();
    }

    /// What an error adds: nothing if the user has seen it.
    pub(super) fn for_error(&self) -> String {
        let text = String::from_utf8_lossy(&self.tail);
        // A terminal must not be written to by whoever fails.
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
            format!("; it said: {plain}")
        }
    }
}

/// Tells the user something of ours, where there is nobody to return it to.
pub(super) fn print_note(text: &str) {
    write_stderr(format!("{text}\n").as_bytes());
}

fn write_stderr(bytes: &[u8]) {
    // Whoever closed it does not want to know.
    let _ = std::io::stderr().write_all(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_repeats_the_end_without_what_moves_a_cursor() {
        let mut capture = StderrCapture::default();
        assert_eq!(capture.for_error(), "");
        capture.push(&[b'x'; 2 * MAX_TAIL_BYTES]);
        capture.push(b"\n\x1b[2Jno card\n");
        let message = capture.for_error();
        assert!(message.ends_with("x\n\u{fffd}[2Jno card"), "{message}");
        assert!(message.len() < MAX_TAIL_BYTES + 64);
    }

    #[test]
    fn what_the_user_has_seen_is_not_said_twice() {
        let mut capture = StderrCapture::default();
        capture.show_immediately();
        capture.push(b"");
        assert_eq!(capture.for_error(), "");
        capture.suppress();
        capture.push(b"the card is gone");
        assert_eq!(capture.for_error(), "; it said: the card is gone");
    }
}
