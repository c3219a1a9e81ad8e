//! Peers without a bridge, whose kube-apiserver is addressed directly. If the client CA of such a
//! server verifies the front-proxy certificate, the server attributes a request whose token it
//! rejects to that certificate. Therefore tokens are sent without the certificate.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::json;
use skewbridge_gateway::Handle;
use skewbridge_gateway::config::{Config, RegistryKind};
use skewbridge_testkit::{
    ClientAuth, Options, RecordedRequest, Reply, TEST_TIMEOUT, TlsClient, eventually,
};

use crate::support::admin_client;
use crate::support::cluster::{
    ClusterFixture, NEW, NEW_PATH, SHARED, SHARED_PATH, peer_view, send_request, status_message,
};
use crate::support::fake_apiserver::FakeApiServer;
use crate::support::identity::{BEARER, FRONT_PROXY, IdentityFixture, PLAIN};
use crate::support::pki::start;
use crate::support::served_records::{record_of_b, records};

const B: &str = "apiserver-b";
const HOP: &str = "x-kubernetes-peer-proxied";
const ANSWERED_BY_BRIDGE: &str = "x-skewbridge-answered";
const AUTHENTICATION: &str =
    "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";

/// A kube-apiserver whose client CA verifies the front-proxy certificate, with the order of
/// kube-apiserver's authenticators: asserted user, token, certificate.
async fn union_authenticator(cluster: &ClusterFixture) -> FakeApiServer {
    let leaf = cluster.peer_ca.server(&["kubernetes.default.svc"]);
    let options = Options::new(leaf)
        .clients(ClientAuth::Accept(&cluster.pki.front_proxy_ca))
        .alpn(&["h2", "http/1.1"]);
    let server = FakeApiServer::start(options, B, &[SHARED, NEW]).await;
    server
        .set_hook(|recorded| (!recorded.is_probe()).then(|| Reply::json(authenticated(recorded))));
    cluster.local.lease(B, "one");
    server
}

fn authenticated(recorded: &RecordedRequest) -> String {
    let token = recorded.header("authorization");
    let certificate = recorded.client.as_ref().map(|it| it.common_name.as_str());
    let user = match (recorded.header("x-remote-user"), token, certificate) {
        (Some(user), _, Some(_)) => user,
        (_, Some("Bearer t0ken"), _) => "bob",
        (_, _, Some(certificate)) => certificate,
        _ => "none",
    };
    json!({"servedBy": user}).to_string()
}

/// The user that B authenticates, the client certificate of the connection, and whether the request
/// has the hop header.
async fn request_as_seen_by_b(
    bridge: &Handle,
    b: &FakeApiServer,
    client: &TlsClient,
    headers: &[(&str, &str)],
) -> (String, Option<String>, bool) {
    let answer = send_request(client, bridge, "GET", NEW_PATH, headers, "").await;
    let recorded = b.client_requests().pop().unwrap();
    (
        crate::support::cluster::served_by(&answer),
        recorded.client.as_ref().map(|it| it.common_name.clone()),
        recorded.header(HOP) == Some("true"),
    )
}

#[tokio::test]
async fn a_token_is_sent_without_the_front_proxy_certificate() {
    let cluster = ClusterFixture::new(&[]).await;
    let (_recorded, publish) = records(&cluster);
    let mut record = record_of_b(&cluster).await;
    let b = union_authenticator(&cluster).await;
    record.bridge_left_at = Some(SystemTime::now());
    record.server = Some(b.server.addr());
    publish.send_replace(Some(Arc::new(record)));
    let bridge = start(&cluster.config());
    cluster.wait_for_status(&bridge, NEW_PATH, 200).await;
    assert_eq!(peer_view(&bridge, B).await["state"], "bridge-left");

    let junk = ("authorization", "Bearer junk");
    let rows = [
        (cluster.pki.client(), &[junk][..], "none", PLAIN),
        (cluster.pki.client(), &[BEARER], "bob", PLAIN),
        (cluster.pki.client(), &[], "system:anonymous", FRONT_PROXY),
        (cluster.alice(), &[junk], "alice", FRONT_PROXY),
        // Again, when connections with and without the certificate exist.
        (cluster.pki.client(), &[junk], "none", PLAIN),
    ];
    for (client, headers, user, certificate) in rows {
        let arrived = request_as_seen_by_b(&bridge, &b, &client, headers).await;
        let expected = (user.to_owned(), certificate.map(str::to_owned), true);
        assert_eq!(arrived, expected, "{headers:?}");
    }
}

