//! Watches: a streaming body with events.
//!
//! A watcher polls for changes after its last chunk was sent, so nothing is buffered for a slow
//! client: it falls behind in the history of the store. When the history no longer has the next
//! event, the watch ends with 410.

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
use skewbridge_http_engine::body::{ChunkProducer, ResponseBody};
use skewbridge_http_engine::drain::Drain;
use skewbridge_k8s_api::content_negotiation::Format;
use skewbridge_k8s_api::status::Status;
use tokio::time::{Instant, sleep_until};

use super::api_request::{ApiRequest, ApiTarget};
use super::negotiate::Form;
use super::read::{as_released, include, partial, selection};
use super::responses::ApiResponse;
use super::shared_store::{StoreWatch, entropy, now};
use crate::catalogue::Release;
use crate::object::Object;
use crate::status::{FieldError, GroupResource, invalid};
use crate::table::{Include, ListMeta, table};
use crate::watch::{Change, WatchStart};

/// Available events are sent together, up to about this size.
const MAX_CHUNK_BYTES: usize = 32 * 1024;

/// Interval of bookmarks. Real servers send one a minute; here servers restart more often.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(10);

/// Minimum duration of a watch without `timeoutSeconds`: kube-apiserver's, which takes up to
/// twice as long.
const MIN_WATCH_TIME: Duration = Duration::from_mins(30);

/// Maximum duration of a watch.
const MAX_WATCH_TIME: Duration = Duration::from_hours(24);

/// Starts a watch.
pub(super) fn watch(
    request: &ApiRequest<'_>,
    target: &ApiTarget<'_>,
) -> Result<ApiResponse, Status> {
    let form = Form::of(&request.head.headers)?;
    let beginning = watch_start(request)?;
    let lasts = match request.query.number("timeoutSeconds")? {
        Some(seconds) if seconds > 0 => Duration::from_secs(seconds).min(MAX_WATCH_TIME),
        // Jitter, so that watches do not end at the same time.
        _ => MIN_WATCH_TIME + MIN_WATCH_TIME.mul_f64(f64::from(entropy().to_le_bytes()[0]) / 256.0),
    };
    let watch = request.server.store.watch_selected(
        target.resource(),
        target.namespace,
        selection(request, target)?,
        request.query.get("resourceVersion"),
        beginning,
    );
    let mut watch = match watch {
        Ok(watch) => watch,
        // As in kube-apiserver, the error is the first event of the watch.
        Err(status) if status.code == StatusCode::GONE => {
            return Ok(reply(ResponseBody::full(line(&failure(&status)))));
        }
        Err(status) => return Err(status),
    };
    let watching = WatchStream {
        events: Events {
            release: request.server.release,
            form,
            include: include(request),
            api_version: target.served.api_version(),
            kind: target.definition.kind.clone(),
            resource: target.resource().clone(),
            columns_sent: false,
        },
        // A bookmark includes them.
        pending: watch.take_first().into(),
        watch,
        bookmarks: (request.query.flag("allowWatchBookmarks") == Some(true))
            .then(|| Instant::now() + BOOKMARK_INTERVAL),
        last_bookmark: 0,
        ends: Instant::now() + lasts,
        drain: request.server.drain.clone(),
        over: false,
    };
    Ok(reply(ResponseBody::generated(WatchBody {
        step: Box::pin(watching.step()),
    })))
}

fn reply(body: ResponseBody) -> ApiResponse {
    let mut reply = Response::new(body);
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    reply
}

/// The start of a watch, by `sendInitialEvents`.
fn watch_start(request: &ApiRequest<'_>) -> Result<WatchStart, Status> {
    let wanted = request.query.flag("sendInitialEvents");
    let version_match = request.query.get("resourceVersionMatch");
    let refuse = |field: &str, why: &str| {
        let error = FieldError::forbidden(field, why);
        Err(invalid("meta.k8s.io", "ListOptions", "", &[error]))
    };
    match (wanted, version_match) {
        (None, "") => Ok(WatchStart::Default),
        (None, _) => refuse(
            "resourceVersionMatch",
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        ),
        (Some(_), _) if request.server.release == Release::V1_28 => refuse(
            "sendInitialEvents",
            "sendInitialEvents is forbidden for watch unless the WatchList feature gate is \
             enabled",
        ),
        (Some(_), other) if other != "NotOlderThan" => refuse(
            "resourceVersionMatch",
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        ),
        (Some(true), _) => Ok(WatchStart::Initial),
        (Some(false), _) => Ok(WatchStart::ChangesOnly),
    }
}

/// A running watch.
struct WatchStream {
    events: Events,
    watch: StoreWatch,
    pending: VecDeque<Change>,
    /// When the next bookmark is due, if the client accepts them.
    bookmarks: Option<Instant>,
    /// The version of the last bookmark.
    last_bookmark: u64,
    ends: Instant,
    drain: Drain,
    over: bool,
}

