//! Only verified identities are accepted: conflicting CA files, expiring CAs, anonymous requests,
//! and what unauthenticated clients can read in error responses.

use std::time::{Duration, SystemTime};

use skewbridge_gateway::Handle;
use skewbridge_gateway::config::Config;
use skewbridge_testkit::{
    ApiServer, Ca, ClientAuth, Options, RecordedRequest, Reply, TEST_TIMEOUT, Validity, eventually,
};

use crate::support::admin_client;
use crate::support::cluster::{
    ClusterFixture, NEW, NEW_PATH, OWN, SHARED_PATH, peer_view, send_request, served_by,
    status_message,
};
use crate::support::identity::{BEARER, FRONT_PROXY, IdentityFixture, PLAIN};
use crate::support::pki::{PkiFixture, start};

const B: &str = "apiserver-b";
const C: &str = "apiserver-c";
const HOP: (&str, &str) = ("x-kubernetes-peer-proxied", "true");

/// The error of a bridge that does not start.
fn start_error(config: &Config) -> String {
    // The unused runtime has to be dropped outside of this one.
    let started = std::thread::scope(|scope| {
        let start = || skewbridge_gateway::start(config).map(drop);
        scope.spawn(start).join().unwrap()
    });
    started.expect_err("the bridge started").to_string()
}

async fn peering_metric(bridge: &Handle) -> Option<f64> {
    let metrics = admin_client::scrape(bridge.admin_address()).await;
    metrics.value("skewbridge_peering_enabled", &[])
}

async fn readyz(bridge: &Handle) -> String {
    let ready = admin_client::get(bridge.admin_address(), "/readyz?verbose").await;
    assert_eq!(ready.status, 200, "{}", ready.body);
    ready.body
}

