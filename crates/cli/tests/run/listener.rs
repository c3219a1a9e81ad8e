//! The loopback listener, and its authentication.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use skewbridge_client::kubeconfig::PemSource;
use skewbridge_client::{Endpoint, Kubeconfig, Request};
use skewbridge_testkit::{Ca, PATIENCE, eventually};

use crate::run_fixture::{PATIENT, RunFixture, output, token};

#[tokio::test]
async fn only_the_command_can_authenticate_to_the_listener() {
    let fixture = RunFixture::new().await;
    let script = "stat -c '%a %u' \"$KUBECONFIG\" \"$(dirname \"$KUBECONFIG\")\"; \
                  cp \"$KUBECONFIG\" \"$CHILD_DIR/copy\"; read line < \"$CHILD_DIR/go\"";
    let go = fixture.dir.path().join("go");
    assert!(Command::new("mkfifo").arg(&go).status().unwrap().success());
    let command = fixture.script(&token(), script);
    let running = tokio::spawn(output(command));
    eventually("a copy", PATIENCE * 2, async || {
        fixture.read("copy").ends_with('}')
    })
    .await;
    let config = Kubeconfig::parse(&fixture.read("copy"), Path::new("/nonexistent/x")).unwrap();
    let mut target = config.target(None).unwrap();
    let get = async |target: &skewbridge_client::Target| {
        let endpoint = Endpoint::prepare(target, PATIENT).await?;
        let mut connection = endpoint.connect().await?;
        connection.send(&Request::get("/")).await
    };
    let asked = fixture.server.requests().len();
    assert!(get(&target).await.is_ok());
    openssl_would_not_take_it_for_self_signed(&target).await;
    target.user.client_certificate = None;
    target.user.client_key = None;
    assert!(get(&target).await.is_err());
    let stranger = Ca::new("client").client("client", &[]);
    let data = |text: &str| {
        let secret = skewbridge_client::Secret::new(text);
        Some(PemSource::Data(secret))
    };
    target.user.client_certificate = data(&stranger.cert_pem);
    target.user.client_key = data(&stranger.key_pem);
    assert!(get(&target).await.is_err());
    assert_eq!(fixture.server.requests().len(), asked + 1);
    let me = std::fs::metadata(fixture.dir.path()).unwrap().uid();
    std::fs::write(&go, "go\n").unwrap();
    let ran = running.await.unwrap();
    let modes = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert_eq!(modes, format!("600 {me}\n700 {me}\n"));
    assert_eq!(fixture.left(), 0);
}

/// Clients on OpenSSL, such as Python's, treat a certificate with equal issuer and subject as
/// self-signed, and refuse it.
async fn openssl_would_not_take_it_for_self_signed(target: &skewbridge_client::Target) {
    let pem = |material: &Option<PemSource>| match material {
        Some(PemSource::Data(pem)) => pem.expose().to_vec(),
        other => panic!("{other:?}"),
    };
    let authority = pem(&target.cluster.certificate_authority);
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(&authority).unwrap())
        .unwrap();
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = rustls::ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let server = target.cluster.server.strip_prefix("https://").unwrap();
    let (server, _) = server.split_once('/').unwrap();
    let stream = tokio::net::TcpStream::connect(server).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let stream = connector.connect(name, stream).await.unwrap();
    let shown = stream.get_ref().1.peer_certificates().unwrap();
    let (_, shown) = x509_parser::parse_x509_certificate(&shown[0]).unwrap();
    assert_ne!(shown.subject(), shown.issuer());
}
