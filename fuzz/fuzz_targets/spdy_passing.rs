//! SPDY that is passed on: any bytes, in any pieces, lose nothing and are understood the same.
//!
//! The first byte says how the others are cut.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use skewbridge_stream_io::{Frame, Passing};

fuzz_target!(|input: &[u8]| {
    let [piece, wire @ ..] = input else {
        return;
    };
    let piece = usize::from(*piece).max(1);
    assert_eq!(frames(wire, wire.len().max(1)), frames(wire, piece));
    let mut passing = Passing::default();
    let mut passed = Vec::new();
    for piece in wire.chunks(piece) {
        let piece = Bytes::copy_from_slice(piece);
        passing.sift(piece, |_| false, |some| passed.extend_from_slice(&some));
        assert!(passing.withheld().len() < 12);
    }
    passed.extend_from_slice(&passing.withheld());
    assert_eq!(passed, wire);
});

fn frames(wire: &[u8], piece: usize) -> Vec<(Frame, usize)> {
    let mut passing = Passing::default();
    let mut frames = Vec::new();
    for piece in wire.chunks(piece) {
        passing.pass(piece, |frame, bytes| frames.push((frame, bytes)));
    }
    frames
}
