mod lists;
mod responses;

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use skewbridge_discovery::accept::{
    LEGACY, LOCAL_AGGREGATED, LOCAL_DOCUMENT, V2, V2_BETA1, V2_NOPEER,
};
use skewbridge_discovery::document::{Group, Schema};
use skewbridge_discovery::{Document, Index, Layout, Object as _};
use skewbridge_http_engine::body::ResponseBody;
use skewbridge_k8s_api::content_negotiation::Format;
use skewbridge_k8s_api::request_info::DecodedPath;
use skewbridge_k8s_api::version::Version as KubeVersion;
use skewbridge_peer_directory::registry::AdvertisedAddress;
use skewbridge_peer_directory::{
    Identity, LeaseSnapshot, PeerTable, ServedApis, SharedGroupVersionTracker,
};

use super::merged_response::MergedResponse;
use crate::authn::Caller;
use crate::cluster_state::{Cluster, ClusterHandle};
use crate::discovery_view::freshness::LocalDiscoveryState;
use crate::discovery_view::{CompleteDiscovery, DiscoveryRequest, DiscoveryRoot, View};
use crate::local_identity::LocalIdentity;
use crate::metrics::discovery::DiscoveryMetrics;

/// Parses `GROUP/VERSION:RESOURCE`; the core group has no `GROUP/`.
fn document(apis: &[&str], core: bool) -> Arc<Document> {
    let mut items: Vec<Value> = Vec::new();
    for word in apis {
        let (path, resource) = word.split_once(':').unwrap();
        let (group, version) = path.split_once('/').unwrap_or(("", path));
        if group.is_empty() != core {
            continue;
        }
        let resource = json!({"resource": resource, "scope": "Cluster", "verbs": ["list"],
            "responseKind": {"group": "", "version": "", "kind": "Thing"}, "singularResource": ""});
        let version = json!({"version": version, "freshness": "Current", "resources": [resource]});
        let known = items.iter_mut().find(|it| it["metadata"]["name"] == group);
        let Some(known) = known else {
            items.push(json!({"metadata": {"name": group}, "versions": [version]}));
            continue;
        };
        let versions = known["versions"].as_array_mut().unwrap();
        match versions
            .iter_mut()
            .find(|it| it["version"] == version["version"])
        {
            Some(known) => {
                let resources = known["resources"].as_array_mut().unwrap();
                resources.extend(version["resources"].as_array().unwrap().clone());
            }
            None => versions.push(version),
        }
    }
    let text = json!({"kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2", "items": items});
    Arc::new(Document::parse(text.to_string().as_bytes()).unwrap())
}

fn served(apis: &[&str], etag: &str, minor: u16) -> ServedApis {
    let documents = [document(apis, true), document(apis, false)];
    ServedApis {
        index: Arc::new(Index::new(&[&documents[0], &documents[1]])),
        documents,
        etags: [Some(etag.to_owned()), Some(etag.to_owned())],
        version: Some(KubeVersion {
            major: 1,
            minor,
            patch: 0,
        }),
        version_suffix: Arc::default(),
        by_bridge: false,
    }
}

fn identity(name: &str) -> Identity {
    Identity::named(name).unwrap()
}

fn own() -> LocalIdentity {
    LocalIdentity::new(identity("m"), "127.0.0.1:1".parse().unwrap())
}

const LOCAL: [&str; 3] = [
    "v1:pods",
    "b.example.com/v1:things",
    "d.example.com/v1:things",
];

/// The view of a local server `m` and a peer of this name with these APIs.
fn view(minor: u16, peer: &str, apis: &[&str]) -> Option<Arc<View>> {
    let now = Instant::now();
    let mut peer_table = PeerTable::new(identity("m"));
    let lease = LeaseSnapshot {
        identity: identity(peer),
        host: None,
        holder: "h".to_owned(),
        resource_version: "1".to_owned(),
    };
    peer_table.set_leases(vec![lease], now);
    let address = AdvertisedAddress::by_bridge("127.0.0.1:1".parse().unwrap());
    peer_table.set_addresses(&[(identity(peer), address)].into(), now);
    if !apis.is_empty() {
        peer_table.take_due(now);
        let polled = Ok(served(apis, "theirs", 36));
        peer_table.record_poll(&identity(peer), polled, now, SystemTime::now(), 0.0);
    }
    let local = Arc::new(served(&LOCAL, "\"ours\"", minor));
    let shared = SharedGroupVersionTracker::new().snapshot();
    View::of(
        &identity("m"),
        &local,
        &peer_table.snapshot(),
        &shared,
        None,
    )
}

