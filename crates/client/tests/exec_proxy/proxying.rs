//! KEP-2718, "Proxy Proposal" and "Authentication to Proxy".

use http::{Method, StatusCode};
use serde_json::{Value, json};
use skewbridge_client::{Endpoint, Request};
use skewbridge_testkit::{Reply, TEST_TIMEOUT, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::fixture::{Fixture, KEY_OWNER, PluginKind, Socket, TIMEOUTS, get, is_gone};

#[tokio::test]
async fn the_plugin_is_executed_by_the_client_on_first_use() {
    let fixture = Fixture::new(PluginKind::Itself).await;
    let target = fixture.target();
    assert_eq!(fixture.execs(), 0);
    let endpoint = Endpoint::prepare_with_timeouts(&target, TIMEOUTS)
        .await
        .unwrap();
    assert_eq!(fixture.execs(), 1);
    for path in ["/one", "/two"] {
        let answer = get(&endpoint, path).await.unwrap();
        assert_eq!(answer, format!("{KEY_OWNER} {path}"));
    }
    assert_eq!(fixture.execs(), 1);
}

#[tokio::test]
async fn sequential_requests_share_one_connection_to_the_proxy() {
    let fixture = Fixture::new(PluginKind::Itself).await;
    let endpoint = fixture.endpoint().await;
    for path in ["/one", "/two", "/three"] {
        let answer = endpoint.send(&Request::get(path)).await.unwrap();
        assert_eq!(answer.body, format!("{KEY_OWNER} {path}"));
    }
    // The plugin opens one connection for each that it accepts.
    assert_eq!(fixture.server.connections(), 1);
}

#[tokio::test]
async fn a_plugin_binary_may_itself_be_the_proxy_process() {
    let fixture = Fixture::new(PluginKind::Itself).await;
    let endpoint = fixture.endpoint().await;
    assert_eq!(
        get(&endpoint, "/x").await.unwrap(),
        format!("{KEY_OWNER} /x")
    );
    let executed = fixture.recorded("execs");
    assert_eq!(executed.trim(), fixture.proxy().to_string());
}

#[tokio::test]
async fn a_plugin_binary_may_complete_and_have_started_a_proxy_process() {
    let fixture = Fixture::new(PluginKind::Starter).await;
    let endpoint = fixture.endpoint().await;
    assert_eq!(
        get(&endpoint, "/x").await.unwrap(),
        format!("{KEY_OWNER} /x")
    );
    let executed = fixture.recorded("execs").trim().parse().unwrap();
    assert_ne!(executed, fixture.proxy());
    eventually("the end of the plugin", TEST_TIMEOUT, async || {
        is_gone(executed)
    })
    .await;
    assert_eq!(
        get(&endpoint, "/y").await.unwrap(),
        format!("{KEY_OWNER} /y")
    );
    assert_eq!(fixture.execs(), 1);
}

#[tokio::test]
async fn a_proxy_may_listen_on_a_loopback_port() {
    let mut fixture = Fixture::new(PluginKind::Itself).await;
    fixture.socket = Socket::Tcp;
    let endpoint = fixture.endpoint().await;
    assert_eq!(
        get(&endpoint, "/x").await.unwrap(),
        format!("{KEY_OWNER} /x")
    );
}

#[tokio::test]
async fn the_plugin_gets_the_cluster_and_the_existing_proxy_configuration() {
    let fixture = Fixture::new(PluginKind::Itself).await;
    let mut plugin = fixture.plugin();
    let variables = plugin["env"].as_array_mut().unwrap();
    variables.push(json!({"name": "HTTPS_PROXY", "value": "http://p.invalid:1"}));
    let target = fixture.target_of("u", &plugin);
    let _endpoint = Endpoint::prepare_with_timeouts(&target, TIMEOUTS)
        .await
        .unwrap();
    let exec_info: Value = serde_json::from_str(&fixture.recorded("exec-info")).unwrap();
    let server = format!("https://{}", fixture.server.addr());
    assert_eq!(exec_info["kind"], "ExecCredential");
    assert_eq!(exec_info["apiVersion"], "client.authentication.k8s.io/v1");
    let cluster = &exec_info["spec"]["cluster"];
    assert_eq!(cluster["server"], *server);
    assert_eq!(cluster["proxy-url"], "http://proxy.invalid:3128");
    assert!(cluster["certificate-authority-data"].is_string());
    assert_eq!(exec_info["spec"]["interactive"], false);
    assert_eq!(fixture.recorded("https_proxy"), "http://p.invalid:1");
}

#[tokio::test]
async fn all_requests_use_the_proxy_including_watches_and_upgrades() {
    let (watch, events) = Reply::stream();
    let (spdy, spdy_stream) = Reply::upgrade("SPDY/3.1");
    let (websocket, websocket_stream) = Reply::upgrade("websocket");
    let replies = std::sync::Mutex::new([Some(watch), Some(spdy), Some(websocket)]);
    let fixture = Fixture::with(PluginKind::Itself, move |seen| {
        assert_eq!(seen.client.as_ref().unwrap().common_name, KEY_OWNER);
        let place = match seen.path() {
            "/watch" => 0,
            "/spdy" => 1,
            "/websocket" => 2,
            _ => return Reply::json(seen.header("authorization").unwrap_or("none").to_owned()),
        };
        replies.lock().unwrap()[place].take().unwrap()
    })
    .await;
    let mut fixture = fixture;
    fixture.extra = json!({"token": "from-the-plugin"});
    let endpoint = fixture.endpoint().await;
    assert_eq!(get(&endpoint, "/").await.unwrap(), "Bearer from-the-plugin");

    let mut connection = endpoint.connect().await.unwrap();
    let watch = async {
        let answer = connection.send(&Request::get("/watch")).await.unwrap();
        assert_eq!(answer.body, "one\ntwo\n");
    };
    let send_event = async {
        events.send("one\n").await.unwrap();
        events.send("two\n").await.unwrap();
        events.finish().await.unwrap();
    };
    tokio::join!(watch, send_event);

    for (path, protocol, far) in [
        ("/spdy", "SPDY/3.1", spdy_stream),
        ("/websocket", "websocket", websocket_stream),
    ] {
        let mut connection = endpoint.connect().await.unwrap();
        let request = Request::new(Method::POST, path)
            .header("connection", "Upgrade")
            .header("upgrade", protocol);
        let answer = connection.send(&request).await.unwrap();
        assert_eq!(answer.status, StatusCode::SWITCHING_PROTOCOLS);
        let (mut upgraded, early) = connection.into_parts().unwrap();
        assert!(early.is_empty());
        let mut far = far.connection().await;
        upgraded.write_all(b"ping").await.unwrap();
        upgraded.flush().await.unwrap();
        let mut received = [0; 4];
        far.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"ping");
        far.write_all(b"pong").await.unwrap();
        far.flush().await.unwrap();
        upgraded.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"pong");
    }
    assert_eq!(fixture.execs(), 1);
}

