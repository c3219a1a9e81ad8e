use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Method, Version};
use tokio::sync::watch;
use tokio_rustls::TlsStream;

use crate::der::Subject;
use crate::h1_codec::{self, Fields};

/// The maximum number of body bytes that are kept; the rest is counted and dropped.
const MAX_KEPT_BODY_BYTES: usize = 1 << 20;

/// A request as received by an [`ApiServer`](super::ApiServer).
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    /// The index of the request on this server, from 0, in the order of their heads.
    pub ordinal: usize,
    /// The index of its connection on this server, from 0.
    pub connection: usize,
    /// The client certificate of the connection.
    pub client: Option<ClientCertificate>,
    /// HTTP/1.1 or HTTP/2.
    pub version: Version,
    /// The method.
    pub method: Method,
    /// The request target: over HTTP/1.1 as on the wire, over HTTP/2 the `:path`.
    pub target: String,
    /// The `Host` header or the `:authority`.
    pub authority: Option<String>,
    /// Over HTTP/1.1 all headers in wire order and case. Over HTTP/2 without the
    /// pseudo-headers, with repeated values of a name after its first one.
    pub headers: Vec<(String, String)>,
    /// The first mebibyte of the body.
    pub body: Bytes,
    /// How many bytes of the body have arrived so far.
    pub body_len: u64,
    /// Whether the body is complete.
    pub body_state: Body,
    /// The trailers, once the body is complete.
    pub trailers: Vec<(String, String)>,
}

/// The progress of a request body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// Not complete yet.
    Receiving,
    /// Complete.
    Complete,
    /// The client aborted it.
    Aborted,
}

/// The identity in a client certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The user.
    pub common_name: String,
    /// The groups.
    pub organizations: Vec<String>,
}

impl RecordedRequest {
    /// The first value of a header, case-insensitively.
    pub fn header(&self, name: &str) -> Option<&str> {
        h1_codec::find(&self.headers, name)
    }

    /// All values of a header, case-insensitively.
    pub fn all(&self, name: &str) -> Vec<&str> {
        self.headers
            .iter()
            .filter(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
            .collect()
    }

    /// Whether a bridge sent it on its own behalf.
    pub fn is_probe(&self) -> bool {
        self.header("user-agent")
            .is_some_and(|agent| agent.starts_with("skewbridge/"))
    }

    /// The target without its query.
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// The target's query, without the question mark.
    pub fn query(&self) -> Option<&str> {
        self.target.split_once('?').map(|(_, query)| query)
    }
}

impl ClientCertificate {
    pub(super) fn of<S>(tls: &TlsStream<S>) -> Option<Self> {
        let subject = Subject::of(tls.get_ref().1.peer_certificates()?.first()?);
        Some(Self {
            common_name: subject.common_name,
            organizations: subject.organizations,
        })
    }
}

/// All requests of a server.
#[derive(Debug, Clone, Default)]
pub(super) struct Record {
    list: Arc<Mutex<Vec<RecordedRequest>>>,
    changed: watch::Sender<()>,
}

impl Record {
    pub(super) fn all(&self) -> Vec<RecordedRequest> {
        self.lock().clone()
    }

    /// Adds a request whose head was read.
    pub(super) fn enter(&self, mut seen: RecordedRequest) -> Entry {
        let mut list = self.lock();
        let ordinal = list.len();
        seen.ordinal = ordinal;
        list.push(seen);
        drop(list);
        self.changed.send_replace(());
        Entry {
            record: self.clone(),
            ordinal,
            body: BytesMut::new(),
        }
    }

    pub(super) async fn wait_for(
        &self,
        condition: impl Fn(&[RecordedRequest]) -> bool,
        timeout: Duration,
    ) -> Vec<RecordedRequest> {
        let mut changed = self.changed.subscribe();
        let waiting = async {
            while !condition(&self.lock()) {
                // The record itself owns the sender.
                let _ = changed.changed().await;
            }
        };
        assert!(
            tokio::time::timeout(timeout, waiting).await.is_ok(),
            "waited {timeout:?} for requests, got only {:#?}",
            self.all()
        );
        self.all()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<RecordedRequest>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The entry of one request in the record while its body is read. Dropping it early means
/// that the client aborted the request.
pub(super) struct Entry {
    record: Record,
    ordinal: usize,
    body: BytesMut,
}

impl Entry {
    pub(super) fn push(&mut self, part: &[u8]) {
        let room = MAX_KEPT_BODY_BYTES - self.body.len();
        self.body.extend_from_slice(&part[..part.len().min(room)]);
        self.update(|seen| seen.body_len += part.len() as u64);
    }

    /// Marks the body as complete and returns the recorded request.
    pub(super) fn complete(mut self, trailers: Fields) -> RecordedRequest {
        let body = self.body.split().freeze();
        self.update(|seen| {
            seen.body = body;
            seen.trailers = trailers;
            seen.body_state = Body::Complete;
        });
        self.snapshot()
    }

    /// The request as recorded so far.
    pub(super) fn snapshot(&self) -> RecordedRequest {
        self.record.lock()[self.ordinal].clone()
    }

    fn update(&self, change: impl FnOnce(&mut RecordedRequest)) {
        change(&mut self.record.lock()[self.ordinal]);
        self.record.changed.send_replace(());
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let body = self.body.split().freeze();
        self.update(|seen| {
            if seen.body_state == Body::Receiving {
                seen.body = body;
                seen.body_state = Body::Aborted;
            }
        });
    }
}