/// The APIs of a newer peer.
const PEER: [&str; 7] = [
    "v1:pods",
    "v1:podgroups",
    "a.example.com/v1:things",
    "b.example.com/v1:things",
    "b.example.com/v1:others",
    "b.example.com/v2:things",
    "d.example.com/v1:things",
];

/// A view with a newer peer.
fn mixed() -> Arc<View> {
    view(36, "a", &PEER).unwrap()
}

fn head(method: &Method, path: &str, accept: &str) -> Parts {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(ACCEPT, accept);
    request.body(()).unwrap().into_parts().0
}

fn get(path: &str, accept: &str) -> Parts {
    head(&Method::GET, path, accept)
}

fn local_response(
    status: u16,
    content_type: &str,
    body: impl Into<bytes::Bytes>,
) -> Response<ResponseBody> {
    Response::builder()
        .status(status)
        .header(CONTENT_TYPE, content_type)
        .body(ResponseBody::full(body.into()))
        .unwrap()
}

struct ClientView {
    status: StatusCode,
    headers: HeaderMap,
    body: bytes::Bytes,
}

impl ClientView {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    fn content_type(&self) -> &str {
        self.headers[CONTENT_TYPE].to_str().unwrap()
    }

    /// The names in a list, by the path of the field.
    fn names(&self, list: &str, name: &str) -> Vec<String> {
        let json = self.json();
        let items = json[list].as_array().unwrap().iter();
        items
            .map(|item| item[name].as_str().unwrap().to_owned())
            .collect()
    }
}

/// The response to the client for this response of the local server.
async fn response(view: &Arc<View>, head: Parts, local: Response<ResponseBody>) -> ClientView {
    let (cluster_handle, _) = ClusterHandle::new(own());
    response_of(&cluster_handle, view, head, local).await
}

async fn response_of(
    cluster_handle: &ClusterHandle,
    view: &Arc<View>,
    mut head: Parts,
    local: Response<ResponseBody>,
) -> ClientView {
    let metrics = DiscoveryMetrics::register(&mut Registry::default());
    let mut merged = MergedResponse::of(
        &head,
        head.uri.path(),
        &Caller::Anonymous,
        view,
        CompleteDiscovery::Enabled,
    )
    .unwrap();
    merged.prepare_local_request(&mut head, cluster_handle);
    let response = merged.replace(local, cluster_handle, &metrics).await;
    let (head, body) = response.unwrap().into_parts();
    ClientView {
        status: head.status,
        headers: head.headers,
        body: body.collect(usize::MAX).await.unwrap(),
    }
}

fn not_modified() -> Response<ResponseBody> {
    let mut response = local_response(304, "x", "");
    response.headers_mut().clear();
    response
}

#[test]
fn every_server_builds_the_same_document() {
    for peer in ["a", "z"] {
        let view = view(36, peer, &["a.example.com/v1:x", "d.example.com/v1:things"]).unwrap();
        let items = view.document(DiscoveryRoot::Apis).document.items.iter();
        let groups: Vec<_> = items.map(Group::name).collect();
        let expected = ["a.example.com", "b.example.com", "d.example.com"];
        assert_eq!(groups, expected, "{peer}");
    }
}

#[test]
fn the_order_in_which_peers_are_polled_does_not_matter() {
    let polled = [
        ("a", ["a.example.com/v1:x", "b.example.com/v1:y"]),
        ("k", ["b.example.com/v1:z", "c.example.com/v1:x"]),
        ("z", ["c.example.com/v2:x", "a.example.com/v1:y"]),
    ];
    let mut documents = std::collections::BTreeSet::new();
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let now = Instant::now();
        let mut peer_table = PeerTable::new(identity("m"));
        for at in order {
            let (name, apis) = &polled[at];
            let lease = LeaseSnapshot {
                identity: identity(name),
                host: None,
                holder: "h".to_owned(),
                resource_version: "1".to_owned(),
            };
            peer_table.update_lease(lease, now);
            let address = AdvertisedAddress::by_bridge(([127, 0, 0, 1], 1).into());
            peer_table.set_addresses(&[(identity(name), address)].into(), now);
            peer_table.take_due(now);
            let polled = Ok(served(apis, "theirs", 36));
            peer_table.record_poll(&identity(name), polled, now, SystemTime::now(), 0.0);
        }
        let local = Arc::new(served(&LOCAL, "\"ours\"", 36));
        let shared = SharedGroupVersionTracker::new().snapshot();
        let view = View::of(
            &identity("m"),
            &local,
            &peer_table.snapshot(),
            &shared,
            None,
        )
        .unwrap();
        assert_eq!(view.source_count(), 4);
        documents.insert(view.document(DiscoveryRoot::Apis).json.clone());
    }
    assert_eq!(documents.len(), 1);
}

