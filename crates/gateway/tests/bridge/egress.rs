//! Peers are reached only through the proxy that `--egress-selector-config-file` names.
//!
//! The peer publishes an unroutable address (RFC 5737); the proxies of these tests know its real
//! one.

use std::time::Duration;

use rustls_pki_types::ServerName;
use skewbridge_gateway::config::KeyPairFiles;
use skewbridge_gateway::config::ProxyTransport;
use skewbridge_testkit::Ca;

use crate::support::admin_client;
use crate::support::egress_proxy::{
    EgressFixture, PUBLISHED_ADDRESS, Proxy, ProxyBehavior, UPGRADE, assert_all_requests_pass,
    wait_for_problem, wait_until_peer_is_known,
};
use crate::support::scripted_upstream::assert_json_status;

#[tokio::test]
async fn all_requests_reach_the_peer_through_a_unix_socket_proxy() {
    let mut cluster = EgressFixture::new().await;
    let proxy = Proxy::unix(
        cluster.socket(),
        ProxyBehavior::Tunnel(cluster.peer_server.addr()),
    );
    let bridge = cluster.start_bridge(ProxyTransport::Uds(cluster.socket()));
    assert_all_requests_pass(&mut cluster, &bridge, &proxy).await;
}

#[tokio::test]
async fn all_requests_reach_the_peer_through_a_tcp_proxy() {
    let mut cluster = EgressFixture::new().await;
    let (proxy, addr) = Proxy::tcp(ProxyBehavior::Tunnel(cluster.peer_server.addr())).await;
    let bridge = cluster.start_bridge(ProxyTransport::Tcp {
        host: "localhost".to_owned(),
        port: addr.port(),
    });
    assert_all_requests_pass(&mut cluster, &bridge, &proxy).await;
}

/// A proxy that requires TLS and a client certificate, and the transport that reaches it.
async fn tls_proxy(cluster: &EgressFixture) -> (Proxy, ProxyTransport, Ca) {
    let (ca, clients) = (Ca::new("proxy-ca"), Ca::new("proxy-client-ca"));
    let behavior = ProxyBehavior::Tunnel(cluster.peer_server.addr());
    let (proxy, addr) = Proxy::tls(behavior, &ca.server(&["localhost"]), &clients).await;
    let pair = clients.client("skewbridge", &[]);
    let dir = &cluster.pki.dir;
    let transport = ProxyTransport::Tls {
        host: addr.ip().to_string(),
        port: addr.port(),
        server_name: ServerName::try_from("localhost").unwrap(),
        ca: dir.write("proxy-ca.crt", ca.pem()),
        key_pair: KeyPairFiles {
            cert: dir.write("proxy-client.crt", &pair.cert_pem),
            key: dir.write("proxy-client.key", &pair.key_pem),
        },
    };
    (proxy, transport, ca)
}

#[tokio::test]
async fn all_requests_reach_the_peer_through_a_tls_proxy_with_a_client_certificate() {
    let mut cluster = EgressFixture::new().await;
    let (proxy, transport, _) = tls_proxy(&cluster).await;
    let bridge = cluster.start_bridge(transport);
    assert_all_requests_pass(&mut cluster, &bridge, &proxy).await;
    let metrics = admin_client::get(bridge.admin_address(), "/metrics")
        .await
        .body;
    for what in ["caBundle", "clientCert"] {
        let series = format!("{{flag=\"--egress-selector-config-file {what}\"}}");
        assert!(metrics.contains(&series), "{series}");
    }
}

#[tokio::test]
async fn the_certificate_files_of_the_proxy_are_reloaded_when_they_change() {
    let cluster = EgressFixture::new().await;
    let (proxy, transport, ca) = tls_proxy(&cluster).await;
    let dir = &cluster.pki.dir;
    dir.write("proxy-ca.crt", Ca::new("another").pem());
    let ProxyTransport::Tls { port, .. } = transport else {
        unreachable!("the transport is TLS");
    };
    let bridge = cluster.start_bridge(transport);
    let problem = format!(
        "--egress-selector-config-file: the proxy at https://127.0.0.1:{port} cannot be reached: \
         TLS: invalid peer certificate: UnknownIssuer"
    );
    wait_for_problem(&bridge, &problem).await;
    assert!(proxy.connect_requests().is_empty());
    dir.write("proxy-ca.crt", ca.pem());
    wait_until_peer_is_known(&bridge).await;
}

#[tokio::test]
async fn a_certificate_that_the_proxy_refuses_can_be_replaced() {
    let cluster = EgressFixture::new().await;
    let (proxy, transport, _) = tls_proxy(&cluster).await;
    let ProxyTransport::Tls { key_pair, .. } = &transport else {
        unreachable!("the transport is TLS");
    };
    let files = [key_pair.cert.clone(), key_pair.key.clone()];
    let good = files.each_ref().map(|path| std::fs::read(path).unwrap());
    let untrusted = Ca::new("another").client("skewbridge", &[]);
    std::fs::write(&files[0], &untrusted.cert_pem).unwrap();
    std::fs::write(&files[1], &untrusted.key_pem).unwrap();
    let bridge = cluster.start_bridge(transport);
    let problem =
        format!("closed the connection before it responded to CONNECT {PUBLISHED_ADDRESS}");
    wait_for_problem(&bridge, &problem).await;
    assert!(proxy.connect_requests().is_empty());
    for (path, good) in files.iter().zip(good) {
        std::fs::write(path, good).unwrap();
    }
    wait_until_peer_is_known(&bridge).await;
}

