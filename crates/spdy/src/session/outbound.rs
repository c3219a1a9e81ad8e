//! Scheduling of sent frames.

use bytes::Buf as _;

use super::stream::{Sending, Stream};
use super::{SendBuffer, Session};
use crate::frame::{DataHead, Fin, StreamId};

/// How much is taken at a time: enough for one write, little enough not to delay replies to
/// pings.
const SEND_BUFFER_BYTES: usize = 256 * 1024;

/// The frame size of a stream of the lowest priority. One of priority `p` sends `8 - p` times
/// as much, at most 64 KiB, in one frame. moby/spdystream allocates each frame that it reads,
/// and queues 50 of them for a slow reader.
const FRAME_BYTES_PER_PRIORITY: usize = 8 * 1024;

impl Session {
    /// Whether [`Session::transmit`] has something to send.
    pub fn has_output(&self) -> bool {
        !self.control.is_empty() || !self.ready_streams.is_empty()
    }

    /// Whether [`Session::transmit`] would send data of a stream, or its end.
    pub fn has_data(&self) -> bool {
        // A stream that was reset may still be queued.
        let mut waiting = self
            .ready_streams
            .iter()
            .filter_map(|id| self.streams.get(id));
        waiting.any(Stream::has_output)
    }

    /// Moves frames to `send_buffer`, up to its bound: first all control frames, then data, a
    /// frame of each stream round-robin. Calls `has_room` with each stream whose writer may
    /// continue.
    pub fn transmit(&mut self, send_buffer: &mut SendBuffer, mut has_room: impl FnMut(StreamId)) {
        if !self.control.is_empty() {
            send_buffer.push_frames(self.control.split().freeze());
        }
        while send_buffer.remaining() < SEND_BUFFER_BYTES {
            let Some(id) = self.ready_streams.pop_front() else {
                return;
            };
            if self.send_frame(id, send_buffer) {
                has_room(id);
            }
            self.schedule(id);
            self.remove_if_closed(id);
        }
    }

    /// Sends a frame of a stream; returns whether its writer may continue.
    fn send_frame(&mut self, id: StreamId, send_buffer: &mut SendBuffer) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else {
            return false;
        };
        stream.is_scheduled = false;
        if !stream.has_output() {
            return false;
        }
        let turn = FRAME_BYTES_PER_PRIORITY * usize::from(8 - stream.priority.get());
        let mut length = stream.outbound.bytes().min(turn);
        if self.flow_control_active {
            let connection = self.send_window.available();
            length = length.min(stream.send_window.available()).min(connection);
        }
        let is_last = stream.sending == Sending::Finishing && length == stream.outbound.bytes();
        if length == 0 && !is_last {
            // The stream is scheduled again when its window grows.
            return false;
        }
        send_buffer.push_head(DataHead {
            stream: id,
            fin: if is_last { Fin::Yes } else { Fin::No },
            length,
        });
        let mut left = length;
        while let Some(piece) = stream.outbound.pop(left) {
            left -= piece.len();
            send_buffer.push_payload(piece);
        }
        stream.send_window.spend(length);
        self.send_window.spend(length);
        if is_last {
            stream.sending = Sending::Finished;
        }
        let has_room =
            stream.awaiting_capacity && stream.outbound.bytes() <= self.config.send_queue / 2;
        if has_room {
            stream.awaiting_capacity = false;
        }
        has_room || stream.outbound.is_empty()
    }

    /// Schedules a stream if it has something to send and its window allows it.
    pub(super) fn schedule(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let window = stream
            .send_window
            .available()
            .min(self.send_window.available());
        let is_blocked = self.flow_control_active && window == 0 && !stream.outbound.is_empty();
        if stream.has_output() && !is_blocked && !stream.is_scheduled && self.closed.is_none() {
            stream.is_scheduled = true;
            self.ready_streams.push_back(id);
        }
    }

    pub(super) fn schedule_all(&mut self) {
        let ids: Vec<_> = self.streams.keys().copied().collect();
        for id in ids {
            self.schedule(id);
        }
    }
}
