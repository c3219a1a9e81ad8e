//! A session: all that is known of a connection and its streams, without I/O.
//!
//! The wire's side gives it bytes ([`Session::receive`]) and takes frames
//! ([`Session::transmit`]); the application's side opens, answers, reads and
//! writes streams. Queues are inside, and bounded.

mod config;
mod inbound;
mod outbound;
mod send_buffer;
mod stream;
mod window;

use std::collections::{BTreeMap, VecDeque};
use std::task::Poll;

use bytes::{Bytes, BytesMut};

pub use config::{Config, FlowControl, Role};
pub use inbound::Event;
pub use send_buffer::{Layout, SendBuffer};
pub use stream::Half;

use crate::decoder::Decoder;
use crate::error::{Closed, OpenError, StreamError};
use crate::frame::{
    Fin, GoAway, GoAwayStatus, Ping, Priority, ResetStatus, RstStream, Setting, SettingId,
    Settings, StreamId, SynReply, SynStream, WindowUpdate,
};
use crate::header_block::Compressor;
use crate::headers::Headers;
use stream::{Origin, Receiving, Sending, Stream};
use window::{DEFAULT_WINDOW, MAX_WINDOW, PendingCredit, SendWindow};

/// How a stream begins.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// What it is for.
    pub headers: Headers,
    /// How much it matters.
    pub priority: Priority,
    /// Whether nothing will be sent on it.
    pub fin: Fin,
}

impl From<Headers> for OpenOptions {
    fn from(headers: Headers) -> Self {
        Self {
            headers,
            ..Self::default()
        }
    }
}

/// A connection and its streams.
#[derive(Debug)]
pub struct Session {
    role: Role,
    config: Config,
    decoder: Decoder,
    compressor: Compressor,
    /// A command has five: for so few a tree is one node, and nothing is hashed.
    streams: BTreeMap<StreamId, Stream>,
    /// The id of the next stream to be opened here; `None` when they are used up.
    next_id: Option<StreamId>,
    /// The last stream that the other side opened.
    last_remote_id: Option<StreamId>,
    local_streams: usize,
    remote_streams: usize,
    next_ping: u32,
    /// Whether windows count, both ways.
    flow_control_active: bool,
    send_window: SendWindow,
    /// What the other side gives each stream.
    initial_send_window: u32,
    /// How many streams the other side lets us have open.
    remote_max_streams: u32,
    pending_credit: PendingCredit,
    /// How many streams have more waiting for their readers than they should.
    over_limit_streams: usize,
    events: VecDeque<Event>,
    /// Encoded control frames; they precede all data that is not yet taken.
    control: BytesMut,
    /// The streams with something to send, in turn.
    ready_streams: VecDeque<StreamId>,
    /// Whether the other side takes no more streams.
    remote_goaway: Option<GoAwayStatus>,
    /// Whether this side takes no more.
    shutting_down: bool,
    closed: Option<Closed>,
}

impl Session {
    /// The beginning of a connection.
    pub fn new(role: Role, config: Config) -> Self {
        let first = role.first_id();
        let mut session = Self {
            role,
            decoder: Decoder::new(),
            compressor: Compressor::new(),
            streams: BTreeMap::new(),
            next_id: StreamId::new(first),
            last_remote_id: None,
            local_streams: 0,
            remote_streams: 0,
            next_ping: first,
            flow_control_active: false,
            send_window: SendWindow::new(DEFAULT_WINDOW),
            initial_send_window: DEFAULT_WINDOW,
            remote_max_streams: u32::MAX,
            pending_credit: PendingCredit::default(),
            over_limit_streams: 0,
            events: VecDeque::new(),
            control: BytesMut::new(),
            ready_streams: VecDeque::new(),
            remote_goaway: None,
            shutting_down: false,
            closed: None,
            config,
        };
        if session.config.flow_control != FlowControl::Never {
            session.send_settings();
        }
        if session.config.flow_control == FlowControl::Always {
            session.activate_flow_control();
        }
        session
    }

