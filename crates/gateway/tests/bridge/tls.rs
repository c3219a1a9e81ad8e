//! TLS handshakes with clients and upstream: what is offered, requested, rejected and counted.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use http::Version;
use rustls::client::{ResolvesClientCert, WantsClientCert};
use rustls::crypto::aws_lc_rs::{default_provider, sign};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{
    ClientConfig, ConfigBuilder, HandshakeKind, ProtocolVersion, RootCertStore, SignatureScheme,
    SupportedProtocolVersion,
};
use rustls_pki_types::ServerName;
use skewbridge_gateway::Handle;
use skewbridge_gateway::config::TlsVersion;
use skewbridge_testkit::{
    ApiServer, Ca, Connection, H1Client, Leaf, Options, Reply, Response, TEST_TIMEOUT, TlsClient,
    Validity, eventually,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, TlsStream};

use crate::support::admin_client::scrape;
use crate::support::identity::{IdentityFixture, identity_headers, owned};
use crate::support::pki::{PkiFixture, start};

const GET: &str = "GET /api HTTP/1.1\r\nHost: k\r\n\r\n";

/// A raw rustls client, for settings that the testkit's client does not have.
fn client(
    roots: RootCertStore,
    version: &'static SupportedProtocolVersion,
) -> ConfigBuilder<ClientConfig, WantsClientCert> {
    ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots)
}

fn client_as(
    pki: &PkiFixture,
    version: &'static SupportedProtocolVersion,
    leaf: &Leaf,
) -> ClientConfig {
    client(pki.serving_ca.roots(), version)
        .with_client_auth_cert(leaf.chain_der.clone(), leaf.key_der.clone_key())
        .unwrap()
}

async fn connect(config: &Arc<ClientConfig>, address: SocketAddr) -> io::Result<Connection> {
    let tcp = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    let tls = TlsConnector::from(config.clone())
        .connect(name, tcp)
        .await?;
    Ok(BufReader::new(TlsStream::from(tls)))
}

/// One request on its own connection, and the handshake that preceded it. With TLS 1.3 a rejection
/// by the server is visible only when its response is read.
async fn send_request(
    config: &Arc<ClientConfig>,
    address: SocketAddr,
) -> io::Result<(Response, HandshakeKind, ProtocolVersion)> {
    let io = connect(config, address).await?;
    let session = io.get_ref().get_ref().1;
    let kind = session.handshake_kind().unwrap();
    let version = session.protocol_version().unwrap();
    let mut h1 = H1Client::over(io);
    h1.send(GET).await?;
    Ok((h1.read_response().await?, kind, version))
}

/// Waits until this many handshakes have failed for this reason.
async fn wait_for_failures(bridge: &Handle, reason: &str, count: f64) {
    let name = "skewbridge_tls_handshake_failures_total";
    let what = format!("{count} failed handshakes: {reason}");
    eventually(&what, TEST_TIMEOUT, async || {
        let scrape = scrape(bridge.admin_address()).await;
        scrape.value(name, &[("reason", reason)]) == Some(count)
    })
    .await;
}

#[tokio::test]
async fn http2_and_http1_are_offered_and_http1_is_the_default_without_alpn() {
    let fixture = IdentityFixture::new().await;
    for (offered, chosen) in [
        (&["h2", "http/1.1"][..], Some("h2")),
        (&["http/1.1", "h2"], Some("h2")),
        (&["h2"], Some("h2")),
        (&["spdy/3", "http/1.1"], Some("http/1.1")),
        (&[], None),
    ] {
        let client = fixture.pki.client().alpn(offered);
        let address = fixture.bridge.address();
        let io = client.connect(address, "localhost").await.unwrap();
        let protocol = io.get_ref().get_ref().1.alpn_protocol();
        assert_eq!(protocol, chosen.map(str::as_bytes), "{offered:?}");
        if chosen != Some("h2") {
            let mut h1 = H1Client::over(io);
            h1.send(GET).await.unwrap();
            assert_eq!(h1.read_response().await.unwrap().status, 200);
        }
    }
}

#[tokio::test]
async fn a_client_without_a_common_protocol_is_rejected_and_counted() {
    let fixture = IdentityFixture::new().await;
    let client = fixture.pki.client().alpn(&["spdy/3", "http/1.0"]);
    let address = fixture.bridge.address();
    let error = client.connect(address, "localhost").await.unwrap_err();
    assert!(
        error.to_string().contains("NoApplicationProtocol"),
        "{error}"
    );
    wait_for_failures(&fixture.bridge, "no-common-protocol", 1.0).await;
}