#[test]
fn there_is_no_view_without_a_polled_peer() {
    assert!(view(36, "a", &[]).is_none());
}

#[test]
fn only_incomplete_responses_are_replaced() {
    let view = mixed();
    let beta_first = format!("{V2_BETA1},{V2}");
    let document = |root, schema| {
        let encoding = skewbridge_discovery::DocumentEncoding {
            schema,
            format: Format::Json,
            layout: Layout::Compact,
        };
        Some(DiscoveryRequest::Document(root, encoding))
    };
    let rows: &[(&str, &str, Option<DiscoveryRequest>, bool)] = &[
        ("/apis", V2, document(DiscoveryRoot::Apis, Schema::V2), true),
        (
            "/api%73",
            V2,
            document(DiscoveryRoot::Apis, Schema::V2),
            true,
        ),
        (
            "/apis",
            &beta_first,
            document(DiscoveryRoot::Apis, Schema::V2),
            true,
        ),
        ("/api", V2, document(DiscoveryRoot::Api, Schema::V2), false),
        ("/apis", V2_NOPEER, None, true),
        ("/api", V2_NOPEER, None, false),
        ("/api", LEGACY, None, false),
        ("/apis/d.example.com/v1", LEGACY, None, false),
        ("/apis/unknown.example.com", LEGACY, None, false),
        ("/apis/b.example.com/v9", LEGACY, None, false),
        ("/apis/b.example.com/v1/things", LEGACY, None, false),
        ("/apis/b.example.com", "text/html", None, false),
        ("/version", LEGACY, None, false),
    ];
    for (path, accept, expected, is_kep) in rows {
        let head = get(path, accept);
        let decoded = DecodedPath::new(head.uri.path()).unwrap();
        assert_eq!(
            DiscoveryRequest::of(&head, decoded.as_str(), &view, CompleteDiscovery::Enabled),
            *expected,
            "{path}"
        );
        // With the gate off, only the responses of KEP-4020 are merged.
        let kep = expected.clone().filter(|_| *is_kep);
        assert_eq!(
            DiscoveryRequest::of(&head, decoded.as_str(), &view, CompleteDiscovery::Disabled),
            kep,
            "{path}"
        );
    }
    for path in [
        "/apis",
        "/apis/b.example.com",
        "/apis/b.example.com/v1",
        "/api/v1",
    ] {
        let head = get(path, LEGACY);
        assert!(
            DiscoveryRequest::of(&head, head.uri.path(), &view, CompleteDiscovery::Enabled)
                .is_some(),
            "{path}"
        );
        assert!(
            DiscoveryRequest::of(&head, head.uri.path(), &view, CompleteDiscovery::Disabled)
                .is_none(),
            "{path}"
        );
        let post = super::tests::head(&Method::POST, path, LEGACY);
        assert!(
            DiscoveryRequest::of(&post, post.uri.path(), &view, CompleteDiscovery::Enabled)
                .is_none()
        );
    }
}

#[test]
fn a_client_gets_the_schemas_of_the_local_server() {
    let beta_first = format!("{V2_BETA1},{V2}");
    for (minor, accept, expected) in [
        (36, &*beta_first, Some(Schema::V2)),
        (28, &beta_first, Some(Schema::V2Beta1)),
        (28, V2, None),
        (25, &beta_first, None),
        (31, &beta_first, Some(Schema::V2Beta1)),
    ] {
        let view = view(minor, "a", &["a.example.com/v1:things"]).unwrap();
        let request = DiscoveryRequest::of(
            &get("/apis", accept),
            "/apis",
            &view,
            CompleteDiscovery::Disabled,
        );
        let schema = request.map(|request| match request {
            DiscoveryRequest::Document(_, encoding) => encoding.schema,
            other => panic!("{other:?}"),
        });
        assert_eq!(schema, expected, "1.{minor} {accept}");
    }
}