    fn send_settings(&mut self) {
        let setting = |id, value| Setting {
            flags: 0,
            id,
            value,
        };
        let streams = u32::try_from(self.config.max_streams).unwrap_or(u32::MAX);
        let settings = Settings {
            clear: false,
            settings: vec![
                setting(SettingId::MaxConcurrentStreams, streams),
                setting(SettingId::InitialWindowSize, self.config.receive_window),
            ],
        };
        settings.encode(&mut self.control);
    }

    /// The window of the connection is made so large that it never holds anybody: a
    /// stream that is not read must not stop the others. Memory is bounded by the
    /// windows of the streams.
    fn activate_flow_control(&mut self) {
        self.flow_control_active = true;
        self.send_window_update(None, MAX_WINDOW - DEFAULT_WINDOW);
        self.grant_connection_credit();
        let ids: Vec<_> = self.streams.keys().copied().collect();
        for id in ids {
            self.grant_credit(id);
        }
    }

    /// Opens a stream. Nothing that is written to it is sent before the other side
    /// has answered.
    pub fn open(&mut self, opening: OpenOptions) -> Result<StreamId, OpenError> {
        if let Some(closed) = &self.closed {
            return Err(closed.clone().into());
        }
        if self.shutting_down || self.remote_goaway.is_some() {
            return Err(OpenError::GoingAway);
        }
        let allowed = usize::try_from(self.remote_max_streams).unwrap_or(usize::MAX);
        if self.local_streams >= self.config.max_streams.min(allowed) {
            return Err(OpenError::TooMany);
        }
        let stream = self.next_id.ok_or(OpenError::GoingAway)?;
        let frame = SynStream {
            stream,
            associated: None,
            priority: opening.priority,
            fin: opening.fin,
            unidirectional: false,
            headers: opening.headers,
        };
        frame.encode(&mut self.compressor, &mut self.control)?;
        self.next_id = stream.next_of_same_side();
        let window = SendWindow::new(self.initial_send_window);
        let mut state = Stream::new(Origin::Local, opening.priority, window);
        if opening.fin == Fin::Yes {
            state.sending = Sending::Finished;
        }
        self.streams.insert(stream, state);
        self.local_streams += 1;
        Ok(stream)
    }

    /// Accepts a stream that the other side has opened. A second time it does
    /// nothing.
    pub fn accept(&mut self, id: StreamId, headers: Headers) -> Result<(), StreamError> {
        let stream = Self::live_stream(&mut self.streams, self.closed.as_ref(), id)?;
        if stream.origin == Origin::Local || stream.answered {
            return Ok(());
        }
        let frame = SynReply {
            stream: id,
            fin: Fin::No,
            headers,
        };
        frame.encode(&mut self.compressor, &mut self.control)?;
        stream.answered = true;
        self.schedule(id);
        Ok(())
    }

