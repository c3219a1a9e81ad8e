use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Method, Version};
use tokio::sync::watch;
use tokio_rustls::TlsStream;

use crate::der::Subject;
use crate::wire::{self, Fields};

/// How much of a body is kept; what comes after is counted and dropped.
const KEPT_BODY: usize = 1 << 20;

/// A request as an [`ApiServer`](super::ApiServer) saw it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Which request of the server this is, from 0, in the order their heads came.
    pub ordinal: usize,
    /// Which connection of the server it came on, from 0.
    pub connection: usize,
    /// The certificate the connection presented.
    pub client: Option<ClientCertificate>,
    /// HTTP/1.1 or HTTP/2.
    pub version: Version,
    /// The method.
    pub method: Method,
    /// The request target: over HTTP/1.1 as on the wire, over HTTP/2 the `:path`.
    pub target: String,
    /// The `Host` header or the `:authority`.
    pub authority: Option<String>,
    /// Over HTTP/1.1 all headers in the order and case of the wire. Over HTTP/2 without the
    /// pseudo-headers, and a repeated name stands where it came first.
    pub headers: Vec<(String, String)>,
    /// The first mebibyte of the body.
    pub body: Bytes,
    /// How many bytes the body had so far.
    pub body_len: u64,
    /// Whether the body has come to its end.
    pub body_state: Body,
    /// The trailers, once the body is complete.
    pub trailers: Vec<(String, String)>,
}

/// How far a request's body has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// It is still coming.
    Coming,
    /// It ended as it should.
    Complete,
    /// The client broke off.
    BrokenOff,
}

/// What a client certificate says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The user.
    pub common_name: String,
    /// The groups.
    pub organizations: Vec<String>,
}

impl Seen {
    /// The first value of a header, whatever its case.
    pub fn header(&self, name: &str) -> Option<&str> {
        wire::find(&self.headers, name)
    }

    /// All values of a header, whatever its case.
    pub fn all(&self, name: &str) -> Vec<&str> {
        self.headers
            .iter()
            .filter(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
            .collect()
    }

    /// Whether a bridge asked it for itself.
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
    list: Arc<Mutex<Vec<Seen>>>,
    changed: watch::Sender<()>,
}

impl Record {
    pub(super) fn all(&self) -> Vec<Seen> {
        self.lock().clone()
    }

    /// Enters a request whose head was read.
    pub(super) fn enter(&self, mut seen: Seen) -> Entry {
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
        condition: impl Fn(&[Seen]) -> bool,
        timeout: Duration,
    ) -> Vec<Seen> {
        let mut changed = self.changed.subscribe();
        let waiting = async {
            while !condition(&self.lock()) {
                // The record itself holds the sender.
                let _ = changed.changed().await;
            }
        };
        assert!(
            tokio::time::timeout(timeout, waiting).await.is_ok(),
            "waited {timeout:?} for requests, saw only {:#?}",
            self.all()
        );
        self.all()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Seen>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of one request in the record while its body is read. Dropped before the end, it
/// says that the client broke off.
pub(super) struct Entry {
    record: Record,
    ordinal: usize,
    body: BytesMut,
}

impl Entry {
    pub(super) fn push(&mut self, piece: &[u8]) {
        let room = KEPT_BODY - self.body.len();
        self.body.extend_from_slice(&piece[..piece.len().min(room)]);
        self.update(|seen| seen.body_len += piece.len() as u64);
    }

    /// The body is complete. Gives the request as it is recorded.
    pub(super) fn complete(mut self, trailers: Fields) -> Seen {
        let body = self.body.split().freeze();
        self.update(|seen| {
            seen.body = body;
            seen.trailers = trailers;
            seen.body_state = Body::Complete;
        });
        self.seen()
    }

    /// The request as it is recorded by now.
    pub(super) fn seen(&self) -> Seen {
        self.record.lock()[self.ordinal].clone()
    }

    fn update(&self, change: impl FnOnce(&mut Seen)) {
        change(&mut self.record.lock()[self.ordinal]);
        self.record.changed.send_replace(());
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let body = self.body.split().freeze();
        self.update(|seen| {
            if seen.body_state == Body::Coming {
                seen.body = body;
                seen.body_state = Body::BrokenOff;
            }
        });
    }
}