/// Otherwise two servers could keep listing an API to each other that neither serves.
#[test]
fn a_peer_always_gets_discovery_of_the_local_server() {
    for minor in 24..40 {
        let view = view(minor, "a", &["a.example.com/v1:things"]).unwrap();
        for path in ["/api", "/apis"] {
            let head = get(path, LOCAL_DOCUMENT);
            let request =
                DiscoveryRequest::of(&head, head.uri.path(), &view, CompleteDiscovery::Disabled);
            assert!(request.is_none(), "1.{minor}");
        }
    }
}

#[tokio::test]
async fn the_local_server_authorizes_discovery() {
    let view = mixed();
    for (path, accept) in [
        ("/apis", V2),
        ("/apis", LEGACY),
        ("/apis/a.example.com", LEGACY),
    ] {
        for status in [401, 403, 429, 503] {
            let response = response(
                &view,
                get(path, accept),
                local_response(status, "text/plain", "no"),
            )
            .await;
            assert_eq!(
                (response.status.as_u16(), &*response.body),
                (status, &b"no"[..])
            );
        }
    }
    let merged = response(&view, get("/apis", V2), not_modified()).await;
    assert_eq!(merged.status, StatusCode::OK);
    assert_eq!(merged.content_type(), V2);
    assert_eq!(merged.headers["vary"], "Accept");
    assert_eq!(merged.headers["cache-control"], "public");
    assert_eq!(
        merged.headers["content-length"],
        merged.body.len().to_string()
    );
    assert_eq!(merged.json()["items"].as_array().unwrap().len(), 3);
    let core = response(&view, get("/api", V2), not_modified()).await;
    let resources = &core.json()["items"][0]["versions"][0]["resources"];
    assert_eq!(resources.as_array().unwrap().len(), 2);
}

#[test]
fn the_request_to_the_local_server_is_conditional() {
    let view = mixed();
    let mut head = get("/apis", V2);
    head.headers.insert(IF_NONE_MATCH, "\"x\"".parse().unwrap());
    head.headers
        .insert(ACCEPT_ENCODING, "gzip".parse().unwrap());
    let (cluster_handle, _) = ClusterHandle::new(own());
    let mut merged = MergedResponse::of(
        &head,
        head.uri.path(),
        &Caller::Anonymous,
        &view,
        CompleteDiscovery::Enabled,
    )
    .unwrap();
    merged.prepare_local_request(&mut head, &cluster_handle);
    assert_eq!(head.headers[IF_NONE_MATCH], "\"ours\"");
    // A server that merges discovery itself is requested for its own APIs only.
    assert_eq!(head.headers[ACCEPT], format!("{LOCAL_AGGREGATED},{V2}"));
    assert!(!head.headers.contains_key(ACCEPT_ENCODING));
}

/// kube-apiserver negotiates the format of error responses.
#[test]
fn error_responses_are_requested_in_the_formats_that_the_client_accepts() {
    let view = mixed();
    let (cluster_handle, _) = ClusterHandle::new(own());
    let requested_formats = |accept: &[&str]| {
        let mut head = get("/apis", accept[0]);
        for more in &accept[1..] {
            head.headers.append(ACCEPT, more.parse().unwrap());
        }
        let mut merged = MergedResponse::of(
            &head,
            head.uri.path(),
            &Caller::Anonymous,
            &view,
            CompleteDiscovery::Enabled,
        )
        .unwrap();
        merged.prepare_local_request(&mut head, &cluster_handle);
        let all = head.headers.get_all(ACCEPT).iter().collect::<Vec<_>>();
        assert_eq!(all.len(), 1);
        all[0].to_str().unwrap().to_owned()
    };
    let protobuf = "application/vnd.kubernetes.protobuf;q=0.5";
    assert_eq!(
        requested_formats(&[V2, protobuf]),
        format!("{LOCAL_AGGREGATED},{V2},{protobuf}")
    );
    // kube-apiserver would reorder more media types, and those of the bridge have to be the first.
    assert_eq!(requested_formats(&[&[V2; 9].join(",")]), LOCAL_DOCUMENT);
}
