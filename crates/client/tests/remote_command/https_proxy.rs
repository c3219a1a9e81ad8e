//! HTTPS proxies: one that works, and faulty ones. No command runs twice, whatever they do.

use std::net::SocketAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use skewbridge_client::remote_command::{
    Executor, ExitStatus, FallbackExecutor, PortForwarder, Transport,
};
use skewbridge_client::{Endpoint, Error, Kubeconfig};
use skewbridge_testkit::{Ca, Pods, ScriptedConn, ScriptedServer};
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;

use super::shell;

/// How the proxy behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProxyBehavior {
    /// Opens tunnels.
    Tunnels,
    /// Answers a WebSocket request itself.
    RejectsWebSocket,
    /// Forwards a WebSocket request, and drops the response.
    DropsWebSocketResponse,
    /// Forwards a WebSocket request, and answers with bytes that are not HTTP.
    SendsGarbage,
    /// Refuses the first tunnel, and opens later ones.
    RejectsFirst,
}

async fn proxy(ca: &Ca, behavior: ProxyBehavior, to: SocketAddr) -> ScriptedServer {
    let leaf = ca.server(&["127.0.0.1"]);
    ScriptedServer::start(&leaf, None, &["http/1.1"], move |conn| {
        serve(conn, behavior, to)
    })
    .await
}

async fn serve(mut conn: ScriptedConn, behavior: ProxyBehavior, to: SocketAddr) {
    let request = conn.read_head().await;
    assert!(request.starts_with(&format!("CONNECT {to} ")), "{request}");
    assert!(
        conn.client_certs.is_empty(),
        "the client certificate is not sent to a proxy"
    );
    if behavior == ProxyBehavior::RejectsFirst && conn.ordinal == 0 {
        return conn.write("HTTP/1.1 503 X\r\n\r\n").await;
    }
    conn.write("HTTP/1.1 200 OK\r\n\r\n").await;
    let mut server = TcpStream::connect(to).await.unwrap();
    if matches!(
        behavior,
        ProxyBehavior::Tunnels | ProxyBehavior::RejectsFirst
    ) {
        let _ = copy_bidirectional(&mut conn.io, &mut server).await;
        return;
    }
    let head = conn.read_head().await;
    if !head.to_ascii_lowercase().contains("upgrade: websocket") {
        use tokio::io::AsyncWriteExt as _;
        server.write_all(head.as_bytes()).await.unwrap();
        let _ = copy_bidirectional(&mut conn.io, &mut server).await;
        return;
    }
    if behavior == ProxyBehavior::RejectsWebSocket {
        let response = "HTTP/1.1 502 X\r\nContent-Length: 13\r\n\r\nno WebSockets";
        return conn.write(response).await;
    }
    // The server has received the request, and has started the command.
    {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        server.write_all(head.as_bytes()).await.unwrap();
        let mut status_line = [0; 12];
        server.read_exact(&mut status_line).await.unwrap();
        assert_eq!(&status_line, b"HTTP/1.1 101");
    }
    if behavior == ProxyBehavior::SendsGarbage {
        conn.write("this is not HTTP\r\n\r\n").await;
    }
}

async fn endpoint(pods: &Pods, proxy: SocketAddr, trust: &str) -> Endpoint {
    let text = format!(
        "current-context: c\ncontexts: [{{name: c, context: {{cluster: k}}}}]\n\
         clusters: [{{name: k, cluster: {{server: 'http://{}', proxy-url: 'https://{proxy}', \
         {trust}}}}}]\n",
        pods.addr()
    );
    let config = Kubeconfig::parse(&text, "/nonexistent/config".as_ref()).unwrap();
    let target = config.target(None).unwrap();
    Endpoint::prepare(&target, None).await.unwrap()
}

fn trusting(ca: &Ca) -> String {
    format!("certificate-authority-data: {}", STANDARD.encode(ca.pem()))
}

async fn run(endpoint: &Endpoint) -> Result<Transport, Error> {
    let executor = FallbackExecutor::new(endpoint.clone());
    let mut process = executor.start(&shell("true")).await?;
    assert_eq!(process.wait().await, ExitStatus::Success);
    Ok(process.transport().clone())
}

/// How often the fake server received an exec or port-forward request.
fn request_count(pods: &Pods, kind: &str) -> usize {
    let seen = pods.requests();
    seen.iter().filter(|it| it.contains(kind)).count()
}

