//! kube-apiservers that are asked directly, without a bridge before them. Where the client CA of
//! such a server verifies the front-proxy certificate, it takes a request whose token it refuses
//! for a request of that certificate: so tokens come without it.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::json;
use skewbridge_gateway::Handle;
use skewbridge_gateway::config::{Config, RegistryKind};
use skewbridge_testkit::{
    ClientAuth, Options, PATIENCE, RecordedRequest, Reply, TlsClient, eventually,
};

use crate::bed::start;
use crate::claims::{BEARER, FRONT_PROXY, Gateway, PLAIN};
use crate::cluster::{Cluster, NEW, NEW_PATH, SHARED, SHARED_PATH, ask, peer_view, refusal};
use crate::peer_records::{record_of_b, records};
use crate::plain;
use crate::standin::Standin;

const B: &str = "apiserver-b";
const HOP: &str = "x-kubernetes-peer-proxied";
const BY_BRIDGE: &str = "x-skewbridge-answered";
const AUTHENTICATION: &str =
    "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";

/// A kube-apiserver whose client CA verifies the front-proxy certificate, with the order of
/// kube-apiserver's authenticators: asserted user, token, certificate.
async fn union_authenticator(cluster: &Cluster) -> Standin {
    let leaf = cluster.peer_ca.server(&["kubernetes.default.svc"]);
    let options = Options::new(leaf)
        .clients(ClientAuth::Accept(&cluster.bed.front_proxy_ca))
        .alpn(&["h2", "http/1.1"]);
    let server = Standin::start(options, B, &[SHARED, NEW]).await;
    server.hook(|seen| (!seen.is_probe()).then(|| Reply::json(authenticated(seen))));
    cluster.local.lease(B, "one");
    server
}

fn authenticated(seen: &RecordedRequest) -> String {
    let token = seen.header("authorization");
    let certificate = seen.client.as_ref().map(|it| it.common_name.as_str());
    let user = match (seen.header("x-remote-user"), token, certificate) {
        (Some(user), _, Some(_)) => user,
        (_, Some("Bearer t0ken"), _) => "bob",
        (_, _, Some(certificate)) => certificate,
        _ => "nobody",
    };
    json!({"servedBy": user}).to_string()
}

/// As whom B takes a request, with which certificate the request has come, and whether it has
/// hopped.
async fn arrives(
    bridge: &Handle,
    b: &Standin,
    client: &TlsClient,
    headers: &[(&str, &str)],
) -> (String, Option<String>, bool) {
    let answer = ask(client, bridge, "GET", NEW_PATH, headers, "").await;
    let seen = b.seen().pop().unwrap();
    (
        crate::cluster::served_by(&answer),
        seen.client.as_ref().map(|it| it.common_name.clone()),
        seen.header(HOP) == Some("true"),
    )
}

#[tokio::test]
async fn a_token_comes_without_the_certificate_of_the_front_proxy() {
    let cluster = Cluster::new(&[]).await;
    let (_seen, publish) = records(&cluster);
    let mut record = record_of_b(&cluster).await;
    let b = union_authenticator(&cluster).await;
    record.bridge_left_at = Some(SystemTime::now());
    record.server = Some(b.server.addr());
    publish.send_replace(Some(Arc::new(record)));
    let bridge = start(&cluster.config());
    cluster.becomes(&bridge, NEW_PATH, 200).await;
    assert_eq!(peer_view(&bridge, B).await["state"], "bridge-left");

    let junk = ("authorization", "Bearer junk");
    let rows = [
        (cluster.bed.client(), &[junk][..], "nobody", PLAIN),
        (cluster.bed.client(), &[BEARER], "bob", PLAIN),
        (cluster.bed.client(), &[], "system:anonymous", FRONT_PROXY),
        (cluster.alice(), &[junk], "alice", FRONT_PROXY),
        // Once more, when there are connections with and without it.
        (cluster.bed.client(), &[junk], "nobody", PLAIN),
    ];
    for (client, headers, user, certificate) in rows {
        let arrived = arrives(&bridge, &b, &client, headers).await;
        let expected = (user.to_owned(), certificate.map(str::to_owned), true);
        assert_eq!(arrived, expected, "{headers:?}");
    }
}

/// An accepted token is not on a connection that a refused one ends.
#[tokio::test]
async fn accepted_tokens_share_no_connection_with_guessed_ones() {
    let cluster = Cluster::new(&[]).await;
    let (_seen, publish) = records(&cluster);
    let mut record = record_of_b(&cluster).await;
    let b = union_authenticator(&cluster).await;
    record.bridge_left_at = Some(SystemTime::now());
    record.server = Some(b.server.addr());
    publish.send_replace(Some(Arc::new(record)));
    let bridge = start(&cluster.config());
    cluster.becomes(&bridge, NEW_PATH, 200).await;
    let connection = async |token: &str| {
        let header = ("authorization", token);
        arrives(&bridge, &b, &cluster.bed.client(), &[header]).await;
        b.seen().pop().unwrap().connection
    };
    connection("Bearer t0ken").await;
    let (accepted, guessed) = (
        connection("Bearer t0ken").await,
        connection("Bearer junk").await,
    );
    assert_ne!(accepted, guessed);
}

fn with_file(cluster: &Cluster, address: std::net::SocketAddr) -> Config {
    let yaml = format!("peers:\n- identity: {B}\n  address: {address}\n");
    let path = cluster.bed.dir.write("peers.yaml", yaml);
    let mut config = cluster.config();
    config.peers.registry = RegistryKind::File(path);
    config
}