#[tokio::test]
async fn client_certificates_work_with_both_tls_versions() {
    let fixture = IdentityFixture::new().await;
    let alice = fixture.pki.client_ca.client("alice", &[]);
    for (version, number) in [
        (&TLS12, ProtocolVersion::TLSv1_2),
        (&TLS13, ProtocolVersion::TLSv1_3),
    ] {
        let config = Arc::new(client_as(&fixture.pki, version, &alice));
        let (response, _, spoken) = send_request(&config, fixture.bridge.address())
            .await
            .unwrap();
        assert_eq!((response.status, spoken), (200, number));
    }
    for recorded in fixture.client_requests() {
        assert_eq!(
            identity_headers(&recorded),
            owned(&[("x-remote-user", "alice")])
        );
    }
}

#[tokio::test]
async fn a_minimum_tls_version_rejects_older_clients() {
    let fixture =
        IdentityFixture::with(|config| config.serving.min_version = TlsVersion::Tls13).await;
    let roots = fixture.pki.serving_ca.roots();
    let address = fixture.bridge.address();
    let old = Arc::new(client(roots.clone(), &TLS12).with_no_client_auth());
    assert!(send_request(&old, address).await.is_err());
    wait_for_failures(&fixture.bridge, "incompatible", 1.0).await;
    let new = Arc::new(client(roots, &TLS13).with_no_client_auth());
    assert_eq!(send_request(&new, address).await.unwrap().0.status, 200);
}

/// Records the CAs that a server names, and presents no certificate.
#[derive(Debug, Default)]
struct RecordedHints(Mutex<Option<Vec<Vec<u8>>>>);

