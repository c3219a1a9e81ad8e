//! Watches that end because the bridge goes away.

use std::pin::Pin;
use std::task::{Context, Poll};

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use tokio::time::{Instant, Sleep};

use skewbridge_http_engine::body::EarlyEnd;
use skewbridge_http_engine::drain::Drain;

/// Ends a watch when the bridge goes away, at a moment of its own within the
/// first half of the time there is: a client then asks elsewhere, and not all
/// clients at once.
pub(crate) struct WatchEnd {
    state: State,
    events: Events,
    /// 0 to 255: where in the span this watch ends.
    share: u8,
}

enum State {
    Listening(Pin<Box<dyn Future<Output = Instant> + Send>>),
    Ending(Pin<Box<Sleep>>),
}

impl std::fmt::Debug for WatchEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatchEnd").finish_non_exhaustive()
    }
}

impl WatchEnd {
    pub(crate) fn new(drain: &Drain, share: u8, answer: &HeaderMap) -> Self {
        Self {
            state: State::Listening(Box::pin(drain.clone().deadline())),
            events: Events::of(answer),
            share,
        }
    }

    fn poll_time(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            match &mut self.state {
                State::Listening(deadline) => match deadline.as_mut().poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(deadline) => {
                        let now = Instant::now();
                        let span = deadline.saturating_duration_since(now) / 2;
                        let at = now + span * u32::from(self.share) / 255;
                        self.state = State::Ending(Box::pin(tokio::time::sleep_until(at)));
                    }
                },
                State::Ending(sleep) => return sleep.as_mut().poll(cx),
            }
        }
    }
}

impl EarlyEnd for WatchEnd {
    fn passed(&mut self, bytes: &[u8]) {
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

/// Where in a stream of events we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Events {
    /// JSON: a newline ends an event.
    Lines { between: bool },
    /// Protobuf: four bytes, big-endian, say how long the next event is.
    Lengths { head: u32, known: u8, left: u64 },
    /// Nothing is known of it; upstream writes an event in one piece.
    Pieces,
}

impl Events {
    fn of(answer: &HeaderMap) -> Self {
        let kind = answer
            .get(CONTENT_TYPE)
            .map_or(&b""[..], |it| it.as_bytes());
        if answer.contains_key(CONTENT_ENCODING) {
            Self::Pieces
        } else if kind.starts_with(b"application/json") {
            Self::Lines { between: true }
        } else if kind.starts_with(b"application/vnd.kubernetes.protobuf") {
            Self::Lengths {
                head: 0,
                known: 0,
                left: 0,
            }
        } else {
            Self::Pieces
        }
    }

    fn passed(&mut self, bytes: &[u8]) {
        match self {
            Self::Pieces => {}
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
            Self::Pieces => true,
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
    use skewbridge_http_engine::drain::announcement;

    /// Long beside any span here.
    const PATIENCE: Duration = Duration::from_secs(20);

    fn answer(kind: &'static str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, http::HeaderValue::from_static(kind));
        headers
    }

    #[test]
    fn the_end_of_an_event_is_known_in_any_pieces() {
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
            let mut events = Events::of(&answer(kind));
            for at in 0..=stream.len() {
                assert_eq!(events.is_between(), ends.contains(&at), "{kind} at {at}");
                if at < stream.len() {
                    events.passed(&stream[at..=at]);
                }
            }
            let mut at_once = Events::of(&answer(kind));
            at_once.passed(stream);
            assert_eq!(at_once, events);
        }
    }

    #[tokio::test]
    async fn watches_end_one_by_one_in_the_first_half_of_the_drain() {
        let span = Duration::from_millis(400);
        let (leave, drain) = announcement();
        let json = answer("application/json");
        let mut ends = [0, 128, 255].map(|share| WatchEnd::new(&drain, share, &json));
        leave.leave();
        for end in &mut ends {
            let polled = poll_fn(|cx| Poll::Ready(end.poll_end(cx))).await;
            assert!(polled.is_pending(), "not while it is only leaving");
        }
        leave.drain(span);
        let began = Instant::now();
        let mut after = Vec::new();
        for end in &mut ends {
            let ended = poll_fn(|cx| end.poll_end(cx));
            timeout(PATIENCE, ended).await.unwrap();
            after.push(began.elapsed());
        }
        // Each is polled when the one before has ended: its own half begins
        // there, and is shorter by what has passed.
        assert!(after[1] >= span / 5, "{after:?}");
        assert!(after[2] > after[1], "{after:?}");
    }

    #[tokio::test]
    async fn a_watch_does_not_end_in_the_midst_of_an_event() {
        let (leave, drain) = announcement();
        let mut end = WatchEnd::new(&drain, 0, &answer("application/json"));
        end.passed(b"{\"type\":\"AD");
        leave.drain(Duration::ZERO);
        let polled = poll_fn(|cx| Poll::Ready(end.poll_end(cx))).await;
        assert!(polled.is_pending());
        end.passed(b"DED\"}\n");
        timeout(PATIENCE, poll_fn(|cx| end.poll_end(cx)))
            .await
            .unwrap();
    }
}
