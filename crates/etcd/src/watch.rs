//! A watch: a long-lived stream of changes.

use std::sync::Arc;

use bytes::Bytes;
use h2::SendStream;
use prost::Message;

use crate::connection::{CallEnd, Connection, ResponseStream, WatchGuard};
use crate::error::{Error, Failure};
use crate::messages::{
    self, EventType, WatchAction, WatchCreateRequest, WatchRequest, WatchResponse,
};
use crate::status::sanitize_text;
use crate::types::{Event, Revision, prefix_range};

const WATCH: &str = "/etcdserverpb.Watch/Watch";

/// The changes below a prefix, in order and without gaps. Ends when dropped.
///
/// Unread changes are buffered in etcd, except for one flow-control window in this process.
#[derive(Debug)]
pub struct Watch {
    responses: ResponseStream,
    last_revision: Revision,
    failed: Option<Error>,
    // Dropping it would end the watch.
    _stream: SendStream<Bytes>,
    _watching: WatchGuard,
    connection: Arc<Connection>,
}

/// A message of a watch.
#[derive(Debug, PartialEq, Eq)]
enum WatchMessage {
    Created,
    Changes {
        events: Vec<Event>,
        /// All changes up to this revision were reported, if the message states it.
        last_revision: Option<Revision>,
    },
}

impl Watch {
    pub(crate) fn request(prefix: &[u8], from: Revision) -> WatchRequest {
        let (key, range_end) = prefix_range(prefix);
        WatchRequest {
            action: Some(WatchAction::Create(WatchCreateRequest {
                key,
                range_end,
                start_revision: from.get(),
                progress_notify: true,
                // Many simultaneous changes are split into several messages.
                fragment: true,
            })),
        }
    }

    /// Starts a watch and waits until etcd has confirmed it.
    pub(crate) async fn open(
        connection: Arc<Connection>,
        frame: Bytes,
        from: Revision,
    ) -> Result<Self, Failure> {
        let watching = connection.watch_guard();
        let (stream, mut responses) = connection.call(WATCH, frame, CallEnd::Streaming).await?;
        match next_message(&mut responses).await? {
            WatchMessage::Created => Ok(Self {
                responses,
                last_revision: Revision::new(from.get().saturating_sub(1)),
                failed: None,
                _stream: stream,
                _watching: watching,
                connection,
            }),
            WatchMessage::Changes { .. } => Err(malformed("changes before the watch was created")),
        }
    }

    /// Waits for changes. There is at least one; those of one transaction come in two calls
    /// only if they exceed a message.
    ///
    /// Any error is final: list again and start a new watch, or, unless it is [`Error::Compacted`],
    /// start one after [`Watch::last_revision`]. Cancelling loses no change.
    pub async fn next(&mut self) -> Result<Vec<Event>, Error> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        match self.changes().await {
            Ok(events) => Ok(events),
            Err(failure) => {
                let error = failure.at(self.connection.endpoint());
                self.failed = Some(error.clone());
                Err(error)
            }
        }
    }

    /// All changes up to this revision were reported. It also advances without changes, as
    /// etcd sends progress notifications while [`Watch::next`] waits.
    pub fn last_revision(&self) -> Revision {
        self.last_revision
    }

    async fn changes(&mut self) -> Result<Vec<Event>, Failure> {
        loop {
            match next_message(&mut self.responses).await? {
                WatchMessage::Created => return Err(malformed("the watch was created twice")),
                WatchMessage::Changes {
                    events,
                    last_revision,
                } => {
                    self.last_revision = self
                        .last_revision
                        .max(last_revision.unwrap_or(self.last_revision));
                    if !events.is_empty() {
                        return Ok(events);
                    }
                }
            }
        }
    }
}

async fn next_message(responses: &mut ResponseStream) -> Result<WatchMessage, Failure> {
    match responses.next().await? {
        Some(message) => read(WatchResponse::decode(message)?),
        None => Err(Failure::WatchEnded("no reason given".to_owned())),
    }
}

fn read(response: WatchResponse) -> Result<WatchMessage, Failure> {
    if response.compact_revision != 0 {
        let revision = Revision::new(response.compact_revision);
        return Err(Failure::Compacted(revision));
    }
    if response.canceled {
        return Err(Failure::WatchEnded(sanitize_text(&response.cancel_reason)));
    }
    if response.created {
        return Ok(WatchMessage::Created);
    }
    let events = response
        .events
        .into_iter()
        .map(event)
        .collect::<Result<Vec<_>, _>>()?;
    let last_revision = match events.last() {
        // More changes of the last revision may follow.
        Some(last) if response.fragment => Some(Revision::new(changed(last).get() - 1)),
        Some(last) => Some(changed(last)),
        // Without changes, the header has etcd's progress.
        None => response.header.map(|header| Revision::new(header.revision)),
    };
    Ok(WatchMessage::Changes {
        events,
        last_revision,
    })
}

fn event(event: messages::Event) -> Result<Event, Failure> {
    let kv = event
        .kv
        .ok_or_else(|| malformed("a change without a key"))?;
    match EventType::try_from(event.r#type) {
        Ok(EventType::Put) => Ok(Event::Put(kv.into())),
        Ok(EventType::Delete) => Ok(Event::Delete {
            key: kv.key,
            mod_revision: Revision::new(kv.mod_revision),
        }),
        Err(_) => Err(malformed("a change that is neither a put nor a delete")),
    }
}

fn changed(event: &Event) -> Revision {
    match event {
        Event::Put(kv) => kv.mod_revision,
        Event::Delete { mod_revision, .. } => *mod_revision,
    }
}

fn malformed(cause: &str) -> Failure {
    Failure::Malformed(cause.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{KeyValue, ResponseHeader};

    fn change(kind: i32, revision: i64) -> messages::Event {
        messages::Event {
            r#type: kind,
            kv: Some(KeyValue {
                key: "k".into(),
                mod_revision: revision,
                ..KeyValue::default()
            }),
        }
    }

    fn last_revision(response: WatchResponse) -> Option<i64> {
        match read(response) {
            Ok(WatchMessage::Changes { last_revision, .. }) => last_revision.map(Revision::get),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_last_revision_covers_only_reported_changes() {
        let header = Some(ResponseHeader { revision: 90 });
        let whole = WatchResponse {
            header,
            events: vec![change(0, 7), change(1, 8)],
            ..WatchResponse::default()
        };
        let part = WatchResponse {
            fragment: true,
            ..whole.clone()
        };
        let progress = WatchResponse {
            header,
            ..WatchResponse::default()
        };
        assert_eq!(last_revision(whole), Some(8));
        assert_eq!(last_revision(part), Some(7));
        assert_eq!(last_revision(progress), Some(90));
    }

    #[test]
    fn a_cancelled_watch_is_an_error_even_while_it_is_created() {
        let cancelled = WatchResponse {
            created: true,
            canceled: true,
            cancel_reason: "no\npermission".to_owned(),
            ..WatchResponse::default()
        };
        let reason = "no\u{fffd}permission";
        assert!(matches!(read(cancelled), Err(Failure::WatchEnded(text)) if text == reason));
        let compacted = WatchResponse {
            canceled: true,
            compact_revision: 5,
            ..WatchResponse::default()
        };
        assert!(matches!(read(compacted), Err(Failure::Compacted(at)) if at.get() == 5));
    }

    #[test]
    fn an_invalid_change_is_malformed() {
        for odd in [change(2, 1), messages::Event::default()] {
            let response = WatchResponse {
                events: vec![odd],
                ..WatchResponse::default()
            };
            assert!(matches!(read(response), Err(Failure::Malformed(_))));
        }
    }
}