impl WatchStream {
    /// The next chunk, and the watch after it. It is cancellation-safe.
    async fn step(mut self) -> (Self, Option<Bytes>) {
        loop {
            if !self.pending.is_empty() {
                let piece = self.piece();
                return (self, Some(piece));
            }
            if self.over {
                return (self, None);
            }
            // By the clock: a timer that is recreated in every step may never fire.
            let now = Instant::now();
            if self.ends <= now {
                self.over = true;
                self.bookmark();
                continue;
            }
            if self.bookmarks.is_some_and(|due| due <= now) {
                self.bookmark();
                self.bookmarks = Some(now + BOOKMARK_INTERVAL);
                continue;
            }
            let due = self.bookmarks.map_or(self.ends, |it| it.min(self.ends));
            tokio::select! {
                // Changes are polled last: a steady stream of them would starve the others.
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

    /// Sends a bookmark, if the version has changed.
    fn bookmark(&mut self) {
        let bookmark = self.watch.bookmark();
        if self.bookmarks.is_some() && bookmark.version() > self.last_bookmark {
            self.last_bookmark = bookmark.version();
            self.pending.push_back(bookmark);
        }
    }

    fn piece(&mut self) -> Bytes {
        let mut bytes = Vec::new();
        while bytes.len() < MAX_CHUNK_BYTES
            && let Some(change) = self.pending.pop_front()
        {
            bytes.extend_from_slice(&line(&self.events.written(&change)));
        }
        bytes.into()
    }
}

/// Encodes events.
struct Events {
    release: Release,
    form: Form,
    include: Include,
    api_version: String,
    kind: String,
    resource: GroupResource,
    /// The columns of a table are sent once.
    columns_sent: bool,
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
        if std::mem::replace(&mut self.columns_sent, true) {
            table["columnDefinitions"] = Value::Null;
        }
        table
    }
}

/// The error event of a watch.
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

/// A watch as a response body.
struct WatchBody {
    step: Pin<Box<dyn Future<Output = (WatchStream, Option<Bytes>)> + Send>>,
}

impl ChunkProducer for WatchBody {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
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
    use skewbridge_http_engine::drain::{DrainTrigger, drain_channel};

    use super::super::shared_store::SharedStore;
    use super::*;
    use crate::test_fixtures::object;

    fn maps() -> GroupResource {
        GroupResource::new("", "configmaps")
    }

    /// A watch with pending changes, and its drain trigger.
    fn busy(bookmarks: Option<Instant>, ends: Instant) -> (WatchStream, DrainTrigger) {
        let store = SharedStore::new().unwrap();
        let map = |name| {
            let made = store.create(&maps(), "default", object(name, json!({})));
            made.unwrap();
        };
        map("first");
        let mut watch = store.watch(&maps(), "").unwrap();
        map("news");
        let (leave, drain) = drain_channel();
        let watching = WatchStream {
            events: Events {
                release: Release::V1_36,
                form: Form::Objects,
                include: Include::default(),
                api_version: "v1".to_owned(),
                kind: "ConfigMap".to_owned(),
                resource: maps(),
                columns_sent: false,
            },
            pending: watch.take_first().into(),
            watch,
            bookmarks,
            last_bookmark: 0,
            ends,
            drain,
            over: false,
        };
        (watching, leave)
    }

    /// The events of a watch, up to this number of chunks.
    async fn last_bookmark(mut watching: WatchStream, pieces: usize) -> Vec<(String, String)> {
        let mut last_bookmark = Vec::new();
        for _ in 0..pieces {
            let (next, Some(piece)) = watching.step().await else {
                last_bookmark.push(Default::default());
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
                last_bookmark.push((text(&event["type"]), name));
            }
        }
        last_bookmark
    }

    fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = of.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned()));
        owned.collect()
    }

    #[tokio::test]
    async fn a_busy_watch_ends_and_sends_bookmarks() {
        let (now, later) = (Instant::now(), Instant::now() + MAX_WATCH_TIME);
        let (first, news) = (("ADDED", "first"), ("ADDED", "news"));
        let (bookmark, end) = (("BOOKMARK", ""), ("", ""));

        let (watching, leave) = busy(None, later);
        leave.drain(Duration::from_secs(30));
        assert_eq!(last_bookmark(watching, 3).await, pairs(&[first, end]));

        let (watching, _leave) = busy(None, now);
        assert_eq!(last_bookmark(watching, 3).await, pairs(&[first, end]));

        let (watching, _leave) = busy(Some(later), now);
        assert_eq!(
            last_bookmark(watching, 3).await,
            pairs(&[first, bookmark, end])
        );

        let (watching, _leave) = busy(Some(now), later);
        assert_eq!(
            last_bookmark(watching, 3).await,
            pairs(&[first, bookmark, news])
        );
    }
}
