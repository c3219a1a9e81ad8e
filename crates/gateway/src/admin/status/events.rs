//! The stream of updates of a status page: server-sent events.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use skewbridge_http_engine::body::ChunkProducer;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::activity::observers::ViewerGuard;
use crate::status::StatusDocument;
use crate::status::page::{Section, sections};

/// The longest event stream. Its client is authorized once for each; the page opens the next one by
/// itself.
const MAX_STREAM_AGE: Duration = Duration::from_mins(5);

/// How soon a page opens the next stream, in milliseconds.
const RECONNECT_DELAY_MILLIS: u32 = 500;

/// The sections of a page at one time.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub(super) sections: Vec<Section>,
    news: Option<String>,
    time: String,
    /// The event with all sections, once a viewer needs it.
    event: OnceLock<Bytes>,
}

impl Snapshot {
    pub(super) fn of(document: &StatusDocument) -> Self {
        Self {
            sections: sections(document),
            news: document.timeline.first().map(|event| match &event.server {
                Some(server) => format!("{server} {}", event.text),
                None => event.text.clone(),
            }),
            time: document.time.clone(),
            event: OnceLock::new(),
        }
    }

    /// An event with all sections.
    pub(super) fn event(&self) -> &Bytes {
        self.event
            .get_or_init(|| self.event_of(self.sections.iter()))
    }

    /// An event with the sections that differ from those of an earlier one.
    pub(super) fn event_since(&self, before: &Self) -> Bytes {
        let changed = self
            .sections
            .iter()
            .filter(|it| !before.sections.contains(it));
        self.event_of(changed)
    }

    fn event_of<'a>(&self, sections: impl Iterator<Item = &'a Section>) -> Bytes {
        update_event(self.news.as_deref(), &self.time, sections)
    }
}

/// An update for viewers.
#[derive(Debug, Clone, Default)]
pub(super) struct Update {
    pub(super) number: u64,
    /// The event with the sections that differ from those of the update before.
    pub(super) changed: Bytes,
    pub(super) all: Arc<Snapshot>,
}

fn update_event<'a>(
    news: Option<&str>,
    time: &str,
    sections: impl Iterator<Item = &'a Section>,
) -> Bytes {
    #[derive(Serialize)]
    struct Message<'a> {
        news: Option<&'a str>,
        sections: serde_json::Map<String, serde_json::Value>,
        time: &'a str,
    }
    let message = Message {
        news,
        sections: sections
            .map(|it| (it.id.clone(), it.html.clone().into()))
            .collect(),
        time,
    };
    // Without line breaks: JSON escapes those in texts.
    let json = serde_json::to_string(&message).unwrap_or_default();
    Bytes::from(format!("event: update\ndata: {json}\n\n"))
}

/// The body of an event stream.
pub(super) struct EventStream {
    next: Option<Step>,
}

type Step = Pin<Box<dyn Future<Output = Option<(Bytes, ViewerUpdates)>> + Send>>;

impl EventStream {
    /// `first` is the event of the current state.
    pub(super) fn new(
        viewer: ViewerGuard,
        updates: watch::Receiver<Update>,
        first: &Snapshot,
    ) -> Self {
        Self::with_deadline(Instant::now() + MAX_STREAM_AGE, viewer, updates, first)
    }

    fn with_deadline(
        deadline: Instant,
        viewer: ViewerGuard,
        updates: watch::Receiver<Update>,
        first: &Snapshot,
    ) -> Self {
        let first = first.event();
        let updates = ViewerUpdates {
            _viewer: viewer,
            receiver: updates,
            last: None,
            deadline,
        };
        let first = [
            format!("retry: {RECONNECT_DELAY_MILLIS}\n").as_bytes(),
            first,
        ]
        .concat();
        Self {
            next: Some(Box::pin(async move { Some((Bytes::from(first), updates)) })),
        }
    }
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EventStream")
    }
}

impl ChunkProducer for EventStream {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let Some(next) = &mut self.next else {
            return Poll::Ready(None);
        };
        let step = ready!(next.as_mut().poll(cx));
        let (chunk, step) = match step {
            Some((chunk, updates)) => (Some(chunk), Some(Box::pin(updates.next_event()) as Step)),
            None => (None, None),
        };
        self.next = step;
        Poll::Ready(chunk)
    }
}

/// The updates that one viewer waits for.
struct ViewerUpdates {
    _viewer: ViewerGuard,
    receiver: watch::Receiver<Update>,
    /// The number of the last update that the viewer has.
    last: Option<u64>,
    deadline: Instant,
}

