//! A list of requests, each sent directly to the server and through its bridge: status, headers
//! and body are the same, to the byte.
//!
//! Responses change over time: versions of lists, ages in tables, documents that are
//! rebuilt. So
//! each request is sent directly, through the bridge, and directly again, until both direct
//! responses are equal; the one between them then has to be equal too, and no part of a body
//! has to be ignored.

use std::io;

use skewbridge_e2e::{
    ControlPlane, HttpClient, Protocol, Request, ResponseSnapshot, ServerSpec, Via, control_planes,
    is_since, newest,
};
use skewbridge_testkit::{Response, TlsClient};
use tokio::task::JoinSet;

/// Within a second most responses do not change; a server that has just started rebuilds
/// its documents for some seconds.
const MAX_ATTEMPTS: usize = 100;

/// kube-apiserver accepts the audit ID of a request from its client, so that responses can
/// be compared including their `Audit-Id`.
const AUDIT_ID: &str = "5e1f0e5a-0000-4000-8000-000000000000";

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const CBOR: &str = "application/cbor";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
const METADATA: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
const DISCOVERY: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const DISCOVERY_BETA: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
/// As kubectl requests it.
const DISCOVERY_ANY: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
     application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
const OPENAPI: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
const OPENAPI_V3: &str = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf";

const CLUSTER_ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";

#[tokio::test]
async fn every_control_plane_responds_the_same_to_every_request_through_its_bridges() {
    for versions in control_planes() {
        println!("plane {versions:?}");
        replay(&versions).await;
    }
}

async fn replay(versions: &[String]) {
    // With CBOR and, if there is an older server, without: some clusters have both.
    let cbor = |version: &str| is_since(version, 32) && version == newest(versions);
    let servers = versions.iter().map(|version| {
        let server = ServerSpec::of(version);
        if cbor(version) {
            server.gate("CBORServingAndStorage", true)
        } else {
            server
        }
    });
    let plane = ControlPlane::start(&servers.collect::<Vec<_>>()).await;
    for (server, version) in versions.iter().enumerate() {
        let mut differences = Vec::new();
        for protocol in [Protocol::H1, Protocol::H2] {
            for user in [User::Admin, User::Bob, User::Anonymous] {
                let mut both = ClientPair::new(&plane, server, user, protocol);
                for request in requests(protocol) {
                    both.compare(request, &mut differences).await;
                }
                an_unchanged_document_is_304(&mut both, &mut differences).await;
                documents_by_hash(&mut both, &mut differences).await;
                pages(&mut both, &mut differences).await;
                watches(&both, &mut differences).await;
                invalid_escapes_are_rejected(&both).await;
            }
        }
        assert!(
            differences.is_empty(),
            "{} differences to kube-apiserver {version}:\n{}",
            differences.len(),
            differences.join("\n")
        );
        the_list_covers_the_expected_responses(&plane, server, cbor(version)).await;
    }
}

/// Discovery and documents.
const DOCUMENTS: &[(&str, &[&str])] = &[
    ("/", &["", JSON, "text/html"]),
    (
        "/api",
        &[
            "",
            JSON,
            DISCOVERY,
            DISCOVERY_BETA,
            DISCOVERY_ANY,
            PROTOBUF,
            CBOR,
        ],
    ),
    (
        "/apis",
        &["", JSON, DISCOVERY, DISCOVERY_BETA, DISCOVERY_ANY, PROTOBUF],
    ),
    ("/apis/", &["", DISCOVERY]),
    ("/api/v1", &["", JSON, PROTOBUF, DISCOVERY, "text/plain"]),
    ("/apis/apps", &["", JSON, PROTOBUF]),
    ("/apis/apps/v1", &["", JSON, PROTOBUF]),
    ("/apis/apiregistration.k8s.io/v1", &["", JSON]),
    ("/apis/apiextensions.k8s.io/v1", &[""]),
    ("/apis/no.such.group", &["", PROTOBUF]),
    (
        "/openapi/v2",
        &["", JSON, OPENAPI, "application/json;q=0.1", "text/xml"],
    ),
    ("/openapi/v3", &["", JSON]),
    ("/openapi/v3/apis/apps/v1", &["", OPENAPI_V3, "text/xml"]),
    ("/openapi/v3/no/such/group", &[""]),
    ("/version", &["", JSON, "text/plain"]),
    ("/healthz", &["", JSON]),
    ("/healthz/ping", &[""]),
    ("/livez?verbose", &[""]),
    ("/readyz", &[""]),
    ("/readyz?verbose&exclude=etcd", &[""]),
    ("/.well-known/openid-configuration", &[""]),
    ("/openid/v1/jwks", &[""]),
];