/// A connection that a rejected token closes carries no accepted token.
#[tokio::test]
async fn accepted_tokens_share_no_connection_with_guessed_ones() {
    let cluster = ClusterFixture::new(&[]).await;
    let (_recorded, publish) = records(&cluster);
    let mut record = record_of_b(&cluster).await;
    let b = union_authenticator(&cluster).await;
    record.bridge_left_at = Some(SystemTime::now());
    record.server = Some(b.server.addr());
    publish.send_replace(Some(Arc::new(record)));
    let bridge = start(&cluster.config());
    cluster.wait_for_status(&bridge, NEW_PATH, 200).await;
    let connection = async |token: &str| {
        let header = ("authorization", token);
        request_as_seen_by_b(&bridge, &b, &cluster.pki.client(), &[header]).await;
        b.client_requests().pop().unwrap().connection
    };
    connection("Bearer t0ken").await;
    let (accepted, guessed) = (
        connection("Bearer t0ken").await,
        connection("Bearer junk").await,
    );
    assert_ne!(accepted, guessed);
}

fn with_file(cluster: &ClusterFixture, address: std::net::SocketAddr) -> Config {
    let yaml = format!("peers:\n- identity: {B}\n  address: {address}\n");
    let path = cluster.pki.dir.write("peers.yaml", yaml);
    let mut config = cluster.config();
    config.peers.registry = RegistryKind::File(path);
    config
}

