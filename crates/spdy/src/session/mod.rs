//! A session: the state of a connection and its streams, without I/O.
//!
//! The transport passes bytes in ([`Session::receive`]) and takes frames out
//! ([`Session::transmit`]); the application opens, accepts, reads and writes streams. All
//! queues are inside, and bounded.

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
use window::{DEFAULT_WINDOW_BYTES, MAX_WINDOW_BYTES, PendingCredit, SendWindow};

/// Options of a new stream.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// The headers.
    pub headers: Headers,
    /// The priority.
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
    /// A command has five streams: a tree of that size is one node, and needs no hashing.
    streams: BTreeMap<StreamId, Stream>,
    /// The id of the next local stream; `None` when all are used.
    next_id: Option<StreamId>,
    /// The last stream that the remote opened.
    last_remote_id: Option<StreamId>,
    local_streams: usize,
    remote_streams: usize,
    next_ping: u32,
    /// Whether flow control is active, in both directions.
    flow_control_active: bool,
    send_window: SendWindow,
    /// The initial send window of each stream, as the remote announced it.
    initial_send_window: u32,
    /// How many open streams the remote allows.
    remote_max_streams: u32,
    pending_credit: PendingCredit,
    /// How many streams have more unread bytes than their window.
    over_limit_streams: usize,
    events: VecDeque<Event>,
    /// Encoded control frames; they precede all data that was not taken yet.
    control: BytesMut,
    /// The streams with something to send, round-robin.
    ready_streams: VecDeque<StreamId>,
    /// The remote accepts no more streams.
    remote_goaway: Option<GoAwayStatus>,
    /// This side accepts no more streams.
    shutting_down: bool,
    closed: Option<Closed>,
}

impl Session {
    /// A new connection.
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
            send_window: SendWindow::new(DEFAULT_WINDOW_BYTES),
            initial_send_window: DEFAULT_WINDOW_BYTES,
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

    /// Makes the connection window so large that it never blocks: a stream that is not read
    /// must not stop the others. The windows of the streams bound the memory.
    fn activate_flow_control(&mut self) {
        self.flow_control_active = true;
        self.send_window_update(None, MAX_WINDOW_BYTES - DEFAULT_WINDOW_BYTES);
        self.grant_connection_credit();
        let ids: Vec<_> = self.streams.keys().copied().collect();
        for id in ids {
            self.grant_credit(id);
        }
    }

    /// Opens a stream. Its data is not sent before the remote has accepted it.
    pub fn open(&mut self, options: OpenOptions) -> Result<StreamId, OpenError> {
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
            priority: options.priority,
            fin: options.fin,
            unidirectional: false,
            headers: options.headers,
        };
        frame.encode(&mut self.compressor, &mut self.control)?;
        self.next_id = stream.next_of_same_side();
        let window = SendWindow::new(self.initial_send_window);
        let mut state = Stream::new(Origin::Local, options.priority, window);
        if options.fin == Fin::Yes {
            state.sending = Sending::Finished;
        }
        self.streams.insert(stream, state);
        self.local_streams += 1;
        Ok(stream)
    }

    /// Accepts a stream that the remote opened. Repeated calls do nothing.
    pub fn accept(&mut self, id: StreamId, headers: Headers) -> Result<(), StreamError> {
        let stream = Self::live_stream(&mut self.streams, self.closed.as_ref(), id)?;
        if stream.origin == Origin::Local || stream.is_accepted {
            return Ok(());
        }
        let frame = SynReply {
            stream: id,
            fin: Fin::No,
            headers,
        };
        frame.encode(&mut self.compressor, &mut self.control)?;
        stream.is_accepted = true;
        self.schedule(id);
        Ok(())
    }

    /// Waits for the reply to a stream that was opened locally; it is returned once.
    pub fn poll_reply(&mut self, id: StreamId) -> Poll<Result<Headers, StreamError>> {
        let closed = self.closed.as_ref();
        if let Some(stream) = self.streams.get_mut(&id)
            && stream.is_accepted
        {
            return Poll::Ready(Ok(stream.reply.take().unwrap_or_default()));
        }
        match Self::live_stream(&mut self.streams, closed, id) {
            Ok(_) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// Whether a stream accepts data now: fewer than [`Config::send_queue`] bytes are queued.
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

    /// Queues data of any size; see [`Session::poll_capacity`].
    pub fn write(&mut self, id: StreamId, data: Bytes) -> Result<(), StreamError> {
        let stream = Self::writable(&mut self.streams, self.closed.as_ref(), id)?;
        stream.outbound.push(data);
        self.schedule(id);
        Ok(())
    }

    /// Closes the writing half after the queued data. Repeated calls do nothing.
    pub fn finish(&mut self, id: StreamId) -> Result<(), StreamError> {
        let stream = Self::live_stream(&mut self.streams, self.closed.as_ref(), id)?;
        if stream.sending == Sending::Open {
            stream.sending = Sending::Finishing;
            self.schedule(id);
        }
        Ok(())
    }

    /// Waits until all queued data was sent, including the end.
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
    /// Data received before a reset or the end of the connection is read before the error:
    /// Kubernetes ends streams by resetting them.
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

    /// Resets a stream in both directions; queued data is discarded.
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

    /// The application drops a half. A sender that was not finished resets its stream, since
    /// the data may be incomplete. Data for a dropped receiver is discarded.
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

    /// Resets a stream id if no stream with it exists: the remote ignores the frame, but
    /// middleboxes see traffic.
    pub fn send_noop_reset(&mut self, stream: StreamId) {
        if !self.streams.contains_key(&stream) {
            let status = ResetStatus::Cancel;
            RstStream { stream, status }.encode(&mut self.control);
        }
    }

    /// Sends a ping. The reply is [`Event::Pong`] with this id.
    pub fn ping(&mut self) -> u32 {
        let id = self.next_ping;
        self.next_ping = match id.checked_add(2) {
            Some(next) if next <= MAX_WINDOW_BYTES => next,
            _ => self.role.first_id(),
        };
        Ping { id }.encode(&mut self.control);
        id
    }

    /// From now on neither side may open streams.
    pub fn shut_down(&mut self) {
        self.shutting_down = true;
    }

    /// Whether no more streams can be opened, by either side.
    pub fn accepts_no_streams(&self) -> bool {
        self.shutting_down || self.remote_goaway.is_some() || self.closed.is_some()
    }

    /// Whether the connection can be closed: one side has requested it, and no stream is in
    /// use. [`Session::go_away`] comes next.
    pub fn can_close(&self) -> bool {
        let wanted = self.shutting_down || self.remote_goaway.is_some();
        wanted && !self.has_output() && !self.streams.values().any(Stream::is_busy)
    }

    /// Sends the last frame. Not while streams are open: moby/spdystream reads nothing after
    /// it.
    pub fn go_away(&mut self, status: GoAwayStatus) {
        let last = self.last_remote_id;
        GoAway { last, status }.encode(&mut self.control);
        self.shutting_down = true;
    }

    /// Ends the connection. Received data can still be read.
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

    /// Why the connection has ended, if it has.
    pub fn closed(&self) -> Option<&Closed> {
        self.closed.as_ref()
    }

    /// How many streams exist: open ones, and those that the application still holds.
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

    /// Discards unread data; the remote may send as much again.
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

    /// Sends the credit for data that was read once it is half of the window.
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

    /// The same for the connection, in much larger steps.
    fn grant_connection_credit(&mut self) {
        if self.flow_control_active
            && let Some(delta) = self.pending_credit.take(MAX_WINDOW_BYTES / 4)
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
