//! Validates UTF-8 that arrives in chunks.

use std::str;

/// The state of a text.
#[derive(Debug, Default)]
pub(crate) struct Utf8 {
    /// The start of an incomplete character.
    partial: [u8; 4],
    length: usize,
}

/// The text is not UTF-8, whatever follows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InvalidUtf8;

impl Utf8 {
    /// Validates the next chunk.
    pub(crate) fn push(&mut self, mut bytes: &[u8]) -> Result<(), InvalidUtf8> {
        while self.length > 0 {
            let Some((&byte, rest)) = bytes.split_first() else {
                return Ok(());
            };
            // No character has more than four bytes: four are a character or an error.
            self.partial[self.length] = byte;
            self.length += 1;
            bytes = rest;
            match str::from_utf8(&self.partial[..self.length]) {
                Ok(_) => self.length = 0,
                Err(error) if error.error_len().is_some() => return Err(InvalidUtf8),
                Err(_) => {}
            }
        }
        let Err(error) = str::from_utf8(bytes) else {
            return Ok(());
        };
        if error.error_len().is_some() {
            return Err(InvalidUtf8);
        }
        let partial = &bytes[error.valid_up_to()..];
        self.partial[..partial.len()].copy_from_slice(partial);
        self.length = partial.len();
        Ok(())
    }

    /// Whether the text may end here.
    pub(crate) fn end(&self) -> Result<(), InvalidUtf8> {
        if self.length == 0 {
            Ok(())
        } else {
            Err(InvalidUtf8)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is_valid(chunks: &[&[u8]]) -> bool {
        let mut utf8 = Utf8::default();
        chunks.iter().all(|chunk| utf8.push(chunk).is_ok()) && utf8.end().is_ok()
    }

    proptest! {
        #[test]
        fn chunks_are_validated_like_the_whole_text(text in "\\PC*", at: prop::sample::Index, also: prop::sample::Index) {
            let bytes = text.as_bytes();
            let (left, right) = bytes.split_at(at.index(bytes.len() + 1));
            let (middle, right) = right.split_at(also.index(right.len() + 1));
            prop_assert!(is_valid(&[left, middle, right]));
        }

        #[test]
        fn any_bytes_are_validated_like_the_standard_library_does(
            bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0x80..0xc0u8, 0xe0..0xf5u8], 0..12),
        ) {
            let chunks: Vec<_> = bytes.chunks(1).collect();
            prop_assert_eq!(is_valid(&chunks), str::from_utf8(&bytes).is_ok());
        }
    }
}
