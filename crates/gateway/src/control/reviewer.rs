//! Sends reviews (`TokenReview`, `SubjectAccessReview`) to the backends.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use tokio::time::timeout;

use crate::balancer::{Backend, BackendSet, Backends};
use crate::control::internal_client::{InternalClient, InternalRequest, InternalTarget};
use crate::request_class::RequestClass;

/// The time for one review at one kube-apiserver. Prometheus waits 10 s for a scrape.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(3);

/// Larger than any answer to a review.
const MAX_REVIEW_BYTES: usize = 64 * 1024;

/// Sends reviews, as the user of the bridge. Its connections belong to the runtime that uses it.
#[derive(Debug)]
pub(crate) struct Reviewer {
    backends: Arc<Backends>,
    clients: Mutex<BackendClients>,
}

/// The clients of backends that were used. Backends come and go with `--upstream=endpoints`.
#[derive(Debug, Default)]
struct BackendClients(Vec<(Arc<Backend>, Arc<InternalClient>)>);

impl BackendClients {
    fn of(&mut self, backend: &Arc<Backend>) -> Arc<InternalClient> {
        let mut known = self.0.iter();
        if let Some((_, client)) = known.find(|(it, _)| Arc::ptr_eq(it, backend)) {
            return client.clone();
        }
        let client = Arc::new(InternalClient::new(backend.state.clone()));
        self.0.push((backend.clone(), client.clone()));
        client
    }

    /// Removes backends that are no longer listed.
    fn retain_listed(&mut self, all: &[Arc<Backend>]) {
        self.0
            .retain(|(known, _)| all.iter().any(|it| Arc::ptr_eq(it, known)));
    }
}

impl Reviewer {
    pub(crate) fn new(backends: Arc<Backends>) -> Self {
        Self {
            backends,
            clients: Mutex::default(),
        }
    }

    pub(crate) fn close_idle_connections(&self) {
        let mut clients = self.lock_clients();
        clients.retain_listed(&self.backends.all());
        for (_, client) in &clients.0 {
            client.close_idle_connections();
        }
    }

    fn lock_clients(&self) -> MutexGuard<'_, BackendClients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a review to a kube-apiserver and, because a review changes nothing, to the next one if
    /// that does not answer.
    pub(crate) async fn send(&self, path: &str, json: Vec<u8>) -> Result<Bytes, String> {
        let mut tried = BackendSet::default();
        let mut error = "no kube-apiserver is available".to_owned();
        let all = self.backends.all();
        while let Some(index) = self.backends.choose(&all, tried, RequestClass::of(false)) {
            tried.insert(index);
            let client = self.lock_clients().of(&all[index]);
            let request = InternalRequest::json(Method::POST, path, json.clone())
                .max_response_bytes(MAX_REVIEW_BYTES);
            let sent = client.request(InternalTarget::Upstream, request);
            let response = match timeout(REVIEW_TIMEOUT, sent).await {
                Ok(response) => response.and_then(|it| it.ok(path)),
                Err(_) => Err(format!(
                    "{path}: no answer in {} s",
                    REVIEW_TIMEOUT.as_secs()
                )),
            };
            match response {
                Ok(response) => return Ok(response.body),
                Err(cause) => error = cause,
            }
        }
        Err(error)
    }
}
