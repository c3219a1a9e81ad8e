//! Follows all objects of a kind: lists them, watches them, and begins anew
//! whenever that ends, for ever.

use std::time::Duration;

use skewbridge_peer_directory::watch::{List, WatchEvent, WatchedObject};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use crate::control::internal_client::{InternalClient, InternalRequest, InternalTarget};

/// Between two tries: doubled each time, never longer than the second. The
/// server is beside us and often just starting.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(1);

/// How long a list may take, and how long a watch may be silent. Bookmarks come
/// about once a minute.
const LIST_PATIENCE: Duration = Duration::from_secs(30);
const WATCH_SECONDS: u64 = 300;
const WATCH_PATIENCE: Duration = Duration::from_secs(WATCH_SECONDS + 30);

/// What to follow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    /// The path of the collection.
    pub(crate) path: &'static str,
    /// Which of them; empty for all.
    pub(crate) selector: &'static str,
    /// How many of them at once.
    pub(crate) page: u32,
    /// In words.
    pub(crate) what: &'static str,
}

/// What has changed.
#[derive(Debug)]
pub(crate) enum Change<T> {
    /// These are all there are.
    All(Vec<T>),
    /// One is new, otherwise, or gone.
    Event(WatchEvent<T>),
    /// They cannot be followed at the moment, for this reason.
    Lost(String),
}

/// Follows until nobody listens any more.
pub(crate) async fn follow<T: WatchedObject, E: From<Change<T>>>(
    own: &InternalClient,
    kind: Kind,
    tell: &mpsc::Sender<E>,
) {
    let mut backoff = FIRST_BACKOFF;
    let mut last = String::new();
    while !tell.is_closed() {
        let began = Instant::now();
        match once(own, kind, tell).await {
            Ok(()) => last.clear(),
            Err(problem) => {
                if problem != last {
                    tracing::warn!(%problem, "cannot follow {}; what is known stays known", kind.what);
                    last.clone_from(&problem);
                }
                let _ = tell.send(Change::Lost(problem).into()).await;
            }
        }
        if began.elapsed() > MAX_BACKOFF {
            backoff = FIRST_BACKOFF;
        }
        sleep(backoff).await;
        backoff = (backoff * 2).min(MAX_BACKOFF);
    }
}

/// One list, and watches from there on, until one cannot go on.
async fn once<T: WatchedObject, E: From<Change<T>>>(
    own: &InternalClient,
    kind: Kind,
    tell: &mpsc::Sender<E>,
) -> Result<(), String> {
    let listed = timeout(LIST_PATIENCE, list::<T>(own, kind)).await;
    let (all, mut version) = listed.map_err(|_| format!("{}: no answer", kind.path))??;
    if tell.send(Change::All(all).into()).await.is_err() {
        return Ok(());
    }
    loop {
        let path = format!(
            "{}?watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={version}{}",
            kind.path, kind.selector
        );
        let ask = InternalRequest::get(&path);
        let began = timeout(LIST_PATIENCE, own.watch(InternalTarget::Upstream, ask)).await;
        let mut lines = began.map_err(|_| format!("{}: no answer", kind.path))??;
        let mut seen = 0_u64;
        loop {
            let line = timeout(WATCH_PATIENCE, lines.next()).await;
            let Some(line) = line.map_err(|_| format!("{}: the watch is silent", kind.path))??
            else {
                break;
            };
            let event = WatchEvent::<T>::parse(&line).map_err(|error| error.to_string())?;
            seen += 1;
            if let Some(at) = event.resource_version() {
                at.clone_into(&mut version);
            }
            match event {
                WatchEvent::Bookmark { .. } => {}
                WatchEvent::Error(failure) if failure.is_gone() => return Ok(()),
                WatchEvent::Error(failure) => return Err(failure.message),
                event => {
                    if tell.send(Change::Event(event).into()).await.is_err() {
                        return Ok(());
                    }
                }
            }
        }
        if seen == 0 {
            // A server that ends watches at once is not asked in a circle.
            sleep(MAX_BACKOFF).await;
        }
    }
}

async fn list<T: WatchedObject>(
    own: &InternalClient,
    kind: Kind,
) -> Result<(Vec<T>, String), String> {
    let mut all = Vec::new();
    let mut next = String::new();
    loop {
        let path = format!("{}?limit={}{}{next}", kind.path, kind.page, kind.selector);
        let ask = InternalRequest::get(&path);
        let answer = own
            .ask(InternalTarget::Upstream, ask)
            .await?
            .ok(kind.path)?;
        let page =
            List::<T>::parse(&answer.body).map_err(|error| format!("{}: {error}", kind.path))?;
        all.extend(page.items);
        match page.next {
            Some(token) => next = format!("&continue={token}"),
            None => return Ok((all, page.resource_version)),
        }
    }
}