impl ResolvesClientCert for RecordedHints {
    fn resolve(&self, hints: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let hints = hints.iter().map(|hint| hint.to_vec()).collect();
        *self.0.lock().unwrap() = Some(hints);
        None
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// The CAs that this bridge names to its clients; `None` if it requests no certificate.
async fn hints(
    fixture: &IdentityFixture,
    version: &'static SupportedProtocolVersion,
) -> Option<Vec<Vec<u8>>> {
    let hints = Arc::new(RecordedHints::default());
    let builder = client(fixture.pki.serving_ca.roots(), version);
    let config = Arc::new(builder.with_client_cert_resolver(hints.clone()));
    let (response, ..) = send_request(&config, fixture.bridge.address())
        .await
        .unwrap();
    assert_eq!(response.status, 200, "a certificate is not required");
    hints.0.lock().unwrap().take()
}

#[tokio::test]
async fn client_certificates_of_both_cas_are_requested_but_not_required() {
    let fixture = IdentityFixture::new().await;
    let subject = |ca: &Ca| ca.roots().subjects()[0].as_ref().to_vec();
    let both = vec![
        subject(&fixture.pki.client_ca),
        subject(&fixture.pki.front_proxy_ca),
    ];
    for version in [&TLS12, &TLS13] {
        assert_eq!(hints(&fixture, version).await, Some(both.clone()));
    }
}

#[tokio::test]
async fn without_a_client_ca_no_certificate_is_requested() {
    let fixture = IdentityFixture::with(|config| {
        config.callers.client_ca = None;
        config.callers.request_header = None;
    })
    .await;
    assert_eq!(hints(&fixture, &TLS13).await, None);
}

#[tokio::test]
async fn plain_http_is_answered_like_go_and_counted() {
    let fixture = IdentityFixture::new().await;
    let mut tcp = TcpStream::connect(fixture.bridge.address()).await.unwrap();
    tcp.write_all(GET.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    tcp.read_to_end(&mut answer).await.unwrap();
    let expected =
        "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";
    assert_eq!(String::from_utf8_lossy(&answer), expected);
    wait_for_failures(&fixture.bridge, "not-tls", 1.0).await;
    assert!(fixture.client_requests().is_empty());
}

#[tokio::test]
async fn handshakes_aborted_by_the_client_are_counted() {
    let fixture = IdentityFixture::new().await;
    let address = fixture.bridge.address();
    let strict_client = TlsClient::new(&Ca::new("other"));
    assert!(strict_client.connect(address, "localhost").await.is_err());
    wait_for_failures(&fixture.bridge, "refused-by-client", 1.0).await;
    drop(TcpStream::connect(address).await.unwrap());
    wait_for_failures(&fixture.bridge, "connection-lost", 1.0).await;
}

#[tokio::test]
async fn a_certificate_without_its_private_key_does_not_authenticate() {
    let fixture = IdentityFixture::new().await;
    let alice = fixture.pki.client_ca.client("alice", &["system:masters"]);
    let certificate_without_key = fixture.pki.client_ca.client("thief", &[]);
    for version in [&TLS12, &TLS13] {
        let key = sign::any_supported_type(&certificate_without_key.key_der).unwrap();
        let stolen = CertifiedKey::new(alice.chain_der.clone(), key);
        let config = client(fixture.pki.serving_ca.roots(), version)
            .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(stolen)));
        assert!(
            send_request(&Arc::new(config), fixture.bridge.address())
                .await
                .is_err()
        );
    }
    wait_for_failures(&fixture.bridge, "tls", 2.0).await;
    assert!(fixture.client_requests().is_empty());
}

#[tokio::test]
async fn a_resumed_session_authenticates_the_same_user() {
    let fixture = IdentityFixture::new().await;
    for (version, name) in [(&TLS12, "alice"), (&TLS13, "bob")] {
        let leaf = fixture.pki.client_ca.client(name, &["dev"]);
        let config = Arc::new(client_as(&fixture.pki, version, &leaf));
        for expected in [HandshakeKind::Full, HandshakeKind::Resumed] {
            let (response, kind, _) = send_request(&config, fixture.bridge.address())
                .await
                .unwrap();
            assert_eq!((response.status, kind), (200, expected), "{name}");
            let claimed = [("x-remote-group", "dev"), ("x-remote-user", name)];
            assert_eq!(
                identity_headers(fixture.client_requests().last().unwrap()),
                owned(&claimed)
            );
        }
    }
}

#[tokio::test]
async fn a_session_cannot_be_resumed_after_its_ca_was_replaced() {
    let fixture = IdentityFixture::new().await;
    let address = fixture.bridge.address();
    let alice = fixture.pki.client_ca.client("alice", &[]);
    let sessions = [&TLS12, &TLS13].map(|it| Arc::new(client_as(&fixture.pki, it, &alice)));
    for config in &sessions {
        assert_eq!(send_request(config, address).await.unwrap().0.status, 200);
    }

    let new_ca = Ca::new("client-ca");
    fixture.pki.dir.write("client-ca.crt", new_ca.pem());
    let bob = fixture.pki.client().identity(&new_ca.client("bob", &[]));
    eventually("the new CA is in use", TEST_TIMEOUT, async || {
        fixture
            .send_request(&bob, Version::HTTP_11, &[])
            .await
            .response
            .status
            == 200
    })
    .await;
    let before = fixture.client_requests().len();
    for config in &sessions {
        let (response, kind, _) = send_request(config, address).await.unwrap();
        assert_eq!((response.status, kind), (401, HandshakeKind::Full));
    }
    assert_eq!(fixture.client_requests().len(), before);
}

#[tokio::test]
async fn an_upstream_with_an_invalid_certificate_gets_no_request() {
    let pki = PkiFixture::new();
    let good = pki.upstream.clone();
    for (what, served, server_name) in [
        ("for another name", good, "other.example"),
        (
            "of another CA",
            Ca::new("upstream-ca").server(&["localhost"]),
            "localhost",
        ),
        (
            "that expired",
            pki.upstream_ca
                .server_valid(&["localhost"], Validity::Expired),
            "localhost",
        ),
    ] {
        let upstream = ApiServer::start(Options::new(served), |_| Reply::json("{}")).await;
        let mut config = pki.config(upstream.addr());
        config.upstream.server_name = ServerName::try_from(server_name).unwrap();
        let bridge = start(&config);
        for (client, is_user) in [(pki.client(), false), (pki.user("alice", &[]), true)] {
            let mut h1 = client.http1(bridge.address()).await.unwrap();
            h1.send(GET).await.unwrap();
            let answers = [
                h1.read_response().await.unwrap(),
                client
                    .http2(bridge.address())
                    .await
                    .unwrap()
                    .get("/api")
                    .await
                    .unwrap(),
            ];
            for answer in answers {
                assert_eq!(answer.status, 503, "a certificate {what}");
                assert!(answer.header("retry-after").is_some());
                let status: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
                let message = status["message"].as_str().unwrap();
                assert_eq!(status["kind"], "Status");
                let names_address = message.contains(&upstream.addr().to_string());
                assert_eq!(names_address, is_user, "{message}");
                assert_eq!(message.contains("TLS: "), is_user, "{message}");
            }
        }
        assert!(upstream.requests().is_empty());
    }
}
