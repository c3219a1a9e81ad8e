//! Connections over loopback, to correct and to faulty servers.

#![allow(clippy::unwrap_used)] // a test ends where it cannot go on

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use skewbridge_client::{Endpoint, Error, Kubeconfig, Request, Target};
use skewbridge_testkit::{
    ApiServer, Ca, ClientAuth, Options, Reply, ReservedPort, ScriptedServer, TEST_TIMEOUT, Validity,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

/// The request timeout; no test waits for it to pass.
const TIMEOUT: Option<Duration> = Some(TEST_TIMEOUT);

/// A kubeconfig with one context, and these fields of its cluster and user.
fn target(server: &str, cluster: &str, user: &str) -> Target {
    let text = format!(
        "current-context: c\n\
         contexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
         clusters: [{{name: k, cluster: {{server: '{server}', {cluster}}}}}]\n\
         users: [{{name: u, user: {{{user}}}}}]\n"
    );
    let config = Kubeconfig::parse(&text, "/nonexistent/config".as_ref()).unwrap();
    config.target(None).unwrap()
}

fn trusting(ca: &Ca) -> String {
    format!("certificate-authority-data: {}", STANDARD.encode(ca.pem()))
}

async fn send(target: &Target, request: &Request) -> Result<(u16, String), Error> {
    let endpoint = Endpoint::prepare(target, TIMEOUT).await?;
    let debug_text = format!("{endpoint:?}");
    assert!(!debug_text.contains("secret"), "{debug_text}");
    let mut connection = endpoint.connect().await?;
    let answer = connection.send(request).await?;
    let body = String::from_utf8_lossy(&answer.body).into_owned();
    Ok((answer.status.as_u16(), body))
}

#[tokio::test]
async fn requests_carry_the_token_and_impersonation_and_share_a_connection() {
    let ca = Ca::new("cluster");
    let options = Options::new(ca.server(&["127.0.0.1"]));
    let server = ApiServer::start(options, |seen| Reply::json(seen.target)).await;
    let url = format!("https://{}/prefix/", server.addr());
    let user = "token: secret-token, as: you, as-groups: [a, b]";
    let target = target(&url, &trusting(&ca), user);
    let endpoint = Endpoint::prepare(&target, TIMEOUT).await.unwrap();
    let mut connection = endpoint.connect().await.unwrap();
    for path in ["/api", "/apis?x=1"] {
        let request = Request::get(path).header("accept", "application/json");
        let answer = connection.send(&request).await.unwrap();
        assert_eq!(answer.body, format!("/prefix{path}"));
        assert_eq!(answer.content_type(), "application/json");
        assert!(connection.is_ready());
    }
    assert_eq!(server.connections(), 1);
    let seen = &server.requests()[0];
    assert_eq!(seen.header("authorization"), Some("Bearer secret-token"));
    assert_eq!(seen.header("impersonate-user"), Some("you"));
    assert_eq!(seen.all("impersonate-group"), ["a", "b"]);
    assert_eq!(seen.authority.as_deref(), Some(&*server.addr().to_string()));
    assert!(
        seen.header("user-agent")
            .unwrap()
            .starts_with("skewbridge/")
    );
}

#[tokio::test]
async fn the_client_certificate_is_sent() {
    let ca = Ca::new("cluster");
    let options = Options::new(ca.server(&["127.0.0.1"])).clients(ClientAuth::Require(&ca));
    let server = ApiServer::start(options, |seen| {
        Reply::json(seen.client.unwrap().common_name)
    })
    .await;
    let url = format!("https://{}", server.addr());
    let alice = ca.client("alice", &[]);
    let pair = format!(
        "client-certificate-data: {}, client-key-data: {}",
        STANDARD.encode(&alice.cert_pem),
        STANDARD.encode(&alice.key_pem)
    );
    let answer = send(&target(&url, &trusting(&ca), &pair), &Request::get("/")).await;
    assert_eq!(answer.unwrap(), (200, "alice".to_owned()));

    // The same with a plugin's certificate.
    let credential = format!(
        "{{\"kind\":\"ExecCredential\",\"apiVersion\":\"client.authentication.k8s.io/v1\",\
         \"status\":{{\"clientCertificateData\":{:?},\"clientKeyData\":{:?}}}}}",
        alice.cert_pem, alice.key_pem
    );
    let dir = skewbridge_testkit::ScratchDir::new();
    let file = dir.write("credential", credential);
    let exec = format!(
        "exec: {{apiVersion: client.authentication.k8s.io/v1, command: cat, args: ['{}'], \
         interactiveMode: Never}}",
        file.display()
    );
    let answer = send(&target(&url, &trusting(&ca), &exec), &Request::get("/")).await;
    assert_eq!(answer.unwrap(), (200, "alice".to_owned()));

    let bob = ca.client("bob", &[]);
    let mixed = format!(
        "client-certificate-data: {}, client-key-data: {}",
        STANDARD.encode(&alice.cert_pem),
        STANDARD.encode(&bob.key_pem)
    );
    let error = send(&target(&url, &trusting(&ca), &mixed), &Request::get("/"))
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "user \"u\": client-key does not belong to client-certificate"
    );
}

