//! TLS handshakes with external keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rcgen::{PKCS_ECDSA_P384_SHA384, PKCS_RSA_SHA256};
use rustls::{SignatureAlgorithm, SignatureScheme};
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use skewbridge_exec_proxy::forward::{BoxFuture, ConnectError, Dial, DialedStream, ProtocolOffer};
use skewbridge_exec_proxy::{Certificate, ClientKey, Cluster, KeyError};
use skewbridge_testkit::{
    ApiServer, Ca, ClientAuth, Options, Reply, ScriptedServer, TEST_TIMEOUT, eventually,
};
use tokio::sync::Semaphore;

use crate::forwarder_fixture::{ForwarderFixture, cluster};

/// A slow key that may be absent.
#[derive(Debug)]
struct SlowKey {
    chain: Vec<CertificateDer<'static>>,
    key: Arc<dyn rustls::sign::SigningKey>,
    is_absent: AtomicBool,
}

impl ClientKey for SlowKey {
    fn certificate(&self) -> Result<Certificate, KeyError> {
        if self.is_absent.load(Ordering::Relaxed) {
            return Err(KeyError::new("token \"blue\" is absent; insert it"));
        }
        Ok(Certificate {
            chain: self.chain.clone(),
            schemes: vec![SignatureScheme::ECDSA_NISTP256_SHA256],
            algorithm: SignatureAlgorithm::ECDSA,
        })
    }

    fn sign(&self, scheme: SignatureScheme, message: &[u8]) -> Result<Vec<u8>, KeyError> {
        std::thread::sleep(std::time::Duration::from_millis(20));
        let signer = self.key.choose_scheme(&[scheme]).unwrap();
        signer
            .sign(message)
            .map_err(|error| KeyError::new(error.to_string()))
    }
}

/// On a runtime with one thread, which a key that blocks must not block.
#[tokio::test]
async fn the_handshake_is_signed_by_the_key_and_its_absence_is_reported() {
    let ca = Ca::new("cluster");
    let leaf = ca.client("jane", &["developers"]);
    let options = Options::new(ca.server(&["localhost", "127.0.0.1"]))
        .alpn(&["h2", "http/1.1"])
        .clients(ClientAuth::Require(&ca));
    let server = ApiServer::start(options, |seen| {
        Reply::json(seen.client.as_ref().unwrap().common_name.clone())
    })
    .await;
    let key = Arc::new(SlowKey {
        chain: leaf.chain_der.clone(),
        key: rustls::crypto::aws_lc_rs::sign::any_supported_type(&leaf.key_der).unwrap(),
        is_absent: AtomicBool::new(true),
    });
    let cluster = cluster(server.addr(), &ca);
    let fixture = ForwarderFixture::with_cluster(&cluster, Some(key.clone()), Vec::new()).await;
    let h2 = fixture.h2().await;
    let response = h2.get("/").await.unwrap();
    assert_eq!(response.status, 503);
    assert!(
        response.text().contains("is absent; insert it"),
        "{}",
        response.text()
    );
    key.is_absent.store(false, Ordering::Relaxed);
    assert_eq!(h2.get("/").await.unwrap().text(), "jane");
    // The open connection needs no key.
    key.is_absent.store(true, Ordering::Relaxed);
    assert_eq!(h2.get("/").await.unwrap().text(), "jane");
}

/// A software key that supports only some signature schemes.
#[derive(Debug)]
struct LimitedKey {
    chain: Vec<CertificateDer<'static>>,
    key: Arc<dyn rustls::sign::SigningKey>,
    schemes: Vec<SignatureScheme>,
}

impl LimitedKey {
    fn new(
        ca: &Ca,
        kind: &'static rcgen::SignatureAlgorithm,
        schemes: &[SignatureScheme],
    ) -> Arc<Self> {
        let pair = rcgen::KeyPair::generate_for(kind).unwrap();
        let key = PrivatePkcs8KeyDer::from(pair.serialize_der()).into();
        Arc::new(Self {
            chain: vec![ca.client_with_key(&pair, "jane", &[])],
            key: rustls::crypto::aws_lc_rs::sign::any_supported_type(&key).unwrap(),
            schemes: schemes.to_owned(),
        })
    }
}

impl ClientKey for LimitedKey {
    fn certificate(&self) -> Result<Certificate, KeyError> {
        Ok(Certificate {
            chain: self.chain.clone(),
            schemes: self.schemes.clone(),
            algorithm: self.key.algorithm(),
        })
    }

