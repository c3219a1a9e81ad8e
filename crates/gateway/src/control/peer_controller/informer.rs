//! Lists and watches all objects of a resource, and starts over when the watch ends.

use std::time::Duration;

use skewbridge_peer_directory::watch::{List, WatchEvent, WatchedObject};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use crate::control::internal_client::{InternalClient, InternalRequest, InternalTarget};

/// The pause before the next list, doubled up to the maximum. It is short because the server runs
/// on the same host and is often just starting.
pub(super) const FIRST_BACKOFF: Duration = Duration::from_millis(100);
pub(super) const MAX_BACKOFF: Duration = Duration::from_secs(1);

/// The timeout of a list, and of the response head of a watch.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);

/// The `timeoutSeconds` of a watch.
const WATCH_TIMEOUT_SECONDS: u64 = 300;

/// How long a watch may send nothing. Bookmarks are sent about once a minute.
const WATCH_SILENCE_TIMEOUT: Duration = Duration::from_secs(WATCH_TIMEOUT_SECONDS + 30);

/// The objects to watch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WatchTarget<'a> {
    /// The path of the collection.
    pub(crate) path: &'a str,
    /// Query parameters that select objects; empty selects all.
    pub(crate) selector: &'static str,
    /// The number of objects in a page of a list.
    pub(crate) page_size: u32,
    /// The name of the objects in log lines.
    pub(crate) description: &'a str,
}

/// A result of the informer.
#[derive(Debug)]
pub(crate) enum Change<T> {
    /// The complete list.
    Listed(Vec<T>),
    /// An object was added, modified or deleted.
    Event(WatchEvent<T>),
    /// The server has accepted a watch: from here on, changes arrive as events.
    WatchBegan,
    /// The watch has ended, and continues from its last event.
    WatchEnded,
    /// The list or the watch failed, with this error.
    Failed(String),
}

impl<T> Change<T> {
    /// Whether changes arrive as events from here on; `None` if the result does not change that.
    pub(crate) fn opens_watch(&self) -> Option<bool> {
        match self {
            Self::WatchBegan => Some(true),
            Self::WatchEnded | Self::Failed(_) => Some(false),
            Self::Listed(_) | Self::Event(_) => None,
        }
    }
}

/// Lists and watches until the receiver of `events` is dropped.
pub(crate) async fn run<T: WatchedObject, E: From<Change<T>>>(
    client: &InternalClient,
    target: WatchTarget<'_>,
    events: &mpsc::Sender<E>,
) {
    let mut backoff = FIRST_BACKOFF;
    let mut last_problem = String::new();
    while !events.is_closed() {
        let began = Instant::now();
        match list_and_watch(client, InternalTarget::Upstream, target, events).await {
            Ok(()) => last_problem.clear(),
            Err(problem) => {
                if problem != last_problem {
                    tracing::warn!(%problem, "cannot watch {}; the last known state stays in use", target.description);
                    last_problem.clone_from(&problem);
                }
                let _ = events.send(Change::Failed(problem).into()).await;
            }
        }
        if began.elapsed() > MAX_BACKOFF {
            backoff = FIRST_BACKOFF;
        }
        sleep(backoff).await;
        backoff = (backoff * 2).min(MAX_BACKOFF);
    }
}

/// Lists at a server once, then watches until a watch cannot be resumed.
pub(crate) async fn list_and_watch<T: WatchedObject, E: From<Change<T>>>(
    client: &InternalClient,
    server: InternalTarget<'_>,
    target: WatchTarget<'_>,
    events: &mpsc::Sender<E>,
) -> Result<(), String> {
    let listed = timeout(LIST_TIMEOUT, list::<T>(client, server, target)).await;
    let (all, mut version) = listed.map_err(|_| format!("{}: no answer", target.path))??;
    if events.send(Change::Listed(all).into()).await.is_err() {
        return Ok(());
    }
    loop {
        let path = format!(
            "{}?watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_TIMEOUT_SECONDS}&resourceVersion={version}{}",
            target.path, target.selector
        );
        let request = InternalRequest::get(&path);
        let began = timeout(LIST_TIMEOUT, client.watch(server, request)).await;
        let mut lines = began.map_err(|_| format!("{}: no answer", target.path))??;
        let _ = events.send(Change::WatchBegan.into()).await;
        let mut event_count = 0_u64;
        loop {
            let line = timeout(WATCH_SILENCE_TIMEOUT, lines.next()).await;
            let Some(line) = line.map_err(|_| {
                format!("{}: the watch has sent nothing for too long", target.path)
            })??
            else {
                break;
            };
            let event = WatchEvent::<T>::parse(&line).map_err(|error| error.to_string())?;
            event_count += 1;
            if let Some(at) = event.resource_version() {
                at.clone_into(&mut version);
            }
            match event {
                WatchEvent::Bookmark { .. } => {}
                WatchEvent::Error(failure) if failure.is_gone() => {
                    let _ = events.send(Change::WatchEnded.into()).await;
                    return Ok(());
                }
                WatchEvent::Error(failure) => return Err(failure.message),
                event => {
                    if events.send(Change::Event(event).into()).await.is_err() {
                        return Ok(());
                    }
                }
            }
        }
        let _ = events.send(Change::WatchEnded.into()).await;
        if event_count == 0 {
            // A server that ends watches at once must not cause a busy loop.
            sleep(MAX_BACKOFF).await;
        }
    }
}

async fn list<T: WatchedObject>(
    client: &InternalClient,
    server: InternalTarget<'_>,
    target: WatchTarget<'_>,
) -> Result<(Vec<T>, String), String> {
    let mut all = Vec::new();
    let mut next = String::new();
    loop {
        let path = format!(
            "{}?limit={}{}{next}",
            target.path, target.page_size, target.selector
        );
        let request = InternalRequest::get(&path);
        let response = client.request(server, request).await?.ok(target.path)?;
        let page = List::<T>::parse(&response.body)
            .map_err(|error| format!("{}: {error}", target.path))?;
        all.extend(page.items);
        match page.next {
            Some(token) => next = format!("&continue={token}"),
            None => return Ok((all, page.resource_version)),
        }
    }
}
