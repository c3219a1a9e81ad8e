//! SPDY that is passed on in the bytes that come, without being understood but for where
//! its frames begin: whether it carries something, where a ping may be put between two of
//! them, and which of them answers one.

use bytes::Bytes;

/// The head of a frame, control or data (SPDY/3.1, 2.2): of both the last three bytes say
/// how much follows.
const HEAD: usize = 8;

/// The head of a ping (2.6.5), behind which is its id.
const PING: [u8; HEAD] = [0x80, 3, 0, 6, 0, 0, 0, 4];

/// All of a ping.
const WHOLE_PING: usize = HEAD + 4;

/// How the last frame that is read by those who take no more streams begins (2.6.6).
const GO_AWAY: [u8; 4] = [0x80, 3, 0, 7];

/// One direction of a connection. Of what is no SPDY everything carries something, or
/// nothing that passes for a ping: nobody depends on which.
#[derive(Debug, Default)]
pub(crate) struct Passing {
    /// Of a ping, that is all of it.
    head: [u8; WHOLE_PING],
    /// How many bytes of the head have come.
    have: usize,
    /// How many of what follows it have not.
    left: usize,
}

/// A part of a frame, as far as it is in the bytes that have come.
struct Part {
    bytes: usize,
    of: Of,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    /// What may be a ping: too little of it has come.
    Unknown,
    /// A ping with this id, which ends here.
    Ping(u32),
    /// A GOAWAY.
    GoAway,
    /// Something else, whether or not all of its head has come.
    Other,
}

/// What is to be known of bytes that are passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Passed {
    /// Some of them belong to a frame that is no ping.
    pub(crate) carries: bool,
    /// Some of them belong to a GOAWAY.
    pub(crate) goes_away: bool,
    /// Behind how many of them a frame ends, the last one that does.
    pub(crate) between: Option<usize>,
}

impl Passing {
    /// Whether the next byte is the first of a frame.
    pub(crate) fn is_between(&self) -> bool {
        self.have == 0
    }

    /// Takes the next bytes, all of which are passed on.
    pub(crate) fn pass(&mut self, bytes: &[u8]) -> Passed {
        let mut passed = Passed {
            carries: false,
            goes_away: false,
            between: None,
        };
        let mut at = 0;
        while at < bytes.len() {
            let part = self.next(bytes.split_at(at).1);
            at += part.bytes;
            passed.carries |= matches!(part.of, Of::GoAway | Of::Other);
            passed.goes_away |= part.of == Of::GoAway;
            if self.is_between() {
                passed.between = Some(at);
            }
        }
        passed
    }

    /// Takes the next bytes, and passes on all but the pings that are `kept` back, by their
    /// ids; says whether any of them carries something. What may be one waits for the rest
    /// of it.
    pub(crate) fn sift(
        &mut self,
        mut bytes: Bytes,
        mut kept: impl FnMut(u32) -> bool,
        mut pass: impl FnMut(Bytes),
    ) -> bool {
        // Of the frame that these bytes begin with.
        let mut early = self.withheld();
        let mut carries = false;
        let mut run = 0;
        while run < bytes.len() {
            let part = self.next(bytes.split_at(run).1);
            let stays = match part.of {
                Of::Unknown => true,
                Of::Ping(id) => kept(id),
                Of::GoAway | Of::Other => {
                    carries = true;
                    false
                }
            };
            if stays {
                pass_some(bytes.split_to(run), &mut pass);
                drop(bytes.split_to(part.bytes));
                run = 0;
            } else {
                pass_some(std::mem::take(&mut early), &mut pass);
                run += part.bytes;
            }
            if self.is_between() {
                early = Bytes::new();
            }
        }
        pass_some(bytes, &mut pass);
        carries
    }

    /// What has come of what may be a ping.
    pub(crate) fn withheld(&self) -> Bytes {
        match self.known() {
            Of::Unknown => Bytes::copy_from_slice(self.begun()),
            _ => Bytes::new(),
        }
    }

    fn begun(&self) -> &[u8] {
        self.head.get(..self.have).unwrap_or_default()
    }

    /// What the frame is that has begun.
    fn known(&self) -> Of {
        let begun = self.begun();
        if let Some(id) = begun.strip_prefix(&PING)
            && let Ok(id) = id.try_into()
        {
            return Of::Ping(u32::from_be_bytes(id));
        }
        if begun.starts_with(&GO_AWAY) {
            return Of::GoAway;
        }
        if !begun.is_empty() && (PING.starts_with(begun) || begun.starts_with(&PING)) {
            return Of::Unknown;
        }
        Of::Other
    }

    /// What these bytes begin with. They are not none.
    fn next(&mut self, bytes: &[u8]) -> Part {
        let head = if self.left == 0 {
            self.read_head(bytes)
        } else {
            0
        };
        let of = self.known();
        let more = self.left.min(bytes.len() - head);
        self.left -= more;
        if self.left == 0 && self.have == head_of(of) {
            self.have = 0;
        }
        Part {
            bytes: head + more,
            of,
        }
    }

    /// As much of a head as there is.
    fn read_head(&mut self, bytes: &[u8]) -> usize {
        let mut read = 0;
        for byte in bytes {
            if let Some(to) = self.head.get_mut(self.have) {
                *to = *byte;
            }
            self.have += 1;
            read += 1;
            let of = self.known();
            if self.have == head_of(of) {
                if !matches!(of, Of::Ping(_)) {
                    let [_, _, _, _, _, high, middle, low, ..] = self.head;
                    self.left = u32::from_be_bytes([0, high, middle, low]) as usize;
                }
                break;
            }
        }
        read
    }
}

