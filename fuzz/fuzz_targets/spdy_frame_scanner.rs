//! The scanner of relayed SPDY: any bytes, in any chunks, are relayed completely and give the same
//! frames.
//!
//! The first input byte is the chunk size.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use skewbridge_stream_io::{FrameScanner, ScannedFrame};

fuzz_target!(|input: &[u8]| {
    let [chunk, wire @ ..] = input else {
        return;
    };
    let chunk = usize::from(*chunk).max(1);
    assert_eq!(frames(wire, wire.len().max(1)), frames(wire, chunk));
    let mut scanner = FrameScanner::default();
    let mut relayed = Vec::new();
    for chunk in wire.chunks(chunk) {
        let chunk = Bytes::copy_from_slice(chunk);
        scanner.filter_pings(chunk, |_| false, |some| relayed.extend_from_slice(&some));
        assert!(scanner.withheld_bytes().len() < 12);
    }
    relayed.extend_from_slice(&scanner.withheld_bytes());
    assert_eq!(relayed, wire);
});

fn frames(wire: &[u8], chunk: usize) -> Vec<(ScannedFrame, usize)> {
    let mut scanner = FrameScanner::default();
    let mut frames = Vec::new();
    for chunk in wire.chunks(chunk) {
        scanner.scan(chunk, |frame, bytes| frames.push((frame, bytes)));
    }
    frames
}
