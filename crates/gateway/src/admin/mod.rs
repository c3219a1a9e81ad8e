//! The admin ports: metrics, health checks, the status page, `/statusz`, `/flagz`, `/debug/peers`,
//! `/debug/route` and `/debug/vanishing`, on loopback without TLS, and over TLS for users that
//! kube-apiserver permits
//! ([`secure`]).

mod debug_peers;
mod debug_route;
mod loopback_host;
pub(crate) mod secure;
pub(crate) mod status;
mod zpages;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use skewbridge_http_engine::body::{RequestBody, ResponseBody};
use skewbridge_http_engine::drain::drain_channel;
use skewbridge_http_engine::server::ClientTimeouts;
use skewbridge_http_engine::server::{ClientIo, ClientResponse, Service, h1};
use skewbridge_k8s_api::content_negotiation::negotiate_error_format;
use skewbridge_k8s_api::status::Status;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use self::status::StatusSampler;
use crate::config::Guards;
use crate::discovery_view::View;
use crate::error_response;
use crate::frontend::listener::ACCEPT_RETRY_DELAY;
use crate::health::{self, Health, HealthEndpoint};
use crate::metrics::{Metrics, process};
use crate::vanishing::ledger::Ledger;

/// The clients are a scraper, a prober and an administrator.
const MAX_CONNECTIONS: usize = 64;

/// The service of the admin port.
#[derive(Debug, Clone)]
pub(crate) struct Admin {
    pub(crate) metrics: Metrics,
    pub(crate) health: Health,
    /// `--guard-components`
    pub(crate) guards: Guards,
    /// What `/flagz` shows.
    pub(crate) flags: Arc<BTreeMap<String, String>>,
    pub(crate) ledger: Arc<Ledger>,
    /// What `/status` shows.
    pub(crate) status: Arc<StatusSampler>,
}

/// Serves until it is dropped: also while the bridge drains, so that the drain can be observed.
pub(crate) async fn run(listener: TcpListener, admin: Admin, timeouts: ClientTimeouts) {
    // A drain that is never triggered.
    let (_trigger, drain) = drain_channel();
    let mut connections = JoinSet::new();
    loop {
        while connections.len() >= MAX_CONNECTIONS {
            connections.join_next().await;
        }
        if let Ok((tcp, _)) = listener.accept().await {
            let io = ClientIo::Plain(tcp);
            connections.spawn(h1::serve(io, admin.clone(), timeouts, drain.clone()));
        } else {
            tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
        }
        while connections.try_join_next().is_some() {}
    }
}

impl Service for Admin {
    type Record = ();

    fn refused(&self, _status: StatusCode) {}

    async fn call(&self, request: Request<RequestBody>) -> ClientResponse {
        let (head, _) = request.into_parts();
        let refused =
            Self::reject_method(&head).or_else(|| loopback_host::reject_other_host(&head));
        ClientResponse::new(match refused {
            Some(refused) => refused.map(ResponseBody::full),
            None => self.respond(&head),
        })
    }
}

/// The endpoint of a health check, and the name of a single check or nothing.
fn health_endpoint(path: &str) -> Option<(HealthEndpoint, &str)> {
    let path = path.strip_prefix('/')?;
    let (endpoint, check) = path.split_once('/').unwrap_or((path, ""));
    let endpoint = match endpoint {
        "livez" => HealthEndpoint::Livez,
        "readyz" => HealthEndpoint::Readyz,
        "healthz" => HealthEndpoint::Healthz,
        _ => return None,
    };
    Some((endpoint, check))
}

impl Admin {
    /// The response to a method that is not served.
    fn reject_method(head: &Parts) -> Option<Response<Bytes>> {
        if head.method == Method::GET || head.method == Method::HEAD {
            return None;
        }
        let status = Status::method_not_allowed("only GET and HEAD are served here");
        let mut response = error_response::status(&status, negotiate_error_format(&head.headers));
        let allow = HeaderValue::from_static("GET, HEAD");
        response.headers_mut().insert(ALLOW, allow);
        Some(response)
    }

    fn respond(&self, head: &Parts) -> Response<ResponseBody> {
        if status::is_status_path(head.uri.path()) {
            return status::respond(&self.status, head);
        }
        self.complete_response(head).map(ResponseBody::full)
    }

