//! What a plugin writes to standard error: for the user to see, and for the error that
//! says why it failed.

use std::io::Write as _;

/// How much of it an error repeats: the last lines, where causes are.
const KEPT: usize = 4096;

/// The end of what a plugin has said, and whether the user has seen it.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// At most [`KEPT`].
    tail: Vec<u8>,
    shown: Shown,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Shown {
    /// It waits, in case the plugin fails soon: then the error tells it.
    #[default]
    Later,
    /// As it comes: a plugin that takes its time may be asking for something.
    AtOnce,
    /// Never: the plugin has become a proxy, and the terminal is somebody else's.
    Never,
}

impl Said {
    /// Takes what has come.
    pub(super) fn hear(&mut self, bytes: &[u8]) {
        if self.shown == Shown::AtOnce {
            show(bytes);
        }
        self.tail.extend_from_slice(bytes);
        let surplus = self.tail.len().saturating_sub(KEPT);
        self.tail.drain(..surplus);
    }

    /// Shows what has come, and what will.
    pub(super) fn show_at_once(&mut self) {
        if self.shown == Shown::Later {
            show(&self.tail);
        }
        self.shown = Shown::AtOnce;
    }

    /// Shows what has come, and nothing that will. From here on a new tail begins.
    pub(super) fn fall_silent(&mut self) {
        self.show_at_once();
        self.shown = Shown::Never;
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
        if plain.is_empty() || self.shown == Shown::AtOnce {
            String::new()
        } else {
            format!("; it said: {plain}")
        }
    }
}

/// Tells the user something of ours, where there is nobody to return it to.
pub(super) fn note(text: &str) {
    show(format!("{text}\n").as_bytes());
}

fn show(bytes: &[u8]) {
    // Whoever closed it does not want to know.
    let _ = std::io::stderr().write_all(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_repeats_the_end_without_what_moves_a_cursor() {
        let mut said = Said::default();
        assert_eq!(said.for_error(), "");
        said.hear(&[b'x'; 2 * KEPT]);
        said.hear(b"\n\x1b[2Jno card\n");
        let told = said.for_error();
        assert!(told.ends_with("x\n\u{fffd}[2Jno card"), "{told}");
        assert!(told.len() < KEPT + 64);
    }

    #[test]
    fn what_the_user_has_seen_is_not_said_twice() {
        let mut said = Said::default();
        said.show_at_once();
        said.hear(b"");
        assert_eq!(said.for_error(), "");
        said.fall_silent();
        said.hear(b"the card is gone");
        assert_eq!(said.for_error(), "; it said: the card is gone");
    }
}
