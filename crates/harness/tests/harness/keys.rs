//! Keys that are elsewhere, and the way through a proxy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustls::{SignatureAlgorithm, SignatureScheme};
use rustls_pki_types::CertificateDer;
use skewbridge_harness::{Certificate, ClientKey, KeyError};
use skewbridge_testkit::{ApiServer, Ca, ClientAuth, Options, Reply};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use crate::rig::{Rig, cluster};

/// A key that takes its time, and may be away.
#[derive(Debug)]
struct Slow {
    chain: Vec<CertificateDer<'static>>,
    key: Arc<dyn rustls::sign::SigningKey>,
    away: AtomicBool,
}

impl ClientKey for Slow {
    fn certificate(&self) -> Result<Certificate, KeyError> {
        if self.away.load(Ordering::Relaxed) {
            return Err(KeyError::new("token \"blue\" is not there; put it in"));
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

/// On a runtime of one thread: a key that blocks must not hold it up.
#[tokio::test]
async fn the_handshake_is_signed_by_the_key_and_its_absence_is_told() {
    let ca = Ca::new("cluster");
    let leaf = ca.client("jane", &["developers"]);
    let options = Options::new(ca.server(&["localhost", "127.0.0.1"]))
        .alpn(&["h2", "http/1.1"])
        .clients(ClientAuth::Require(&ca));
    let server = ApiServer::start(options, |seen| {
        Reply::json(seen.client.as_ref().unwrap().common_name.clone())
    })
    .await;
    let key = Arc::new(Slow {
        chain: leaf.chain_der.clone(),
        key: rustls::crypto::aws_lc_rs::sign::any_supported_type(&leaf.key_der).unwrap(),
        away: AtomicBool::new(true),
    });
    let told = cluster(server.addr(), &ca);
    let rig = Rig::with(&told, Some(key.clone()), Vec::new()).await;
    let h2 = rig.h2().await;
    let answer = h2.get("/").await.unwrap();
    assert_eq!(answer.status, 503);
    assert!(
        answer.text().contains("is not there; put it in"),
        "{}",
        answer.text()
    );
    key.away.store(false, Ordering::Relaxed);
    assert_eq!(h2.get("/").await.unwrap().text(), "jane");
    // The connection is there, and needs no key.
    key.away.store(true, Ordering::Relaxed);
    assert_eq!(h2.get("/").await.unwrap().text(), "jane");
}

/// A proxy that passes CONNECT on to one server, whatever name is asked for.
async fn proxy(server: std::net::SocketAddr) -> (std::net::SocketAddr, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let used = Arc::new(AtomicBool::new(false));
    let seen = used.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let seen = seen.clone();
            tokio::spawn(async move {
                let mut client = BufReader::new(client);
                let mut line = String::new();
                client.read_line(&mut line).await.unwrap();
                assert!(line.starts_with("CONNECT cluster.example:6443 "), "{line}");
                while line != "\r\n" {
                    line.clear();
                    client.read_line(&mut line).await.unwrap();
                }
                seen.store(true, Ordering::Relaxed);
                client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                let mut upstream = TcpStream::connect(server).await.unwrap();
                let _ = copy_bidirectional(&mut client, &mut upstream).await;
            });
        }
    });
    (addr, used)
}

#[tokio::test]
async fn the_clusters_own_proxy_is_used() {
    let ca = Ca::new("cluster");
    let options = Options::new(ca.server(&["cluster.example"])).alpn(&["h2", "http/1.1"]);
    let server = ApiServer::start(options, |_| Reply::json("{}")).await;
    let (proxy, used) = proxy(server.addr()).await;
    let mut told = cluster(server.addr(), &ca);
    "https://cluster.example:6443".clone_into(&mut told.server);
    told.proxy_url = Some(skewbridge_api::exec_credential::Sensitive::new(format!(
        "http://{proxy}"
    )));
    let rig = Rig::with(&told, None, Vec::new()).await;
    assert_eq!(rig.h2().await.get("/").await.unwrap().status, 200);
    assert!(used.load(Ordering::Relaxed));
    let seen = &server.requests()[0];
    assert_eq!(seen.authority.as_deref(), Some("cluster.example:6443"));
}
