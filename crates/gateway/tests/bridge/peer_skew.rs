//! Servers that were replaced by another version before the change is known: a client never gets
//! 404 for a resource that another server serves.

use skewbridge_gateway::Handle;
use skewbridge_gateway::config::ApiServerIdentity;
use skewbridge_testkit::{ClientAuth, Options, RecordedRequest, Reply, TEST_TIMEOUT, eventually};

use crate::support::cluster::{
    self, ClusterFixture, NEW, NEW_PATH, OWN, send_request, served_by, status_message,
};
use crate::support::fake_apiserver::{CRDS, FakeApiServer, LEASES, crd, page_not_found};
use crate::support::pki::start;

const B: &str = "apiserver-b";
const BEARER: (&str, &str) = ("Authorization", "Bearer t0ken");
const HOP: &str = "x-kubernetes-peer-proxied";
const NOT_PROCESSED: &str = "x-skewbridge-not-processed";

#[tokio::test]
async fn a_downgraded_local_server_does_not_hide_the_apis_of_a_peer() {
    let (cluster, [b], bridge) = ClusterFixture::with_peers(&[NEW], [(B, &[NEW])]).await;
    assert_eq!(served_by(&cluster.get(&bridge, NEW_PATH).await), OWN);
    // Its last discovery lists the API, but it no longer serves it.
    let gone =
        |recorded: &RecordedRequest| recorded.path().starts_with(NEW_PATH).then(page_not_found);
    cluster.local.set_hook(gone);
    let body = "x".repeat(100 << 10);
    for (client, headers) in [
        (cluster.alice(), &[][..]),
        (cluster.pki.client(), &[BEARER][..]),
        (cluster.pki.client(), &[][..]),
    ] {
        let answer = send_request(&client, &bridge, "GET", NEW_PATH, headers, "").await;
        assert_eq!(served_by(&answer), B);
        let answer = send_request(&client, &bridge, "POST", NEW_PATH, headers, body.clone()).await;
        assert_eq!(served_by(&answer), B);
        let recorded = b.client_requests().pop().unwrap();
        assert_eq!(recorded.body, body);
        assert_eq!(recorded.all(HOP), ["true"]);
        let users = recorded.all("x-remote-user");
        match headers {
            [] if client.identity.is_some() => assert_eq!(users, ["alice"]),
            [] => assert_eq!(users, ["system:anonymous"]),
            _ => {
                assert!(users.is_empty(), "{users:?}");
                assert_eq!(recorded.all("authorization"), ["Bearer t0ken"]);
            }
        }
    }
    let hop = [(HOP, "true"), ("x-remote-user", "bob")];
    let before = b.client_requests().len();
    for method in ["GET", "POST"] {
        let answer = send_request(&cluster.pki.peer(), &bridge, method, NEW_PATH, &hop, "").await;
        status_message(&answer, 503);
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert_eq!(answer.header(NOT_PROCESSED), Some("true"));
    }
    assert_eq!(b.client_requests().len(), before, "at most one hop");
}

#[tokio::test]
async fn a_404_for_a_listed_resource_refreshes_local_discovery() {
    let (cluster, [_b], bridge) = ClusterFixture::with_peers(&[NEW], [(B, &[NEW])]).await;
    cluster.local.serve(&[cluster::SHARED]);
    assert_eq!(served_by(&cluster.get(&bridge, NEW_PATH).await), B);
    eventually("local discovery is refreshed", TEST_TIMEOUT, async || {
        let before = cluster.local.client_requests().len();
        served_by(&cluster.get(&bridge, NEW_PATH).await) == B
            && cluster.local.client_requests().len() == before
    })
    .await;
}

#[tokio::test]
async fn a_not_processed_response_refreshes_discovery_of_the_peer() {
    let (cluster, [b], bridge) = ClusterFixture::with_peers(&[], [(B, &[NEW])]).await;
    assert_eq!(served_by(&cluster.get(&bridge, NEW_PATH).await), B);
    // The server of that bridge was replaced, and no event has announced it.
    b.apiserver.serve(&[cluster::SHARED]);
    let refused = || Reply::new(503).header(NOT_PROCESSED, "true");
    b.apiserver
        .set_hook(move |recorded| (recorded.path() == NEW_PATH).then(refused));
    assert_eq!(cluster.get(&bridge, NEW_PATH).await.status, 503);
    eventually("no server serves the resource", TEST_TIMEOUT, async || {
        cluster.get(&bridge, NEW_PATH).await.status == 404
    })
    .await;
}

