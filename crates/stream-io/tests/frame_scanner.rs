//! What holds for SPDY that is passed on, whatever is in it and however it is cut.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use skewbridge_spdy::frame::{Ping, ResetStatus, RstStream, StreamId};
use skewbridge_stream_io::{
    FrameScanner, KeepaliveConfig, PingPolicy, ScannedFrame, SpdyKeepalive, SpdyKeepaliveAction,
};
use tokio::time::Instant;

/// A frame as it is on the wire, and what it is.
fn any_frame() -> impl Strategy<Value = (Vec<u8>, ScannedFrame)> {
    let ping = (0u32..9).prop_map(|id| {
        let mut out = BytesMut::new();
        Ping { id }.encode(&mut out);
        (out.to_vec(), ScannedFrame::Ping(id))
    });
    let reset = (1u32..9).prop_map(|id| {
        let mut out = BytesMut::new();
        let status = ResetStatus::Cancel;
        if let Some(stream) = StreamId::new(id) {
            RstStream { stream, status }.encode(&mut out);
        }
        (out.to_vec(), ScannedFrame::Stream(id))
    });
    let data = (0u8..9, proptest::collection::vec(any::<u8>(), 0..40)).prop_map(|(id, payload)| {
        let length = u8::try_from(payload.len()).unwrap_or_default();
        let mut out = vec![0, 0, 0, id, 0, 0, 0, length];
        out.extend(payload);
        (out, ScannedFrame::Stream(id.into()))
    });
    prop_oneof![ping, reset, data]
}

/// The chunks in which bytes come: each is as long as the next number says.
fn chunks<'a>(mut bytes: &'a [u8], lengths: &'a [usize]) -> impl Iterator<Item = &'a [u8]> {
    let mut lengths = lengths.iter().cycle();
    std::iter::from_fn(move || {
        let length = (*lengths.next()?).min(bytes.len());
        let (chunk, rest) = bytes.split_at(length);
        bytes = rest;
        (!chunk.is_empty()).then_some(chunk)
    })
}

fn any_lengths() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(1usize..30, 1..10)
}

/// What is passed on, and which pings were kept back.
fn sifted(bytes: &[u8], lengths: &[usize], kept: impl Fn(u32) -> bool) -> (Vec<u8>, Vec<u32>) {
    let mut scanner = FrameScanner::default();
    let (mut passed, mut back) = (Vec::new(), Vec::new());
    for chunk in chunks(bytes, lengths) {
        let keep = |id| {
            if kept(id) {
                back.push(id);
            }
            kept(id)
        };
        let chunk = Bytes::copy_from_slice(chunk);
        scanner.filter_pings(chunk, keep, |some| passed.extend_from_slice(&some));
    }
    passed.extend_from_slice(&scanner.withheld_bytes());
    (passed, back)
}

proptest! {
    #[test]
    fn any_cut_gives_the_same_frames(
        frames in proptest::collection::vec(any_frame(), 0..20),
        lengths in any_lengths(),
    ) {
        let bytes: Vec<u8> = frames.iter().flat_map(|(bytes, _)| bytes.clone()).collect();
        let mut scanner = FrameScanner::default();
        let mut ended = Vec::new();
        for chunk in chunks(&bytes, &lengths) {
            scanner.scan(chunk, |frame, bytes| ended.push((frame, bytes)));
        }
        let expected: Vec<_> = frames.iter().map(|(bytes, frame)| (*frame, bytes.len())).collect();
        prop_assert_eq!(ended, expected);
        prop_assert!(scanner.at_frame_boundary());
    }

    #[test]
    fn what_is_kept_back_is_all_that_is_missing(
        frames in proptest::collection::vec(any_frame(), 0..20),
        lengths in any_lengths(),
    ) {
        let bytes: Vec<u8> = frames.iter().flat_map(|(bytes, _)| bytes.clone()).collect();
        let kept = |id: u32| id % 2 == 1;
        let is_kept = |frame: &ScannedFrame| matches!(frame, ScannedFrame::Ping(id) if kept(*id));
        let (passed, back) = sifted(&bytes, &lengths, kept);
        let others = frames.iter().filter(|(_, frame)| !is_kept(frame));
        let others: Vec<u8> = others.flat_map(|(bytes, _)| bytes.clone()).collect();
        prop_assert_eq!(passed, others);
        prop_assert_eq!(back.len(), frames.iter().filter(|(_, frame)| is_kept(frame)).count());
    }

    #[test]
    fn any_bytes_are_passed_on_as_they_are(
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
        lengths in any_lengths(),
    ) {
        let (passed, _) = sifted(&bytes, &lengths, |_| false);
        prop_assert_eq!(passed, bytes);
    }

    #[test]
    fn nothing_that_is_sent_or_answered_confuses_the_watch(
        frames in proptest::collection::vec((any_frame(), any::<bool>(), 0u64..20), 0..200),
    ) {
        let pace = KeepaliveConfig { interval: Duration::from_secs(10), timeout: Duration::from_secs(5) };
        let mut now = Instant::now();
        let mut traffic = SpdyKeepalive::new(pace, PingPolicy::Always, now);
        let mut id = 1000;
        for ((bytes, frame), comes, seconds) in frames {
            now += Duration::from_secs(seconds);
            match frame {
                ScannedFrame::Ping(id) if comes => {
                    traffic.on_received(now);
                    traffic.on_ping_received(id);
                }
                frame => traffic.on_sent(now, frame, bytes.len()),
            }
            if traffic.check(now) == SpdyKeepaliveAction::SendPings {
                for _ in 0..SpdyKeepalive::PINGS_PER_ROUND {
                    id += 1;
                    traffic.on_ping_sent(now, id);
                    if comes {
                        traffic.on_ping_received(id);
                    }
                }
            }
            // Or it would be looked at without end.
            prop_assert!(traffic.next_deadline().is_none_or(|next| next > now || traffic.dead_at() <= Some(now)));
        }
    }
}