    fn sign(&self, scheme: SignatureScheme, message: &[u8]) -> Result<Vec<u8>, KeyError> {
        let signer = self.key.choose_scheme(&[scheme]);
        let signer = signer.ok_or_else(|| KeyError::new("no such signature"))?;
        signer
            .sign(message)
            .map_err(|error| KeyError::new(error.to_string()))
    }
}

#[tokio::test]
async fn a_key_authenticates_with_the_newest_tls_version_that_has_its_signatures() {
    use SignatureScheme as Scheme;
    let ca = Ca::new("cluster");
    let leaf = ca.server(&["localhost", "127.0.0.1"]);
    // It supports both versions and returns the negotiated one.
    let server = ScriptedServer::start(&leaf, Some(&ca), &["http/1.1"], |mut conn| async move {
        assert_eq!(conn.client_certs.len(), 1);
        let version = conn.io.get_ref().get_ref().1.protocol_version().unwrap();
        let version = format!("{version:?}");
        conn.read_head().await;
        let length = version.len();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        conn.write(head + &version).await;
    })
    .await;
    let rows: [(_, &[Scheme], _); 4] = [
        (&PKCS_RSA_SHA256, &[Scheme::RSA_PKCS1_SHA256], "TLSv1_2"),
        (&PKCS_RSA_SHA256, &[Scheme::RSA_PKCS1_SHA512], "TLSv1_2"),
        (
            &PKCS_RSA_SHA256,
            &[Scheme::RSA_PSS_SHA256, Scheme::RSA_PKCS1_SHA256],
            "TLSv1_3",
        ),
        (
            &PKCS_ECDSA_P384_SHA384,
            &[Scheme::ECDSA_NISTP384_SHA384],
            "TLSv1_3",
        ),
    ];
    for (kind, schemes, expected) in rows {
        let key = LimitedKey::new(&ca, kind, schemes);
        let fixture =
            ForwarderFixture::with_cluster(&cluster(server.addr(), &ca), Some(key), Vec::new())
                .await;
        let response = fixture.h2().await.get("/").await.unwrap();
        assert_eq!(response.text(), expected, "{schemes:?}");
    }
}

/// Opens connections when it is permitted, as a key that must be touched.
struct TouchDial {
    cluster: Cluster,
    dials: Arc<AtomicUsize>,
    touch: Arc<Semaphore>,
}

impl Dial for TouchDial {
    fn dial(&self, offer: ProtocolOffer) -> BoxFuture<'_, Result<DialedStream, ConnectError>> {
        Box::pin(async move {
            self.dials.fetch_add(1, Ordering::Relaxed);
            self.touch.acquire().await.unwrap().forget();
            self.cluster.dial(offer).await
        })
    }
}

#[tokio::test]
async fn a_client_that_leaves_before_the_key_is_touched_does_not_abort_the_handshake_for_others() {
    let ca = Ca::new("cluster");
    for alpn in [&["h2", "http/1.1"][..], &["http/1.1"]] {
        let options = Options::new(ca.server(&["localhost", "127.0.0.1"])).alpn(alpn);
        let server = ApiServer::start(options, |_| Reply::json("{}")).await;
        let (dials, touch) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let dial = TouchDial {
            cluster: Cluster::new(&cluster(server.addr(), &ca), None).unwrap(),
            dials: dials.clone(),
            touch: touch.clone(),
        };
        let fixture =
            ForwarderFixture::with_dial(dial, server.addr().to_string().parse().unwrap()).await;
        let in_flight = || fixture.forwarder.activity().count();
        let client = fixture.h2().await;
        let first = tokio::spawn(async move { client.get("/first").await.map(drop) });
        let dialled = async || dials.load(Ordering::Relaxed) == 1;
        eventually("the handshake", TEST_TIMEOUT, dialled).await;
        first.abort();
        eventually("the end of the first request", TEST_TIMEOUT, async || {
            in_flight() == 0
        })
        .await;
        let client = fixture.h2().await;
        let second = tokio::spawn(async move { client.get("/second").await });
        eventually("the second request", TEST_TIMEOUT, async || {
            in_flight() == 1
        })
        .await;
        touch.add_permits(1);
        assert_eq!(second.await.unwrap().unwrap().status, 200);
        assert_eq!(dials.load(Ordering::Relaxed), 1, "{alpn:?}");
        assert_eq!(server.requests().len(), 1);
    }
}