/// Objects, including missing and forbidden ones.
const OBJECTS: &[(&str, &[&str])] = &[
    (
        "/api/v1/namespaces",
        &["", JSON, PROTOBUF, CBOR, TABLE, METADATA_LIST, "*/*"],
    ),
    (
        CLUSTER_ROLES,
        &["", JSON, PROTOBUF, CBOR, TABLE, METADATA_LIST],
    ),
    (
        "/api/v1/namespaces/default",
        &["", PROTOBUF, CBOR, TABLE, METADATA, "application/yaml"],
    ),
    ("/api/v1/namespaces/default/configmaps", &["", TABLE]),
    (
        "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",
        &["", TABLE],
    ),
    ("/api/v1/namespaces/no-such", &["", PROTOBUF, CBOR, TABLE]),
    ("/api/v1/no-such-kind", &["", PROTOBUF]),
    ("/no/such/path", &["", JSON, PROTOBUF]),
    // 406.
    (
        "/api/v1/nodes",
        &[
            "application/xml",
            "application/json;as=Nonsense;v=v1;g=meta.k8s.io",
            "application/xml, application/json;q=0.5",
            "nonsense",
            ";;;",
            "application/json;stream=watch",
        ],
    ),
    // 400.
    ("/api/v1/pods?labelSelector=%21%21", &["", PROTOBUF, CBOR]),
    ("/api/v1/pods?limit=x&timeoutSeconds=y", &[""]),
    ("/api/v1/pods?continue=nonsense", &[""]),
    ("/api/v1/pods?resourceVersion=nonsense", &["", TABLE]),
    // Paths that a proxy might normalise.
    ("/api/v1/namespaces/%64efault", &[""]),
    ("/api/v1/namespaces/default%2Fconfigmaps", &[""]),
    ("/api/v1/namespaces/d%C3%A9faut", &[""]),
    ("/api/v1/namespaces/a%20b%00c", &[""]),
    ("/api%2Fv1", &[""]),
    ("/api/v1/", &[""]),
    ("//api/v1", &[""]),
    ("/api//v1", &[""]),
    ("/api/./v1", &[""]),
    ("/api/v1/../v1/namespaces", &[""]),
    ("/healthz/../api", &[""]),
    ("/%2e%2e/api", &[""]),
    ("/api?", &[""]),
    ("/api/v1/namespaces?pretty=true&a=b;c&&=&%zz", &[""]),
    (
        "/api/v1/namespaces?fieldSelector=metadata.name%3Ddefault",
        &["", TABLE],
    ),
];