#[tokio::test]
async fn server_certificate_errors_use_gos_words() {
    let ca = Ca::new("cluster");
    let other = Ca::new("other");
    let get = Request::get("/");
    let options = Options::new(ca.server(&["kubernetes"]));
    let server = ApiServer::start(options, |_| Reply::json("{}")).await;
    let url = format!("https://{}", server.addr());
    let named = format!("{}, tls-server-name: kubernetes", trusting(&ca));
    assert_eq!(send(&target(&url, &named, ""), &get).await.unwrap().0, 200);
    let insecure = "insecure-skip-tls-verify: true";
    let answer = send(&target(&url, insecure, ""), &get).await;
    assert_eq!(answer.unwrap().0, 200);

    let expired = Options::new(ca.server_valid(&["127.0.0.1"], Validity::Expired));
    let expired = ApiServer::start(expired, |_| Reply::json("{}")).await;
    let expired = format!("https://{}", expired.addr());
    let both = format!("{}, {insecure}", trusting(&ca));
    let rows = [
        (
            &url,
            trusting(&other),
            "x509: certificate signed by unknown authority",
        ),
        (
            &url,
            trusting(&ca),
            "tls-server-name sets the expected name",
        ),
        (&expired, trusting(&ca), "x509: certificate has expired"),
        (&url, both, "with the insecure flag is not allowed"),
        (
            &url,
            "certificate-authority-data: aGVsbG8=".to_owned(),
            "holds no certificate in PEM",
        ),
        (
            &url,
            "certificate-authority: absent.crt".to_owned(),
            "/nonexistent/absent.crt: cannot be read",
        ),
    ];
    for (url, cluster, expected) in rows {
        let error = send(&target(url, &cluster, ""), &get).await.unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[tokio::test]
async fn unreachable_and_unresponsive_servers_are_named_in_errors() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let url = format!("https://{address}");
    let insecure = "insecure-skip-tls-verify: true";
    let unresponsive = target(&url, insecure, "");
    let endpoint = Endpoint::prepare(&unresponsive, Some(Duration::from_millis(50)));
    let error = endpoint.await.unwrap().connect().await.unwrap_err();
    let expected = format!("the server {address} did not accept a connection within 0.05 s");
    assert!(error.to_string().starts_with(&expected), "{error}");
    let unused_port = ReservedPort::new();
    let address = unused_port.addr();
    let absent = target(&format!("https://{address}"), insecure, "");
    let error = send(&absent, &Request::get("/")).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "the connection to the server {address} was refused - did you specify the right host \
             or port?"
        )
    );
}