    /// Waits for the answer to a stream that was opened here; it is given once.
    pub fn poll_reply(&mut self, id: StreamId) -> Poll<Result<Headers, StreamError>> {
        let closed = self.closed.as_ref();
        if let Some(stream) = self.streams.get_mut(&id)
            && stream.answered
        {
            return Poll::Ready(Ok(stream.reply.take().unwrap_or_default()));
        }
        match Self::live_stream(&mut self.streams, closed, id) {
            Ok(_) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// Whether a stream takes data now: fewer than [`Config::send_queue`] bytes
    /// wait.
    pub fn poll_capacity(&mut self, id: StreamId) -> Poll<Result<(), StreamError>> {
        let stream = match Self::writable(&mut self.streams, self.closed.as_ref(), id) {
            Ok(stream) => stream,
            Err(error) => return Poll::Ready(Err(error)),
        };
        if stream.outbound.bytes() < self.config.send_queue {
            return Poll::Ready(Ok(()));
        }
        stream.awaiting_capacity = true;
        Poll::Pending
    }

    /// Takes data of any size; ask [`Session::poll_capacity`] first.
    pub fn write(&mut self, id: StreamId, data: Bytes) -> Result<(), StreamError> {
        let stream = Self::writable(&mut self.streams, self.closed.as_ref(), id)?;
        stream.outbound.push(data);
        self.schedule(id);
        Ok(())
    }

    /// Closes the writing half, after what waits. A second time it does nothing.
    pub fn finish(&mut self, id: StreamId) -> Result<(), StreamError> {
        let stream = Self::live_stream(&mut self.streams, self.closed.as_ref(), id)?;
        if stream.sending == Sending::Open {
            stream.sending = Sending::Finishing;
            self.schedule(id);
        }
        Ok(())
    }

    /// Waits until nothing that was written waits to be sent, the end included.
    pub fn poll_sent(&mut self, id: StreamId) -> Poll<()> {
        match Self::live_stream(&mut self.streams, self.closed.as_ref(), id) {
            Ok(stream) if !stream.outbound.is_empty() || stream.sending == Sending::Finishing => {
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }

    /// The next bytes of a stream, or `None` at its end.
    ///
    /// What came before a reset or the end of the connection is read before it is
    /// an error: Kubernetes ends streams by resetting them.
    pub fn poll_read(&mut self, id: StreamId) -> Poll<Result<Option<Bytes>, StreamError>> {
        let limit = self.config.receive_window as usize;
        let Some(stream) = self.streams.get_mut(&id) else {
            return Poll::Ready(Err(Closed::Local.into()));
        };
        let before = stream.inbound.bytes();
        if let Some(piece) = stream.inbound.pop(usize::MAX) {
            stream.pending_credit.add(piece.len());
            if before > limit && stream.inbound.bytes() <= limit {
                self.over_limit_streams -= 1;
            }
            self.grant_credit(id);
            return Poll::Ready(Ok(Some(piece)));
        }
        if stream.receiving == Receiving::Finished {
            return Poll::Ready(Ok(None));
        }
        match Self::live_stream(&mut self.streams, self.closed.as_ref(), id) {
            Ok(_) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// Ends a stream at once, both ways; what waits is thrown away.
    pub fn reset(&mut self, id: StreamId, status: ResetStatus) {
        if let Some(stream) = self.streams.get_mut(&id)
            && stream.failure.is_none()
        {
            let is_closed = stream.is_closed() || self.closed.is_some();
            stream.failure = Some(StreamError::ResetLocally(status));
            stream.outbound.clear();
            self.discard_inbound(id);
            if !is_closed {
                RstStream { stream: id, status }.encode(&mut self.control);
            }
        }
        self.remove_if_closed(id);
    }

    /// The application lets go of a half. A sender that has not finished did not
    /// mean an end: its stream is reset. What comes for a receiver that is gone is
    /// thrown away.
    pub fn release(&mut self, id: StreamId, half: Half) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        match half {
            Half::Sender => {
                stream.held_halves.sender = false;
                if stream.sending == Sending::Open && self.closed.is_none() {
                    return self.reset(id, ResetStatus::Cancel);
                }
            }
            Half::Receiver => {
                stream.held_halves.receiver = false;
                self.discard_inbound(id);
            }
        }
        self.remove_if_closed(id);
    }

    /// Resets a stream, if there is none of this id: nobody makes anything of it, and it is
    /// something to be sent.
    pub fn send_noop_reset(&mut self, stream: StreamId) {
        if !self.streams.contains_key(&stream) {
            let status = ResetStatus::Cancel;
            RstStream { stream, status }.encode(&mut self.control);
        }
    }

    /// Asks for an answer: [`Event::Pong`] with this id.
    pub fn ping(&mut self) -> u32 {
        let id = self.next_ping;
        self.next_ping = match id.checked_add(2) {
            Some(next) if next <= MAX_WINDOW => next,
            _ => self.role.first_id(),
        };
        Ping { id }.encode(&mut self.control);
        id
    }

    /// Takes no more streams from now on, of either side.
    pub fn shut_down(&mut self) {
        self.shutting_down = true;
    }

    /// Whether no more streams can come, of either side.
    pub fn accepts_no_streams(&self) -> bool {
        self.shutting_down || self.remote_goaway.is_some() || self.closed.is_some()
    }

    /// Whether the connection may end: somebody wants it to, and no stream is in
    /// use. Then comes [`Session::go_away`].
    pub fn can_close(&self) -> bool {
        let wanted = self.shutting_down || self.remote_goaway.is_some();
        wanted && !self.has_output() && !self.streams.values().any(Stream::is_busy)
    }

    /// The last frame. It is not for open streams: moby/spdystream reads nothing
    /// after it.
    pub fn go_away(&mut self, status: GoAwayStatus) {
        let last = self.last_remote_id;
        GoAway { last, status }.encode(&mut self.control);
        self.shutting_down = true;
    }

    /// The connection is over. What has come can still be read.
    pub fn close(&mut self, why: Closed) {
        if self.closed.is_none() {
            self.closed = Some(match (why, self.remote_goaway) {
                (Closed::Remote, Some(status)) => Closed::GoAway(status),
                (why, _) => why,
            });
        }
        self.ready_streams.clear();
        for stream in self.streams.values_mut() {
            stream.outbound.clear();
        }
    }

    /// Why the connection is over, when it is.
    pub fn closed(&self) -> Option<&Closed> {
        self.closed.as_ref()
    }

    /// How many streams are known: open ones, and those that the application
    /// still holds.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// A stream that has not failed.
    fn live_stream<'a>(
        streams: &'a mut BTreeMap<StreamId, Stream>,
        closed: Option<&Closed>,
        id: StreamId,
    ) -> Result<&'a mut Stream, StreamError> {
        let stream = streams.get_mut(&id).ok_or(Closed::Local)?;
        match (&stream.failure, closed) {
            (Some(failure), _) => Err(failure.clone()),
            (None, Some(closed)) => Err(closed.clone().into()),
            (None, None) => Ok(stream),
        }
    }

    /// A stream that can be written to.
    fn writable<'a>(
        streams: &'a mut BTreeMap<StreamId, Stream>,
        closed: Option<&Closed>,
        id: StreamId,
    ) -> Result<&'a mut Stream, StreamError> {
        let stream = Self::live_stream(streams, closed, id)?;
        if stream.sending == Sending::Open {
            Ok(stream)
        } else {
            Err(StreamError::Finished)
        }
    }

    fn remove_if_closed(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get(&id) else {
            return;
        };
        if stream.held_halves.any() || !stream.is_closed() && self.closed.is_none() {
            return;
        }
        match stream.origin {
            Origin::Local => self.local_streams -= 1,
            Origin::Remote => self.remote_streams -= 1,
        }
        self.streams.remove(&id);
    }

    /// Throws away what waits for a reader; the other side may send as much again.
    fn discard_inbound(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let bytes = stream.inbound.clear();
        stream.pending_credit.add(bytes);
        if bytes > self.config.receive_window as usize {
            self.over_limit_streams -= 1;
        }
        self.grant_credit(id);
    }

    /// Grants a stream again what was read of it, when it is half of its window.
    fn grant_credit(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let may_send = stream.receiving == Receiving::Open && stream.failure.is_none();
        if self.flow_control_active
            && may_send
            && let Some(delta) = stream.pending_credit.take(self.config.receive_window / 2)
        {
            self.send_window_update(Some(id), delta);
        }
    }

    /// The same for all together, by much larger steps.
    fn grant_connection_credit(&mut self) {
        if self.flow_control_active
            && let Some(delta) = self.pending_credit.take(MAX_WINDOW / 4)
        {
            self.send_window_update(None, delta);
        }
    }

    fn send_window_update(&mut self, stream: Option<StreamId>, delta: u32) {
        if self.closed.is_none() {
            WindowUpdate { stream, delta }.encode(&mut self.control);
        }
    }
}
