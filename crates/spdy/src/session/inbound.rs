//! Handling of received frames.

use bytes::BytesMut;

use super::stream::{Origin, Receiving, Sending, Stream};
use super::window::SendWindow;
use super::{FlowControl, Role, Session};
use crate::error::{Closed, Error, StreamError};
use crate::frame::{
    Data, Fin, Frame, GoAway, HeadersFrame, Ping, Priority, ResetStatus, RstStream, SettingId,
    Settings, StreamId, SynReply, SynStream, WindowUpdate,
};
use crate::headers::Headers;

/// Bound of unsent control frames: a remote that sends pings and does not read is not read
/// either.
const MAX_CONTROL_BYTES: usize = 64 * 1024;

/// An event for the application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The remote opened a stream: to be accepted or reset.
    Opened {
        /// The stream.
        stream: StreamId,
        /// Its headers.
        headers: Headers,
        /// Its priority.
        priority: Priority,
    },
    /// The remote accepted a stream.
    Accepted(StreamId),
    /// There is data to read, or the end.
    Readable(StreamId),
    /// A HEADERS frame was received.
    Headers {
        /// The stream.
        stream: StreamId,
        /// The headers.
        headers: Headers,
    },
    /// A stream failed: reading, writing and waiting end.
    Failed(StreamId),
    /// The reply to a ping.
    Pong(u32),
    /// The remote accepts no more streams.
    GoAway,
}