fn assert_names_both_files(text: &str) {
    for part in [
        "--proxy-client-cert-file",
        "front-proxy.crt",
        "--client-ca-file",
        "client-ca.crt",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[tokio::test]
async fn peering_is_off_when_the_client_ca_signs_the_front_proxy_certificate() {
    let cluster = ClusterFixture::new(&[]).await;
    let dir = &cluster.pki.dir;
    let shared = &cluster.pki.front_proxy_ca;
    let unrelated = Ca::new("users");
    // The same CA encoded differently, and beside another one.
    for pem in [
        shared.pem(),
        shared.renewed(Validity::Current).pem(),
        shared.renewed(Validity::Expired).pem(),
        unrelated.pem() + &shared.pem(),
    ] {
        dir.write("client-ca.crt", pem);
        let cause = start_error(&cluster.config());
        assert_names_both_files(&cause);
        assert!(cause.contains("--peer-ca-file"), "{cause}");
    }
    // Without peers the certificate is presented only to the local server.
    let mut alone = cluster.config();
    alone.peers.ca = None;
    start(&alone);
    dir.write("client-ca.crt", unrelated.pem());
    start(&cluster.config());
}

#[tokio::test]
async fn peering_is_off_when_an_intermediate_of_the_client_ca_signs_the_front_proxy_certificate() {
    let cluster = ClusterFixture::new(&[]).await;
    let dir = &cluster.pki.dir;
    let front_proxies = cluster.pki.client_ca.intermediate("front-proxies");
    let leaf = front_proxies.client("front-proxy-client", &[]);
    dir.write("front-proxy.crt", &leaf.cert_pem);
    dir.write("front-proxy.key", &leaf.key_pem);
    assert_names_both_files(&start_error(&cluster.config()));
}

#[tokio::test]
async fn peering_stops_while_a_reloaded_client_ca_signs_the_front_proxy_certificate() {
    let (cluster, [b], bridge) = ClusterFixture::with_peers(&[], [(B, &[NEW])]).await;
    let (dir, pki) = (&cluster.pki.dir, &cluster.pki);
    let client_with_token = pki.client();
    let answer = send_request(&client_with_token, &bridge, "GET", NEW_PATH, &[BEARER], "").await;
    assert_eq!(served_by(&answer), B);
    assert_eq!(peering_metric(&bridge).await, Some(1.0));

    dir.write(
        "client-ca.crt",
        pki.client_ca.pem() + &pki.front_proxy_ca.pem(),
    );
    eventually("peering is off", TEST_TIMEOUT, async || {
        peering_metric(&bridge).await == Some(0.0)
    })
    .await;
    let before = b.client_requests().len();
    for (client, headers) in [(cluster.alice(), &[][..]), (pki.client(), &[BEARER])] {
        let answer = send_request(&client, &bridge, "GET", NEW_PATH, headers, "").await;
        let message = status_message(&answer, 503);
        if headers.is_empty() {
            assert_names_both_files(&message);
        }
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
    assert_eq!(
        b.client_requests().len(),
        before,
        "no request is sent to peers"
    );
    let ready = readyz(&bridge).await;
    assert!(ready.contains("[+]ca-files ok: in conflict: "), "{ready}");
    assert_names_both_files(&ready);
    eventually("discovery of the peer stops", TEST_TIMEOUT, async || {
        // As after any change of its Lease.
        cluster.local.lease(B, "again");
        let problem = &peer_view(&bridge, B).await["problem"];
        problem
            .as_str()
            .is_some_and(|it| it.contains("front-proxy.crt"))
    })
    .await;
    let metrics = admin_client::scrape(bridge.admin_address()).await;
    let labels = [("flag", "peering"), ("result", "failed")];
    let failed = metrics.value("skewbridge_file_reloads_total", &labels);
    assert_eq!(failed, Some(1.0));
    // The new CA file is in use, and requests go to the local server.
    assert_eq!(served_by(&cluster.get(&bridge, SHARED_PATH).await), OWN);

    dir.write("client-ca.crt", pki.client_ca.pem());
    cluster.wait_for_status(&bridge, NEW_PATH, 200).await;
    assert_eq!(peering_metric(&bridge).await, Some(1.0));
    assert!(!readyz(&bridge).await.contains("ca-files"));
}

#[tokio::test]
async fn a_reloaded_front_proxy_certificate_is_checked_too() {
    let (cluster, [b], bridge) = ClusterFixture::with_peers(&[], [(B, &[NEW])]).await;
    let dir = &cluster.pki.dir;
    let leaf = cluster.pki.client_ca.client("front-proxy-client", &[]);
    dir.write("front-proxy.crt", &leaf.cert_pem);
    dir.write("front-proxy.key", &leaf.key_pem);
    eventually("peering is off", TEST_TIMEOUT, async || {
        peering_metric(&bridge).await == Some(0.0)
    })
    .await;
    let before = b.client_requests().len();
    let answer = send_request(
        &cluster.pki.client(),
        &bridge,
        "GET",
        NEW_PATH,
        &[BEARER],
        "",
    )
    .await;
    status_message(&answer, 503);
    assert_eq!(b.client_requests().len(), before);
}

/// One CA signs users and front proxies, which is permitted with allowed names. Over a peer hop the
/// front-proxy certificate is still never an identity.
#[tokio::test]
async fn an_invalid_token_over_a_peer_hop_is_not_replaced_by_the_certificates_identity() {
    let fixture = IdentityFixture::with(|config| {
        let request_header = config.callers.request_header.as_ref().unwrap();
        config.callers.client_ca = Some(request_header.ca.clone());
    })
    .await;
    let ca = &fixture.pki.front_proxy_ca;
    let proxy = ca.client("front-proxy-client", &["system:masters"]);
    let proxy = fixture.pki.client().identity(&proxy);
    let hop = ("x-kubernetes-peer-proxied", "true");
    let arrives = [("authorization", BEARER.1), hop];
    fixture
        .assert_arrives(&proxy, &[HOP, BEARER], PLAIN, &arrives)
        .await;
    fixture.assert_refused(&proxy, &[HOP], 401).await;
    // Without the hop header the certificate is a user, as in kube-apiserver.
    let user = [
        ("x-remote-group", "system:masters"),
        ("x-remote-user", "front-proxy-client"),
    ];
    fixture
        .assert_arrives(&proxy, &[BEARER], FRONT_PROXY, &user)
        .await;
}

#[tokio::test]
async fn a_shared_ca_without_allowed_names_is_rejected() {
    let pki = PkiFixture::new();
    let upstream =
        ApiServer::start(Options::new(pki.upstream.clone()), |_| Reply::json("{}")).await;
    let mut config = pki.config(upstream.addr());
    let request_header = config.callers.request_header.as_mut().unwrap();
    request_header.allowed_names.clear();
    // Distinct CAs: any name is allowed.
    start(&config);
    for pem in [
        pki.client_ca.pem(),
        pki.client_ca.renewed(Validity::Current).pem(),
        pki.client_ca.intermediate("front-proxies").pem(),
    ] {
        pki.dir.write("front-proxy-ca.crt", pem);
        let cause = start_error(&config);
        for part in [
            "--requestheader-client-ca-file",
            "front-proxy-ca.crt",
            "--client-ca-file",
            "client-ca.crt",
            "--requestheader-allowed-names",
        ] {
            assert!(cause.contains(part), "{cause}");
        }
    }
    let request_header = config.callers.request_header.as_mut().unwrap();
    request_header.allowed_names = vec!["front-proxy-client".to_owned()];
    start(&config);
}

#[tokio::test]
async fn a_reloaded_file_that_would_make_users_front_proxies_is_rejected() {
    let fixture = IdentityFixture::with(|config| {
        let request_header = config.callers.request_header.as_mut().unwrap();
        request_header.allowed_names.clear();
    })
    .await;
    let pki = &fixture.pki;
    let both = pki.front_proxy_ca.pem() + &pki.client_ca.pem();
    pki.dir.write("front-proxy-ca.crt", both);
    eventually("the conflict is reported", TEST_TIMEOUT, async || {
        let ready = admin_client::get(fixture.bridge.admin_address(), "/readyz?verbose").await;
        ready.body.contains("[+]ca-files ok: in conflict: ")
            && ready.body.contains("--requestheader-client-ca-file")
    })
    .await;
    let alice = pki.user("alice", &[]);
    let forged = [("X-Remote-User", "root")];
    let as_alice = [("x-remote-user", "alice")];
    fixture
        .assert_arrives(&alice, &forged, FRONT_PROXY, &as_alice)
        .await;
    let as_root = [("x-remote-user", "root")];
    fixture
        .assert_arrives(&pki.peer(), &forged, FRONT_PROXY, &as_root)
        .await;
}

#[tokio::test]
async fn a_ca_that_expires_at_run_time_no_longer_authenticates() {
    let pki = PkiFixture::new();
    let expires = SystemTime::now() + Duration::from_secs(4);
    let expiring_ca = pki.client_ca.renewed_until(expires);
    pki.dir.write("client-ca.crt", expiring_ca.pem());
    let upstream = ApiServer::start(
        Options::new(pki.upstream.clone()).clients(ClientAuth::Accept(&pki.front_proxy_ca)),
        |_| Reply::json("{}"),
    )
    .await;
    let bridge = pki.start_bridge(upstream.addr());
    let alice = pki.user("alice", &[]);
    // On an open connection, with a certificate that itself stays valid.
    let open = alice.http2(bridge.address()).await.unwrap();
    eventually("the CA has been used", TEST_TIMEOUT, async || {
        open.get("/api").await.unwrap().status == 200
    })
    .await;
    eventually("the CA has expired", TEST_TIMEOUT, async || {
        open.get("/api").await.unwrap().status == 401
    })
    .await;
    assert!(SystemTime::now() > expires);
    let again = alice.http2(bridge.address()).await.unwrap();
    assert_eq!(again.get("/api").await.unwrap().status, 401);
    pki.dir.write(
        "client-ca.crt",
        pki.client_ca.renewed(Validity::Current).pem(),
    );
    eventually("the renewed CA is in use", TEST_TIMEOUT, async || {
        open.get("/api").await.unwrap().status == 200
    })
    .await;
}

#[tokio::test]
async fn an_upstream_whose_ca_has_expired_gets_no_request() {
    let pki = PkiFixture::new();
    let upstream =
        ApiServer::start(Options::new(pki.upstream.clone()), |_| Reply::json("{}")).await;
    let expired = pki.upstream_ca.renewed(Validity::Expired);
    pki.dir.write("upstream-ca.crt", expired.pem());
    let bridge = pki.start_bridge(upstream.addr());
    let alice = pki
        .user("alice", &[])
        .http2(bridge.address())
        .await
        .unwrap();
    let message = status_message(&alice.get("/api").await.unwrap(), 503);
    assert!(
        message.contains("has expired or is not valid yet"),
        "{message}"
    );
    assert!(upstream.requests().is_empty());
}

#[tokio::test]
async fn an_anonymous_identity_is_asserted_only_after_the_local_server_has_accepted_it() {
    let (cluster, [b], bridge) = ClusterFixture::with_peers(&[], [(B, &[NEW])]).await;
    let client_with_token = cluster.pki.client();
    for (local, received, after, sent) in [
        (200, 200, None, true),
        (403, 200, None, true),
        (404, 200, None, true),
        (401, 401, None, false),
        (429, 429, Some("7"), false),
        (503, 503, Some("7"), false),
        (500, 503, Some("1"), false),
        (400, 503, Some("1"), false),
    ] {
        let answers = move |recorded: &RecordedRequest| {
            let is_question = recorded.path().starts_with(NEW_PATH) && recorded.client.is_none();
            let reply = || Reply::json("{}").status(local).header("retry-after", "7");
            is_question.then(reply)
        };
        cluster.local.set_hook(answers);
        let before = b.client_requests().len();
        let answer = send_request(&client_with_token, &bridge, "POST", NEW_PATH, &[], "{}").await;
        assert_eq!(answer.status, received, "{local}: {}", answer.text());
        if !sent {
            let expected = after.or((local == 401).then_some("7"));
            assert_eq!(answer.header("retry-after"), expected, "{local}");
        }
        assert_eq!(
            b.client_requests().len() - before,
            usize::from(sent),
            "{local}"
        );
    }
}

#[tokio::test]
async fn peers_outside_the_permitted_networks_are_rejected_with_every_registry() {
    let cluster = ClusterFixture::new(&[]).await;
    let b = cluster.peer(B, &[NEW]).await;
    let leaf = cluster.peer_ca.server(&["kubernetes.default.svc"]);
    let outside = cluster.server(C, &[NEW], leaf).await;
    // The same machine under an address that is not permitted, published before its Lease.
    let address = format!("127.0.0.2:{}", outside.server.addr().port());
    let _published = cluster.publish(C, address.parse().unwrap());
    let mut config = cluster.config();
    config.peers.cidrs = vec!["127.0.0.1/32".parse().unwrap()];
    let bridge = start(&config);
    cluster.wait_for_status(&bridge, NEW_PATH, 200).await;
    cluster.local.lease(C, "one");
    eventually(
        "the rejected address is reported",
        TEST_TIMEOUT,
        async || {
            let view = peer_view(&bridge, C).await;
            let problem = view["problem"].as_str().unwrap_or_default();
            view["address"].is_null()
                && problem.contains(&address)
                && problem.contains("--peer-cidrs")
        },
    )
    .await;
    assert!(outside.server.requests().is_empty());
    assert!(!b.client_requests().is_empty());
}

#[tokio::test]
async fn the_bridge_sends_its_own_requests_as_the_configured_user() {
    let cluster = ClusterFixture::new(&[]).await;
    let b = cluster.peer(B, &[NEW]).await;
    let mut config = cluster.config();
    config.upstream.bridge_user.name = "skewbridge".to_owned();
    config.upstream.bridge_user.groups = vec!["bridges".to_owned(), "readers".to_owned()];
    let bridge = start(&config);
    cluster.wait_for_status(&bridge, NEW_PATH, 200).await;
    let own = cluster.local.server.requests();
    let own: Vec<_> = own
        .iter()
        .filter(|recorded| {
            recorded
                .header("user-agent")
                .is_some_and(|it| it.starts_with("skewbridge/"))
        })
        .filter(|recorded| recorded.client.is_some())
        .collect();
    assert!(
        own.iter()
            .any(|recorded| recorded.path().contains("/leases"))
    );
    for recorded in own {
        assert_eq!(
            recorded.all("x-remote-user"),
            ["skewbridge"],
            "{recorded:#?}"
        );
        assert_eq!(recorded.all("x-remote-group"), ["bridges", "readers"]);
    }
    let conditional_request = b.apiserver.gateway_requests("/apis").remove(0);
    assert_eq!(conditional_request.all("x-remote-user"), ["skewbridge"]);
    assert_eq!(
        conditional_request.all("x-remote-group"),
        ["system:authenticated"]
    );
}

#[tokio::test]
async fn responses_to_unauthenticated_clients_contain_no_addresses_or_names_of_servers() {
    let (cluster, [b], bridge) = ClusterFixture::with_peers(&[], [(B, &[NEW])]).await;
    let address = b.apiserver.server.addr().to_string();
    b.shut_down().await;
    let anonymous = [("x-remote-user", "system:anonymous"), HOP];
    let unauthenticated_clients = [
        (cluster.pki.client(), &[][..]),
        (cluster.pki.client(), &[BEARER]),
    ];
    let has_no_details = |message: &str, address: &str| {
        assert!(!message.contains(address), "{message}");
        assert!(!message.contains("127.0.0.1"), "{message}");
        assert!(!message.contains("apiserver-"), "{message}");
    };
    for (client, headers) in unauthenticated_clients {
        let answer = send_request(&client, &bridge, "GET", NEW_PATH, headers, "").await;
        let message = status_message(&answer, 503);
        has_no_details(&message, &address);
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
    let message = status_message(&cluster.get(&bridge, NEW_PATH).await, 503);
    assert!(
        message.contains(B) && message.contains(&address),
        "{message}"
    );

    // The same about the local server, also through a peer that forwards the response.
    let local = cluster.local.server.addr().to_string();
    cluster.local.server.stop_listening().await;
    cluster.local.server.kill_connections().await;
    for (client, headers) in [
        (cluster.pki.client(), &[][..]),
        (cluster.pki.client(), &[BEARER]),
        (cluster.pki.peer(), &anonymous),
        (cluster.pki.peer(), &[HOP, BEARER]),
    ] {
        let answer = send_request(&client, &bridge, "GET", SHARED_PATH, headers, "").await;
        has_no_details(&status_message(&answer, 503), &local);
    }
    let message = status_message(&cluster.get(&bridge, SHARED_PATH).await, 503);
    assert!(
        message.contains(OWN) && message.contains(&local),
        "{message}"
    );
}
