//! The way through the cluster's own proxy.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use skewbridge_k8s_api::secret::SecretString;
use skewbridge_testkit::{ApiServer, Ca, Options, Reply, ScriptedConn, ScriptedServer};
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _,
    BufReader, copy_bidirectional,
};
use tokio::net::{TcpListener, TcpStream};

use crate::rig::{Rig, cluster};

/// The name that nobody but a proxy knows.
const NAME: &str = "cluster.example";

/// Passes CONNECT on to one server.
async fn tunnel(mut client: impl AsyncBufRead + AsyncWrite + Unpin, server: SocketAddr) {
    let mut line = String::new();
    client.read_line(&mut line).await.unwrap();
    assert!(line.starts_with("CONNECT cluster.example:6443 "), "{line}");
    while line != "\r\n" {
        line.clear();
        client.read_line(&mut line).await.unwrap();
    }
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
    client.flush().await.unwrap();
    let mut upstream = TcpStream::connect(server).await.unwrap();
    let _ = copy_bidirectional(&mut client, &mut upstream).await;
}

/// The same by SOCKS (RFC 1928), without a login and for a name.
async fn socks(mut client: TcpStream, server: SocketAddr) {
    let mut methods = [0; 3];
    client.read_exact(&mut methods).await.unwrap();
    assert_eq!(methods, [5, 1, 0]);
    client.write_all(&[5, 0]).await.unwrap();
    let mut asked = vec![0; 5 + NAME.len() + 2];
    client.read_exact(&mut asked).await.unwrap();
    let name = [&[5, 1, 0, 3, 15][..], NAME.as_bytes(), &[0x19, 0x2b]].concat();
    assert_eq!(asked, name);
    client
        .write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0])
        .await
        .unwrap();
    let mut upstream = TcpStream::connect(server).await.unwrap();
    let _ = copy_bidirectional(&mut client, &mut upstream).await;
}

/// A proxy without TLS, and how often it was used.
async fn plain<F: Future<Output = ()> + Send + 'static>(
    serve: impl Fn(TcpStream) -> F + Send + 'static,
) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let used = Arc::new(AtomicUsize::new(0));
    let seen = used.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            seen.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(serve(client));
        }
    });
    (addr, used)
}

async fn by_https(ca: &Ca, server: SocketAddr) -> ScriptedServer {
    let leaf = ca.server(&["127.0.0.1"]);
    ScriptedServer::start(
        &leaf,
        None,
        &["http/1.1"],
        move |conn: ScriptedConn| async move {
            assert!(conn.client_certs.is_empty(), "it is no business of a proxy");
            tunnel(conn.io, server).await;
        },
    )
    .await
}

async fn server(ca: &Ca) -> ApiServer {
    let options = Options::new(ca.server(&[NAME])).alpn(&["h2", "http/1.1"]);
    ApiServer::start(options, |_| Reply::json("{}")).await
}

/// A forwarder to that server, through the proxy of this URL.
async fn rig(server: &ApiServer, ca: &Ca, proxy: String) -> Rig {
    let mut told = cluster(server.addr(), ca);
    told.server = format!("https://{NAME}:6443");
    told.proxy_url = Some(SecretString::new(proxy));
    Rig::with(&told, None, Vec::new()).await
}

#[tokio::test]
async fn the_clusters_own_proxy_is_used() {
    let ca = Ca::new("cluster");
    let server = server(&ca).await;
    let to = server.addr();
    let (proxy, used) = plain(move |client| tunnel(BufReader::new(client), to)).await;
    let rig = rig(&server, &ca, format!("http://{proxy}")).await;
    assert_eq!(rig.h2().await.get("/").await.unwrap().status, 200);
    assert_eq!(used.load(Ordering::Relaxed), 1);
    let seen = &server.requests()[0];
    assert_eq!(seen.authority.as_deref(), Some("cluster.example:6443"));
}

#[tokio::test]
async fn a_socks_proxy_is_asked_for_the_clusters_name() {
    let ca = Ca::new("cluster");
    let server = server(&ca).await;
    let to = server.addr();
    let (proxy, used) = plain(move |client| socks(client, to)).await;
    let rig = rig(&server, &ca, format!("socks5://{proxy}")).await;
    assert_eq!(rig.h2().await.get("/").await.unwrap().status, 200);
    assert_eq!(used.load(Ordering::Relaxed), 1);
}

/// By the same rules as for the client itself.
#[tokio::test]
async fn an_https_proxy_may_have_a_certificate_of_the_clusters_ca() {
    let ca = Ca::new("cluster");
    let server = server(&ca).await;
    let proxy = by_https(&ca, server.addr()).await;
    let ours = rig(&server, &ca, format!("https://{}", proxy.addr())).await;
    assert_eq!(ours.h2().await.get("/").await.unwrap().status, 200);
    assert_eq!(proxy.connections(), 1);
    let stranger = by_https(&Ca::new("stranger"), server.addr()).await;
    let ours = rig(&server, &ca, format!("https://{}", stranger.addr())).await;
    let answer = ours.h2().await.get("/").await.unwrap();
    assert_eq!(answer.status, 503);
    let text = answer.text();
    assert!(text.contains("cannot be trusted"), "{text}");
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn an_https_proxy_may_be_anybody_where_the_cluster_may() {
    let ca = Ca::new("cluster");
    let server = server(&ca).await;
    let proxy = by_https(&Ca::new("stranger"), server.addr()).await;
    let mut told = cluster(server.addr(), &ca);
    told.server = format!("https://{NAME}:6443");
    told.proxy_url = Some(SecretString::new(format!("https://{}", proxy.addr())));
    told.certificate_authority_data = Vec::new();
    told.insecure_skip_tls_verify = true;
    let rig = Rig::with(&told, None, Vec::new()).await;
    assert_eq!(rig.h2().await.get("/").await.unwrap().status, 200);
    assert_eq!(proxy.connections(), 1);
}