    fn complete_response(&self, head: &Parts) -> Response<Bytes> {
        if let Some((endpoint, check)) = health_endpoint(head.uri.path()) {
            let checks = self.health.checks(endpoint);
            return match check {
                "" => health::response(endpoint, &checks, head.uri.query()),
                name => {
                    health::single_check(endpoint, &checks, name).unwrap_or_else(|| not_found(head))
                }
            };
        }
        match head.uri.path() {
            "/metrics" => self.metrics(),
            "/debug/peers" => self.peers(),
            "/debug/route" => self.route(head),
            "/debug/vanishing" => self.vanishing(),
            "/statusz" => zpage(
                head,
                zpages::statusz(&head.headers, process::started(), now()),
            ),
            "/flagz" => zpage(head, zpages::flagz(&head.headers, &self.flags)),
            _ => not_found(head),
        }
    }

    /// The response to a health check without the names, notes and causes of single checks.
    fn health_status(&self, head: &Parts) -> Response<Bytes> {
        let Some((endpoint, _)) = health_endpoint(head.uri.path()) else {
            return not_found(head);
        };
        let checks = self.health.checks(endpoint);
        health::brief(&health::response(endpoint, &checks, head.uri.query()))
    }

    fn peers(&self) -> Response<Bytes> {
        json(debug_peers::json(
            &self.health.backends.load(),
            self.health.is_balanced,
        ))
    }

    fn route(&self, head: &Parts) -> Response<Bytes> {
        let backends = self.health.backends.load();
        let query = head.uri.query().unwrap_or_default();
        let explained = debug_route::json(
            query,
            &self.guards,
            &backends,
            self.health.is_balanced,
            Instant::now(),
        );
        match explained {
            Ok(text) => json(text),
            Err(problem) => {
                let format = negotiate_error_format(&head.headers);
                error_response::status(&Status::bad_request(problem), format)
            }
        }
    }

    fn vanishing(&self) -> Response<Bytes> {
        // A structure of numbers and text can be serialized.
        json(serde_json::to_string(&self.ledger.report()).unwrap_or_default())
    }

    fn metrics(&self) -> Response<Bytes> {
        self.metrics.ready(self.health.is_ready());
        self.observe_backends();
        let text = self.metrics.text();
        let mut response = health::text(StatusCode::OK, text);
        response.headers_mut().insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8"),
        );
        response
    }

    /// Updates the gauges that show the state of the cluster, from the views of all backends.
    fn observe_backends(&self) {
        let backends = self.health.backends.load();
        let mut tests = BTreeMap::new();
        let results = backends.iter().flat_map(|it| it.self_test.results());
        for (test, result) in results {
            if let Some(passed) = result.passed() {
                *tests.entry(test.as_str()).or_insert(true) &= passed;
            }
        }
        self.metrics.self_test(tests.into_iter());
        let handles: Vec<_> = (backends.iter())
            .filter_map(|it| it.cluster_handle.as_ref().ok())
            .collect();
        if handles.is_empty() {
            return;
        }
        let clusters: Vec<_> = handles.iter().map(|it| it.cluster.load_full()).collect();
        let registries = handles.iter().map(|it| it.registry.borrow().clone());
        let peers: Vec<_> = clusters
            .iter()
            .map(|it| &it.peers)
            .zip(registries)
            .collect();
        self.metrics.peers().observe(&peers);
        let guards: Vec<_> = (clusters.iter())
            .map(|it| (&*it.fields, &*it.policies))
            .collect();
        self.metrics.placement().observe(&guards);
        let ages = clusters.iter().flat_map(|it| &it.peers.peers);
        let ages = ages.filter_map(|peer| peer.last_success.and_then(|at| at.elapsed().ok()));
        let sizes = clusters.iter().filter_map(|it| it.view.as_deref());
        let sizes = sizes.flat_map(View::sizes);
        self.metrics.discovery().observe(sizes, ages.max());
    }
}

fn json(text: String) -> Response<Bytes> {
    let mut response = health::text(StatusCode::OK, text);
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

fn zpage(head: &Parts, page: Result<Response<Bytes>, Status>) -> Response<Bytes> {
    page.unwrap_or_else(|status| {
        error_response::status(&status, negotiate_error_format(&head.headers))
    })
}

/// Seconds since 1970.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs()
}

fn not_found(head: &Parts) -> Response<Bytes> {
    let message = "the paths of this port are /metrics, /livez, /readyz, /healthz, /status, /status.json, /statusz, /flagz, /debug/peers, /debug/route and /debug/vanishing";
    let status = Status::not_found(message);
    error_response::status(&status, negotiate_error_format(&head.headers))
}
