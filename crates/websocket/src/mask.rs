//! Masking (RFC 6455, 5.3): makes the bytes of a client unpredictable for a script that
//! chooses the payload.

use std::fmt;

use aws_lc_rs::rand;
use bytes::BytesMut;

/// How much is copied before it is masked: small enough to stay in the cache.
const COPY_BLOCK_BYTES: usize = 8 << 10;

/// How many bytes are masked at once. The program is optimised for size, so the compiler
/// vectorises no loop by itself.
const BLOCK_BYTES: usize = size_of::<u128>();

/// The four bytes that a payload is combined with. Applying them twice restores the payload.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Mask([u8; 4]);

impl Mask {
    /// A mask with the key of a frame.
    pub const fn new(key: [u8; 4]) -> Self {
        Self(key)
    }

    /// The key in a frame.
    pub const fn key(self) -> [u8; 4] {
        self.0
    }

    /// Masks or unmasks bytes in place, and returns the mask for those that follow in the same
    /// payload.
    #[must_use]
    pub fn apply(self, bytes: &mut [u8]) -> Self {
        let mut keys = [0; BLOCK_BYTES];
        keys.as_chunks_mut().0.fill(self.0);
        let key = u128::from_ne_bytes(keys);
        let mask = |block: &mut [u8; BLOCK_BYTES]| {
            *block = (u128::from_ne_bytes(*block) ^ key).to_ne_bytes();
        };
        let (blocks, rest) = bytes.as_chunks_mut();
        // The compiler unrolls no loop either.
        let (fours, rest_blocks) = blocks.as_chunks_mut();
        for [first, second, third, fourth] in fours {
            mask(first);
            mask(second);
            mask(third);
            mask(fourth);
        }
        rest_blocks.iter_mut().for_each(mask);
        for (byte, key) in rest.iter_mut().zip(keys) {
            *byte ^= key;
        }
        let mut next = self.0;
        next.rotate_left(bytes.len() % 4);
        Self(next)
    }

    /// Appends bytes masked, and returns the mask for those that follow.
    #[must_use]
    pub(crate) fn append(self, bytes: &[u8], out: &mut BytesMut) -> Self {
        let mut mask = self;
        for block in bytes.chunks(COPY_BLOCK_BYTES) {
            let from = out.len();
            out.extend_from_slice(block);
            mask = mask.apply(&mut out[from..]);
        }
        mask
    }
}

impl fmt::Debug for Mask {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Mask(..)")
    }
}

/// Unpredictable masks, generated in advance: one at a time costs more than masking a small
/// message.
pub(crate) struct Masks {
    generated: [[u8; 4]; 64],
    used: usize,
}

impl Masks {
    pub(crate) fn new() -> Self {
        let generated = [[0; 4]; 64];
        let used = generated.len();
        Self { generated, used }
    }

    pub(crate) fn next(&mut self) -> Mask {
        if self.used == self.generated.len() {
            // Cannot fail: AWS-LC aborts if it has no randomness.
            let _ = rand::fill(self.generated.as_flattened_mut());
            self.used = 0;
        }
        let mask = Mask(self.generated[self.used]);
        self.used += 1;
        mask
    }
}

impl fmt::Debug for Masks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Masks(..)")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_example_of_rfc_6455_is_masked() {
        // RFC 6455, 5.7: "Hello" in a masked frame.
        let mut bytes = *b"Hello";
        let next = Mask::new([0x37, 0xfa, 0x21, 0x3d]).apply(&mut bytes);
        assert_eq!(bytes, [0x7f, 0x9f, 0x4d, 0x51, 0x58]);
        assert_eq!(next.key(), [0xfa, 0x21, 0x3d, 0x37]);
    }

    #[test]
    fn masks_differ() {
        let mut masks = Masks::new();
        let generated: std::collections::HashSet<_> =
            (0..200).map(|_| masks.next().key()).collect();
        assert!(generated.len() > 190);
    }

    proptest! {
        #[test]
        fn masking_is_an_involution_and_follows_the_definition(
            key: [u8; 4], bytes: Vec<u8>, at: prop::sample::Index,
        ) {
            let expected: Vec<u8> = bytes.iter().enumerate().map(|(i, it)| it ^ key[i % 4]).collect();
            let (left, right) = bytes.split_at(at.index(bytes.len() + 1));
            let (mut left, mut right) = (left.to_vec(), right.to_vec());
            let next = Mask::new(key).apply(&mut left);
            let _ = next.apply(&mut right);
            prop_assert_eq!([left, right].concat(), expected.clone());

            let mut out = BytesMut::new();
            let _ = Mask::new(key).append(&bytes, &mut out);
            prop_assert_eq!(&out[..], &expected[..]);
            let _ = Mask::new(key).apply(&mut out);
            prop_assert_eq!(&out[..], &bytes[..]);
        }
    }
}