fn requests(protocol: Protocol) -> Vec<Request> {
    let mut list = Vec::new();
    for (target, accepts) in DOCUMENTS.iter().chain(OBJECTS) {
        for accept in *accepts {
            list.push(accepting(Request::get(target), accept));
        }
    }
    for target in [
        "/version",
        "/api",
        "/openapi/v2",
        "/api/v1/namespaces",
        "/no",
        "/healthz",
    ] {
        list.push(Request::new("HEAD", target));
        list.push(Request::new("OPTIONS", target));
        let zipped = Request::get(target).header("Accept-Encoding", "gzip");
        list.push(zipped);
    }
    let zipped = Request::get(CLUSTER_ROLES).header("Accept-Encoding", "gzip, deflate, br");
    list.push(zipped.clone());
    list.push(zipped.header("Accept", PROTOBUF));
    // 405, 415, 400, 404 and 422; none of them writes anything.
    list.push(Request::new("DELETE", "/version"));
    list.push(Request::new("PUT", "/api/v1"));
    list.push(Request::new("TRACE", "/api/v1/namespaces"));
    list.push(Request::new("BREW", "/api/v1/namespaces"));
    let maps = "/api/v1/namespaces/default/configmaps";
    let post = Request::new("POST", maps);
    list.push(post.clone());
    list.push(post.clone().body("text/plain", "x"));
    list.push(post.clone().body(JSON, "{"));
    list.push(post.clone().body(PROTOBUF, "k8s"));
    list.push(post.clone().body(CBOR, "\u{1}"));
    list.push(
        post.clone()
            .body(JSON, r#"{"kind":"Secret","apiVersion":"v1"}"#),
    );
    let unnamed = r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"UPPER"}}"#;
    list.push(post.body(JSON, unnamed));
    let patch = Request::new("PATCH", &format!("{maps}/no-such"));
    list.push(patch.clone().body("application/merge-patch+json", "{}"));
    list.push(patch.clone().body("text/plain", "{}"));
    list.push(patch.body("application/apply-patch+yaml", "{}"));
    list.push(Request::new("DELETE", &format!("{maps}/no-such")));
    // Self-subject reviews. The responses contain no times but that of the request.
    let review = |group: &str, kind: &str, spec: &str| {
        let target = format!("/apis/{group}/v1/{}s", kind.to_lowercase());
        let body = format!(r#"{{"kind":"{kind}","apiVersion":"{group}/v1"{spec}}}"#);
        Request::new("POST", &target).body(JSON, &body)
    };
    let spec = r#","spec":{"resourceAttributes":{"verb":"get","resource":"secrets"}}"#;
    let whoami = review("authentication.k8s.io", "SelfSubjectReview", "");
    let may_i = review("authorization.k8s.io", "SelfSubjectAccessReview", spec);
    for request in [whoami, may_i] {
        list.push(request.clone().header("Accept", PROTOBUF));
        list.push(request.clone().header("Impersonate-User", "carol"));
        list.push(
            request
                .clone()
                .header("Impersonate-User", "carol")
                .header("Impersonate-Group", "dev")
                .header("Impersonate-Group", "ops")
                .header("Impersonate-Extra-Scopes", "a"),
        );
        list.push(request.clone().header("Impersonate-Group", "nameless"));
        list.push(request);
    }
    // Requests that only HTTP/1.1 can express.
    if protocol == Protocol::H1 {
        list.push(Request::new("OPTIONS", "*"));
        list.push(Request::get("https://localhost/api"));
    }
    list
}

fn accepting(request: Request, accept: &str) -> Request {
    match accept {
        "" => request,
        accept => request.header("Accept", accept),
    }
}

/// The list is only useful if its responses are not all errors.
async fn the_list_covers_the_expected_responses(plane: &ControlPlane, server: usize, cbor: bool) {
    let mut both = ClientPair::new(plane, server, User::Admin, Protocol::H2);
    let version = plane.servers[server].version.as_str();
    let status_if = |is_supported: bool| if is_supported { 200 } else { 406 };
    // Aggregated discovery is stable from 1.30 on, and was beta until 1.32.
    let (stable, beta) = (is_since(version, 30), !is_since(version, 33));
    for (target, accept, status, content_type) in [
        ("/apis", DISCOVERY, status_if(stable), "json"),
        ("/apis", DISCOVERY_BETA, status_if(beta), "json"),
        ("/openapi/v2", OPENAPI, 200, "proto"),
        ("/openapi/v3/apis/apps/v1", OPENAPI_V3, 200, "proto"),
        (CLUSTER_ROLES, PROTOBUF, 200, "protobuf"),
        (CLUSTER_ROLES, TABLE, 200, "json"),
        (CLUSTER_ROLES, CBOR, status_if(cbor), ""),
        ("/api/v1/nodes", "application/xml", 406, "json"),
    ] {
        let request = accepting(Request::get(target), accept);
        let response = both.bridge.send(&request).await.unwrap();
        let received_type = response.header("content-type").unwrap_or_default();
        assert_eq!(response.status, status, "{request:?}");
        assert!(
            received_type.contains(content_type),
            "{request:?}: {received_type}"
        );
    }
    let zipped = Request::get("/openapi/v2").header("Accept-Encoding", "gzip");
    let response = both.bridge.send(&zipped).await.unwrap();
    assert_eq!(response.header("content-encoding"), Some("gzip"));
}

