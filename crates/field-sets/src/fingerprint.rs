//! Fingerprints that do not depend on the process, the platform or the Rust release.

/// FNV-1a, 64 bits.
#[derive(Debug, Clone, Copy)]
pub struct Fingerprint(u64);

impl Default for Fingerprint {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fingerprint {
    /// Adds bytes.
    pub fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// Adds a text and its end, so that `ab`, `c` is not `a`, `bc`.
    pub fn write_text(&mut self, text: &str) {
        self.write(text.as_bytes());
        // No byte of UTF-8.
        self.write(&[0xff]);
    }

    /// The fingerprint of everything that was added.
    pub fn finish(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the reference implementation.
    #[test]
    fn fingerprints_are_those_of_fnv_1a() {
        for (bytes, expected) in [
            (&b""[..], 0xcbf2_9ce4_8422_2325),
            (b"a", 0xaf63_dc4c_8601_ec8c),
            (b"foobar", 0x8594_4171_f739_67e8),
        ] {
            let mut fingerprint = Fingerprint::default();
            fingerprint.write(bytes);
            assert_eq!(fingerprint.finish(), expected, "{bytes:?}");
        }
    }

    #[test]
    fn the_ends_of_texts_count() {
        let of = |texts: &[&str]| {
            let mut fingerprint = Fingerprint::default();
            for text in texts {
                fingerprint.write_text(text);
            }
            fingerprint.finish()
        };
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_ne!(of(&["a", ""]), of(&["", "a"]));
    }
}