#[tokio::test]
async fn invalid_and_oversized_responses_are_distinguished() {
    let ca = Ca::new("cluster");
    let long = "HTTP/1.1 200 OK\r\nContent-Length: 4096\r\n\r\n".to_owned() + &"x".repeat(4096);
    let rows = [
        ("SSH-2.0-OpenSSH\r\n", "does not begin with HTTP/1."),
        ("HTTP/1.1 2x0 OK\r\n\r\n", "does not answer in HTTP/1.1"),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
            "before the body was complete",
        ),
        ("HTTP/1.1 200 OK\r\nContent-Le", "no response came"),
        ("", "no response came"),
        (&long, "answers / with more than 1000 bytes"),
    ];
    for (wire, expected) in rows {
        let wire = wire.to_owned();
        let leaf = ca.server(&["127.0.0.1"]);
        let server = ScriptedServer::start(&leaf, None, &["http/1.1"], move |mut conn| {
            let wire = wire.clone();
            async move {
                conn.read_head().await;
                // The client may have closed the connection.
                let _ = conn.io.write_all(wire.as_bytes()).await;
                let _ = conn.io.flush().await;
                let _ = conn.io.shutdown().await;
            }
        })
        .await;
        let url = format!("https://{}", server.addr());
        let request = Request::get("/").limit(1000);
        let error = send(&target(&url, &trusting(&ca), ""), &request)
            .await
            .unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[tokio::test]
async fn interim_responses_are_skipped_and_a_body_may_end_with_the_connection() {
    let ca = Ca::new("cluster");
    let leaf = ca.server(&["127.0.0.1"]);
    let server = ScriptedServer::start(&leaf, None, &["http/1.1"], |mut conn| async move {
        conn.read_head().await;
        conn.write("HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\n\r\nto the end")
            .await;
        conn.half_close().await;
    })
    .await;
    let url = format!("https://{}", server.addr());
    let answer = send(&target(&url, &trusting(&ca), ""), &Request::get("/")).await;
    assert_eq!(answer.unwrap(), (200, "to the end".to_owned()));
}

#[tokio::test]
async fn after_an_upgrade_the_stream_and_the_read_bytes_are_handed_over() {
    let ca = Ca::new("cluster");
    let leaf = ca.server(&["127.0.0.1"]);
    let server = ScriptedServer::start(&leaf, None, &["http/1.1"], |mut conn| async move {
        assert!(conn.read_head().await.contains("Upgrade: x"));
        conn.write("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\nearly")
            .await;
        let mut bytes = [0; 4];
        conn.io.read_exact(&mut bytes).await.unwrap();
        conn.write(std::str::from_utf8(&bytes).unwrap()).await;
    })
    .await;
    let target = target(&format!("https://{}", server.addr()), &trusting(&ca), "");
    let endpoint = Endpoint::prepare(&target, TIMEOUT).await.unwrap();
    let mut connection = endpoint.connect().await.unwrap();
    let request = Request::get("/")
        .header("connection", "upgrade")
        .header("upgrade", "x");
    let answer = connection.send(&request).await.unwrap();
    assert_eq!(answer.status, 101);
    assert!(!connection.is_ready());
    let (mut stream, early) = connection.into_parts().unwrap();
    stream.write_all(b"ping").await.unwrap();
    let mut received = early.to_vec();
    while received.len() < 9 {
        assert_ne!(stream.read_buf(&mut received).await.unwrap(), 0);
    }
    assert_eq!(received, b"earlyping");
}

#[tokio::test]
async fn an_http_proxy_opens_a_tunnel() {
    let ca = Ca::new("cluster");
    let options = Options::new(ca.server(&["kubernetes.example"]));
    let server = ApiServer::start(options, |_| Reply::json("{}")).await;
    let to = server.addr();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = listener.local_addr().unwrap();
    let running = tokio::spawn(async move {
        let mut requests = Vec::new();
        for refuse in [false, true] {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(client.read_u8().await.unwrap());
            }
            requests.push(String::from_utf8(head).unwrap());
            if refuse {
                let refusal =
                    b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n";
                client.write_all(refusal).await.unwrap();
                continue;
            }
            let mut server = tokio::net::TcpStream::connect(to).await.unwrap();
            client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
        }
        requests
    });
    let cluster = format!("{}, proxy-url: 'http://me:secret@{proxy}'", trusting(&ca));
    let target = target("https://kubernetes.example", &cluster, "");
    let answer = send(&target, &Request::get("/")).await;
    assert_eq!(answer.unwrap().0, 200);
    let error = send(&target, &Request::get("/")).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "the proxy {proxy} on the way to kubernetes.example:443 requires a user and a password \
             (407); put them into its URL"
        )
    );
    for request in running.await.unwrap() {
        let expected = "CONNECT kubernetes.example:443 HTTP/1.1\r\n\
                        Host: kubernetes.example:443\r\n\
                        Proxy-Authorization: Basic bWU6c2VjcmV0\r\n\r\n";
        assert_eq!(request, expected);
    }
}

