//! Finds the frames of a relayed SPDY connection without decoding them: whether they carry
//! data, where a ping may be inserted between two frames, and which frames are pings.

use bytes::Bytes;

/// Bytes of the head of a frame, control or data (SPDY/3.1, 2.2). In both kinds the last three
/// bytes are the length of the rest.
const HEAD_BYTES: usize = 8;

/// Bytes of the id that follows the head of a ping or of a control frame of a stream.
const ID_BYTES: usize = 4;

/// The head of a ping (2.6.5).
const PING_HEAD: [u8; HEAD_BYTES] = [0x80, 3, 0, 6, 0, 0, 0, 4];

/// Scans one direction of a connection. Bytes that are not SPDY are relayed unchanged; which frames
/// are reported for them is unspecified.
#[derive(Debug, Default)]
pub struct FrameScanner {
    /// The head of the current frame, of a control frame with the id that follows it.
    head: [u8; HEAD_BYTES + ID_BYTES],
    /// How many bytes of the head were received.
    received: usize,
    /// How many bytes of the rest were not received yet.
    remaining: usize,
}

/// A frame, classified by the stream or connection that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScannedFrame {
    /// Belongs to the stream with this id: it may wait until the application reads that
    /// stream.
    Stream(u32),
    /// Opens the stream with this id.
    SynStream(u32),
    /// A ping with this id, or the reply to one.
    Ping(u32),
    /// Belongs to the connection.
    Connection,
    /// GOAWAY: the receiver reads nothing after it.
    GoAway,
}

/// The part of a frame that the received bytes hold.
struct FramePart {
    bytes: usize,
    /// The part may belong to a ping: too few bytes were received to know.
    may_be_ping: bool,
    /// The frame, if it ends here.
    ended: Option<ScannedFrame>,
}

impl FramePart {
    fn is_of_ping(&self) -> bool {
        self.may_be_ping || matches!(self.ended, Some(ScannedFrame::Ping(_)))
    }
}

/// Result of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanResult {
    /// Some bytes belong to a frame other than a ping.
    pub has_non_ping: bool,
    /// The offset right after the last frame that ends in the bytes.
    pub last_frame_end: Option<usize>,
}

impl FrameScanner {
    /// Whether the next byte starts a frame.
    pub fn at_frame_boundary(&self) -> bool {
        self.received == 0
    }

    /// Scans the next bytes, all of which are relayed; calls `ended` with each frame that ends
    /// and its length.
    pub fn scan(&mut self, bytes: &[u8], mut ended: impl FnMut(ScannedFrame, usize)) -> ScanResult {
        let mut result = ScanResult {
            has_non_ping: false,
            last_frame_end: None,
        };
        let mut at = 0;
        while at < bytes.len() {
            let part = self.next(bytes.split_at(at).1);
            at += part.bytes;
            result.has_non_ping |= !part.is_of_ping();
            if let Some(frame) = part.ended {
                result.last_frame_end = Some(at);
                ended(frame, HEAD_BYTES + self.length());
            }
        }
        result
    }

    /// Scans the next bytes and relays all but the pings for whose ids `kept` returns true;
    /// returns whether any byte belongs to a frame other than a ping. Bytes that may belong to
    /// a ping are withheld until the rest of it is received.
    pub fn filter_pings(
        &mut self,
        mut bytes: Bytes,
        mut kept: impl FnMut(u32) -> bool,
        mut relay: impl FnMut(Bytes),
    ) -> bool {
        // Withheld bytes of the frame that these bytes continue.
        let mut withheld = self.withheld_bytes();
        let mut has_non_ping = false;
        let mut run = 0;
        while run < bytes.len() {
            let part = self.next(bytes.split_at(run).1);
            has_non_ping |= !part.is_of_ping();
            let is_kept = match part.ended {
                Some(ScannedFrame::Ping(id)) => kept(id),
                _ => part.may_be_ping,
            };
            if is_kept {
                relay_non_empty(bytes.split_to(run), &mut relay);
                drop(bytes.split_to(part.bytes));
                run = 0;
            } else {
                relay_non_empty(std::mem::take(&mut withheld), &mut relay);
                run += part.bytes;
            }
            if self.at_frame_boundary() {
                withheld = Bytes::new();
            }
        }
        relay_non_empty(bytes, &mut relay);
        has_non_ping
    }