/// The bridge reports this problem of the peer when its proxy behaves so.
async fn assert_reported(behavior: ProxyBehavior, expected: &str) {
    let cluster = EgressFixture::new().await;
    let _proxy = Proxy::unix(cluster.socket(), behavior);
    let bridge = cluster.start_bridge(ProxyTransport::Uds(cluster.socket()));
    let named = format!(
        "--egress-selector-config-file: the proxy at unix://{} {expected}",
        cluster.socket().display()
    );
    wait_for_problem(&bridge, &named).await;
}

#[tokio::test]
async fn a_proxy_that_refuses_is_reported_with_its_status() {
    let forbidden = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno";
    let expected = format!("answered 403 to CONNECT {PUBLISHED_ADDRESS}");
    assert_reported(ProxyBehavior::Answer(forbidden), &expected).await;
}

#[tokio::test]
async fn a_server_that_is_not_an_http_proxy_is_reported() {
    let expected = format!(
        "sent an invalid HTTP/1.1 response to CONNECT {PUBLISHED_ADDRESS}: it does not begin with \
         HTTP/1."
    );
    assert_reported(
        ProxyBehavior::Answer(b"220 mail.example ESMTP\r\n"),
        &expected,
    )
    .await;
}

#[tokio::test]
async fn a_proxy_that_closes_the_connection_is_reported() {
    let expected =
        format!("closed the connection before it responded to CONNECT {PUBLISHED_ADDRESS}");
    assert_reported(ProxyBehavior::Answer(b"HTTP/1.1 20"), &expected).await;
}

#[tokio::test]
async fn an_unreachable_proxy_is_reported_and_used_again_when_it_returns() {
    let cluster = EgressFixture::new().await;
    let bridge = cluster.start_bridge(ProxyTransport::Uds(cluster.socket()));
    let named = format!(
        "the proxy at unix://{} cannot be reached: No such file or directory",
        cluster.socket().display()
    );
    wait_for_problem(&bridge, &named).await;
    let _proxy = Proxy::unix(
        cluster.socket(),
        ProxyBehavior::Tunnel(cluster.peer_server.addr()),
    );
    wait_until_peer_is_known(&bridge).await;
}

#[tokio::test]
async fn the_client_gets_the_reason_and_retry_after_when_the_proxy_refuses() {
    let cluster = EgressFixture::new().await;
    let (proxy, addr) = Proxy::tcp(ProxyBehavior::Tunnel(cluster.peer_server.addr())).await;
    let bridge = cluster.start_bridge(ProxyTransport::Tcp {
        host: addr.ip().to_string(),
        port: addr.port(),
    });
    wait_until_peer_is_known(&bridge).await;
    proxy
        .behavior
        .send_replace(ProxyBehavior::Answer(b"HTTP/1.1 502 Bad Gateway\r\n\r\n"));
    let client = cluster.pki.user("alice", &[]);
    let mut h1 = client.http1(bridge.address()).await.unwrap();
    // An upgrade opens its own connection.
    h1.send(UPGRADE).await.unwrap();
    let answer = h1.read_response().await.unwrap();
    let message = assert_json_status(&answer, 503)["message"].to_string();
    let named = format!(
        "--egress-selector-config-file: the proxy at http://{addr} answered 502 to CONNECT \
         {PUBLISHED_ADDRESS}"
    );
    assert!(message.contains(&named), "{message}");
    assert_eq!(answer.header("retry-after"), Some("1"));
}

#[tokio::test]
async fn the_wait_for_an_unresponsive_proxy_is_bounded() {
    let cluster = EgressFixture::new().await;
    let proxy = Proxy::unix(
        cluster.socket(),
        ProxyBehavior::Tunnel(cluster.peer_server.addr()),
    );
    let bridge = cluster.start_bridge(ProxyTransport::Uds(cluster.socket()));
    wait_until_peer_is_known(&bridge).await;
    proxy.behavior.send_replace(ProxyBehavior::Unresponsive);
    let client = cluster.pki.user("alice", &[]);
    let mut h1 = client.http1(bridge.address()).await.unwrap();
    h1.send(UPGRADE).await.unwrap();
    let answer = tokio::time::timeout(Duration::from_secs(15), h1.read_response()).await;
    let answer = answer.expect("the wait is bounded").unwrap();
    let message = assert_json_status(&answer, 503)["message"].to_string();
    let unresponsive = format!("did not answer CONNECT {PUBLISHED_ADDRESS} within 3 s");
    assert!(message.contains(&unresponsive), "{message}");
}