/// What an administrator lists may be a bridge or a kube-apiserver: a bridge says so itself.
#[tokio::test]
async fn of_an_address_in_a_file_the_answer_says_whether_it_is_a_bridges() {
    for (by_bridge, expected) in [(false, PLAIN), (true, FRONT_PROXY)] {
        let cluster = Cluster::new(&[]).await;
        let b = union_authenticator(&cluster).await;
        b.hook(move |seen| {
            let version = || {
                let reply = Reply::json(r#"{"gitVersion":"v1.36.4"}"#);
                reply.header(BY_BRIDGE, "true")
            };
            match seen.path() {
                "/version" if by_bridge => Some(version()),
                _ => (!seen.is_probe()).then(|| Reply::json(authenticated(seen))),
            }
        });
        let bridge = start(&with_file(&cluster, b.server.addr()));
        cluster.becomes(&bridge, NEW_PATH, 200).await;
        let stranger = cluster.bed.client();
        let (_, certificate, _) = arrives(&bridge, &b, &stranger, &[BEARER]).await;
        assert_eq!(certificate.as_deref(), expected, "{by_bridge}");
    }
}

/// A bridge was killed, and a kube-apiserver has taken over its address.
#[tokio::test]
async fn a_kube_apiserver_at_the_address_of_a_bridge_gets_tokens_without_the_certificate() {
    let cluster = Cluster::new(&[]).await;
    let b = union_authenticator(&cluster).await;
    let _published = cluster.publish(B, b.server.addr());
    let bridge = start(&cluster.config());
    cluster.becomes(&bridge, NEW_PATH, 200).await;
    let stranger = cluster.bed.client();
    let junk = ("authorization", "Bearer junk");
    let arrived = arrives(&bridge, &b, &stranger, &[junk]).await;
    assert_eq!(arrived, ("nobody".to_owned(), None, true));
}

/// And says so to peers alone; what is behind the bridge cannot say it.
#[tokio::test]
async fn a_bridge_names_itself_to_peers() {
    let gateway = Gateway::new().await;
    let hop = (HOP, "true");
    let user = ("X-Remote-User", "alice");
    let rows = [
        (gateway.bed.peer(), vec![hop, user], Some("true")),
        (gateway.bed.peer(), vec![user], None),
        (gateway.bed.client(), vec![hop], None),
    ];
    for (client, headers, expected) in rows {
        let outcome = gateway.ask(&client, http::Version::HTTP_2, &headers).await;
        assert_eq!(outcome.response.header(BY_BRIDGE), expected, "{headers:?}");
    }
    let cluster = Cluster::new(&[]).await;
    (cluster.local).hook(|seen| {
        (seen.path() == SHARED_PATH).then(|| Reply::json("{}").header(BY_BRIDGE, "true"))
    });
    let bridge = cluster.start().await;
    let answer = cluster.get(&bridge, SHARED_PATH).await;
    assert_eq!((answer.status, answer.header(BY_BRIDGE)), (200, None));
}

/// Of a bridge without `--client-ca-file` the client CA that upstream publishes judges.
#[tokio::test]
async fn a_front_proxy_that_upstream_takes_for_a_user_has_no_peers() {
    let cluster = Cluster::new(&[]).await;
    let b = cluster.peer(B, &[NEW]).await;
    let proxies = cluster.bed.front_proxy_ca.pem();
    let publishes = |client_ca: String| {
        let data = json!({"client-ca-file": client_ca});
        let map = json!({"kind": "ConfigMap", "data": data}).to_string();
        cluster.local.hook(move |seen| match seen.path() {
            AUTHENTICATION => Some(Reply::json(map.clone())),
            _ => crate::self_test::passing(seen),
        });
    };
    publishes(proxies);
    let mut config = cluster.config();
    config.callers.client_ca = None;
    let bridge = start(&config);
    let peering = async || {
        let metrics = plain::scrape(bridge.admin_address()).await;
        metrics.value("skewbridge_peering_enabled", &[])
    };
    eventually("peering is off", PATIENCE, async || {
        peering().await == Some(0.0)
    })
    .await;
    let before = b.seen().len();
    let peer = cluster.bed.peer();
    let alice = [("X-Remote-User", "alice")];
    let answer = ask(&peer, &bridge, "GET", NEW_PATH, &alice, "").await;
    let message = refusal(&answer, 503);
    for part in [
        "--proxy-client-cert-file",
        "front-proxy.crt",
        "kube-system/extension-apiserver-authentication",
    ] {
        assert!(message.contains(part), "{message}");
    }
    refusal(
        &ask(
            &cluster.bed.client(),
            &bridge,
            "GET",
            NEW_PATH,
            &[BEARER],
            "",
        )
        .await,
        503,
    );
    assert_eq!(b.seen().len(), before, "nothing is sent to peers");
    let ready = plain::get(bridge.admin_address(), "/readyz?verbose").await;
    let line = "[+]ca-files ok: in conflict: --proxy-client-cert-file";
    assert!(ready.body.contains(line), "{}", ready.body);

    // It is judged again after a change of a file.
    publishes(cluster.bed.client_ca.pem());
    let renewed = (cluster.bed.front_proxy_ca).client("front-proxy-client", &[]);
    cluster.bed.dir.write("front-proxy.crt", &renewed.cert_pem);
    cluster.bed.dir.write("front-proxy.key", &renewed.key_pem);
    eventually("the API of the peer is served", PATIENCE, async || {
        let answer = ask(&peer, &bridge, "GET", NEW_PATH, &alice, "").await;
        answer.status == 200
    })
    .await;
    assert_eq!(peering().await, Some(1.0));
}
