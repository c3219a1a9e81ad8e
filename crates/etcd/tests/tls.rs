//! Endpoints with TLS that close the connection instead of speaking HTTP/2. With TLS 1.3 the
//! handshake of the client ends before the server has verified the client certificate.
#![allow(clippy::unwrap_used, clippy::expect_used)] // test helpers panic on failure

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::crypto::aws_lc_rs::default_provider;
use skewbridge_etcd::{Client, Error};
use skewbridge_testkit::h2frames::kind;
use skewbridge_testkit::{Ca, ScriptedConn, ScriptedServer};

/// The cause of the failure of a call.
async fn cause(server: &ScriptedServer, ca: &Ca) -> String {
    let tls = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(ca.roots())
        .with_no_client_auth();
    let endpoint = format!("https://{}", server.addr()).parse().unwrap();
    let client = Client::new(vec![endpoint], Some(Arc::new(tls))).unwrap();
    match client.put(b"k", b"v", None).await.unwrap_err() {
        Error::Connection { cause, .. } => cause,
        other => panic!("{other:?}"),
    }
}

#[derive(Debug, Clone, Copy)]
enum End {
    Reset,
    Truncation,
    Close,
}

impl End {
    async fn of(self, mut connection: ScriptedConn) {
        match self {
            Self::Reset => connection.reset(),
            Self::Truncation => connection.truncate().await,
            Self::Close => connection.half_close().await,
        }
    }
}

#[tokio::test]
async fn a_connection_that_ends_after_the_tls_handshake_may_lack_a_client_certificate() {
    let ca = Ca::new("etcd");
    for end in [End::Reset, End::Truncation, End::Close] {
        let tls = ca.server(&["127.0.0.1"]);
        let server = ScriptedServer::start(&tls, None, &["h2"], move |it| end.of(it)).await;
        let cause = cause(&server, &ca).await;
        assert!(
            cause.starts_with(
                "closed by the server after the TLS handshake; it may have refused the client "
            ),
            "{end:?}: {cause}"
        );
    }
}

#[tokio::test]
async fn a_connection_that_ends_after_the_settings_was_not_refused() {
    let ca = Ca::new("etcd");
    for end in [End::Reset, End::Truncation, End::Close] {
        let tls = ca.server(&["127.0.0.1"]);
        let server = ScriptedServer::start(&tls, None, &["h2"], move |mut it| async move {
            it.accept_h2(&[]).await;
            // The client has read the settings when it acknowledges them.
            it.read_frame(kind::SETTINGS).await;
            end.of(it).await;
        })
        .await;
        let cause = cause(&server, &ca).await;
        assert!(!cause.contains("certificate"), "{end:?}: {cause}");
    }
}

#[tokio::test]
async fn a_refused_client_certificate_is_named() {
    let [ca, clients] = ["etcd", "clients"].map(Ca::new);
    let tls = ca.server(&["127.0.0.1"]);
    let server = ScriptedServer::start(&tls, Some(&clients), &["h2"], |_| async {}).await;
    let cause = cause(&server, &ca).await;
    // The alert, or the end of a connection that was reset before the alert was read.
    let is_named = ["CertificateRequired", "client certificate"]
        .iter()
        .any(|it| cause.contains(it));
    assert!(is_named, "{cause}");
}