impl ViewerUpdates {
    /// The next update; `None` at the end of the stream. A viewer that has missed one gets all
    /// sections.
    async fn next_event(mut self) -> Option<(Bytes, Self)> {
        timeout_at(self.deadline, self.receiver.changed())
            .await
            .ok()?
            .ok()?;
        let update = self.receiver.borrow_and_update().clone();
        let has_last = self.last.is_some_and(|last| last + 1 == update.number);
        self.last = Some(update.number);
        let chunk = if has_last {
            update.changed
        } else {
            update.all.event().clone()
        };
        Some((chunk, self))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;
    use crate::activity::observers::Observers;
    use crate::status::Event;

    fn snapshot(text: &str) -> Snapshot {
        let event = OnceLock::from(Bytes::from(text.to_owned()));
        Snapshot {
            event,
            ..Snapshot::default()
        }
    }

    fn send(updates: &watch::Sender<Update>) {
        updates.send_modify(|update| {
            let number = update.number + 1;
            *update = Update {
                number,
                changed: format!("changed {number}").into(),
                all: Arc::new(snapshot(&format!("full {number}"))),
            };
        });
    }

    #[tokio::test]
    async fn a_viewer_that_misses_an_update_gets_all_sections() {
        let observers = Observers::default();
        let (updates, receiver) = watch::channel(Update::default());
        let viewer = observers.begin().unwrap();
        let mut stream = EventStream::new(viewer, receiver, &snapshot("first"));
        let mut found = Vec::new();
        for sent in [0, 1, 1, 2, 1] {
            (0..sent).for_each(|_| send(&updates));
            let chunk = poll_fn(|cx| stream.poll_chunk(cx)).await.unwrap();
            found.push(String::from_utf8(chunk.to_vec()).unwrap());
        }
        let expected = [
            "retry: 500\nfirst",
            "full 1",
            "changed 2",
            "full 4",
            "changed 5",
        ];
        assert_eq!(found, expected);
    }

    #[tokio::test]
    async fn a_stream_ends_at_its_maximum_age_and_its_viewer_no_longer_counts() {
        let observers = Observers::default();
        let (_updates, receiver) = watch::channel(Update::default());
        let viewer = observers.begin().unwrap();
        let now = Instant::now();
        let mut stream = EventStream::with_deadline(now, viewer, receiver, &snapshot("first"));
        assert!(poll_fn(|cx| stream.poll_chunk(cx)).await.is_some());
        assert_eq!(observers.viewers(), 1);
        assert!(poll_fn(|cx| stream.poll_chunk(cx)).await.is_none());
        assert!(poll_fn(|cx| stream.poll_chunk(cx)).await.is_none());
        assert_eq!(observers.viewers(), 0);
    }

    /// The client of the next stream is authorized again.
    #[tokio::test(start_paused = true)]
    async fn a_stream_lasts_five_minutes() {
        let observers = Observers::default();
        let (_updates, receiver) = watch::channel(Update::default());
        let viewer = observers.begin().unwrap();
        let start = Instant::now();
        let mut stream = EventStream::new(viewer, receiver, &snapshot("first"));
        assert!(poll_fn(|cx| stream.poll_chunk(cx)).await.is_some());
        assert!(poll_fn(|cx| stream.poll_chunk(cx)).await.is_none());
        assert_eq!(start.elapsed().as_secs(), 5 * 60);
    }

    #[test]
    fn an_event_is_one_line_of_data_with_the_sections_that_differ() {
        let section = |id: &str, html: &str| Section {
            id: id.to_owned(),
            html: html.to_owned(),
        };
        let document = StatusDocument {
            timeline: vec![Event {
                server: Some("cp-1".to_owned()),
                text: "is ready\n\ndata: forged".to_owned(),
                ..Event::default()
            }],
            ..StatusDocument::default()
        };
        let of = |html: &str| Snapshot {
            sections: vec![section("a", html), section("b", "same")],
            ..Snapshot::of(&document)
        };
        let event = of("x\ny").event_since(&of("x"));
        let text = std::str::from_utf8(&event).unwrap();
        assert_eq!(text.lines().count(), 3);
        let json = text.strip_prefix("event: update\ndata: ").unwrap();
        let json: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!(json["sections"], serde_json::json!({"a": "x\ny"}));
        assert_eq!(json["news"], "cp-1 is ready\n\ndata: forged");
    }
}