#[tokio::test]
async fn responses_of_workloads_through_the_proxy_subresource_are_forwarded_unchanged() {
    let pods: &[&str] = &["v1 pods", "v1 pods/proxy:create,get"];
    let (cluster, [b], bridge) = ClusterFixture::with_peers(pods, [(B, pods)]).await;
    let proxy = "/api/v1/namespaces/a/pods/p/proxy/page";
    cluster
        .local
        .set_hook(move |recorded| (recorded.path() == proxy).then(page_not_found));
    for method in ["GET", "POST"] {
        let answer = send_request(&cluster.alice(), &bridge, method, proxy, &[], "").await;
        assert_eq!(
            (answer.status, answer.text().as_str()),
            (404, "404 page not found\n")
        );
        let hop = [(HOP, "true"), ("x-remote-user", "bob")];
        let answer = send_request(&cluster.pki.peer(), &bridge, method, proxy, &hop, "").await;
        assert_eq!(
            (answer.status, answer.text().as_str()),
            (404, "404 page not found\n")
        );
    }
    assert!(b.client_requests().is_empty());
}

#[tokio::test]
async fn an_http1_body_reaches_peers_of_either_protocol_completely() {
    for alpn in ["h2", "http/1.1"] {
        let cluster = ClusterFixture::new(&[NEW]).await;
        let leaf = cluster.peer_ca.server(&["kubernetes.default.svc"]);
        let b = cluster.server_with_alpn(&[alpn], B, &[NEW], leaf).await;
        cluster.local.lease(B, "one");
        let _published = cluster.publish(B, b.server.addr());
        let bridge = cluster.start().await;
        // First after a 404 of a replaced local server, then directly.
        cluster
            .local
            .set_hook(|recorded| (recorded.path() == NEW_PATH).then(page_not_found));
        for turn in 0..4 {
            let mut client = cluster.alice().http1(bridge.address()).await.unwrap();
            let body = match turn % 2 {
                0 => "Transfer-Encoding: chunked\r\n\r\n4\r\n{\"a\"\r\n3\r\n:1}\r\n0\r\n\r\n",
                _ => "Content-Length: 7\r\n\r\n{\"a\":1}",
            };
            client
                .send(format!("POST {NEW_PATH} HTTP/1.1\r\nHost: k\r\n{body}"))
                .await
                .unwrap();
            let answer = client.read_response().await.unwrap();
            assert_eq!(served_by(&answer), B, "{alpn} {turn}");
            let recorded = b.client_requests().pop().unwrap();
            assert_eq!(recorded.body, "{\"a\":1}", "{alpn} {turn}");
            assert_eq!(b.client_requests().len(), turn + 1);
            if turn == 1 {
                cluster.local.serve(&[cluster::SHARED]);
                cluster.local.put(CRDS, crd("other.example.com", "things"));
            }
        }
    }
}

#[tokio::test]
async fn a_body_too_long_to_be_replayed_is_not_answered_with_404() {
    let (cluster, [b], bridge) = ClusterFixture::with_peers(&[NEW], [(B, &[NEW])]).await;
    cluster
        .local
        .set_hook(|recorded| (recorded.path() == NEW_PATH).then(page_not_found));
    let answer = cluster.post(&bridge, NEW_PATH, vec![b'x'; 1 << 20]).await;
    status_message(&answer, 503);
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert!(b.client_requests().is_empty());
}

/// A bridge in front of another server, whose address is in the registry.
fn second_bridge(cluster: &ClusterFixture, server: &FakeApiServer) -> Handle {
    let certificate = cluster.peer_ca.server(&["kubernetes.default.svc"]);
    let mut config = cluster.config();
    config.serving.key_pair.cert = cluster.pki.dir.write("b.crt", &certificate.cert_pem);
    config.serving.key_pair.key = cluster.pki.dir.write("b.key", &certificate.key_pem);
    config.upstream.port = server.server.addr().port();
    config.peers.identity = ApiServerIdentity::Named(B.to_owned());
    start(&config)
}

