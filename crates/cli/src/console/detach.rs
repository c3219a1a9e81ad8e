//! Keys that detach from a process: `ctrl-p,ctrl-q`, as in other runtimes.

/// A sequence of keys, and how much of it has been pressed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DetachKeys {
    keys: Vec<u8>,
    pressed: usize,
}

/// The result of some key presses.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum KeyResult {
    /// The bytes in the buffer are for the process.
    Keys,
    /// The bytes before the sequence are for the process; then the user detaches.
    Detach,
}

impl DetachKeys {
    /// `ctrl-p,ctrl-q`, or nothing for none.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut keys = Vec::new();
        for word in text.split(',').filter(|word| !word.is_empty()) {
            let key = match (word.strip_prefix("ctrl-"), word.as_bytes()) {
                (Some(letter), _) => match letter.as_bytes() {
                    [letter @ (b'a'..=b'z' | b'@'..=b'_')] => Some(letter & 0x1f),
                    _ => None,
                },
                (None, [key]) if key.is_ascii_graphic() => Some(*key),
                _ => None,
            };
            keys.push(key.ok_or_else(|| {
                format!(
                    "{word:?} is not a key; use letters, or ctrl- with a letter, like ctrl-p,ctrl-q"
                )
            })?);
        }
        Ok(Self { keys, pressed: 0 })
    }

    /// Takes typed bytes, and puts those for the process into `out`. A possible prefix of the
    /// sequence is held back until it is complete or fails.
    pub(crate) fn press(&mut self, typed: &[u8], out: &mut Vec<u8>) -> KeyResult {
        out.clear();
        if self.keys.is_empty() {
            out.extend_from_slice(typed);
            return KeyResult::Keys;
        }
        for key in typed {
            // The end of a failed prefix may start the sequence again.
            while self.pressed > 0 && *key != self.keys[self.pressed] {
                let held = &self.keys[..self.pressed];
                let shorter = (0..held.len()).rev();
                let mut fitting = shorter.filter(|&length| held.ends_with(&held[..length]));
                let still = fitting.next().unwrap_or(0);
                out.extend_from_slice(&held[..held.len() - still]);
                self.pressed = still;
            }
            if *key != self.keys[self.pressed] {
                out.push(*key);
                continue;
            }
            self.pressed += 1;
            if self.pressed == self.keys.len() {
                self.pressed = 0;
                return KeyResult::Detach;
            }
        }
        KeyResult::Keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_detaches_and_nothing_else_is_lost() {
        type Row<'a> = (&'a str, &'a [&'a [u8]], &'a [u8], KeyResult);
        let usual = "ctrl-p,ctrl-q";
        let rows: [Row<'_>; 14] = [
            (usual, &[b"ls\n"], b"ls\n", KeyResult::Keys),
            (usual, &[b"a\x10\x11b"], b"a", KeyResult::Detach),
            (usual, &[b"a\x10", b"\x11"], b"a", KeyResult::Detach),
            (usual, &[b"\x10x"], b"\x10x", KeyResult::Keys),
            (
                usual,
                &[b"\x10", b"\x10", b"x"],
                b"\x10\x10x",
                KeyResult::Keys,
            ),
            (usual, &[b"\x10\x10\x11"], b"\x10", KeyResult::Detach),
            // Sequences that overlap themselves.
            ("a,a,b", &[b"aab"], b"", KeyResult::Detach),
            ("a,a,b", &[b"aaab"], b"a", KeyResult::Detach),
            ("a,a,b", &[b"a", b"a", b"a", b"b"], b"a", KeyResult::Detach),
            ("a,a,b", &[b"aac"], b"aac", KeyResult::Keys),
            ("a,b,a,c", &[b"ababac"], b"ab", KeyResult::Detach),
            ("a,b,a,b,c", &[b"abababc"], b"ab", KeyResult::Detach),
            ("a,b,a,b,c", &[b"ababax", b"y"], b"ababaxy", KeyResult::Keys),
            ("", &[b"\x10\x11"], b"\x10\x11", KeyResult::Keys),
        ];
        for (sequence, typed, expected, last) in rows {
            let mut keys = DetachKeys::parse(sequence).unwrap();
            let (mut all, mut out, mut end) = (Vec::new(), Vec::new(), KeyResult::Keys);
            for some in typed {
                end = keys.press(some, &mut out);
                all.extend_from_slice(&out);
            }
            let what = format!("{sequence}: {typed:?}");
            assert_eq!((all.as_slice(), end), (expected, last), "{what}");
        }
    }

    #[test]
    fn detach_keys_are_parsed_or_refused() {
        assert_eq!(DetachKeys::parse("").unwrap().keys, b"");
        assert_eq!(DetachKeys::parse("ctrl-[,d").unwrap().keys, b"\x1bd");
        assert!(DetachKeys::parse("ctrl-pq").is_err());
        assert!(DetachKeys::parse("ctrl-").is_err());
        assert!(DetachKeys::parse("é").is_err());
    }
}
