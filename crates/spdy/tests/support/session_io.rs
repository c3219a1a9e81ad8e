//! Exchanges bytes between two sessions in memory.

use std::task::Poll;

use bytes::{Buf as _, Bytes, BytesMut};
use skewbridge_spdy::frame::StreamId;
use skewbridge_spdy::{Config, Event, FlowControl, Layout, SendBuffer, Session, StreamError};

pub(crate) fn id(id: u32) -> StreamId {
    StreamId::new(id).unwrap()
}

pub(crate) fn config(flow_control: FlowControl) -> Config {
    Config {
        flow_control,
        max_streams: 4,
        receive_window: 100_000,
        send_queue: 50_000,
        ..Config::default()
    }
}

/// The bytes that a session sends now.
pub(crate) fn output(session: &mut Session) -> BytesMut {
    let mut wire = BytesMut::new();
    while session.has_output() {
        let mut send_buffer = SendBuffer::new(Layout::Vectored);
        session.transmit(&mut send_buffer, |_| {});
        while send_buffer.has_remaining() {
            wire.extend_from_slice(send_buffer.chunk());
            send_buffer.advance(send_buffer.chunk().len());
        }
    }
    wire
}

pub(crate) fn input(session: &mut Session, mut wire: BytesMut) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(event) = session.receive(&mut wire).unwrap() {
        events.push(event);
    }
    assert!(wire.is_empty());
    events
}

pub(crate) fn read(
    session: &mut Session,
    stream: StreamId,
) -> Option<Result<Option<Bytes>, StreamError>> {
    match session.poll_read(stream) {
        Poll::Ready(read) => Some(read),
        Poll::Pending => None,
    }
}