#[tokio::test]
async fn two_bridges_serve_the_apis_of_both_servers() {
    let cluster = ClusterFixture::new(&[]).await;
    let options = Options::new(cluster.pki.upstream.clone())
        .clients(ClientAuth::Accept(&cluster.pki.front_proxy_ca));
    let server_b = FakeApiServer::start(options, B, &[cluster::SHARED, NEW]).await;
    for server in [&cluster.local, &server_b] {
        server.lease(OWN, "one");
        server.lease(B, "one");
    }
    // The second bridge does not know its cluster yet.
    server_b.set_hook(|recorded| (recorded.path() == LEASES).then(|| Reply::new(500)));
    let b = second_bridge(&cluster, &server_b);
    let a = cluster.start().await;
    let early = cluster.post(&a, NEW_PATH, "{}").await;
    status_message(&early, 503);
    assert_eq!(early.header(NOT_PROCESSED), None);
    assert_eq!(early.header("retry-after"), Some("1"));
    assert!(server_b.client_requests().is_empty());

    server_b.remove_hook();
    cluster.wait_for_status(&a, NEW_PATH, 200).await;
    let answer = cluster.post(&a, NEW_PATH, "{}").await;
    assert_eq!(served_by(&answer), B);
    let recorded = server_b.client_requests().pop().unwrap();
    assert_eq!(recorded.all("x-remote-user"), ["alice"]);
    assert_eq!(recorded.all("x-remote-group"), ["dev"]);
    assert_eq!(recorded.all(HOP), ["true"]);
    let anonymous_response =
        send_request(&cluster.pki.client(), &a, "GET", NEW_PATH, &[], "").await;
    assert_eq!(served_by(&anonymous_response), B);
    let recorded = server_b.client_requests().pop().unwrap();
    assert_eq!(recorded.all("x-remote-user"), ["system:anonymous"]);
    assert_eq!(recorded.all("x-remote-group"), ["system:unauthenticated"]);
    let token = send_request(&cluster.pki.client(), &a, "GET", NEW_PATH, &[BEARER], "").await;
    assert_eq!(served_by(&token), B);
    let recorded = server_b.client_requests().pop().unwrap();
    assert_eq!(recorded.all("x-remote-user"), Vec::<&str>::new());
    assert_eq!(recorded.all("authorization"), [BEARER.1]);

    // The second server is replaced by one that does not serve the resource. No bridge has
    // detected that yet, and still no client gets 404.
    server_b.set_hook(|recorded| (recorded.path() == NEW_PATH).then(page_not_found));
    for method in ["GET", "POST"] {
        let answer = send_request(&cluster.alice(), &a, method, NEW_PATH, &[], "").await;
        status_message(&answer, 503);
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert_eq!(answer.header(NOT_PROCESSED), None);
    }
    drop(b);
}

/// kube-apiserver's response for a resource that a group-version it serves does not have.
fn no_such_resource() -> Reply {
    let status = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",
        "message":"the server could not find the requested resource","reason":"NotFound",
        "details":{},"code":404}"#;
    Reply::json(status).status(404)
}

#[tokio::test]
async fn a_404_status_for_an_unknown_resource_is_not_forwarded_either() {
    let (cluster, [b], bridge) = ClusterFixture::with_peers(&[NEW], [(B, &[NEW])]).await;
    let gone =
        |recorded: &RecordedRequest| recorded.path().starts_with(NEW_PATH).then(no_such_resource);
    cluster.local.set_hook(gone);
    for method in ["GET", "POST"] {
        let answer = send_request(&cluster.alice(), &bridge, method, NEW_PATH, &[], "").await;
        status_message(&answer, 503);
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
    // A peer that was replaced by another version.
    cluster.local.serve(&[cluster::SHARED]);
    cluster.wait_for_status(&bridge, NEW_PATH, 200).await;
    b.apiserver.set_hook(gone);
    for method in ["GET", "POST"] {
        let answer = send_request(&cluster.alice(), &bridge, method, NEW_PATH, &[], "").await;
        status_message(&answer, 503);
    }
    // A missing object is a final 404.
    let missing = |recorded: &RecordedRequest| {
        let status = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",
            "message":"things.example.com \"x\" not found","reason":"NotFound",
            "details":{"name":"x","kind":"things"},"code":404}"#;
        recorded
            .path()
            .starts_with(NEW_PATH)
            .then(|| Reply::json(status).status(404))
    };
    b.apiserver.set_hook(missing);
    let answer = cluster.get(&bridge, NEW_PATH).await;
    assert_eq!(answer.status, 404);
    assert!(answer.text().contains("not found"));
}