/// A document that the client already has is not sent again.
async fn an_unchanged_document_is_304(both: &mut ClientPair, differences: &mut Vec<String>) {
    for (target, accept) in [
        ("/openapi/v2", ""),
        ("/openapi/v2", OPENAPI),
        ("/openapi/v3/api/v1", ""),
        ("/apis", DISCOVERY_ANY),
        ("/api", DISCOVERY_ANY),
    ] {
        let request = accepting(Request::get(target), accept);
        let response = both
            .server
            .with_new_connection()
            .send(&request)
            .await
            .unwrap();
        let etag = response.header("etag").unwrap_or("\"none\"").to_owned();
        let request = request.header("If-None-Match", &etag);
        let status = both.compare(request.clone(), differences).await;
        // For an authorized user, and for a document with an ETag.
        if response.status == 200 && response.header("etag").is_some() {
            assert_eq!(status, 304, "{request:?}");
        }
    }
}

/// With the right hash a document may be cached forever, with a wrong one the client is
/// redirected.
async fn documents_by_hash(both: &mut ClientPair, differences: &mut Vec<String>) {
    let index = both
        .server
        .with_new_connection()
        .send(&Request::get("/openapi/v3"))
        .await
        .unwrap();
    if index.status == 200 {
        let index: serde_json::Value = serde_json::from_slice(&index.body).unwrap();
        let right = index["paths"]["apis/apps/v1"]["serverRelativeURL"]
            .as_str()
            .unwrap();
        let status = both.compare(Request::get(right), differences).await;
        assert_eq!(status, 200, "{right}");
    }
    let wrong = Request::get("/openapi/v3/apis/apps/v1?hash=WRONG");
    both.compare(wrong, differences).await;
}

/// The first page, and the next one.
async fn pages(both: &mut ClientPair, differences: &mut Vec<String>) {
    let first = format!("{CLUSTER_ROLES}?limit=3");
    for accept in [JSON, TABLE, PROTOBUF] {
        both.compare(accepting(Request::get(&first), accept), differences)
            .await;
    }
    let page = both
        .bridge
        .with_new_connection()
        .send(&Request::get(&first))
        .await
        .unwrap();
    if page.status == 200 {
        let page: serde_json::Value = serde_json::from_slice(&page.body).unwrap();
        let token = page["metadata"]["continue"].as_str().unwrap();
        let next = Request::get(&format!("{first}&continue={token}"));
        assert_eq!(both.compare(next, differences).await, 200);
    }
}

/// The only intended difference: Go rejects these paths before kube-apiserver sees them,
/// with a plain-text line over HTTP/1.1 and with a reset over HTTP/2. The bridge rejects
/// them too, with a Status that names the reason.
async fn invalid_escapes_are_rejected(both: &ClientPair) {
    for target in ["/api/%zz", "/api/v1/namespaces/%", "/api/v1/namespaces/a%2"] {
        let request = both.with_credentials(Request::get(target));
        let direct = both.server.with_new_connection().send(&request).await;
        match (both.protocol, direct) {
            (Protocol::H1, Ok(answer)) => assert_eq!(answer.status, 400, "{target}"),
            (Protocol::H2, Err(error)) => {
                assert_ne!(error.kind(), io::ErrorKind::TimedOut, "{target}");
            }
            (_, other) => panic!("{target}: {other:?}"),
        }
        let bridged = both
            .bridge
            .with_new_connection()
            .send(&request)
            .await
            .unwrap();
        assert_eq!(bridged.status, 400, "{target}");
        let status: serde_json::Value = serde_json::from_slice(&bridged.body).unwrap();
        assert_eq!(status["reason"], "BadRequest", "{target}");
    }
}