/// How much belongs to the head.
fn head_of(of: Of) -> usize {
    match of {
        Of::Unknown | Of::Ping(_) => WHOLE_PING,
        Of::GoAway | Of::Other => HEAD,
    }
}

/// Nothing is no message.
fn pass_some(bytes: Bytes, pass: &mut impl FnMut(Bytes)) {
    if !bytes.is_empty() {
        pass(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PING_1: &[u8] = &[0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1];
    const PING_2: &[u8] = &[0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 2];
    /// No ping: it is too long for one.
    const ALMOST: &[u8] = &[0x80, 3, 0, 6, 0, 0, 0, 5, 0, 0, 0, 1, 9];
    const SETTINGS: &[u8] = &[0x80, 3, 0, 4, 0, 0, 0, 4, 0, 0, 0, 0];
    const GO_AWAY: &[u8] = &[0x80, 3, 0, 7, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    const DATA: &[u8] = &[0, 0, 0, 1, 0, 0, 0, 4, 0x80, 3, 0, 6];
    const END: &[u8] = &[0, 0, 0, 1, 1, 0, 0, 0];

    const STORIES: &[&[&[u8]]] = &[
        &[],
        &[PING_1],
        &[PING_1, PING_2, PING_1],
        &[DATA],
        &[END],
        &[SETTINGS],
        &[GO_AWAY],
        &[PING_1, END, PING_1],
        &[END, END, PING_1],
        &[DATA, PING_2, GO_AWAY, PING_1, ALMOST, PING_1, SETTINGS],
    ];

    fn is_ping(frame: &[u8]) -> bool {
        frame == PING_1 || frame == PING_2
    }

    #[test]
    fn everything_but_pings_carries_something() {
        for frames in STORIES {
            let bytes = frames.concat();
            let carries = frames.iter().any(|it| !is_ping(it));
            let goes_away = frames.contains(&GO_AWAY);
            for size in 1..=bytes.len().max(1) {
                let mut passing = Passing::default();
                let passed: Vec<Passed> = bytes.chunks(size).map(|it| passing.pass(it)).collect();
                let what = format!("{frames:?} by {size}");
                assert_eq!(passed.iter().any(|it| it.carries), carries, "{what}");
                assert_eq!(passed.iter().any(|it| it.goes_away), goes_away, "{what}");
                // Where it stands now, a ping is one.
                assert!(passing.is_between(), "{what}");
                assert!(!passing.pass(PING_1).carries, "{what}");
            }
        }
    }

    #[test]
    fn between_two_frames_is_room() {
        for frames in STORIES {
            let bytes = frames.concat();
            let mut ends = vec![0];
            for frame in *frames {
                ends.push(ends[ends.len() - 1] + frame.len());
            }
            for size in 1..=bytes.len().max(1) {
                let mut passing = Passing::default();
                let mut at = 0;
                for piece in bytes.chunks(size) {
                    let expected = ends
                        .iter()
                        .rfind(|end| **end > at && **end <= at + piece.len());
                    let between = passing.pass(piece).between.map(|it| it + at);
                    assert_eq!(between.as_ref(), expected, "{frames:?} by {size} at {at}");
                    at += piece.len();
                    assert_eq!(passing.is_between(), ends.contains(&at));
                }
            }
        }
    }

    #[test]
    fn what_is_kept_back_leaves_no_trace() {
        for frames in STORIES {
            let bytes = Bytes::from(frames.concat());
            let kept = frames.iter().filter(|it| **it == PING_1).count();
            let others: Vec<&[u8]> = frames.iter().filter(|it| **it != PING_1).copied().collect();
            for size in 1..=bytes.len().max(1) {
                let mut passing = Passing::default();
                let (mut count, mut passed, mut carries) = (0, Vec::new(), false);
                for piece in bytes.chunks(size) {
                    carries |= passing.sift(
                        Bytes::copy_from_slice(piece),
                        |id| {
                            count += usize::from(id == 1);
                            id == 1
                        },
                        |some| {
                            assert!(!some.is_empty());
                            passed.extend_from_slice(&some);
                        },
                    );
                }
                let what = format!("{frames:?} by {size}");
                assert_eq!(passed, others.concat(), "{what}");
                assert_eq!(count, kept, "{what}");
                assert_eq!(carries, frames.iter().any(|it| !is_ping(it)), "{what}");
                assert!(passing.withheld().is_empty(), "{what}");
            }
        }
    }

    #[test]
    fn nothing_waits_that_cannot_be_a_ping() {
        for whole in [DATA, END, SETTINGS, GO_AWAY, PING_2] {
            for length in 0..whole.len() {
                let mut passing = Passing::default();
                let mut passed = Vec::new();
                let some = Bytes::copy_from_slice(&whole[..length]);
                passing.sift(some, |_| true, |some| passed.extend_from_slice(&some));
                let waits = PING_2.starts_with(&whole[..length]);
                assert_eq!(passed.is_empty(), waits || length == 0, "{whole:?}");
                // At the end, what waits is as it was.
                passed.extend_from_slice(&passing.withheld());
                assert_eq!(passed, whole[..length]);
            }
        }
    }

    #[test]
    fn a_long_frame_carries_something_in_each_of_its_pieces() {
        let mut passing = Passing::default();
        assert!(passing.pass(&[0, 0, 0, 1, 0, 0xff, 0xff, 0xff]).carries);
        let piece = vec![0; 0xffff];
        for _ in 0..0x00ff_ffff / piece.len() {
            assert!(passing.pass(&piece).carries);
        }
    }
}
