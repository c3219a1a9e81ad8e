//! Watches: a body that lasts, with an event as soon as there is one.
//!
//! A watcher asks for news when its last piece has gone out, so nothing piles up for
//! one that is slow: it falls behind in the store's history, and when that has forgotten
//! what comes next, it is told so (410) and ended.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};
use serde_json::{Value, json};
use skewbridge_gateway::body::{Pieces, ResponseBody};
use skewbridge_gateway::drain::Drain;
use skewbridge_k8s_api::content_negotiation::Format;
use skewbridge_k8s_api::status::Status;
use tokio::time::{Instant, sleep_until};

use super::answers::Reply;
use super::ask::{Ask, Subject};
use super::negotiate::Form;
use super::read::{as_released, include, partial, selection};
use super::shared::{StoreWatch, entropy, now};
use crate::catalogue::Release;
use crate::object::Object;
use crate::status::{FieldError, GroupResource, invalid};
use crate::table::{Include, ListMeta, table};
use crate::watch::{Beginning, Change};

/// Events that are at hand go out together, up to about so much.
const PIECE: usize = 32 * 1024;

/// How often a client hears how far it has come. Real servers take a minute; here
/// servers come and go more often.
const BOOKMARK_EVERY: Duration = Duration::from_secs(10);

/// How long a watch lasts at least if nobody says: as kube-apiserver, which takes up to
/// twice as long.
const SHORTEST: Duration = Duration::from_mins(30);

/// How long a watch lasts at most.
const LONGEST: Duration = Duration::from_hours(24);

/// Begins a watch.
pub(super) fn watch(ask: &Ask<'_>, subject: &Subject<'_>) -> Result<Reply, Status> {
    let form = Form::of(&ask.head.headers)?;
    let beginning = beginning(ask)?;
    let lasts = match ask.query.number("timeoutSeconds")? {
        Some(seconds) if seconds > 0 => Duration::from_secs(seconds).min(LONGEST),
        // Not all at the same time.
        _ => SHORTEST + SHORTEST.mul_f64(f64::from(entropy().to_le_bytes()[0]) / 256.0),
    };
    let watch = ask.server.store.watch_selected(
        subject.resource(),
        subject.namespace,
        selection(ask, subject)?,
        ask.query.get("resourceVersion"),
        beginning,
    );
    let mut watch = match watch {
        Ok(watch) => watch,
        // As kube-apiserver: the watch begins, and this is what it tells.
        Err(status) if status.code == StatusCode::GONE => {
            return Ok(reply(ResponseBody::full(line(&failure(&status)))));
        }
        Err(status) => return Err(status),
    };
    let watching = Watching {
        events: Events {
            release: ask.server.release,
            form,
            include: include(ask),
            api_version: subject.served.api_version(),
            kind: subject.definition.kind.clone(),
            resource: subject.resource().clone(),
            columns_told: false,
        },
        // A bookmark counts them as told.
        pending: watch.take_first().into(),
        watch,
        bookmarks: (ask.query.flag("allowWatchBookmarks") == Some(true))
            .then(|| Instant::now() + BOOKMARK_EVERY),
        told: 0,
        ends: Instant::now() + lasts,
        drain: ask.server.drain.clone(),
        over: false,
    };
    Ok(reply(ResponseBody::made(WatchBody {
        step: Box::pin(watching.step()),
    })))
}

fn reply(body: ResponseBody) -> Reply {
    let mut reply = Response::new(body);
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    reply
}