#[tokio::test]
async fn the_plugin_is_executed_again_when_no_one_is_listening() {
    for kind in [PluginKind::Itself, PluginKind::Starter] {
        let fixture = Fixture::new(kind).await;
        let endpoint = fixture.endpoint().await;
        get(&endpoint, "/").await.unwrap();
        let first = fixture.proxy();
        let pid = rustix::process::Pid::from_raw(first).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        eventually("the end of the proxy", TEST_TIMEOUT, async || {
            is_gone(first)
        })
        .await;
        assert_eq!(
            get(&endpoint, "/x").await.unwrap(),
            format!("{KEY_OWNER} /x")
        );
        assert_eq!(fixture.execs(), 2, "{kind:?}");
        assert_ne!(fixture.proxy(), first);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_callers_share_one_exec_when_no_one_is_listening() {
    for kind in [PluginKind::Itself, PluginKind::Starter] {
        let fixture = Fixture::new(kind).await;
        let endpoint = fixture.endpoint().await;
        let first = fixture.proxy();
        let pid = rustix::process::Pid::from_raw(first).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        eventually("the end of the proxy", TEST_TIMEOUT, async || {
            is_gone(first)
        })
        .await;
        let mut all = tokio::task::JoinSet::new();
        for number in 0..20 {
            let endpoint = endpoint.clone();
            all.spawn(async move {
                let path = format!("/{number}");
                let answer = get(&endpoint, &path).await.unwrap();
                assert_eq!(answer, format!("{KEY_OWNER} {path}"));
            });
        }
        all.join_all().await;
        assert_eq!(fixture.execs(), 2, "{kind:?}");
    }
}

#[tokio::test]
async fn the_proxy_rejects_clients_without_its_certificate() {
    let fixture = Fixture::new(PluginKind::Itself).await;
    let _endpoint = fixture.endpoint().await;
    let socket = tokio::net::UnixStream::connect(fixture.socket_path())
        .await
        .unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    let pem = fixture.recorded("plugin-ca.crt");
    let found = rustls_pki_types::pem::PemObject::from_pem_slice(pem.as_bytes());
    roots.add(found.unwrap()).unwrap();
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    let name = rustls_pki_types::ServerName::try_from("plugin.invalid").unwrap();
    // In TLS 1.3 a client learns of it when it reads.
    let refused = async {
        let mut stream = connector.connect(name, socket).await?;
        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            .await?;
        stream.read_u8().await
    };
    assert!(refused.await.is_err());
    assert!(fixture.server.requests().is_empty());
}