#[tokio::test]
async fn a_404_of_a_node_is_not_taken_for_one_of_a_server() {
    let pods: &[&str] = &["v1 pods", "v1 pods/exec:create,get"];
    let (cluster, [b], bridge) = ClusterFixture::with_peers(pods, [(B, pods)]).await;
    let exec = "/api/v1/namespaces/a/pods/p/exec";
    cluster
        .local
        .set_hook(move |recorded| (recorded.path() == exec).then(page_not_found));
    let answer = send_request(&cluster.alice(), &bridge, "POST", exec, &[], "").await;
    assert_eq!(answer.status, 404);
    assert!(b.client_requests().is_empty());
}

#[tokio::test]
async fn anonymous_requests_that_the_local_server_rejects_are_not_sent_to_peers() {
    let (cluster, [b], bridge) = ClusterFixture::with_peers(&[], [(B, &[NEW])]).await;
    let anonymous_client = cluster.pki.client();
    let answer = send_request(&anonymous_client, &bridge, "GET", NEW_PATH, &[], "").await;
    assert_eq!(served_by(&answer), B);
    let before = b.client_requests().len();
    let denied = |recorded: &RecordedRequest| {
        let path = recorded.path().starts_with(NEW_PATH);
        (path && recorded.client.is_none()).then(|| Reply::json("{}").status(401))
    };
    cluster.local.set_hook(denied);
    for method in ["GET", "POST"] {
        let answer = send_request(&anonymous_client, &bridge, method, NEW_PATH, &[], "").await;
        assert_eq!(answer.status, 401);
    }
    assert_eq!(b.client_requests().len(), before);
    let answer = send_request(&cluster.alice(), &bridge, "GET", NEW_PATH, &[], "").await;
    assert_eq!(served_by(&answer), B);
}

/// A workload behind the proxy subresource may send any response, with any header.
#[tokio::test]
async fn a_write_to_a_workload_is_sent_once_unless_a_bridge_has_not_processed_it() {
    const PODS: [&str; 2] = ["v1 pods", "v1 pods/proxy:create,get"];
    const PROXY: &str = "/api/v1/namespaces/a/pods/p/proxy/page";
    type Headers = &'static [(&'static str, &'static str)];
    let shutting_down: Headers = &[("Retry-After", "1"), ("X-Content-Type-Options", "nosniff")];
    let marked: Headers = &[(NOT_PROCESSED, "true")];
    for (are_bridges, headers, expected) in [
        (false, shutting_down, 1),
        (false, marked, 1),
        (true, shutting_down, 1),
        // A bridge removes the mark from what its server sends.
        (true, marked, 2),
    ] {
        let cluster = ClusterFixture::new(&[]).await;
        let mut servers = Vec::new();
        for name in [B, "apiserver-c"] {
            let leaf = cluster.peer_ca.server(&["kubernetes.default.svc"]);
            let server = cluster.server(name, &PODS, leaf).await;
            if are_bridges {
                server.answer_as_bridge();
            }
            server.set_hook(move |recorded| {
                let unavailable = || {
                    let reply = Reply::new(503).body("of the workload");
                    (headers.iter()).fold(reply, |reply, (name, value)| reply.header(name, value))
                };
                (recorded.path() == PROXY).then(unavailable)
            });
            cluster.local.lease(name, "one");
            let published = cluster.publish(name, server.server.addr());
            servers.push((server, published));
        }
        let bridge = cluster.start().await;
        let answer = cluster.post(&bridge, PROXY, "{}").await;
        assert_eq!(
            (answer.status, answer.text().as_str()),
            (503, "of the workload")
        );
        let sent = servers.iter().map(|(it, _)| it.client_requests().len());
        assert_eq!(sent.sum::<usize>(), expected, "{are_bridges} {headers:?}");
    }
}