/// How a watch begins, by `sendInitialEvents`.
fn beginning(ask: &Ask<'_>) -> Result<Beginning, Status> {
    let wanted = ask.query.flag("sendInitialEvents");
    let version_match = ask.query.get("resourceVersionMatch");
    let refuse = |field: &str, why: &str| {
        let error = FieldError::forbidden(field, why);
        Err(invalid("meta.k8s.io", "ListOptions", "", &[error]))
    };
    match (wanted, version_match) {
        (None, "") => Ok(Beginning::Unsaid),
        (None, _) => refuse(
            "resourceVersionMatch",
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        ),
        (Some(_), _) if ask.server.release == Release::V1_28 => refuse(
            "sendInitialEvents",
            "sendInitialEvents is forbidden for watch unless the WatchList feature gate is \
             enabled",
        ),
        (Some(_), other) if other != "NotOlderThan" => refuse(
            "resourceVersionMatch",
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        ),
        (Some(true), _) => Ok(Beginning::Initial),
        (Some(false), _) => Ok(Beginning::News),
    }
}

/// A watch that lasts.
struct Watching {
    events: Events,
    watch: StoreWatch,
    pending: VecDeque<Change>,
    /// When the next bookmark is due, for those who want them.
    bookmarks: Option<Instant>,
    /// The version of the last bookmark.
    told: u64,
    ends: Instant,
    drain: Drain,
    over: bool,
}

impl Watching {
    /// The next piece, and the watch after it. Only waits where nothing is lost.
    async fn step(mut self) -> (Self, Option<Bytes>) {
        loop {
            if !self.pending.is_empty() {
                let piece = self.piece();
                return (self, Some(piece));
            }
            if self.over {
                return (self, None);
            }
            // By the clock: a timer that is made anew every time may never be the first.
            let now = Instant::now();
            if self.ends <= now {
                self.over = true;
                self.bookmark();
                continue;
            }
            if self.bookmarks.is_some_and(|due| due <= now) {
                self.bookmark();
                self.bookmarks = Some(now + BOOKMARK_EVERY);
                continue;
            }
            let due = self.bookmarks.map_or(self.ends, |it| it.min(self.ends));
            tokio::select! {
                // News come last: where there are always some, nothing else would be heard.
                biased;
                () = self.drain.draining() => self.over = true,
                () = sleep_until(due) => {}
                news = self.watch.next() => match news {
                    Ok(news) => self.pending.extend(news),
                    Err(status) => {
                        self.over = true;
                        return (self, Some(line(&failure(&status))));
                    }
                },
            }
        }
    }

    /// Says how far it has come, if it has come further.
    fn bookmark(&mut self) {
        let bookmark = self.watch.bookmark();
        if self.bookmarks.is_some() && bookmark.version() > self.told {
            self.told = bookmark.version();
            self.pending.push_back(bookmark);
        }
    }

    fn piece(&mut self) -> Bytes {
        let mut bytes = Vec::new();
        while bytes.len() < PIECE
            && let Some(change) = self.pending.pop_front()
        {
            bytes.extend_from_slice(&line(&self.events.written(&change)));
        }
        bytes.into()
    }
}

/// How events are written.
struct Events {
    release: Release,
    form: Form,
    include: Include,
    api_version: String,
    kind: String,
    resource: GroupResource,
    /// A table has its columns once.
    columns_told: bool,
}

impl Events {
    fn written(&mut self, change: &Change) -> Value {
        let mut event = change.to_json(&self.api_version, &self.kind);
        let Ok(object) = Object::new(event["object"].take()) else {
            return event;
        };
        event["object"] = match (self.form, change) {
            (Form::Objects, _) => as_released(self.release, &self.resource, object).into_value(),
            (Form::Metadata, _) => partial(&object),
            // Without rows.
            (_, Change::Bookmark { .. }) => self.table(&[], object.resource_version()),
            _ => {
                let version = object.resource_version().to_owned();
                self.table(&[object], &version)
            }
        };
        event
    }

    fn table(&mut self, objects: &[Object], version: &str) -> Value {
        let meta = ListMeta {
            resource_version: version.to_owned(),
            ..ListMeta::default()
        };
        let mut table = table(
            self.release,
            &self.resource,
            objects,
            &meta,
            self.include,
            now(),
        );
        if std::mem::replace(&mut self.columns_told, true) {
            table["columnDefinitions"] = Value::Null;
        }
        table
    }
}

