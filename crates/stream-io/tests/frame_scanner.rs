//! Properties of the frame scanner: any bytes, in any chunks.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use skewbridge_spdy::frame::{Ping, ResetStatus, RstStream, StreamId};
use skewbridge_stream_io::{
    FrameScanner, KeepaliveConfig, PingPolicy, ScannedFrame, SpdyKeepalive, SpdyKeepaliveAction,
};
use tokio::time::Instant;

/// A frame on the wire, and how it is reported.
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

/// The chunks in which bytes arrive: each has the length of the next number.
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

/// The relayed bytes, and the ids of the kept pings.
fn filtered(bytes: &[u8], lengths: &[usize], kept: impl Fn(u32) -> bool) -> (Vec<u8>, Vec<u32>) {
    let mut scanner = FrameScanner::default();
    let (mut relayed, mut kept_ids) = (Vec::new(), Vec::new());
    for chunk in chunks(bytes, lengths) {
        let keep = |id| {
            if kept(id) {
                kept_ids.push(id);
            }
            kept(id)
        };
        let chunk = Bytes::copy_from_slice(chunk);
        scanner.filter_pings(chunk, keep, |some| relayed.extend_from_slice(&some));
    }
    relayed.extend_from_slice(&scanner.withheld_bytes());
    (relayed, kept_ids)
}

proptest! {
    #[test]
    fn any_split_gives_the_same_frames(
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
    fn only_kept_pings_are_missing(
        frames in proptest::collection::vec(any_frame(), 0..20),
        lengths in any_lengths(),
    ) {
        let bytes: Vec<u8> = frames.iter().flat_map(|(bytes, _)| bytes.clone()).collect();
        let kept = |id: u32| id % 2 == 1;
        let is_kept = |frame: &ScannedFrame| matches!(frame, ScannedFrame::Ping(id) if kept(*id));
        let (relayed, kept_ids) = filtered(&bytes, &lengths, kept);
        let others = frames.iter().filter(|(_, frame)| !is_kept(frame));
        let others: Vec<u8> = others.flat_map(|(bytes, _)| bytes.clone()).collect();
        prop_assert_eq!(relayed, others);
        prop_assert_eq!(kept_ids.len(), frames.iter().filter(|(_, frame)| is_kept(frame)).count());
    }

    #[test]
    fn any_bytes_are_relayed_unchanged(
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
        lengths in any_lengths(),
    ) {
        let (relayed, _) = filtered(&bytes, &lengths, |_| false);
        prop_assert_eq!(relayed, bytes);
    }

    #[test]
    fn any_traffic_leaves_the_keepalive_consistent(
        frames in proptest::collection::vec((any_frame(), any::<bool>(), 0u64..20), 0..200),
    ) {
        let config = KeepaliveConfig { interval: Duration::from_secs(10), timeout: Duration::from_secs(5) };
        let mut now = Instant::now();
        let mut keepalive = SpdyKeepalive::new(config, PingPolicy::Always, now);
        let mut id = 1000;
        for ((bytes, frame), is_received, seconds) in frames {
            now += Duration::from_secs(seconds);
            match frame {
                ScannedFrame::Ping(id) if is_received => {
                    keepalive.on_received(now);
                    keepalive.on_ping_received(id);
                }
                frame => keepalive.on_sent(now, frame, bytes.len()),
            }
            if keepalive.check(now) == SpdyKeepaliveAction::SendPings {
                for _ in 0..SpdyKeepalive::PINGS_PER_ROUND {
                    id += 1;
                    keepalive.on_ping_sent(now, id);
                    if is_received {
                        keepalive.on_ping_received(id);
                    }
                }
            }
            // Otherwise the caller would check without end.
            prop_assert!(keepalive.next_deadline().is_none_or(|next| next > now || keepalive.dead_at() <= Some(now)));
        }
    }
}