/// Watches of one object that does not change: the events, and the end.
async fn watches(both: &ClientPair, differences: &mut Vec<String>) {
    let one =
        format!("{CLUSTER_ROLES}?watch=true&timeoutSeconds=1&fieldSelector=metadata.name%3Dview");
    let old = "/apis/rbac.authorization.k8s.io/v1/watch/clusterroles/view?timeoutSeconds=1";
    let rows = [
        (one.as_str(), ""),
        (&one, TABLE),
        (&one, METADATA),
        (&one, PROTOBUF),
        (&one, "application/json;stream=watch"),
        (&one, "application/xml"),
        (old, ""),
    ];
    let mut running = JoinSet::new();
    for (number, (target, accept)) in rows.into_iter().enumerate() {
        let request = both.with_credentials(accepting(Request::get(target), accept));
        let (server, bridge) = (
            both.server.with_new_connection(),
            both.bridge.with_new_connection(),
        );
        running.spawn(async move {
            let (direct, bridged) = tokio::join!(
                read_watch_to_end(server, &request),
                read_watch_to_end(bridge, &request)
            );
            (
                number,
                request,
                ResponseSnapshot::of(direct),
                ResponseSnapshot::of(bridged),
            )
        });
    }
    let mut statuses = [0; 7];
    for (number, request, direct, bridged) in running.join_all().await {
        statuses[number] = direct.status;
        differences.extend(both.report(&request, &direct, &bridged));
    }
    if both.user == User::Admin {
        assert_eq!(statuses, [200, 200, 200, 200, 200, 406, 200]);
    }
}

async fn read_watch_to_end(raw: HttpClient, request: &Request) -> io::Result<Response> {
    let mut stream = raw.stream(request).await?;
    Ok(Response {
        version: http::Version::HTTP_11,
        status: stream.status,
        headers: std::mem::take(&mut stream.headers),
        body: stream.rest().await?.into(),
        trailers: Vec::new(),
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum User {
    /// By certificate.
    Admin,
    /// By token.
    Bob,
    Anonymous,
}

/// One server, directly and through its bridge.
struct ClientPair {
    server: HttpClient,
    bridge: HttpClient,
    user: User,
    protocol: Protocol,
}

impl ClientPair {
    fn new(plane: &ControlPlane, server: usize, user: User, protocol: Protocol) -> Self {
        let tls: TlsClient = match user {
            User::Admin => plane.client("admin"),
            User::Bob | User::Anonymous => plane.anonymous_client(),
        };
        let way = |via| HttpClient::new(tls.clone(), plane.servers[server].at(via), protocol);
        Self {
            server: way(Via::Server),
            bridge: way(Via::Bridge),
            user,
            protocol,
        }
    }

    fn with_credentials(&self, request: Request) -> Request {
        let request = request.header("Audit-ID", AUDIT_ID);
        match self.user {
            User::Bob => request.header("Authorization", "Bearer bob-token"),
            User::Admin | User::Anonymous => request,
        }
    }

    /// Sends it directly, through the bridge and directly again; the status is the server's.
    async fn compare(&mut self, request: Request, differences: &mut Vec<String>) -> u16 {
        let request = self.with_credentials(request);
        let mut direct = self.send(Via::Server, &request).await;
        for _ in 0..MAX_ATTEMPTS {
            let bridged = self.send(Via::Bridge, &request).await;
            let again = self.send(Via::Server, &request).await;
            if direct == again {
                assert_ne!(direct.status, 0, "no answer to {request:?}");
                differences.extend(self.report(&request, &direct, &bridged));
                return direct.status;
            }
            direct = again;
        }
        panic!("{request:?} has another response each time, also directly: {direct:?}");
    }

    async fn send(&mut self, via: Via, request: &Request) -> ResponseSnapshot {
        let raw = match via {
            Via::Server => &mut self.server,
            Via::Bridge => &mut self.bridge,
        };
        // kube-apiserver closes an HTTP/2 connection after an anonymous request (its
        // UnauthenticatedHTTP2DOSMitigation).
        if self.user == User::Anonymous {
            *raw = raw.with_new_connection();
        }
        ResponseSnapshot::of(raw.send(request).await)
    }

    fn report(
        &self,
        request: &Request,
        direct: &ResponseSnapshot,
        bridged: &ResponseSnapshot,
    ) -> Option<String> {
        let (user, protocol) = (self.user, self.protocol);
        let difference = direct.difference(bridged)?;
        Some(format!(
            "--- {request:?} as {user:?} over {protocol:?}\n{difference}"
        ))
    }
}