/// What a watch says that cannot go on, or could not begin where it was to.
fn failure(status: &Status) -> Value {
    let object: Value = serde_json::from_slice(&status.encode(Format::Json)).unwrap_or_default();
    json!({"type": "ERROR", "object": object})
}

fn line(event: &Value) -> Bytes {
    // A value with string keys does not fail to serialise.
    let mut bytes = serde_json::to_vec(event).unwrap_or_default();
    bytes.push(b'\n');
    bytes.into()
}

/// A watch as the body of an answer.
struct WatchBody {
    step: Pin<Box<dyn Future<Output = (Watching, Option<Bytes>)> + Send>>,
}

impl Pieces for WatchBody {
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let (watching, piece) = ready!(self.step.as_mut().poll(cx));
        self.step = Box::pin(watching.step());
        Poll::Ready(piece)
    }
}

impl fmt::Debug for WatchBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchBody").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use skewbridge_gateway::drain::{DrainTrigger, announcement};

    use super::super::shared::SharedStore;
    use super::*;
    use crate::sample::object;

    fn maps() -> GroupResource {
        GroupResource::new("", "configmaps")
    }

    /// A watch that has news at hand, and whoever ends it.
    fn busy(bookmarks: Option<Instant>, ends: Instant) -> (Watching, DrainTrigger) {
        let store = SharedStore::new().unwrap();
        let map = |name| {
            let made = store.create(&maps(), "default", object(name, json!({})));
            made.unwrap();
        };
        map("first");
        let mut watch = store.watch(&maps(), "").unwrap();
        map("news");
        let (leave, drain) = announcement();
        let watching = Watching {
            events: Events {
                release: Release::V1_36,
                form: Form::Objects,
                include: Include::default(),
                api_version: "v1".to_owned(),
                kind: "ConfigMap".to_owned(),
                resource: maps(),
                columns_told: false,
            },
            pending: watch.take_first().into(),
            watch,
            bookmarks,
            told: 0,
            ends,
            drain,
            over: false,
        };
        (watching, leave)
    }

    /// What a watch tells, up to so many pieces.
    async fn told(mut watching: Watching, pieces: usize) -> Vec<(String, String)> {
        let mut told = Vec::new();
        for _ in 0..pieces {
            let (next, Some(piece)) = watching.step().await else {
                told.push(Default::default());
                break;
            };
            watching = next;
            for event in piece
                .split(|byte| *byte == b'\n')
                .filter(|it| !it.is_empty())
            {
                let event: Value = serde_json::from_slice(event).unwrap();
                let text = |it: &Value| it.as_str().unwrap_or_default().to_owned();
                let name = text(&event["object"]["metadata"]["name"]);
                told.push((text(&event["type"]), name));
            }
        }
        told
    }

    fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = of.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned()));
        owned.collect()
    }

    #[tokio::test]
    async fn a_busy_watch_hears_of_its_end_and_has_bookmarks() {
        let (now, later) = (Instant::now(), Instant::now() + LONGEST);
        let (first, news) = (("ADDED", "first"), ("ADDED", "news"));
        let (bookmark, end) = (("BOOKMARK", ""), ("", ""));

        let (watching, leave) = busy(None, later);
        leave.drain(Duration::from_secs(30));
        assert_eq!(told(watching, 3).await, pairs(&[first, end]));

        let (watching, _leave) = busy(None, now);
        assert_eq!(told(watching, 3).await, pairs(&[first, end]));

        let (watching, _leave) = busy(Some(later), now);
        assert_eq!(told(watching, 3).await, pairs(&[first, bookmark, end]));

        let (watching, _leave) = busy(Some(now), later);
        assert_eq!(told(watching, 3).await, pairs(&[first, bookmark, news]));
    }
}