    /// The received bytes of a frame that may be a ping.
    pub fn withheld_bytes(&self) -> Bytes {
        if self.may_be_ping() {
            Bytes::copy_from_slice(self.head_bytes())
        } else {
            Bytes::new()
        }
    }

    fn head_bytes(&self) -> &[u8] {
        self.head.get(..self.received).unwrap_or_default()
    }

    fn may_be_ping(&self) -> bool {
        let head_bytes = self.head_bytes();
        !head_bytes.is_empty()
            && (PING_HEAD.starts_with(head_bytes) || head_bytes.starts_with(&PING_HEAD))
    }

    /// The length of the frame after the eight bytes of the head, which were received.
    fn length(&self) -> usize {
        let [_, _, _, _, _, high, middle, low, ..] = self.head;
        u32::from_be_bytes([0, high, middle, low]) as usize
    }

    fn is_control(&self) -> bool {
        self.head[0] & 0x80 != 0
    }

    /// How many bytes the head has.
    fn head_length(&self) -> usize {
        if self.received >= HEAD_BYTES && self.is_control() {
            HEAD_BYTES + self.length().min(ID_BYTES)
        } else {
            HEAD_BYTES
        }
    }

    /// The part of a frame at the start of `bytes`, which is not empty.
    fn next(&mut self, bytes: &[u8]) -> FramePart {
        let head = if self.remaining == 0 {
            self.read_head(bytes)
        } else {
            0
        };
        let more = self.remaining.min(bytes.len() - head);
        self.remaining -= more;
        let mut part = FramePart {
            bytes: head + more,
            may_be_ping: self.may_be_ping(),
            ended: None,
        };
        if self.remaining == 0 && self.received >= HEAD_BYTES && self.received == self.head_length()
        {
            part.may_be_ping = false;
            part.ended = Some(self.frame());
            self.received = 0;
        }
        part
    }

    /// Reads as much of a head as was received; returns how many bytes that is.
    fn read_head(&mut self, bytes: &[u8]) -> usize {
        let mut read = 0;
        for byte in bytes {
            if let Some(to) = self.head.get_mut(self.received) {
                *to = *byte;
            }
            self.received += 1;
            read += 1;
            if self.received >= HEAD_BYTES && self.received == self.head_length() {
                self.remaining = self.length() - (self.received - HEAD_BYTES);
                break;
            }
        }
        read
    }

    /// The frame whose head was received.
    fn frame(&self) -> ScannedFrame {
        let [.., a, b, c, d] = self.head;
        let [first, second, ..] = self.head;
        if !self.is_control() {
            let [_, _, third, fourth, ..] = self.head;
            return ScannedFrame::Stream(u32::from_be_bytes([first, second, third, fourth]));
        }
        let id = u32::from_be_bytes([a, b, c, d]);
        match self.head {
            _ if self.head_bytes().starts_with(&PING_HEAD) => ScannedFrame::Ping(id),
            // SYN_STREAM; SYN_REPLY, RST_STREAM and HEADERS (2.6).
            [_, _, 0, 1, ..] if self.received == HEAD_BYTES + ID_BYTES => {
                ScannedFrame::SynStream(id & 0x7fff_ffff)
            }
            [_, _, 0, 2 | 3 | 8, ..] if self.received == HEAD_BYTES + ID_BYTES => {
                ScannedFrame::Stream(id & 0x7fff_ffff)
            }
            [_, _, 0, 7, ..] => ScannedFrame::GoAway,
            _ => ScannedFrame::Connection,
        }
    }
}

