//! Requests are routed to a server that serves the resource, with the client's identity.

use std::collections::BTreeSet;

use http::Request;
use serde_json::{Value, json};
use skewbridge_gateway::Handle;
use skewbridge_remotecommand::{Input, Protocol};
use skewbridge_testkit::upstream::Upgrade;
use skewbridge_testkit::{BodySender, Reply, TEST_TIMEOUT, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::support::admin_client;
use crate::support::cluster::{
    self, ClusterFixture, NEW, NEW_PATH, OWN, SHARED_PATH, UNSERVED_PATH, peers, send_request,
    served_by, status_message,
};
use crate::support::fake_apiserver::{
    API_SERVICES, CRDS, DiscoveryFormat, LEASES, api_service, crd,
};
use crate::support::identity::{BEARER, FRONT_PROXY, identity_headers, owned};
use crate::support::pki::start;
use crate::support::spdy_upstream::{EXEC, Node, SUCCESS, WebSocket};

const B: &str = "apiserver-b";
const C: &str = "apiserver-c";
const HOP: &str = "x-kubernetes-peer-proxied";
const KEP_HOP_HEADER: &str = "X-Kubernetes-APIServer-Rerouted";

#[tokio::test]
async fn each_request_is_routed_to_a_server_that_serves_its_resource_subresource_and_verb() {
    let local = ["v1 pods", "batch/v1 jobs:get,list"];
    let peer = [
        "v1 pods",
        "v1 pods/resize:get,patch,update",
        "batch/v1 jobs",
        NEW,
    ];
    let (cluster, [b], bridge) = ClusterFixture::with_peers(&local, [(B, &peer)]).await;
    let pod = "/api/v1/namespaces/a/pods/p";
    let resize = format!("{pod}/resize");
    let jobs = "/apis/batch/v1/namespaces/a/jobs";
    let rows = [
        ("GET", SHARED_PATH, OWN),
        ("POST", SHARED_PATH, OWN),
        ("GET", pod, OWN),
        ("GET", NEW_PATH, B),
        ("POST", NEW_PATH, B),
        ("GET", &format!("{NEW_PATH}/one"), B),
        ("PATCH", &resize, B),
        ("GET", &resize, B),
        ("GET", jobs, OWN),
        ("POST", jobs, B),
        ("DELETE", &format!("{jobs}/j"), B),
    ];
    for (method, path, expected) in rows {
        let answer = send_request(&cluster.alice(), &bridge, method, path, &[], "").await;
        assert_eq!(served_by(&answer), expected, "{method} {path}");
    }
    for recorded in b.client_requests() {
        assert_eq!(recorded.all(HOP), ["true"], "{recorded:#?}");
        assert_eq!(recorded.all(KEP_HOP_HEADER), Vec::<&str>::new());
    }
    for recorded in cluster.local.client_requests() {
        assert_eq!(recorded.header(HOP), None, "{recorded:#?}");
    }
}

#[tokio::test]
async fn unserved_resources_and_non_resource_paths_go_to_the_local_server() {
    let (cluster, [b], bridge) = ClusterFixture::with_peers(&[], [(B, &[NEW])]).await;
    let paths = [
        UNSERVED_PATH,
        "/apis/storage.k8s.io/v9/volumeattributesclasses",
        "/apis/storage.k8s.io/v9",
        "/metrics",
        "/openid/v1/jwks",
    ];
    for path in paths {
        let answer = cluster.get(&bridge, path).await;
        assert_eq!(answer.status, 404, "{path}");
        assert_eq!(answer.text(), "404 page not found\n", "{path}");
    }
    assert_eq!(cluster.get(&bridge, "/version").await.status, 200);
    assert!(b.client_requests().is_empty(), "{:#?}", b.client_requests());
    assert_eq!(cluster.local.client_requests().len(), paths.len() + 1);
}

#[tokio::test]
async fn without_peers_all_requests_go_to_the_local_server() {
    let cluster = ClusterFixture::new(&[]).await;
    let bridge = cluster.start().await;
    assert_eq!(served_by(&cluster.get(&bridge, SHARED_PATH).await), OWN);
    assert_eq!(cluster.get(&bridge, NEW_PATH).await.status, 404);
    assert_eq!(cluster.local.client_requests().len(), 2);
}

#[tokio::test]
async fn before_the_cluster_state_is_known_api_requests_fail_and_the_bridge_is_not_ready() {
    for missing in [LEASES, API_SERVICES, CRDS, "/apis", "/api"] {
        let cluster = ClusterFixture::new(&[]).await;
        let _b = cluster.peer(B, &[NEW]).await;
        let refuse = move |recorded: &skewbridge_testkit::RecordedRequest| {
            (recorded.path() == missing).then(|| Reply::new(500).body("not yet"))
        };
        cluster.local.set_hook(refuse);
        let bridge = start(&cluster.config());
        eventually(
            "the bridge has tried to read it",
            TEST_TIMEOUT,
            async || {
                let version_known = !cluster.local.gateway_requests("/version").is_empty();
                version_known && cluster.local.gateway_requests(missing).len() > 1
            },
        )
        .await;
        for path in [SHARED_PATH, NEW_PATH, UNSERVED_PATH] {
            let answer = cluster.get(&bridge, path).await;
            status_message(&answer, 503);
            assert_eq!(answer.header("retry-after"), Some("1"), "{missing} {path}");
            assert_eq!(answer.header("x-skewbridge-not-processed"), None);
        }
        assert_eq!(cluster.get(&bridge, "/version").await.status, 200);
        assert_eq!(
            cluster.get(&bridge, "/readyz").await.status,
            500,
            "{missing}"
        );
        let admin = admin_client::get(bridge.admin_address(), "/readyz").await;
        assert_eq!(admin.status, 500, "{missing}");
        assert!(!peers(&bridge).await["waitingFor"].is_null(), "{missing}");

        cluster.local.remove_hook();
        cluster.wait_for_status(&bridge, "/readyz", 200).await;
        assert_eq!(served_by(&cluster.get(&bridge, SHARED_PATH).await), OWN);
        cluster.wait_for_status(&bridge, NEW_PATH, 200).await;
    }
}

#[tokio::test]
async fn a_request_from_a_peer_is_served_locally_and_never_answered_with_404() {
    let (cluster, [b], bridge) = ClusterFixture::with_peers(&[], [(B, &[NEW])]).await;
    let peer = cluster.pki.peer();
    for hop in [HOP, KEP_HOP_HEADER] {
        let headers = [(hop, "true"), ("x-remote-user", "bob")];
        let answer = send_request(&peer, &bridge, "GET", SHARED_PATH, &headers, "").await;
        assert_eq!(served_by(&answer), OWN, "{hop}");
        for path in [NEW_PATH, UNSERVED_PATH] {
            for method in ["GET", "POST"] {
                let answer = send_request(&peer, &bridge, method, path, &headers, "").await;
                status_message(&answer, 503);
                assert_eq!(answer.header("retry-after"), Some("1"));
                // The peer may send it to another server.
                assert_eq!(answer.header("x-skewbridge-not-processed"), Some("true"));
            }
        }
        let answer = send_request(&peer, &bridge, "GET", "/nothing", &headers, "").await;
        assert_eq!(answer.status, 404, "not a resource request");
    }
    assert!(b.client_requests().is_empty(), "{:#?}", b.client_requests());
}

#[tokio::test]
async fn a_forged_hop_header_is_ignored() {
    let (cluster, [b], bridge) = ClusterFixture::with_peers(&[], [(B, &[NEW])]).await;
    let anonymous_client = cluster.pki.client();
    for hop in [HOP, KEP_HOP_HEADER] {
        for (client, more) in [
            (cluster.alice(), ("x-any", "thing")),
            (anonymous_client.clone(), ("x-any", "thing")),
            (anonymous_client.clone(), BEARER),
        ] {
            let headers = [(hop, "true"), more];
            let remote = send_request(&client, &bridge, "GET", NEW_PATH, &headers, "").await;
            assert_eq!(served_by(&remote), B, "{headers:?}");
            let local = send_request(&client, &bridge, "GET", SHARED_PATH, &headers, "").await;
            assert_eq!(served_by(&local), OWN, "{headers:?}");
        }
    }
    for recorded in b.client_requests() {
        assert_eq!(recorded.all(HOP), ["true"], "{recorded:#?}");
        assert_eq!(
            recorded.all(KEP_HOP_HEADER),
            Vec::<&str>::new(),
            "{recorded:#?}"
        );
    }
    for recorded in cluster.local.client_requests() {
        assert_eq!(recorded.header(HOP), None, "{recorded:#?}");
        assert_eq!(recorded.header(KEP_HOP_HEADER), None, "{recorded:#?}");
    }
}

#[tokio::test]
async fn a_peer_gets_the_identity_of_the_client() {
    let (cluster, [b], bridge) = ClusterFixture::with_peers(&[], [(B, &[NEW])]).await;
    let forged = ("X-Remote-User", "system:admin");
    let rows = [
        (
            cluster.alice(),
            vec![forged, BEARER, ("Impersonate-User", "carol")],
            vec![
                ("impersonate-user", "carol"),
                ("x-remote-group", "dev"),
                ("x-remote-user", "alice"),
            ],
        ),
        (
            cluster.pki.peer(),
            vec![
                ("X-Remote-User", "bob"),
                ("X-Remote-Group", "ops"),
                ("X-Remote-Uid", "7"),
                ("X-Remote-Extra-Scopes", "all"),
            ],
            vec![
                ("x-remote-extra-scopes", "all"),
                ("x-remote-group", "ops"),
                ("x-remote-uid", "7"),
                ("x-remote-user", "bob"),
            ],
        ),
        (
            cluster.pki.client(),
            vec![forged, BEARER],
            vec![("authorization", "Bearer t0ken")],
        ),
        (
            cluster.pki.client(),
            vec![forged],
            vec![
                ("x-remote-group", "system:unauthenticated"),
                ("x-remote-user", "system:anonymous"),
            ],
        ),
    ];
    for (client, headers, expected) in rows {
        let answer = send_request(&client, &bridge, "GET", NEW_PATH, &headers, "").await;
        assert_eq!(served_by(&answer), B);
        let recorded = b.client_requests().pop().unwrap();
        let presented = recorded.client.as_ref().map(|it| it.common_name.as_str());
        assert_eq!(presented, FRONT_PROXY);
        let mut expected = owned(&expected);
        expected.push((HOP.to_owned(), "true".to_owned()));
        expected.sort();
        let mut claimed = identity_headers(&recorded);
        claimed.sort();
        // The certificate id is included for servers that log such ids themselves.
        claimed.retain(|(name, _)| !name.ends_with("credential-id"));
        assert_eq!(claimed, expected, "{headers:?}");
    }
}

#[tokio::test]
async fn requests_are_distributed_over_peers_that_serve_the_same_resource() {
    let (cluster, [b, c], bridge) =
        ClusterFixture::with_peers(&[], [(B, &[NEW]), (C, &[NEW])]).await;
    let mut recorded_requests = BTreeSet::new();
    for _ in 0..64 {
        recorded_requests.insert(served_by(&cluster.get(&bridge, NEW_PATH).await));
    }
    assert_eq!(recorded_requests.len(), 2, "{recorded_requests:?}");
    assert_eq!(b.client_requests().len() + c.client_requests().len(), 64);
}

/// Answers watches with bodies that the test sends.
fn watches(
    recorded: &skewbridge_testkit::RecordedRequest,
    senders: &mpsc::UnboundedSender<BodySender>,
) -> Option<Reply> {
    let watch = recorded.path() == NEW_PATH && recorded.query() == Some("watch=true");
    watch.then(|| {
        let (reply, sender) = Reply::stream();
        senders.send(sender).unwrap();
        reply
    })
}

#[tokio::test]
async fn a_watch_goes_through_a_peer_and_other_requests_go_to_the_peer_with_fewer_in_flight() {
    let (cluster, servers, bridge) =
        ClusterFixture::with_peers(&[], [(B, &[NEW]), (C, &[NEW])]).await;
    let (senders, mut bodies) = mpsc::unbounded_channel();
    for server in &servers {
        let senders = senders.clone();
        server
            .apiserver
            .set_hook(move |recorded| watches(recorded, &senders));
    }
    let h2 = cluster.alice().http2(bridge.address()).await.unwrap();
    let path = format!("https://k{NEW_PATH}?watch=true");
    let mut watch = h2
        .stream(Request::get(path).body(()).unwrap())
        .await
        .unwrap();
    watch.finish().unwrap();
    let body = bodies.recv().await.unwrap();
    assert_eq!(watch.head().await.unwrap().status, 200);
    for event in ["{\"n\":1}\n", "{\"n\":2}\n"] {
        body.send(event).await.unwrap();
        assert_eq!(watch.chunk().await.unwrap().unwrap(), event);
    }

    let (busy, idle) = match &servers {
        [b, c] if b.client_requests().is_empty() => (c, b),
        [b, c] => (b, c),
    };
    for _ in 0..16 {
        assert_eq!(served_by(&cluster.get(&bridge, NEW_PATH).await), idle.name);
        wait_until_idle(&bridge, idle.name).await;
    }
    let view = cluster::peer_view(&bridge, busy.name).await;
    assert_eq!(view["requestsUnderWay"], 1, "{view}");
    drop(watch);
    body.cancelled().await;
    wait_until_idle(&bridge, busy.name).await;
}

async fn wait_until_idle(bridge: &Handle, name: &str) {
    eventually(
        "the peer has no request in flight",
        TEST_TIMEOUT,
        async || cluster::peer_view(bridge, name).await["requestsUnderWay"] == 0,
    )
    .await;
}

#[tokio::test]
async fn an_upgrade_goes_through_a_peer() {
    let exec = "/apis/new.k8s.io/v1/namespaces/a/boxes/b/exec";
    let serves: &[&str] = &["new.k8s.io/v1 boxes/exec:create,get"];
    let (cluster, [b], bridge) = ClusterFixture::with_peers(&[], [(B, serves)]).await;
    let (sender, mut tunnels) = mpsc::unbounded_channel::<Upgrade>();
    b.apiserver.set_hook(move |recorded| {
        let protocol = recorded.header("upgrade")?;
        let (reply, upgrade) = Reply::upgrade(protocol);
        sender.send(upgrade).unwrap();
        Some(reply)
    });
    let mut client = cluster.alice().http1(bridge.address()).await.unwrap();
    client
        .send(format!(
            "POST {exec} HTTP/1.1\r\nHost: k\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
             Content-Length: 0\r\n\r\n"
        ))
        .await
        .unwrap();
    let head = client.read_head().await.unwrap();
    assert_eq!(head.status, 101);
    assert_eq!(head.header("upgrade"), Some("SPDY/3.1"));
    let mut ends = [
        client.into_connection(),
        tunnels.recv().await.unwrap().connection().await,
    ];
    for (from, to) in [(0, 1), (1, 0)] {
        ends[from].write_all(b"hello").await.unwrap();
        ends[from].flush().await.unwrap();
        let mut bytes = [0; 5];
        ends[to].read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"hello");
    }
    let recorded = b.client_requests().pop().unwrap();
    assert_eq!(recorded.all(HOP), ["true"]);
    assert_eq!(recorded.header("x-remote-user"), Some("alice"));
}

