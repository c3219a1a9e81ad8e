//! SPDY that is passed on in the bytes that come, without being understood but for where
//! its frames begin and whose they are: whether it carries something, where a ping may be
//! put between two of them, and which of them answers one.

use bytes::Bytes;

/// The head of a frame, control or data (SPDY/3.1, 2.2): of both the last three bytes say
/// how much follows.
const HEAD: usize = 8;

/// What follows the head of a control frame that is of a stream, or a ping: an id.
const ID: usize = 4;

/// The head of a ping (2.6.5).
const PING: [u8; HEAD] = [0x80, 3, 0, 6, 0, 0, 0, 4];

/// One direction of a connection. Of what is no SPDY everything carries something, or
/// nothing that passes for a ping: nobody depends on which.
#[derive(Debug, Default)]
pub struct FrameScanner {
    /// Of a control frame with the id that follows it, if one does.
    head: [u8; HEAD + ID],
    /// How many bytes of the head have come.
    have: usize,
    /// How many of what follows it have not.
    left: usize,
}

/// A frame, by what it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScannedFrame {
    /// To the stream of this id: it may wait for whoever reads that.
    Stream(u32),
    /// Asks for a stream, of this id.
    SynStream(u32),
    /// A ping of this id, or the answer to one.
    Ping(u32),
    /// To the connection.
    Connection,
    /// To the connection as well: nothing is read behind it.
    GoAway,
}

/// A part of a frame, as far as it is in the bytes that have come.
struct Part {
    bytes: usize,
    /// It may be one of a ping: too little has come to know.
    may_be_ping: bool,
    /// The frame, if it ends here.
    ended: Option<ScannedFrame>,
}

impl Part {
    fn is_of_ping(&self) -> bool {
        self.may_be_ping || matches!(self.ended, Some(ScannedFrame::Ping(_)))
    }
}

/// What is to be known of bytes that are passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanResult {
    /// Some of them belong to a frame that is no ping.
    pub has_non_ping: bool,
    /// Behind how many of them a frame ends, the last one that does.
    pub last_frame_end: Option<usize>,
}

impl FrameScanner {
    /// Whether the next byte is the first of a frame.
    pub fn at_frame_boundary(&self) -> bool {
        self.have == 0
    }

    /// Takes the next bytes, all of which are passed on; tells of each frame that ends, and how
    /// many bytes it has.
    pub fn scan(&mut self, bytes: &[u8], mut ended: impl FnMut(ScannedFrame, usize)) -> ScanResult {
        let mut passed = ScanResult {
            has_non_ping: false,
            last_frame_end: None,
        };
        let mut at = 0;
        while at < bytes.len() {
            let part = self.next(bytes.split_at(at).1);
            at += part.bytes;
            passed.has_non_ping |= !part.is_of_ping();
            if let Some(frame) = part.ended {
                passed.last_frame_end = Some(at);
                ended(frame, HEAD + self.length());
            }
        }
        passed
    }

    /// Takes the next bytes, and passes on all but the pings that are `kept` back, by their
    /// ids; says whether any of them carries something. What may be one waits for the rest
    /// of it.
    pub fn filter_pings(
        &mut self,
        mut bytes: Bytes,
        mut kept: impl FnMut(u32) -> bool,
        mut pass: impl FnMut(Bytes),
    ) -> bool {
        // Of the frame that these bytes begin with.
        let mut early = self.withheld_bytes();
        let mut carries = false;
        let mut run = 0;
        while run < bytes.len() {
            let part = self.next(bytes.split_at(run).1);
            carries |= !part.is_of_ping();
            let stays = match part.ended {
                Some(ScannedFrame::Ping(id)) => kept(id),
                _ => part.may_be_ping,
            };
            if stays {
                pass_some(bytes.split_to(run), &mut pass);
                drop(bytes.split_to(part.bytes));
                run = 0;
            } else {
                pass_some(std::mem::take(&mut early), &mut pass);
                run += part.bytes;
            }
            if self.at_frame_boundary() {
                early = Bytes::new();
            }
        }
        pass_some(bytes, &mut pass);
        carries
    }

    /// What has come of what may be a ping.
    pub fn withheld_bytes(&self) -> Bytes {
        if self.may_be_ping() {
            Bytes::copy_from_slice(self.begun())
        } else {
            Bytes::new()
        }
    }

    fn begun(&self) -> &[u8] {
        self.head.get(..self.have).unwrap_or_default()
    }

    fn may_be_ping(&self) -> bool {
        let begun = self.begun();
        !begun.is_empty() && (PING.starts_with(begun) || begun.starts_with(&PING))
    }

    /// How long the frame is behind the eight bytes, all of which have come.
    fn length(&self) -> usize {
        let [_, _, _, _, _, high, middle, low, ..] = self.head;
        u32::from_be_bytes([0, high, middle, low]) as usize
    }

    fn is_control(&self) -> bool {
        self.head[0] & 0x80 != 0
    }

    /// How many bytes the head has.
    fn wanted(&self) -> usize {
        if self.have >= HEAD && self.is_control() {
            HEAD + self.length().min(ID)
        } else {
            HEAD
        }
    }

