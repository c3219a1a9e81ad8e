//! Ends watches while the bridge drains, and watches that another backend is to serve.

use std::pin::Pin;
use std::task::{Context, Poll};

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use tokio::time::{Instant, Sleep};

use skewbridge_http_engine::body::EarlyEnd;
use skewbridge_http_engine::drain::Drain;

/// Ends a watch while the bridge drains, at its own time in the first half of the drain, so that
/// clients reconnect to other servers, and not all at once.
pub(crate) struct WatchEnd {
    state: State,
    events: EventBoundary,
    /// 0 to 255: the position in the first half of the drain at which this watch ends.
    slot: u8,
    /// Resolves if the watch ends earlier.
    moved: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

enum State {
    Waiting(Pin<Box<dyn Future<Output = Instant> + Send>>),
    Ending(Pin<Box<Sleep>>),
}

impl std::fmt::Debug for WatchEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatchEnd").finish_non_exhaustive()
    }
}

impl WatchEnd {
    pub(crate) fn new(drain: &Drain, slot: u8, response: &HeaderMap) -> Self {
        Self {
            state: State::Waiting(Box::pin(drain.clone().deadline())),
            events: EventBoundary::of(response),
            slot,
            moved: None,
        }
    }

    /// The watch also ends when this future resolves.
    pub(crate) fn or_when(mut self, moved: impl Future<Output = ()> + Send + 'static) -> Self {
        self.moved = Some(Box::pin(moved));
        self
    }

    fn poll_time(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(moved) = &mut self.moved
            && moved.as_mut().poll(cx).is_ready()
        {
            // Polled again until the watch is between two events.
            self.moved = Some(Box::pin(std::future::ready(())));
            return Poll::Ready(());
        }
        loop {
            match &mut self.state {
                State::Waiting(deadline) => match deadline.as_mut().poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(deadline) => {
                        let now = Instant::now();
                        let span = deadline.saturating_duration_since(now) / 2;
                        let at = now + span * u32::from(self.slot) / 255;
                        self.state = State::Ending(Box::pin(tokio::time::sleep_until(at)));
                    }
                },
                State::Ending(sleep) => return sleep.as_mut().poll(cx),
            }
        }
    }
}

impl EarlyEnd for WatchEnd {
    fn on_forwarded(&mut self, bytes: &[u8]) {
        self.events.passed(bytes);
    }

    /// Ready when the watch is to end, and only between two events: a clean end in the middle of
    /// an event would look like a complete response.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.poll_time(cx) {
            Poll::Ready(()) if self.events.is_between() => Poll::Ready(()),
            _ => Poll::Pending,
        }
    }
}

/// Tracks whether a stream of watch events is between two events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EventBoundary {
    /// JSON: a newline ends an event.
    Lines { between: bool },
    /// Protobuf: each event has a length prefix of four bytes, big-endian.
    Lengths { head: u32, known: u8, left: u64 },
    /// Another encoding: upstream writes each event in one chunk.
    Chunks,
}

impl EventBoundary {
    fn of(response: &HeaderMap) -> Self {
        let kind = response
            .get(CONTENT_TYPE)
            .map_or(&b""[..], |it| it.as_bytes());
        if response.contains_key(CONTENT_ENCODING) {
            Self::Chunks
        } else if kind.starts_with(b"application/json") {
            Self::Lines { between: true }
        } else if kind.starts_with(b"application/vnd.kubernetes.protobuf") {
            Self::Lengths {
                head: 0,
                known: 0,
                left: 0,
            }
        } else {
            Self::Chunks
        }
    }

    fn passed(&mut self, bytes: &[u8]) {
        match self {
            Self::Chunks => {}
            Self::Lines { between } => {
                if let Some(last) = bytes.last() {
                    *between = *last == b'\n';
                }
            }
            Self::Lengths { head, known, left } => {
                let mut bytes = bytes;
                while let Some((first, rest)) = bytes.split_first() {
                    if *left > 0 {
                        let now =
                            usize::try_from(*left).map_or(bytes.len(), |it| it.min(bytes.len()));
                        *left -= now as u64;
                        bytes = &bytes[now..];
                    } else {
                        *head = *head << 8 | u32::from(*first);
                        *known += 1;
                        bytes = rest;
                        if *known == 4 {
                            *left = u64::from(*head);
                            (*head, *known) = (0, 0);
                        }
                    }
                }
            }
        }
    }

    fn is_between(self) -> bool {
        match self {
            Self::Chunks => true,
            Self::Lines { between } => between,
            Self::Lengths { known, left, .. } => known == 0 && left == 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use skewbridge_http_engine::drain::drain_channel;

    const TEST_TIMEOUT: Duration = Duration::from_secs(20);

    fn response_headers(kind: &'static str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, http::HeaderValue::from_static(kind));
        headers
    }

    #[test]
    fn the_end_of_an_event_is_found_in_any_split_of_the_bytes() {
        let json = b"{\"type\":\"ADDED\"}\n{}\n";
        let protobuf = b"\0\0\0\x03abc\0\0\0\0\0\0\x01\x02";
        let rows: [(&str, &[u8], &[usize]); 2] = [
            ("application/json", json, &[0, 17, 20]),
            (
                "application/vnd.kubernetes.protobuf;stream=watch",
                &protobuf[..11],
                &[0, 7, 11],
            ),
        ];
        for (kind, stream, ends) in rows {
            let mut events = EventBoundary::of(&response_headers(kind));
            for at in 0..=stream.len() {
                assert_eq!(events.is_between(), ends.contains(&at), "{kind} at {at}");
                if at < stream.len() {
                    events.passed(&stream[at..=at]);
                }
            }
            let mut at_once = EventBoundary::of(&response_headers(kind));
            at_once.passed(stream);
            assert_eq!(at_once, events);
        }
    }

    #[tokio::test]
    async fn watches_end_one_by_one_in_the_first_half_of_the_drain() {
        let span = Duration::from_millis(400);
        let (trigger, drain) = drain_channel();
        let json = response_headers("application/json");
        let mut ends = [0, 128, 255].map(|slot| WatchEnd::new(&drain, slot, &json));
        trigger.mark_not_ready();
        for end in &mut ends {
            let polled = poll_fn(|cx| Poll::Ready(end.poll_end(cx))).await;
            assert!(polled.is_pending(), "not before the drain begins");
        }
        trigger.drain(span);
        let began = Instant::now();
        let mut after = Vec::new();
        for end in &mut ends {
            let ended = poll_fn(|cx| end.poll_end(cx));
            timeout(TEST_TIMEOUT, ended).await.unwrap();
            after.push(began.elapsed());
        }
        // Each watch is first polled when the previous one has ended: its half of the drain begins
        // then, and is shorter by the elapsed time.
        assert!(after[1] >= span / 5, "{after:?}");
        assert!(after[2] > after[1], "{after:?}");
    }

    #[tokio::test]
    async fn a_watch_does_not_end_within_an_event() {
        let (trigger, drain) = drain_channel();
        let mut end = WatchEnd::new(&drain, 0, &response_headers("application/json"));
        end.on_forwarded(b"{\"type\":\"AD");
        trigger.drain(Duration::ZERO);
        let polled = poll_fn(|cx| Poll::Ready(end.poll_end(cx))).await;
        assert!(polled.is_pending());
        end.on_forwarded(b"DED\"}\n");
        timeout(TEST_TIMEOUT, poll_fn(|cx| end.poll_end(cx)))
            .await
            .unwrap();
    }
}
