//! Connections through the cluster's proxy.

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

use crate::forwarder_fixture::{ForwarderFixture, cluster};

/// A host name that only the proxy resolves.
const NAME: &str = "cluster.example";

/// Opens a CONNECT tunnel to one server.
async fn serve_connect(mut client: impl AsyncBufRead + AsyncWrite + Unpin, server: SocketAddr) {
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

/// The same with SOCKS (RFC 1928), without authentication and for a name.
async fn serve_socks(mut client: TcpStream, server: SocketAddr) {
    let mut methods = [0; 3];
    client.read_exact(&mut methods).await.unwrap();
    assert_eq!(methods, [5, 1, 0]);
    client.write_all(&[5, 0]).await.unwrap();
    let mut request = vec![0; 5 + NAME.len() + 2];
    client.read_exact(&mut request).await.unwrap();
    let expected = [&[5, 1, 0, 3, 15][..], NAME.as_bytes(), &[0x19, 0x2b]].concat();
    assert_eq!(request, expected);
    client
        .write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0])
        .await
        .unwrap();
    let mut upstream = TcpStream::connect(server).await.unwrap();
    let _ = copy_bidirectional(&mut client, &mut upstream).await;
}

/// A proxy without TLS, and the number of its connections.
async fn plain_proxy<F: Future<Output = ()> + Send + 'static>(
    serve: impl Fn(TcpStream) -> F + Send + 'static,
) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let used = Arc::new(AtomicUsize::new(0));
    let counter = used.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            counter.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(serve(client));
        }
    });
    (addr, used)
}

async fn https_proxy(ca: &Ca, server: SocketAddr) -> ScriptedServer {
    let leaf = ca.server(&["127.0.0.1"]);
    ScriptedServer::start(
        &leaf,
        None,
        &["http/1.1"],
        move |conn: ScriptedConn| async move {
            assert!(
                conn.client_certs.is_empty(),
                "the client certificate is not sent to a proxy"
            );
            serve_connect(conn.io, server).await;
        },
    )
    .await
}

async fn server(ca: &Ca) -> ApiServer {
    let options = Options::new(ca.server(&[NAME])).alpn(&["h2", "http/1.1"]);
    ApiServer::start(options, |_| Reply::json("{}")).await
}

/// A forwarder to the server through the proxy with this URL.
async fn start_forwarder(server: &ApiServer, ca: &Ca, proxy: String) -> ForwarderFixture {
    let mut cluster = cluster(server.addr(), ca);
    cluster.server = format!("https://{NAME}:6443");
    cluster.proxy_url = Some(SecretString::new(proxy));
    ForwarderFixture::with_cluster(&cluster, None, Vec::new()).await
}

#[tokio::test]
async fn the_clusters_own_proxy_is_used() {
    let ca = Ca::new("cluster");
    let server = server(&ca).await;
    let to = server.addr();
    let (proxy, used) = plain_proxy(move |client| serve_connect(BufReader::new(client), to)).await;
    let fixture = start_forwarder(&server, &ca, format!("http://{proxy}")).await;
    assert_eq!(fixture.h2().await.get("/").await.unwrap().status, 200);
    assert_eq!(used.load(Ordering::Relaxed), 1);
    let seen = &server.requests()[0];
    assert_eq!(seen.authority.as_deref(), Some("cluster.example:6443"));
}

#[tokio::test]
async fn a_socks_proxy_resolves_the_clusters_name() {
    let ca = Ca::new("cluster");
    let server = server(&ca).await;
    let to = server.addr();
    let (proxy, used) = plain_proxy(move |client| serve_socks(client, to)).await;
    let fixture = start_forwarder(&server, &ca, format!("socks5://{proxy}")).await;
    assert_eq!(fixture.h2().await.get("/").await.unwrap().status, 200);
    assert_eq!(used.load(Ordering::Relaxed), 1);
}

/// The same rules as for the client itself apply.
#[tokio::test]
async fn an_https_proxy_may_have_a_certificate_of_the_clusters_ca() {
    let ca = Ca::new("cluster");
    let server = server(&ca).await;
    let proxy = https_proxy(&ca, server.addr()).await;
    let fixture = start_forwarder(&server, &ca, format!("https://{}", proxy.addr())).await;
    assert_eq!(fixture.h2().await.get("/").await.unwrap().status, 200);
    assert_eq!(proxy.connections(), 1);
    let untrusted = https_proxy(&Ca::new("untrusted"), server.addr()).await;
    let fixture = start_forwarder(&server, &ca, format!("https://{}", untrusted.addr())).await;
    let response = fixture.h2().await.get("/").await.unwrap();
    assert_eq!(response.status, 503);
    let text = response.text();
    assert!(text.contains("cannot be trusted"), "{text}");
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn an_https_proxy_is_not_verified_if_the_cluster_is_not() {
    let ca = Ca::new("cluster");
    let server = server(&ca).await;
    let proxy = https_proxy(&Ca::new("untrusted"), server.addr()).await;
    let mut cluster = cluster(server.addr(), &ca);
    cluster.server = format!("https://{NAME}:6443");
    cluster.proxy_url = Some(SecretString::new(format!("https://{}", proxy.addr())));
    cluster.certificate_authority_data = Vec::new();
    cluster.insecure_skip_tls_verify = true;
    let fixture = ForwarderFixture::with_cluster(&cluster, None, Vec::new()).await;
    assert_eq!(fixture.h2().await.get("/").await.unwrap().status, 200);
    assert_eq!(proxy.connections(), 1);
}