    /// What these bytes begin with. They are not none.
    fn next(&mut self, bytes: &[u8]) -> Part {
        let head = if self.left == 0 {
            self.read_head(bytes)
        } else {
            0
        };
        let more = self.left.min(bytes.len() - head);
        self.left -= more;
        let mut part = Part {
            bytes: head + more,
            may_be_ping: self.may_be_ping(),
            ended: None,
        };
        if self.left == 0 && self.have >= HEAD && self.have == self.wanted() {
            part.may_be_ping = false;
            part.ended = Some(self.frame());
            self.have = 0;
        }
        part
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
            if self.have >= HEAD && self.have == self.wanted() {
                self.left = self.length() - (self.have - HEAD);
                break;
            }
        }
        read
    }

    /// The frame whose head has come.
    fn frame(&self) -> ScannedFrame {
        let [.., a, b, c, d] = self.head;
        let [first, second, ..] = self.head;
        if !self.is_control() {
            let [_, _, third, fourth, ..] = self.head;
            return ScannedFrame::Stream(u32::from_be_bytes([first, second, third, fourth]));
        }
        let id = u32::from_be_bytes([a, b, c, d]);
        match self.head {
            _ if self.begun().starts_with(&PING) => ScannedFrame::Ping(id),
            // SYN_STREAM; SYN_REPLY, RST_STREAM and HEADERS (2.6).
            [_, _, 0, 1, ..] if self.have == HEAD + ID => ScannedFrame::SynStream(id & 0x7fff_ffff),
            [_, _, 0, 2 | 3 | 8, ..] if self.have == HEAD + ID => {
                ScannedFrame::Stream(id & 0x7fff_ffff)
            }
            [_, _, 0, 7, ..] => ScannedFrame::GoAway,
            _ => ScannedFrame::Connection,
        }
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
    const RESET: &[u8] = &[0x80, 3, 0, 3, 0, 0, 0, 8, 1, 2, 3, 4, 0, 0, 0, 5];
    const OPEN: &[u8] = &[0x80, 3, 0, 1, 0, 0, 0, 11, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 9];
    const EMPTY: &[u8] = &[0x80, 3, 0, 5, 0, 0, 0, 0];
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
        &[OPEN, RESET, EMPTY, PING_1, RESET],
    ];

    fn named(frame: &[u8]) -> ScannedFrame {
        match frame {
            PING_1 => ScannedFrame::Ping(1),
            PING_2 => ScannedFrame::Ping(2),
            DATA | END => ScannedFrame::Stream(1),
            OPEN => ScannedFrame::SynStream(7),
            RESET => ScannedFrame::Stream(0x0102_0304),
            GO_AWAY => ScannedFrame::GoAway,
            _ => ScannedFrame::Connection,
        }
    }

    fn is_ping(frame: &[u8]) -> bool {
        frame == PING_1 || frame == PING_2
    }

    #[test]
    fn everything_but_pings_carries_something() {
        for frames in STORIES {
            let bytes = frames.concat();
            let carries = frames.iter().any(|it| !is_ping(it));
            for size in 1..=bytes.len().max(1) {
                let mut scanner = FrameScanner::default();
                let mut ended = Vec::new();
                let chunks = bytes.chunks(size);
                let passed: Vec<ScanResult> = chunks
                    .map(|it| scanner.scan(it, |frame, bytes| ended.push((frame, bytes))))
                    .collect();
                let what = format!("{frames:?} by {size}");
                assert_eq!(passed.iter().any(|it| it.has_non_ping), carries, "{what}");
                let expected: Vec<_> = frames.iter().map(|it| (named(it), it.len())).collect();
                assert_eq!(ended, expected, "{what}");
                // Where it stands now, a ping is one.
                assert!(scanner.at_frame_boundary(), "{what}");
                assert!(!scanner.scan(PING_1, |_, _| ()).has_non_ping, "{what}");
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
                let mut scanner = FrameScanner::default();
                let mut at = 0;
                for chunk in bytes.chunks(size) {
                    let expected = ends
                        .iter()
                        .rfind(|end| **end > at && **end <= at + chunk.len());
                    let between = scanner
                        .scan(chunk, |_, _| ())
                        .last_frame_end
                        .map(|it| it + at);
                    assert_eq!(between.as_ref(), expected, "{frames:?} by {size} at {at}");
                    at += chunk.len();
                    assert_eq!(scanner.at_frame_boundary(), ends.contains(&at));
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
                let mut scanner = FrameScanner::default();
                let (mut count, mut passed, mut carries) = (0, Vec::new(), false);
                for chunk in bytes.chunks(size) {
                    carries |= scanner.filter_pings(
                        Bytes::copy_from_slice(chunk),
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
                assert!(scanner.withheld_bytes().is_empty(), "{what}");
            }
        }
    }

    #[test]
    fn nothing_waits_that_cannot_be_a_ping() {
        for whole in [DATA, END, SETTINGS, RESET, GO_AWAY, PING_2] {
            for length in 0..whole.len() {
                let mut scanner = FrameScanner::default();
                let mut passed = Vec::new();
                let some = Bytes::copy_from_slice(&whole[..length]);
                scanner.filter_pings(some, |_| true, |some| passed.extend_from_slice(&some));
                let waits = PING_2.starts_with(&whole[..length]);
                assert_eq!(passed.is_empty(), waits || length == 0, "{whole:?}");
                // At the end, what waits is as it was.
                passed.extend_from_slice(&scanner.withheld_bytes());
                assert_eq!(passed, whole[..length]);
            }
        }
    }

    #[test]
    fn a_long_frame_carries_something_in_each_of_its_pieces() {
        let mut scanner = FrameScanner::default();
        assert!(
            scanner
                .scan(&[0, 0, 0, 1, 0, 0xff, 0xff, 0xff], |_, _| ())
                .has_non_ping
        );
        let chunk = vec![0; 0xffff];
        for _ in 0..0x00ff_ffff / chunk.len() {
            assert!(scanner.scan(&chunk, |_, _| ()).has_non_ping);
        }
    }
}