#[tokio::test]
async fn invalid_requests_are_not_sent() {
    let ca = Ca::new("cluster");
    let options = Options::new(ca.server(&["127.0.0.1"]));
    let server = ApiServer::start(options, |_| Reply::json("{}")).await;
    let target = target(&format!("https://{}", server.addr()), &trusting(&ca), "");
    for request in [
        Request::get("/a b"),
        Request::get("/\r\nX: y"),
        Request::get("no-path"),
        Request::get("/").header("x y", "z"),
        Request::get("/").header("x", "y\r\nz: 1"),
    ] {
        let error = send(&target, &request).await.unwrap_err();
        assert!(matches!(error, Error::InvalidRequest(_)), "{error}");
    }
    assert_eq!(server.requests().len(), 0);
}

#[tokio::test]
async fn a_socks_proxy_gets_the_host_name_unresolved() {
    let ca = Ca::new("cluster");
    let options = Options::new(ca.server(&["kubernetes.example"]));
    let server = ApiServer::start(options, |_| Reply::json("{}")).await;
    let to = server.addr();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = listener.local_addr().unwrap();
    let running = tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut ways = [0; 3];
        client.read_exact(&mut ways).await.unwrap();
        client.write_all(&[5, 0]).await.unwrap();
        let mut request = [0; 25];
        client.read_exact(&mut request).await.unwrap();
        let granted = [5, 0, 0, 1, 127, 0, 0, 1, 0, 0];
        client.write_all(&granted).await.unwrap();
        let mut server = tokio::net::TcpStream::connect(to).await.unwrap();
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
        request
    });
    let cluster = format!("{}, proxy-url: 'socks5://{proxy}'", trusting(&ca));
    let target = target("https://kubernetes.example", &cluster, "");
    let answer = send(&target, &Request::get("/")).await;
    assert_eq!(answer.unwrap().0, 200);
    let request = running.await.unwrap();
    assert_eq!(&request, b"\x05\x01\x00\x03\x12kubernetes.example\x01\xbb");
}

#[tokio::test]
async fn a_token_file_is_read_again_for_each_connection() {
    let ca = Ca::new("cluster");
    let options = Options::new(ca.server(&["127.0.0.1"]));
    let server = ApiServer::start(options, |_| Reply::json("{}")).await;
    let url = format!("https://{}", server.addr());
    let dir = skewbridge_testkit::ScratchDir::new();
    let file = dir.write("token", "first-secret\n");
    let user = format!("tokenFile: {}", file.display());
    let target = target(&url, &trusting(&ca), &user);
    let endpoint = Endpoint::prepare(&target, TIMEOUT).await.unwrap();
    for token in ["first-secret", "second-secret"] {
        dir.write("token", format!("{token}\n"));
        let mut connection = endpoint.connect().await.unwrap();
        connection.send(&Request::get("/")).await.unwrap();
        let seen = server.requests().pop().unwrap();
        assert_eq!(
            seen.header("authorization"),
            Some(&*format!("Bearer {token}"))
        );
        let headers = endpoint.credential_headers().await.unwrap();
        assert_eq!(headers["authorization"], format!("Bearer {token}"));
    }
}