impl Session {
    /// Decodes the next event from the front of `buffer`; `None` means that more bytes are
    /// needed. After an error the connection has to be closed ([`Session::close`]).
    pub fn receive(&mut self, buffer: &mut BytesMut) -> Result<Option<Event>, Error> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            let Some(frame) = self.decoder.decode(buffer)? else {
                return Ok(None);
            };
            if let Some(event) = self.frame(frame)? {
                return Ok(Some(event));
            }
        }
    }

    /// Whether the connection should be read. Not while a stream has more unread data than its
    /// window: only a remote without flow control sends that much, and it can be slowed only
    /// as a whole.
    pub fn wants_input(&self) -> bool {
        self.over_limit_streams == 0 && self.control.len() < MAX_CONTROL_BYTES
    }

    /// Whether this stream has more unread data than its window.
    pub fn is_over_limit(&self, id: StreamId) -> bool {
        let limit = self.config.receive_window as usize;
        let stream = self.streams.get(&id);
        stream.is_some_and(|stream| stream.inbound.bytes() > limit)
    }

    /// The remote has ended the connection. `buffer` is what is left unparsed.
    pub fn end_of_input(&mut self, buffer: &BytesMut) -> Result<(), Error> {
        if self.decoder.is_between_frames(buffer) {
            self.close(Closed::Remote);
            Ok(())
        } else {
            Err(Error::UnexpectedEof)
        }
    }

    fn frame(&mut self, frame: Frame) -> Result<Option<Event>, Error> {
        Ok(match frame {
            Frame::Data(frame) => self.data(frame),
            Frame::SynStream(frame) => self.syn_stream(frame)?,
            Frame::SynReply(frame) => self.syn_reply(frame),
            Frame::RstStream(frame) => self.rst_stream(frame),
            Frame::Headers(frame) => self.on_headers(frame),
            Frame::Ping(frame) => self.answer_ping(frame),
            Frame::GoAway(frame) => Some(self.on_goaway(frame)),
            Frame::Settings(frame) => {
                self.settings(&frame)?;
                None
            }
            Frame::WindowUpdate(frame) => self.window_update(frame)?,
        })
    }

    fn data(&mut self, frame: Data) -> Option<Event> {
        let Data {
            stream: id,
            fin,
            payload,
        } = frame;
        self.pending_credit.add(payload.len());
        self.grant_connection_credit();
        let limit = self.config.receive_window as usize;
        let Some(stream) = self.streams.get_mut(&id) else {
            self.reset_unknown(id);
            return None;
        };
        if stream.failure.is_some() {
            return None;
        }
        if stream.receiving == Receiving::Finished {
            return self.fail(id, ResetStatus::StreamAlreadyClosed);
        }
        if !stream.is_accepted && stream.origin == Origin::Local {
            return self.fail(id, ResetStatus::ProtocolError);
        }
        stream.receiving = fin.into();
        if stream.held_halves.receiver {
            let before = stream.inbound.bytes();
            stream.inbound.push(payload);
            if before <= limit && stream.inbound.bytes() > limit {
                self.over_limit_streams += 1;
            }
        } else {
            stream.pending_credit.add(payload.len());
            self.grant_credit(id);
        }
        self.remove_if_closed(id);
        Some(Event::Readable(id))
    }

    /// A frame for an unknown stream. If the stream existed before, the frame may have been in
    /// flight.
    fn reset_unknown(&mut self, id: StreamId) {
        let was_there = if self.is_remote(id) {
            self.last_remote_id.is_some_and(|last| id <= last)
        } else {
            self.next_id.is_none_or(|next| id < next)
        };
        if !was_there {
            let status = ResetStatus::InvalidStream;
            RstStream { stream: id, status }.encode(&mut self.control);
        }
    }

    fn syn_stream(&mut self, frame: SynStream) -> Result<Option<Event>, Error> {
        let id = frame.stream;
        if !self.is_remote(id) || self.last_remote_id.is_some_and(|last| id <= last) {
            return Err(Error::Protocol("a stream with an id that must not be used"));
        }
        self.last_remote_id = Some(id);
        if self.shutting_down || self.remote_streams >= self.config.max_streams {
            let status = ResetStatus::RefusedStream;
            RstStream { stream: id, status }.encode(&mut self.control);
            return Ok(None);
        }
        let window = SendWindow::new(self.initial_send_window);
        let mut stream = Stream::new(Origin::Remote, frame.priority, window);
        stream.receiving = frame.fin.into();
        if frame.unidirectional {
            stream.sending = Sending::Finished;
        }
        self.streams.insert(id, stream);
        self.remote_streams += 1;
        Ok(Some(Event::Opened {
            stream: id,
            headers: frame.headers,
            priority: frame.priority,
        }))
    }

    fn syn_reply(&mut self, frame: SynReply) -> Option<Event> {
        let id = frame.stream;
        let stream = self.streams.get_mut(&id)?;
        if stream.failure.is_some() {
            return None;
        }
        if stream.origin == Origin::Remote {
            return self.fail(id, ResetStatus::ProtocolError);
        }
        if stream.is_accepted {
            return self.fail(id, ResetStatus::StreamInUse);
        }
        stream.is_accepted = true;
        stream.reply = Some(frame.headers);
        stream.receiving = frame.fin.into();
        self.schedule(id);
        self.remove_if_closed(id);
        Some(Event::Accepted(id))
    }

    fn on_headers(&mut self, frame: HeadersFrame) -> Option<Event> {
        let stream = self.streams.get_mut(&frame.stream)?;
        if stream.failure.is_some() {
            return None;
        }
        if stream.receiving == Receiving::Finished {
            return self.fail(frame.stream, ResetStatus::StreamAlreadyClosed);
        }
        if frame.fin == Fin::Yes {
            stream.receiving = Receiving::Finished;
            self.events.push_back(Event::Readable(frame.stream));
        }
        self.remove_if_closed(frame.stream);
        Some(Event::Headers {
            stream: frame.stream,
            headers: frame.headers,
        })
    }

    fn rst_stream(&mut self, frame: RstStream) -> Option<Event> {
        let id = frame.stream;
        let stream = self.streams.get_mut(&id)?;
        if stream.failure.is_some() {
            return None;
        }
        stream.failure = Some(match frame.status {
            ResetStatus::RefusedStream => StreamError::Refused,
            status => StreamError::ResetByRemote(status),
        });
        stream.outbound.clear();
        self.remove_if_closed(id);
        Some(Event::Failed(id))
    }

    fn answer_ping(&mut self, frame: Ping) -> Option<Event> {
        let ours = match self.role {
            Role::Client => 1,
            Role::Server => 0,
        };
        if frame.id % 2 == ours {
            return Some(Event::Pong(frame.id));
        }
        frame.encode(&mut self.control);
        None
    }

    fn on_goaway(&mut self, frame: GoAway) -> Event {
        self.remote_goaway = Some(frame.status);
        for (id, stream) in &mut self.streams {
            let is_unseen = frame.last.is_none_or(|last| *id > last);
            if stream.origin == Origin::Local && is_unseen && !stream.is_accepted {
                stream.failure = Some(StreamError::Refused);
                stream.outbound.clear();
                self.events.push_back(Event::Failed(*id));
            }
        }
        Event::GoAway
    }

    fn settings(&mut self, frame: &Settings) -> Result<(), Error> {
        self.on_remote_flow_control();
        if let Some(most) = frame.get(SettingId::MaxConcurrentStreams) {
            self.remote_max_streams = most;
        }
        if let Some(size) = frame.get(SettingId::InitialWindowSize) {
            let delta = i64::from(size) - i64::from(self.initial_send_window);
            let overflow = |_| Error::Protocol("a window that overflows");
            SendWindow::new(0)
                .shift(i64::from(size))
                .map_err(overflow)?;
            for stream in self.streams.values_mut() {
                stream.send_window.shift(delta).map_err(overflow)?;
            }
            self.initial_send_window = size;
            self.schedule_all();
        }
        Ok(())
    }

    fn window_update(&mut self, frame: WindowUpdate) -> Result<Option<Event>, Error> {
        self.on_remote_flow_control();
        let Some(id) = frame.stream else {
            let overflow = |_| Error::Protocol("a window that overflows");
            self.send_window.grow(frame.delta).map_err(overflow)?;
            self.schedule_all();
            return Ok(None);
        };
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(None);
        };
        if stream.send_window.grow(frame.delta).is_err() {
            return Ok(self.fail(id, ResetStatus::FlowControlError));
        }
        self.schedule(id);
        Ok(None)
    }

    fn on_remote_flow_control(&mut self) {
        if self.config.flow_control == FlowControl::Auto && !self.flow_control_active {
            self.activate_flow_control();
        }
    }

    /// Resets a stream on which the remote has violated the protocol.
    fn fail(&mut self, id: StreamId, status: ResetStatus) -> Option<Event> {
        let stream = self.streams.get_mut(&id)?;
        if stream.failure.is_some() {
            return None;
        }
        self.reset(id, status);
        Some(Event::Failed(id))
    }

    fn is_remote(&self, id: StreamId) -> bool {
        id.is_client_initiated() == (self.role == Role::Server)
    }
}