#[tokio::test]
async fn a_stream_is_translated_for_a_peer_that_does_not_translate_itself() {
    let cluster = ClusterFixture::new(&["v1 pods"]).await;
    let b = cluster
        .peer(B, &["v1 pods", "v1 pods/exec:create,get"])
        .await;
    // The local server would translate: the version of the peer decides.
    b.apiserver
        .set_version("v1.28.15", DiscoveryFormat::V2Beta1);
    let (sender, mut streams) = mpsc::unbounded_channel::<Upgrade>();
    b.apiserver.set_hook(move |recorded| {
        let protocol = recorded.header("upgrade")?;
        if protocol == "websocket" {
            return Some(Reply::new(403));
        }
        let (reply, upgrade) = Reply::upgrade(protocol);
        sender.send(upgrade).unwrap();
        Some(reply.header("X-Stream-Protocol-Version", "v4.channel.k8s.io"))
    });
    let bridge = cluster.start().await;
    let address = bridge.address();
    let mut client = WebSocket::open(&cluster.alice(), address, EXEC, Protocol::V5).await;
    let connection = streams.recv().await.unwrap().connection().await;
    let mut node = Node::accept(connection, 4).await;
    client.write(Input::Stdin, b"in").await.unwrap();
    assert_eq!(node.read("stdin").await.unwrap(), "in");
    node.write("stdout", "out").await;
    node.end(SUCCESS).await;
    let transcript = client.read_to_end().await;
    assert_eq!(transcript.stdout, b"out");
    assert!(transcript.looks_successful(), "{transcript:?}");
    let recorded: Vec<_> = b.client_requests();
    assert_eq!(
        recorded.len(),
        1,
        "no other request was tried before: {recorded:#?}"
    );
    assert_eq!(
        (recorded[0].method.as_str(), recorded[0].all(HOP)),
        ("POST", vec!["true"])
    );
    assert_eq!(recorded[0].header("x-remote-user"), Some("alice"));
    assert!(cluster.local.client_requests().is_empty());
}

