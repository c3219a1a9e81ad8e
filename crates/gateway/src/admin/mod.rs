//! The admin port: metrics, health checks, `/debug/peers` and `/debug/route`, on loopback.

mod debug_peers;
mod debug_route;

use std::time::Instant;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use skewbridge_http_engine::body::{RequestBody, ResponseBody};
use skewbridge_http_engine::drain::drain_channel;
use skewbridge_http_engine::server::ClientTimeouts;
use skewbridge_http_engine::server::{ClientIo, ClientResponse, Service, h1};
use skewbridge_k8s_api::component::GuardedComponents;
use skewbridge_k8s_api::content_negotiation::negotiate_error_format;
use skewbridge_k8s_api::status::Status;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::error_response;
use crate::frontend::listener::ACCEPT_RETRY_DELAY;
use crate::health::{self, Health, HealthEndpoint};
use crate::metrics::Metrics;

/// The clients are a scraper, a prober and an administrator.
const MAX_CONNECTIONS: usize = 64;

/// The service of the admin port.
#[derive(Debug, Clone)]
pub(crate) struct Admin {
    pub(crate) metrics: Metrics,
    pub(crate) health: Health,
    /// `--guard-components`
    pub(crate) guarded_components: GuardedComponents,
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
        ClientResponse {
            response: self.respond(&request).map(ResponseBody::full),
            switched: None,
            record: (),
        }
    }
}

impl Admin {
    fn respond(&self, request: &Request<RequestBody>) -> Response<Bytes> {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            let status = Status::method_not_allowed("only GET and HEAD are served here");
            let mut response =
                error_response::status(&status, negotiate_error_format(request.headers()));
            let allow = HeaderValue::from_static("GET, HEAD");
            response.headers_mut().insert(ALLOW, allow);
            return response;
        }
        let path = request.uri().path();
        let query = request.uri().query();
        let path = path.strip_prefix('/').unwrap_or_default();
        let (endpoint, check) = match path.split_once('/').unwrap_or((path, "")) {
            ("livez", check) => (HealthEndpoint::Livez, check),
            ("readyz", check) => (HealthEndpoint::Readyz, check),
            ("healthz", check) => (HealthEndpoint::Healthz, check),
            ("metrics", "") => return self.metrics(),
            ("debug", "peers") => return self.peers(),
            ("debug", "route") => return self.route(request),
            _ => return not_found(request),
        };
        let checks = self.health.checks(endpoint);
        match check {
            "" => health::response(endpoint, &checks, query),
            name => {
                health::single_check(endpoint, &checks, name).unwrap_or_else(|| not_found(request))
            }
        }
    }

    fn peers(&self) -> Response<Bytes> {
        json(debug_peers::json(&self.health.cluster_handle))
    }

    fn route(&self, request: &Request<RequestBody>) -> Response<Bytes> {
        let cluster = self.health.cluster_handle.as_ref().ok();
        let cluster = cluster.map(|it| it.cluster.load_full());
        let explained = debug_route::explain(
            request.uri().query().unwrap_or_default(),
            &self.guarded_components,
            cluster.as_deref(),
            Instant::now(),
        );
        match explained {
            Ok(explanation) => json(serde_json::to_string(&explanation).unwrap_or_default()),
            Err(problem) => {
                let format = negotiate_error_format(request.headers());
                error_response::status(&Status::bad_request(problem), format)
            }
        }
    }

    fn metrics(&self) -> Response<Bytes> {
        self.metrics.ready(self.health.is_ready());
        let results = self.health.self_test.results();
        let passed = results
            .iter()
            .filter_map(|(test, result)| Some((test.as_str(), result.passed()?)));
        self.metrics.self_test(passed);
        if let Ok(cluster_handle) = &self.health.cluster_handle {
            let cluster = cluster_handle.cluster.load();
            let registry = cluster_handle.registry.borrow().clone();
            self.metrics.peers().observe(&cluster.peers, &registry);
            let ages = (cluster.peers.peers.iter())
                .filter_map(|peer| peer.last_success.and_then(|at| at.elapsed().ok()));
            self.metrics.discovery().staleness(ages.max());
        }
        let text = self.metrics.text();
        let mut response = health::text(StatusCode::OK, text);
        response.headers_mut().insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8"),
        );
        response
    }
}

fn json(text: String) -> Response<Bytes> {
    let mut response = health::text(StatusCode::OK, text);
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

fn not_found(request: &Request<RequestBody>) -> Response<Bytes> {
    let message = "the paths of this port are /metrics, /livez, /readyz, /healthz, /debug/peers and /debug/route";
    let status = Status::not_found(message);
    error_response::status(&status, negotiate_error_format(request.headers()))
}
