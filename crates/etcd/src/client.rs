//! One client for several endpoints: which connection a call uses, and where it is retried.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustls::ClientConfig;
use tokio::time::{Instant, timeout_at};

use crate::connection::Connection;
use crate::endpoint::{Endpoint, EndpointError, Transport};
use crate::error::{Error, Failure};

/// Timeout of one attempt at one endpoint, including the connect.
pub(crate) const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// A client of one etcd cluster. Clones share its connection, which is closed with the last
/// clone and watch.
///
/// A call goes to the endpoint that last worked. If the connection fails, if there is no
/// response within 5 s, or if the status is `UNAVAILABLE`, it goes to the next endpoint, each
/// once. All calls are safe to retry.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    endpoints: Vec<Endpoint>,
    tls: Option<Arc<ClientConfig>>,
    current: Mutex<EndpointState>,
}

/// State of the endpoints, by index.
#[derive(Debug, Default)]
struct EndpointState {
    /// Where to connect first.
    preferred: usize,
    open: Option<OpenConnection>,
}

#[derive(Debug, Clone)]
struct OpenConnection {
    index: usize,
    connection: Arc<Connection>,
}

impl Client {
    /// A client that is not connected yet. `tls` has the CA and the client certificate for
    /// `https` endpoints; its ALPN is replaced. When its files change, a new client is needed.
    pub fn new(
        endpoints: Vec<Endpoint>,
        tls: Option<Arc<ClientConfig>>,
    ) -> Result<Self, EndpointError> {
        let needs_tls = |endpoint: &Endpoint| matches!(endpoint.transport, Transport::Tls(_));
        if endpoints.is_empty() {
            return Err(EndpointError::None);
        }
        if tls.is_none() && endpoints.iter().any(needs_tls) {
            return Err(EndpointError::NoTls);
        }
        let tls = tls.map(|tls| {
            let mut tls = Arc::unwrap_or_clone(tls);
            tls.alpn_protocols = vec![b"h2".to_vec()];
            Arc::new(tls)
        });
        Ok(Self {
            inner: Arc::new(Inner {
                endpoints,
                tls,
                current: Mutex::default(),
            }),
        })
    }

    /// Tries each endpoint until one succeeds.
    pub(crate) async fn try_each<T, F>(
        &self,
        operation: impl Fn(Arc<Connection>) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let mut tried = vec![false; self.inner.endpoints.len()];
        // A reused connection may have ended unnoticed: the first such
        // failure does not count against its endpoint.
        let mut may_reuse_endpoint = true;
        loop {
            let (index, open) = self.inner.pick(&tried);
            let reused = open.is_some();
            let deadline = Instant::now() + ATTEMPT_TIMEOUT;
            let opened = match open {
                Some(connection) => Ok(connection),
                None => self.inner.open(index).await,
            };
            let (used, failure) = match opened {
                Ok(connection) => match timeout_at(deadline, operation(connection.clone())).await {
                    Ok(Ok(done)) => return Ok(done),
                    Ok(Err(failure)) => (Some(connection), failure),
                    Err(_) => (Some(connection), response_timeout()),
                },
                Err(failure) => (None, failure),
            };
            if !failure.is_endpoint_failure() {
                return Err(failure.at(&self.inner.endpoints[index]));
            }
            let stale = reused && matches!(failure, Failure::Connection(_));
            self.inner.failed(index, used.as_ref(), &failure);
            if stale && may_reuse_endpoint {
                may_reuse_endpoint = false;
                self.inner.current().preferred = index;
                continue;
            }
            tried[index] = true;
            let error = failure.at(&self.inner.endpoints[index]);
            if tried.iter().all(|&tried| tried) {
                return Err(error);
            }
            tracing::debug!(%error, "trying the next endpoint of etcd");
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("endpoints", &self.inner.endpoints)
            .finish_non_exhaustive()
    }
}

impl Inner {
    /// Where to try next: the open connection, or the first endpoint that was not tried,
    /// starting at the preferred one.
    fn pick(&self, tried: &[bool]) -> (usize, Option<Arc<Connection>>) {
        let mut current = self.current();
        if current
            .open
            .as_ref()
            .is_some_and(|open| open.connection.is_closed())
        {
            current.open = None;
        }
        match &current.open {
            Some(open) if !tried[open.index] => (open.index, Some(open.connection.clone())),
            _ => (first_untried(tried, current.preferred), None),
        }
    }

    /// Opens a connection for this and the next calls.
    async fn open(&self, index: usize) -> Result<Arc<Connection>, Failure> {
        let connection = Connection::open(&self.endpoints[index], self.tls.as_ref()).await?;
        let connection = Arc::new(connection);
        let mut current = self.current();
        current.preferred = index;
        current.open = Some(OpenConnection {
            index,
            connection: connection.clone(),
        });
        Ok(connection)
    }

    /// Records that an endpoint failed. Watches keep a connection that calls no longer use: pings
    /// decide whether it is dead.
    fn failed(&self, index: usize, used: Option<&Arc<Connection>>, failure: &Failure) {
        let mut current = self.current();
        if current.preferred == index {
            current.preferred = (index + 1) % self.endpoints.len();
        }
        let lost = matches!(failure, Failure::Connection(_) | Failure::Timeout(_));
        // Another call may have opened a new connection meanwhile.
        let is_open = |used| {
            let open = current.open.as_ref();
            open.is_some_and(|open| Arc::ptr_eq(&open.connection, used))
        };
        if lost && used.is_some_and(is_open) {
            current.open = None;
        }
    }

    fn current(&self) -> MutexGuard<'_, EndpointState> {
        // No code that can panic runs under this lock, and the state would be valid after a panic.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn response_timeout() -> Failure {
    Failure::Timeout(format!("no answer within {} s", ATTEMPT_TIMEOUT.as_secs()))
}

/// The first endpoint that was not tried, cyclically from `preferred`.
fn first_untried(tried: &[bool], preferred: usize) -> usize {
    let count = tried.len();
    (0..count)
        .map(|step| (preferred + step) % count)
        .find(|&index| !tried[index])
        .unwrap_or(preferred)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_tried_cyclically() {
        assert_eq!(first_untried(&[false, false, false], 1), 1);
        assert_eq!(first_untried(&[false, true, false], 1), 2);
        assert_eq!(first_untried(&[false, true, true], 1), 0);
    }

    #[test]
    fn a_client_needs_an_endpoint_and_https_a_ca() {
        assert_eq!(Client::new(vec![], None).unwrap_err(), EndpointError::None);
        let secure = vec!["https://a:1".parse().unwrap()];
        assert_eq!(Client::new(secure, None).unwrap_err(), EndpointError::NoTls);
    }

    #[test]
    fn a_client_can_be_shared_between_threads() {
        fn shared<T: Clone + Send + Sync + 'static>() {}
        fn sent<T: Send>(_: &T) {}
        shared::<Client>();
        let client = Client::new(vec!["http://a:1".parse().unwrap()], None).unwrap();
        sent(&client.range_prefix(b"/"));
        sent(&client.watch_prefix(b"/", crate::Revision::new(1)));
        sent::<Option<crate::Watch>>(&None);
    }
}
