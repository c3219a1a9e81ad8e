//! The state of one stream.

use crate::bytes_list::BytesList;
use crate::error::StreamError;
use crate::frame::{Fin, Priority};
use crate::headers::Headers;

use super::window::{PendingCredit, SendWindow};

/// Which side opened a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Local,
    Remote,
}

/// State of sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sending {
    Open,
    /// No more will be written; the queued data and then the end are to be sent.
    Finishing,
    Finished,
}

/// State of receiving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Receiving {
    Open,
    Finished,
}

impl From<Fin> for Receiving {
    fn from(fin: Fin) -> Self {
        match fin {
            Fin::No => Self::Open,
            Fin::Yes => Self::Finished,
        }
    }
}

/// One of the two halves that the application holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// The half for writing.
    Sender,
    /// The half for reading.
    Receiver,
}

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) origin: Origin,
    pub(super) priority: Priority,
    /// Whether the `SYN_REPLY` was sent or received. No data is sent before: moby/spdystream
    /// drops data of streams that are not accepted yet.
    pub(super) is_accepted: bool,
    /// The headers of the remote's reply.
    pub(super) reply: Option<Headers>,
    pub(super) sending: Sending,
    pub(super) receiving: Receiving,
    /// Why it ended early.
    pub(super) failure: Option<StreamError>,
    pub(super) inbound: BytesList,
    pub(super) outbound: BytesList,
    pub(super) send_window: SendWindow,
    pub(super) pending_credit: PendingCredit,
    /// Whether it is queued to be sent.
    pub(super) is_scheduled: bool,
    /// Whether its writer waits for capacity.
    pub(super) awaiting_capacity: bool,
    pub(super) held_halves: HeldHalves,
}

/// Which halves the application still holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeldHalves {
    pub(super) sender: bool,
    pub(super) receiver: bool,
}

impl HeldHalves {
    pub(super) fn any(self) -> bool {
        self.sender || self.receiver
    }
}

impl Stream {
    pub(super) fn new(origin: Origin, priority: Priority, send_window: SendWindow) -> Self {
        Self {
            origin,
            priority,
            is_accepted: false,
            reply: None,
            sending: Sending::Open,
            receiving: Receiving::Open,
            failure: None,
            inbound: BytesList::default(),
            outbound: BytesList::default(),
            send_window,
            pending_credit: PendingCredit::default(),
            is_scheduled: false,
            awaiting_capacity: false,
            held_halves: HeldHalves {
                sender: true,
                receiver: true,
            },
        }
    }

    pub(super) fn has_output(&self) -> bool {
        let is_finishing = self.sending == Sending::Finishing;
        self.is_accepted && self.failure.is_none() && (is_finishing || !self.outbound.is_empty())
    }

    /// Whether ending the connection would interrupt something that this side still does or
    /// waits for. Data that the remote may still send and that is not read does not count.
    pub(super) fn is_busy(&self) -> bool {
        self.held_halves.any() || self.failure.is_none() && self.sending != Sending::Finished
    }

    /// Whether neither side may send any more.
    pub(super) fn is_closed(&self) -> bool {
        let is_closed = self.sending == Sending::Finished && self.receiving == Receiving::Finished;
        is_closed || self.failure.is_some()
    }
}
