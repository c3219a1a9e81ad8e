//! Frames that are about to be written.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

use crate::frame::{DataHead, HEAD_BYTES};

/// Memory layout of a [`SendBuffer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Separate slices, for vectored writers.
    Vectored,
    /// Copied into one slice, for other writers.
    Flat,
}

/// Encoded frames in wire order, as a [`Buf`]. Data is not copied, unless the layout is flat.
#[derive(Debug)]
pub struct SendBuffer {
    segments: VecDeque<Segment>,
    flat: BytesMut,
    layout: Layout,
    bytes: usize,
}

#[derive(Debug)]
enum Segment {
    Head([u8; HEAD_BYTES], usize),
    Bytes(Bytes),
}

impl Segment {
    fn rest(&self) -> &[u8] {
        match self {
            Self::Head(head, from) => head.get(*from..).unwrap_or_default(),
            Self::Bytes(bytes) => bytes,
        }
    }
}

impl SendBuffer {
    /// An empty buffer.
    pub fn new(layout: Layout) -> Self {
        Self {
            segments: VecDeque::new(),
            flat: BytesMut::new(),
            layout,
            bytes: 0,
        }
    }

    pub(super) fn push_frames(&mut self, frames: Bytes) {
        self.push(Segment::Bytes(frames));
    }

    pub(super) fn push_head(&mut self, head: DataHead) {
        self.push(Segment::Head(head.encode(), 0));
    }

    pub(super) fn push_payload(&mut self, payload: Bytes) {
        self.push(Segment::Bytes(payload));
    }

    fn push(&mut self, segment: Segment) {
        let length = segment.rest().len();
        if length == 0 {
            return;
        }
        self.bytes += length;
        match self.layout {
            Layout::Vectored => self.segments.push_back(segment),
            Layout::Flat => self.flat.extend_from_slice(segment.rest()),
        }
    }
}

impl Buf for SendBuffer {
    fn remaining(&self) -> usize {
        self.bytes
    }

    fn chunk(&self) -> &[u8] {
        self.segments.front().map_or(&self.flat, Segment::rest)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        if self.layout == Layout::Flat {
            return self.flat.chunks_vectored(slices);
        }
        let filled = slices.iter_mut().zip(&self.segments);
        filled
            .map(|(slice, segment)| *slice = IoSlice::new(segment.rest()))
            .count()
    }

    fn advance(&mut self, mut count: usize) {
        self.bytes = self.bytes.saturating_sub(count);
        if self.layout == Layout::Flat {
            self.flat.advance(count);
            return;
        }
        while count > 0 {
            let Some(first) = self.segments.front_mut() else {
                return;
            };
            let length = first.rest().len();
            if length <= count {
                self.segments.pop_front();
                count -= length;
                continue;
            }
            match first {
                Segment::Head(_, from) => *from += count,
                Segment::Bytes(bytes) => bytes.advance(count),
            }
            return;
        }
    }
}
