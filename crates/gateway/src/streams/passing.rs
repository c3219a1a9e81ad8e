//! Whether what passes carries something: SPDY that is passed on in the bytes that come,
//! without being understood.

/// The head of a frame, control or data (SPDY/3.1, 2.2): of both the last three bytes say
/// how much follows.
const HEAD: usize = 8;

/// The version with the bit of a control frame, and the type of a ping (2.6.5).
const PING: [u8; 4] = [0x80, 3, 0, 6];

/// One direction of a connection. Of what is no SPDY everything carries something, or
/// nothing that passes for a ping: nobody depends on which.
#[derive(Debug, Default)]
pub(crate) struct Passing {
    head: [u8; HEAD],
    /// How many bytes of the head have come.
    have: usize,
    /// How many of what follows it have not.
    left: usize,
}

impl Passing {
    /// Takes the next bytes; says whether any of them belong to a frame that is no ping.
    /// Those with which a head begins say nothing yet.
    pub(crate) fn carries(&mut self, mut bytes: &[u8]) -> bool {
        let mut carries = false;
        while !bytes.is_empty() {
            if self.have < HEAD {
                let (some, rest) = bytes.split_at((HEAD - self.have).min(bytes.len()));
                for (to, from) in self.head.iter_mut().skip(self.have).zip(some) {
                    *to = *from;
                }
                self.have += some.len();
                bytes = rest;
                if self.have < HEAD {
                    break;
                }
                let [.., high, middle, low] = self.head;
                self.left = u32::from_be_bytes([0, high, middle, low]) as usize;
            }
            carries |= !self.head.starts_with(&PING);
            let passed = self.left.min(bytes.len());
            bytes = bytes.split_at(passed).1;
            self.left -= passed;
            if self.left == 0 {
                self.have = 0;
            }
        }
        carries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PING_1: &[u8] = &[0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1];
    const SETTINGS: &[u8] = &[0x80, 3, 0, 4, 0, 0, 0, 4, 0, 0, 0, 0];
    const DATA: &[u8] = &[0, 0, 0, 1, 0, 0, 0, 4, 0x80, 3, 0, 6];
    const END: &[u8] = &[0, 0, 0, 1, 1, 0, 0, 0];

    #[test]
    fn everything_but_pings_carries_something() {
        for (frames, expected) in [
            (&[][..], false),
            (&[PING_1], false),
            (&[PING_1, PING_1, PING_1], false),
            (&[DATA], true),
            (&[END], true),
            (&[SETTINGS], true),
            (&[PING_1, END, PING_1], true),
            (&[END, END, PING_1], true),
        ] {
            let bytes = frames.concat();
            for size in 1..=bytes.len().max(1) {
                let mut passing = Passing::default();
                let pieces = bytes.chunks(size);
                let carried = pieces.fold(false, |any, it| passing.carries(it) | any);
                assert_eq!(carried, expected, "{frames:?} by {size}");
                // Where it stands now, a ping is one.
                assert!(!passing.carries(PING_1), "{frames:?} by {size}");
            }
        }
    }

    #[test]
    fn a_long_frame_carries_something_in_each_of_its_pieces() {
        let mut passing = Passing::default();
        assert!(passing.carries(&[0, 0, 0, 1, 0, 0xff, 0xff, 0xff]));
        let piece = vec![0; 0xffff];
        for _ in 0..0x00ff_ffff / piece.len() {
            assert!(passing.carries(&piece));
        }
    }
}