#[tokio::test]
async fn a_response_of_a_peer_has_one_copy_of_every_header() {
    let (cluster, [b], bridge) = ClusterFixture::with_peers(&[], [(B, &[NEW])]).await;
    let response_headers = [
        ("audit-id", "0c1f"),
        ("cache-control", "no-cache, private"),
        ("content-type", "application/json"),
        ("date", "Sun, 15 Nov 2026 13:00:00 GMT"),
        ("x-kubernetes-pf-flowschema-uid", "1"),
        ("x-kubernetes-pf-prioritylevel-uid", "2"),
    ];
    b.apiserver.set_hook(move |recorded| {
        let reply = Reply::new(200).body("{}");
        let with = |reply: Reply, (name, value): &(&str, &str)| reply.header(name, value);
        (recorded.path() == NEW_PATH).then(|| response_headers.iter().fold(reply, with))
    });
    let answer = cluster.get(&bridge, NEW_PATH).await;
    for (name, value) in response_headers {
        let values: Vec<_> = (answer.headers.iter())
            .filter(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
            .collect();
        assert_eq!(values, [value], "{name}");
    }
    let names: BTreeSet<_> = answer.headers.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), answer.headers.len(), "{:#?}", answer.headers);
}

#[tokio::test]
async fn custom_resources_and_aggregated_apis_are_never_routed_to_a_peer_even_after_deletion() {
    // A peer that does not know of the deletion yet.
    let serves = [
        "custom.example.com/v1 things",
        "aggregated.example.com/v1 things",
        "later-custom.example.com/v1 things",
        "later-aggregated.example.com/v1 things",
        "built-in.k8s.io/v1 things",
    ];
    let cluster = ClusterFixture::new(&[]).await;
    let b = cluster.peer(B, &serves).await;
    let aggregated = |group: &str| api_service(group, &json!({"name": "its-service"}));
    let local = &cluster.local;
    local.put(CRDS, crd("custom.example.com", "things"));
    local.put(API_SERVICES, aggregated("aggregated.example.com"));
    // Every server registers its own APIs, without a service.
    local.put(API_SERVICES, api_service("built-in.k8s.io", &Value::Null));
    let bridge = cluster.start().await;
    let path = |group: &str| format!("/apis/{group}/v1/things");
    let assert_served_locally = async || {
        for group in ["custom.example.com", "aggregated.example.com"] {
            let answer = cluster.get(&bridge, &path(group)).await;
            assert_eq!(answer.status, 404, "{group}: {}", answer.text());
            assert_eq!(answer.text(), "404 page not found\n");
        }
    };
    assert_served_locally().await;
    let others = [
        path("built-in.k8s.io"),
        path("later-custom.example.com"),
        path("later-aggregated.example.com"),
    ];
    for other in &others {
        assert_eq!(served_by(&cluster.get(&bridge, other).await), B);
    }

    local.delete(CRDS, "things.custom.example.com");
    local.delete(API_SERVICES, "v1.aggregated.example.com");
    // An API that is served after the deletion is known after it.
    local.put(CRDS, crd("later-custom.example.com", "things"));
    local.put(API_SERVICES, aggregated("later-aggregated.example.com"));
    for later in &others[1..] {
        cluster.wait_for_status(&bridge, later, 404).await;
    }
    assert_served_locally().await;
    let never = [path("custom.example.com"), path("aggregated.example.com")];
    assert!(
        b.client_requests()
            .iter()
            .all(|recorded| !never.contains(&recorded.target))
    );
}
