//! A watch: a stream of changes that lasts.

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
/// What is not read waits at etcd, for a small window's worth waits here.
#[derive(Debug)]
pub struct Watch {
    responses: ResponseStream,
    seen: Revision,
    failed: Option<Error>,
    // Dropped, it would end the watch.
    _stream: SendStream<Bytes>,
    _watching: WatchGuard,
    connection: Arc<Connection>,
}

/// What a message of a watch says.
#[derive(Debug, PartialEq, Eq)]
enum WatchMessage {
    Created,
    Changes {
        events: Vec<Event>,
        /// Everything up to here has been told, if this message knows.
        seen: Option<Revision>,
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
                // Many changes at once come in messages that are not too large.
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
                seen: Revision::new(from.get().saturating_sub(1)),
                failed: None,
                _stream: stream,
                _watching: watching,
                connection,
            }),
            WatchMessage::Changes { .. } => Err(malformed("changes before the watch was created")),
        }
    }

    /// Waits for changes. There is at least one; those of one transaction can
    /// come in two calls only if they are more than fit a message.
    ///
    /// An error is final, whatever it is: list again and begin a new watch, or,
    /// unless it is [`Error::Compacted`], begin one after [`Watch::seen`].
    /// Dropping the future loses nothing.
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

    /// All changes up to this revision have been told. It moves on without
    /// changes too, as etcd tells from time to time while [`Watch::next`] waits.
    pub fn seen(&self) -> Revision {
        self.seen
    }

    async fn changes(&mut self) -> Result<Vec<Event>, Failure> {
        loop {
            match next_message(&mut self.responses).await? {
                WatchMessage::Created => return Err(malformed("the watch was created twice")),
                WatchMessage::Changes { events, seen } => {
                    self.seen = self.seen.max(seen.unwrap_or(self.seen));
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
    let seen = match events.last() {
        // Of the last revision there may be more to come.
        Some(last) if response.fragment => Some(Revision::new(changed(last).get() - 1)),
        Some(last) => Some(changed(last)),
        // Without changes, the header says how far etcd has looked.
        None => response.header.map(|header| Revision::new(header.revision)),
    };
    Ok(WatchMessage::Changes { events, seen })
}

fn event(event: messages::Event) -> Result<Event, Failure> {
    let kv = event.kv.ok_or_else(|| malformed("a change of no key"))?;
    match EventType::try_from(event.r#type) {
        Ok(EventType::Put) => Ok(Event::Put(kv.into())),
        Ok(EventType::Delete) => Ok(Event::Delete {
            key: kv.key,
            mod_revision: Revision::new(kv.mod_revision),
        }),
        Err(_) => Err(malformed("neither put nor deleted")),
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

    fn seen(response: WatchResponse) -> Option<i64> {
        match read(response) {
            Ok(WatchMessage::Changes { seen, .. }) => seen.map(Revision::get),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_has_been_seen_is_never_more_than_what_was_told() {
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
        assert_eq!(seen(whole), Some(8));
        assert_eq!(seen(part), Some(7));
        assert_eq!(seen(progress), Some(90));
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
        assert!(matches!(read(cancelled), Err(Failure::WatchEnded(said)) if said == reason));
        let compacted = WatchResponse {
            canceled: true,
            compact_revision: 5,
            ..WatchResponse::default()
        };
        assert!(matches!(read(compacted), Err(Failure::Compacted(at)) if at.get() == 5));
    }

    #[test]
    fn a_change_that_is_none_is_malformed() {
        for odd in [change(2, 1), messages::Event::default()] {
            let response = WatchResponse {
                events: vec![odd],
                ..WatchResponse::default()
            };
            assert!(matches!(read(response), Err(Failure::Malformed(_))));
        }
    }
}