/// An address in the file may belong to a bridge or to a kube-apiserver; a bridge identifies itself
/// in its responses.
#[tokio::test]
async fn the_response_shows_whether_an_address_in_the_file_is_a_bridge() {
    for (by_bridge, expected) in [(false, PLAIN), (true, FRONT_PROXY)] {
        let cluster = ClusterFixture::new(&[]).await;
        let b = union_authenticator(&cluster).await;
        b.set_hook(move |recorded| {
            let version = || {
                let reply = Reply::json(r#"{"gitVersion":"v1.36.4"}"#);
                reply.header(ANSWERED_BY_BRIDGE, "true")
            };
            match recorded.path() {
                "/version" if by_bridge => Some(version()),
                _ => (!recorded.is_probe()).then(|| Reply::json(authenticated(recorded))),
            }
        });
        let bridge = start(&with_file(&cluster, b.server.addr()));
        cluster.wait_for_status(&bridge, NEW_PATH, 200).await;
        let client_with_token = cluster.pki.client();
        let (_, certificate, _) =
            request_as_seen_by_b(&bridge, &b, &client_with_token, &[BEARER]).await;
        assert_eq!(certificate.as_deref(), expected, "{by_bridge}");
    }
}

/// A bridge was killed, and a kube-apiserver listens on its address now.
#[tokio::test]
async fn a_kube_apiserver_at_the_address_of_a_bridge_gets_tokens_without_the_certificate() {
    let cluster = ClusterFixture::new(&[]).await;
    let b = union_authenticator(&cluster).await;
    let _published = cluster.publish(B, b.server.addr());
    let bridge = start(&cluster.config());
    cluster.wait_for_status(&bridge, NEW_PATH, 200).await;
    let client_with_token = cluster.pki.client();
    let junk = ("authorization", "Bearer junk");
    let arrived = request_as_seen_by_b(&bridge, &b, &client_with_token, &[junk]).await;
    assert_eq!(arrived, ("none".to_owned(), None, true));
}

/// Only to peers; the server behind the bridge cannot set the header.
#[tokio::test]
async fn a_bridge_identifies_itself_to_peers() {
    let fixture = IdentityFixture::new().await;
    let hop = (HOP, "true");
    let user = ("X-Remote-User", "alice");
    let rows = [
        (fixture.pki.peer(), vec![hop, user], Some("true")),
        (fixture.pki.peer(), vec![user], None),
        (fixture.pki.client(), vec![hop], None),
    ];
    for (client, headers, expected) in rows {
        let outcome = fixture
            .send_request(&client, http::Version::HTTP_2, &headers)
            .await;
        assert_eq!(
            outcome.response.header(ANSWERED_BY_BRIDGE),
            expected,
            "{headers:?}"
        );
    }
    let cluster = ClusterFixture::new(&[]).await;
    (cluster.local).set_hook(|recorded| {
        (recorded.path() == SHARED_PATH)
            .then(|| Reply::json("{}").header(ANSWERED_BY_BRIDGE, "true"))
    });
    let bridge = cluster.start().await;
    let answer = cluster.get(&bridge, SHARED_PATH).await;
    assert_eq!(
        (answer.status, answer.header(ANSWERED_BY_BRIDGE)),
        (200, None)
    );
}

/// Without `--client-ca-file`, the bridge checks against the client CA that upstream publishes.
#[tokio::test]
async fn peering_is_off_when_upstream_accepts_the_front_proxy_certificate_as_a_user() {
    let cluster = ClusterFixture::new(&[]).await;
    let b = cluster.peer(B, &[NEW]).await;
    let proxies = cluster.pki.front_proxy_ca.pem();
    let publishes = |client_ca: String| {
        let data = json!({"client-ca-file": client_ca});
        let map = json!({"kind": "ConfigMap", "data": data}).to_string();
        cluster
            .local
            .set_hook(move |recorded| match recorded.path() {
                AUTHENTICATION => Some(Reply::json(map.clone())),
                _ => crate::support::self_test_responses::passing_response(recorded),
            });
    };
    publishes(proxies);
    let mut config = cluster.config();
    config.callers.client_ca = None;
    let bridge = start(&config);
    let peering = async || {
        let metrics = admin_client::scrape(bridge.admin_address()).await;
        metrics.value("skewbridge_peering_enabled", &[])
    };
    eventually("peering is off", TEST_TIMEOUT, async || {
        peering().await == Some(0.0)
    })
    .await;
    let before = b.client_requests().len();
    let peer = cluster.pki.peer();
    let alice = [("X-Remote-User", "alice")];
    let answer = send_request(&peer, &bridge, "GET", NEW_PATH, &alice, "").await;
    let message = status_message(&answer, 503);
    for part in [
        "--proxy-client-cert-file",
        "front-proxy.crt",
        "kube-system/extension-apiserver-authentication",
    ] {
        assert!(message.contains(part), "{message}");
    }
    status_message(
        &send_request(
            &cluster.pki.client(),
            &bridge,
            "GET",
            NEW_PATH,
            &[BEARER],
            "",
        )
        .await,
        503,
    );
    assert_eq!(
        b.client_requests().len(),
        before,
        "no request is sent to peers"
    );
    let ready = admin_client::get(bridge.admin_address(), "/readyz?verbose").await;
    let line = "[+]ca-files ok: in conflict: --proxy-client-cert-file";
    assert!(ready.body.contains(line), "{}", ready.body);

    // The check runs again after a file changes.
    publishes(cluster.pki.client_ca.pem());
    let renewed = (cluster.pki.front_proxy_ca).client("front-proxy-client", &[]);
    cluster.pki.dir.write("front-proxy.crt", &renewed.cert_pem);
    cluster.pki.dir.write("front-proxy.key", &renewed.key_pem);
    eventually("the API of the peer is served", TEST_TIMEOUT, async || {
        let answer = send_request(&peer, &bridge, "GET", NEW_PATH, &alice, "").await;
        answer.status == 200
    })
    .await;
    assert_eq!(peering().await, Some(1.0));
}
