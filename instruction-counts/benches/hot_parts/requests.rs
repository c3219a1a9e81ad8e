//! Request info and header hygiene.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};

use gungraun::prelude::*;
use http::header::CONNECTION;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Version};
use skewbridge_k8s_api::forwarding_headers::{
    ViaToken, has_peer_hop, protected_header_in_connection, remove_hop_by_hop,
    remove_peer_hop_headers, requested_upgrade, set_forwarded_headers,
};
use skewbridge_k8s_api::identity::IdentityHeaders;
use skewbridge_k8s_api::request_info::{DecodedPath, RequestInfo};

use crate::ROUNDS;

/// What kubelets, controllers, kubectl and probes request.
const TARGETS: [(Method, &str, Option<&str>); 10] = [
    (
        Method::GET,
        "/api/v1/namespaces/shop/pods/web-7d4b9c8f6-x2k9p",
        None,
    ),
    (
        Method::GET,
        "/api/v1/namespaces/shop/pods",
        Some("limit=500"),
    ),
    (
        Method::GET,
        "/apis/apps/v1/deployments",
        Some("allowWatchBookmarks=true&resourceVersion=184467&timeoutSeconds=529&watch=true"),
    ),
    (
        Method::PUT,
        "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node-17",
        Some("timeout=10s"),
    ),
    (
        Method::PATCH,
        "/api/v1/nodes/node-17/status",
        Some("timeout=10s"),
    ),
    (Method::POST, "/api/v1/namespaces/shop/events", None),
    (
        Method::POST,
        "/api/v1/namespaces/shop/pods/web-7d4b9c8f6-x2k9p/exec",
        Some("command=sh&container=web&stdin=true&stdout=true&tty=true"),
    ),
    (
        Method::GET,
        "/api/v1/namespaces/shop/services/https%3Aweb%3A443/proxy/assets/index.html",
        None,
    ),
    (Method::GET, "/apis", None),
    (Method::GET, "/livez", Some("exclude=etcd")),
];

#[library_benchmark]
#[bench::targets(targets())]
fn request_info(targets: Targets) -> Targets {
    for _ in 0..ROUNDS {
        parse(&targets);
    }
    targets
}

type Targets = Vec<(Method, &'static str, Option<&'static str>)>;

fn targets() -> Targets {
    let targets = TARGETS.to_vec();
    parse(&targets);
    targets
}

fn parse(targets: &Targets) {
    for (method, path, query) in black_box(targets) {
        let decoded = DecodedPath::new(path);
        if let Ok(path) = &decoded {
            black_box(RequestInfo::parse(method, path, *query));
        }
    }
}

// The headers that the bridge removes from a request and adds to it, and those of the response.
#[library_benchmark]
#[bench::requests(Hygiene::new())]
fn header_hygiene(mut hygiene: Hygiene) -> Hygiene {
    let exchanges = std::mem::take(&mut hygiene.exchanges);
    for mut exchange in exchanges {
        hygiene.forward(&mut exchange);
        hygiene.forwarded.push(exchange);
    }
    hygiene
}

struct Hygiene {
    identity: IdentityHeaders,
    via: ViaToken,
    exchanges: Vec<Exchange>,
    forwarded: Vec<Exchange>,
}

struct Exchange {
    version: Version,
    request: HeaderMap,
    response: HeaderMap,
}

impl Hygiene {
    fn new() -> Self {
        let mut hygiene = Self {
            identity: IdentityHeaders::default(),
            via: ViaToken::new(0x0123_4567_89ab_cdef),
            exchanges: Vec::new(),
            forwarded: Vec::with_capacity(3 * ROUNDS),
        };
        for mut exchange in exchanges() {
            hygiene.forward(&mut exchange);
        }
        hygiene.exchanges = (0..ROUNDS).flat_map(|_| exchanges()).collect();
        hygiene
    }

    /// In the order of `proxy::handler`.
    fn forward(&self, exchange: &mut Exchange) {
        let Exchange {
            version,
            request,
            response,
        } = black_box(exchange);
        black_box(protected_header_in_connection(request, &self.identity));
        black_box(requested_upgrade(request));
        remove_hop_by_hop(request);
        request.remove(CONNECTION);
        black_box(has_peer_hop(request));
        self.identity.remove(request);
        remove_peer_hop_headers(request);
        black_box(self.via.is_present(request));
        let client = IpAddr::V4(Ipv4Addr::new(192, 168, 7, 23));
        black_box(set_forwarded_headers(request, client));
        self.via.add(request, *version);
        remove_hop_by_hop(response);
    }
}

/// A controller over HTTP/2, kubectl over HTTP/1.1, and a request that passed a load balancer and
/// tries to assert a user.
fn exchanges() -> [Exchange; 3] {
    let controller = [
        (
            "accept",
            "application/vnd.kubernetes.protobuf, application/json",
        ),
        ("accept-encoding", "gzip"),
        (
            "authorization",
            "Bearer eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.e30.c2lnbmF0dXJl",
        ),
        (
            "user-agent",
            "kube-controller-manager/v1.36.4 (linux/amd64) kubernetes/0123456",
        ),
    ];
    let kubectl = [
        ("host", "10.0.0.1:6443"),
        (
            "accept",
            "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
        ),
        ("accept-encoding", "gzip"),
        (
            "authorization",
            "Bearer eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.e30.c2lnbmF0dXJl",
        ),
        ("connection", "keep-alive"),
        ("kubectl-command", "kubectl get"),
        ("kubectl-session", "9f0b2f4c-6d8e-4a1b-9c3d-5e7f8a9b0c1d"),
        ("te", "trailers"),
        (
            "user-agent",
            "kubectl/v1.36.4 (linux/amd64) kubernetes/0123456",
        ),
    ];
    let balanced = [
        ("host", "api.example.com"),
        ("accept", "*/*"),
        ("connection", "close, x-trace"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "keep-alive"),
        ("via", "1.1 edge"),
        ("x-forwarded-for", "203.0.113.9, 198.51.100.4"),
        ("x-kubernetes-peer-proxied", "true"),
        ("x-remote-group", "system:masters"),
        ("x-remote-user", "admin"),
        ("x-trace", "1"),
    ];
    let response = [
        ("audit-id", "9f0b2f4c-6d8e-4a1b-9c3d-5e7f8a9b0c1d"),
        ("cache-control", "no-cache, private"),
        ("content-encoding", "gzip"),
        ("content-type", "application/json"),
        ("date", "Thu, 19 Nov 2026 12:00:00 GMT"),
        ("transfer-encoding", "chunked"),
        (
            "x-kubernetes-pf-flowschema-uid",
            "5e7f8a9b-0c1d-4a1b-9c3d-9f0b2f4c6d8e",
        ),
        (
            "x-kubernetes-pf-prioritylevel-uid",
            "6d8e9f0b-2f4c-4a1b-9c3d-5e7f8a9b0c1d",
        ),
    ];
    let exchange = |version, request| Exchange {
        version,
        request,
        response: headers(&response),
    };
    [
        exchange(Version::HTTP_2, headers(&controller)),
        exchange(Version::HTTP_11, headers(&kubectl)),
        exchange(Version::HTTP_11, headers(&balanced)),
    ]
}

fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
    let fields = fields.iter().map(|(name, value)| {
        let value = HeaderValue::from_static(value);
        (HeaderName::from_static(name), value)
    });
    fields.collect()
}

library_benchmark_group!(
    name = request_parts,
    benchmarks = [request_info, header_hygiene]
);
