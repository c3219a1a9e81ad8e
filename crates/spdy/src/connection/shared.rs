//! State shared by the driver, handles and streams of a connection.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use bytes::BytesMut;
use tokio::sync::oneshot;

use crate::error::{Closed, Error};
use crate::frame::{Priority, ResetStatus, StreamId};
use crate::headers::Headers;
use crate::session::{Config, Event, Half, Role, SendBuffer, Session};

/// The session and the wakers of its users. The lock is held only while pointers are moved;
/// I/O happens without it.
#[derive(Debug)]
pub(super) struct Shared(Mutex<State>);

#[derive(Debug)]
pub(super) struct State {
    pub(super) session: Session,
    /// Handles and [`super::Incoming`]: users that could still use new streams.
    pub(super) users: usize,
    /// Whether streams of the remote are accepted.
    pub(super) accepts: bool,
    /// Streams that were not accepted yet; bounded by the stream limit of the session.
    pub(super) opened: VecDeque<IncomingStream>,
    pub(super) opened_waker: Option<Waker>,
    pub(super) pings: HashMap<u32, oneshot::Sender<()>>,
    /// How many pings to send before data.
    pub(super) pings_before_data: Option<PingsBeforeData>,
    streams: BTreeMap<StreamId, StreamWakers>,
    driver: Option<Waker>,
}

/// Called whenever data is about to be sent.
pub(super) struct PingsBeforeData(pub(super) Box<dyn FnMut() -> usize + Send>);

impl fmt::Debug for PingsBeforeData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PingsBeforeData").finish_non_exhaustive()
    }
}

/// A stream that the remote has opened.
#[derive(Debug)]
pub(super) struct IncomingStream {
    pub(super) stream: StreamId,
    pub(super) headers: Headers,
    pub(super) priority: Priority,
}

/// The wakers of a stream.
#[derive(Debug, Default)]
struct StreamWakers {
    read: Option<Waker>,
    write: Option<Waker>,
}

impl Shared {
    pub(super) fn new(role: Role, config: Config) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            session: Session::new(role, config),
            users: 0,
            accepts: true,
            opened: VecDeque::new(),
            opened_waker: None,
            pings: HashMap::new(),
            pings_before_data: None,
            streams: BTreeMap::new(),
            driver: None,
        })))
    }

    /// A panic under the lock is a bug of the code that panicked; other users can still end
    /// cleanly.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the session and wakes the driver.
    pub(super) fn update_and_wake<R>(&self, action: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        let result = action(&mut state);
        let driver = state.driver.take();
        drop(state);
        if let Some(driver) = driver {
            driver.wake();
        }
        result
    }

    /// Updates the session, for updates that mostly need no wake-up: the driver is woken only if
    /// the session has output, or if the driver may read again.
    pub(super) fn update_and_wake_if_needed<R>(&self, action: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        let could_read = state.session.wants_input();
        let result = action(&mut state);
        let may_read = !could_read && state.session.wants_input();
        let driver = if may_read || state.session.has_output() {
            state.driver.take()
        } else {
            None
        };
        drop(state);
        if let Some(driver) = driver {
            driver.wake();
        }
        result
    }
}

impl State {
    /// Registers the waker of the idle driver.
    pub(super) fn register_driver(&mut self, context: &Context<'_>) {
        match &mut self.driver {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
    }

    pub(super) fn wait(&mut self, stream: StreamId, half: Half, context: &Context<'_>) {
        let waiting = self.streams.entry(stream).or_default();
        let slot = match half {
            Half::Receiver => &mut waiting.read,
            Half::Sender => &mut waiting.write,
        };
        match slot {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
    }

    pub(super) fn release(&mut self, stream: StreamId, half: Half) {
        self.session.release(stream, half);
        let Some(waiting) = self.streams.get_mut(&stream) else {
            return;
        };
        match half {
            Half::Receiver => waiting.read = None,
            Half::Sender => waiting.write = None,
        }
        if waiting.read.is_none() && waiting.write.is_none() {
            self.streams.remove(&stream);
        }
    }

    /// Processes received bytes.
    pub(super) fn receive(
        &mut self,
        input: &mut BytesMut,
        wake: &mut Vec<Waker>,
    ) -> Result<(), Error> {
        while let Some(event) = self.session.receive(input)? {
            self.on_event(event, wake);
        }
        Ok(())
    }

    /// Sends pings without waiting for their replies.
    pub(super) fn ping(&mut self, count: usize) {
        for _ in 0..count {
            self.session.ping();
        }
    }

    /// Takes the frames that are to be sent.
    pub(super) fn transmit(&mut self, output: &mut SendBuffer, wake: &mut Vec<Waker>) {
        if self.session.has_data()
            && let Some(PingsBeforeData(count)) = &mut self.pings_before_data
        {
            let count = count();
            self.ping(count);
        }
        let streams = &mut self.streams;
        self.session.transmit(output, |stream| {
            if let Some(waiting) = streams.get_mut(&stream) {
                wake.extend(waiting.write.take());
            }
        });
    }

    /// Wakes the tasks that an event concerns.
    fn on_event(&mut self, event: Event, wake: &mut Vec<Waker>) {
        match event {
            Event::Opened {
                stream,
                headers,
                priority,
            } => {
                if !self.accepts {
                    self.refuse(stream);
                    return;
                }
                self.opened.push_back(IncomingStream {
                    stream,
                    headers,
                    priority,
                });
                wake.extend(self.opened_waker.take());
            }
            Event::Readable(stream) => {
                if let Some(waiting) = self.streams.get_mut(&stream) {
                    wake.extend(waiting.read.take());
                }
            }
            Event::Accepted(stream) | Event::Failed(stream) => {
                if let Some(waiting) = self.streams.get_mut(&stream) {
                    wake.extend(waiting.read.take());
                    wake.extend(waiting.write.take());
                }
            }
            Event::Pong(id) => {
                if let Some(ping) = self.pings.remove(&id) {
                    let _ = ping.send(());
                }
            }
            // Kubernetes never sends HEADERS.
            Event::Headers { .. } => {}
            Event::GoAway => wake.extend(self.opened_waker.take()),
        }
    }

    /// Refuses a stream of the remote.
    pub(super) fn refuse(&mut self, stream: StreamId) {
        self.session.reset(stream, ResetStatus::RefusedStream);
        self.session.release(stream, Half::Sender);
        self.session.release(stream, Half::Receiver);
    }

    /// Ends the connection and wakes all waiters.
    pub(super) fn close(&mut self, why: Closed, wake: &mut Vec<Waker>) {
        self.session.close(why);
        for waiting in self.streams.values_mut() {
            wake.extend(waiting.read.take());
            wake.extend(waiting.write.take());
        }
        wake.extend(self.opened_waker.take());
        self.pings.clear();
    }
}
