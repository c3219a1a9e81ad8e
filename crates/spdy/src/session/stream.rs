//! What is known of one stream.

use crate::bytes_list::BytesList;
use crate::error::StreamError;
use crate::frame::{Fin, Priority};
use crate::headers::Headers;

use super::window::{PendingCredit, SendWindow};

/// Who opened a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Local,
    Remote,
}

/// How far sending is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sending {
    Open,
    /// No more will be written; what waits and then the end is to be sent.
    Finishing,
    Finished,
}

/// How far receiving is.
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

/// One of the two halves, as the application holds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// The one that is written to.
    Sender,
    /// The one that is read from.
    Receiver,
}

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) origin: Origin,
    pub(super) priority: Priority,
    /// Whether the `SYN_REPLY` has been sent or received. Nothing is sent before:
    /// moby/spdystream drops data of streams that are not answered.
    pub(super) answered: bool,
    /// What the other side said when it accepted.
    pub(super) reply: Option<Headers>,
    pub(super) sending: Sending,
    pub(super) receiving: Receiving,
    /// Why it ended early.
    pub(super) failure: Option<StreamError>,
    pub(super) inbound: BytesList,
    pub(super) outbound: BytesList,
    pub(super) send_window: SendWindow,
    pub(super) pending_credit: PendingCredit,
    /// Whether it stands in ready_streams to be sent.
    pub(super) is_scheduled: bool,
    /// Whether its writer waits for room.
    pub(super) awaiting_capacity: bool,
    pub(super) held_halves: HeldHalves,
}

/// Which halves the application still has.
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
            answered: false,
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
        self.answered && self.failure.is_none() && (is_finishing || !self.outbound.is_empty())
    }

    /// Whether the end of the connection would cut something off that this side
    /// still has to do or waits for. What the other side may yet send and nobody
    /// here reads does not count.
    pub(super) fn is_busy(&self) -> bool {
        self.held_halves.any() || self.failure.is_none() && self.sending != Sending::Finished
    }

    /// Whether neither side may send anything more.
    pub(super) fn is_closed(&self) -> bool {
        let is_closed = self.sending == Sending::Finished && self.receiving == Receiving::Finished;
        is_closed || self.failure.is_some()
    }
}