/// Does not relay empty chunks: each would become a message.
fn relay_non_empty(bytes: Bytes, relay: &mut impl FnMut(Bytes)) {
    if !bytes.is_empty() {
        relay(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PING_1: &[u8] = &[0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1];
    const PING_2: &[u8] = &[0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 2];
    /// Too long for a ping.
    const LONG_PING: &[u8] = &[0x80, 3, 0, 6, 0, 0, 0, 5, 0, 0, 0, 1, 9];
    const SETTINGS: &[u8] = &[0x80, 3, 0, 4, 0, 0, 0, 4, 0, 0, 0, 0];
    const GO_AWAY: &[u8] = &[0x80, 3, 0, 7, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    const RESET: &[u8] = &[0x80, 3, 0, 3, 0, 0, 0, 8, 1, 2, 3, 4, 0, 0, 0, 5];
    const OPEN: &[u8] = &[0x80, 3, 0, 1, 0, 0, 0, 11, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 9];
    const EMPTY: &[u8] = &[0x80, 3, 0, 5, 0, 0, 0, 0];
    const DATA: &[u8] = &[0, 0, 0, 1, 0, 0, 0, 4, 0x80, 3, 0, 6];
    const END: &[u8] = &[0, 0, 0, 1, 1, 0, 0, 0];

    const FRAME_SEQUENCES: &[&[&[u8]]] = &[
        &[],
        &[PING_1],
        &[PING_1, PING_2, PING_1],
        &[DATA],
        &[END],
        &[SETTINGS],
        &[GO_AWAY],
        &[PING_1, END, PING_1],
        &[END, END, PING_1],
        &[DATA, PING_2, GO_AWAY, PING_1, LONG_PING, PING_1, SETTINGS],
        &[OPEN, RESET, EMPTY, PING_1, RESET],
    ];

    fn expected_frame(frame: &[u8]) -> ScannedFrame {
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
    fn every_frame_but_pings_counts_as_traffic() {
        for frames in FRAME_SEQUENCES {
            let bytes = frames.concat();
            let has_non_ping = frames.iter().any(|it| !is_ping(it));
            for size in 1..=bytes.len().max(1) {
                let mut scanner = FrameScanner::default();
                let mut ended = Vec::new();
                let chunks = bytes.chunks(size);
                let relayed: Vec<ScanResult> = chunks
                    .map(|it| scanner.scan(it, |frame, bytes| ended.push((frame, bytes))))
                    .collect();
                let what = format!("{frames:?} by {size}");
                assert_eq!(
                    relayed.iter().any(|it| it.has_non_ping),
                    has_non_ping,
                    "{what}"
                );
                let expected: Vec<_> = frames
                    .iter()
                    .map(|it| (expected_frame(it), it.len()))
                    .collect();
                assert_eq!(ended, expected, "{what}");
                // At this boundary a ping is recognised.
                assert!(scanner.at_frame_boundary(), "{what}");
                assert!(!scanner.scan(PING_1, |_, _| ()).has_non_ping, "{what}");
            }
        }
    }

    #[test]
    fn frame_boundaries_are_reported() {
        for frames in FRAME_SEQUENCES {
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
    fn kept_pings_are_removed_and_other_bytes_are_unchanged() {
        for frames in FRAME_SEQUENCES {
            let bytes = Bytes::from(frames.concat());
            let kept = frames.iter().filter(|it| **it == PING_1).count();
            let others: Vec<&[u8]> = frames.iter().filter(|it| **it != PING_1).copied().collect();
            for size in 1..=bytes.len().max(1) {
                let mut scanner = FrameScanner::default();
                let (mut count, mut relayed, mut has_non_ping) = (0, Vec::new(), false);
                for chunk in bytes.chunks(size) {
                    has_non_ping |= scanner.filter_pings(
                        Bytes::copy_from_slice(chunk),
                        |id| {
                            count += usize::from(id == 1);
                            id == 1
                        },
                        |some| {
                            assert!(!some.is_empty());
                            relayed.extend_from_slice(&some);
                        },
                    );
                }
                let what = format!("{frames:?} by {size}");
                assert_eq!(relayed, others.concat(), "{what}");
                assert_eq!(count, kept, "{what}");
                assert_eq!(has_non_ping, frames.iter().any(|it| !is_ping(it)), "{what}");
                assert!(scanner.withheld_bytes().is_empty(), "{what}");
            }
        }
    }

    #[test]
    fn only_bytes_that_may_be_a_ping_are_withheld() {
        for whole in [DATA, END, SETTINGS, RESET, GO_AWAY, PING_2] {
            for length in 0..whole.len() {
                let mut scanner = FrameScanner::default();
                let mut relayed = Vec::new();
                let some = Bytes::copy_from_slice(&whole[..length]);
                scanner.filter_pings(some, |_| true, |some| relayed.extend_from_slice(&some));
                let waits = PING_2.starts_with(&whole[..length]);
                assert_eq!(relayed.is_empty(), waits || length == 0, "{whole:?}");
                // At the end the withheld bytes are unchanged.
                relayed.extend_from_slice(&scanner.withheld_bytes());
                assert_eq!(relayed, whole[..length]);
            }
        }
    }

    #[test]
    fn each_chunk_of_a_long_frame_counts_as_traffic() {
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