#[tokio::test]
async fn a_working_proxy_carries_websockets() {
    let (ca, pods) = (Ca::new("cluster"), Pods::start().await);
    let proxy = proxy(&ca, ProxyBehavior::Tunnels, pods.addr()).await;
    let endpoint = endpoint(&pods, proxy.addr(), &trusting(&ca)).await;
    assert_eq!(run(&endpoint).await.unwrap(), Transport::WebSocket);
    let forwarder = PortForwarder::connect(&endpoint, "default", "web").await;
    assert_eq!(*forwarder.unwrap().transport(), Transport::WebSocket);
    assert_eq!(pods.requests().len(), 2);
}

#[tokio::test]
async fn a_response_of_the_proxy_causes_the_fallback() {
    let (ca, pods) = (Ca::new("cluster"), Pods::start().await);
    let proxy = proxy(&ca, ProxyBehavior::RejectsWebSocket, pods.addr()).await;
    let endpoint = endpoint(&pods, proxy.addr(), &trusting(&ca)).await;
    let fallback_reason = Some("no WebSockets (502)".to_owned());
    let by_spdy = Transport::Spdy { fallback_reason };
    assert_eq!(run(&endpoint).await.unwrap(), by_spdy);
    let forwarder = PortForwarder::connect(&endpoint, "default", "web").await;
    assert_eq!(*forwarder.unwrap().transport(), by_spdy);
    assert_eq!(request_count(&pods, "websocket"), 0);
}

#[tokio::test]
async fn a_proxy_that_refuses_a_tunnel_causes_the_fallback() {
    let (ca, pods) = (Ca::new("cluster"), Pods::start().await);
    let proxy = proxy(&ca, ProxyBehavior::RejectsFirst, pods.addr()).await;
    let endpoint = endpoint(&pods, proxy.addr(), &trusting(&ca)).await;
    let transport = run(&endpoint).await.unwrap();
    let Transport::Spdy {
        fallback_reason: Some(why),
    } = transport
    else {
        panic!("{transport:?}")
    };
    assert!(why.ends_with("answered 503 to CONNECT"), "{why}");
    assert_eq!(pods.requests().len(), 1);
}

#[tokio::test]
async fn no_command_is_requested_twice_when_the_response_was_lost() {
    for behavior in [
        ProxyBehavior::DropsWebSocketResponse,
        ProxyBehavior::SendsGarbage,
    ] {
        let (ca, pods) = (Ca::new("cluster"), Pods::start().await);
        let proxy = proxy(&ca, behavior, pods.addr()).await;
        let endpoint = endpoint(&pods, proxy.addr(), &trusting(&ca)).await;
        let error = run(&endpoint).await.unwrap_err();
        assert!(
            matches!(error, Error::ConnectionLost { .. } | Error::NotHttp { .. }),
            "{behavior:?}: {error:?}"
        );
        assert_eq!(request_count(&pods, "/exec"), 1, "{behavior:?}");
        // Port-forward requests are idempotent.
        let forwarder = PortForwarder::connect(&endpoint, "default", "web").await;
        let transport = forwarder.unwrap().transport().clone();
        let Transport::Spdy {
            fallback_reason: Some(why),
        } = transport
        else {
            panic!("{behavior:?}: {transport:?}")
        };
        assert!(why.ends_with("(behind an HTTPS proxy)"), "{why}");
        assert_eq!(request_count(&pods, "/portforward"), 2, "{behavior:?}");
    }
}

#[tokio::test]
async fn a_proxy_is_verified_with_the_clusters_cas_and_its_own_name() {
    let (ca, pods) = (Ca::new("cluster"), Pods::start().await);
    let untrusted = proxy(&Ca::new("untrusted"), ProxyBehavior::Tunnels, pods.addr()).await;
    let leaf = ca.server(&["elsewhere.example"]);
    let to = pods.addr();
    let elsewhere = ScriptedServer::start(&leaf, None, &["http/1.1"], move |conn| {
        serve(conn, ProxyBehavior::Tunnels, to)
    })
    .await;
    let no_verification = "insecure-skip-tls-verify: true".to_owned();
    let rows = [
        (
            &untrusted,
            trusting(&ca),
            Some("signed by unknown authority"),
        ),
        (&elsewhere, trusting(&ca), Some("tls-server-name")),
        (&untrusted, no_verification, None),
    ];
    for (proxy, trust, expected) in rows {
        let endpoint = endpoint(&pods, proxy.addr(), &trust).await;
        match (run(&endpoint).await, expected) {
            (Ok(transport), None) => assert_eq!(transport, Transport::WebSocket),
            (Err(error), Some(expected)) => {
                let text = error.to_string();
                assert!(text.contains("cannot be trusted"), "{text}");
                assert!(text.contains(expected), "{text}");
            }
            (result, expected) => panic!("{result:?} instead of {expected:?}"),
        }
    }
    assert_eq!(pods.requests().len(), 1);
}
