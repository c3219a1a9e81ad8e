//! Exec, attach and port-forward over WebSocket, in front of a server and nodes that support only
//! SPDY (KEP-4006).

use std::sync::Arc;
use std::time::Duration;

use skewbridge_gateway::config::TranslateStreams;
use skewbridge_remotecommand::{Input, Output, Protocol};
use skewbridge_testkit::{Reply, TEST_TIMEOUT, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::support::pki::PkiFixture;
use crate::support::spdy_upstream::{
    ClientMessage, EXEC, FORWARD, SUCCESS, SpdyUpstream, VERSION_WITH_TRANSLATION,
    VERSION_WITHOUT_TRANSLATION, WebSocket, always_translate, has_metric, metrics, start_bridge,
    text, upgrade_request,
};

const TTY_EXEC: &str =
    "/api/v1/namespaces/n/pods/p/exec?command=sh&stdin=true&stdout=true&tty=true";

#[tokio::test]
async fn attach_is_translated_and_counted_as_attach() {
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with_version(&pki, VERSION_WITHOUT_TRANSLATION).await;
    let bridge = start_bridge(&pki, &cluster, |_| ()).await;
    let path = EXEC.replace("exec?command=sh&", "attach?");
    let mut client = WebSocket::open(&pki.client(), bridge.address(), &path, Protocol::V5).await;
    let mut node = cluster.next_command(4).await;
    node.write("stdout", "out").await;
    node.end(SUCCESS).await;
    let transcript = client.read_to_end().await;
    assert_eq!(text(&transcript.stdout), "out");
    assert!(transcript.looks_successful());
    assert_eq!(cluster.stream_requests()[0].target, path);
    drop(client);
    eventually("metrics", TEST_TIMEOUT, async || {
        has_metric(&bridge, r#"skewbridge_streams_total{kind="attach",client="websocket",upstream="spdy",outcome="complete",result="complete"} 1"#).await
    })
    .await;
}

#[tokio::test]
async fn a_command_runs_over_websocket_on_a_node_that_supports_only_spdy() {
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with_version(&pki, VERSION_WITHOUT_TRANSLATION).await;
    let bridge = start_bridge(&pki, &cluster, |_| ()).await;
    let user = pki.user("alice", &["dev"]);
    let mut client = WebSocket::open(&user, bridge.address(), EXEC, Protocol::V5).await;
    let mut node = cluster.next_command(4).await;
    assert_eq!(node.order, ["error", "stdin", "stdout", "stderr"]);
    // The empty message that servers send first.
    assert_eq!(
        client.next_message().await.unwrap(),
        ClientMessage::Data(Output::Stdout, "".into())
    );

    client.write(Input::Stdin, b"hello").await.unwrap();
    assert_eq!(node.read("stdin").await.unwrap(), "hello");
    client.close_stdin().await;
    assert_eq!(node.read("stdin").await, None);
    node.write("stdout", "out").await;
    node.write("stderr", "err").await;
    node.end(SUCCESS).await;
    let transcript = client.read_to_end().await;
    assert_eq!(
        (text(&transcript.stdout), text(&transcript.stderr)),
        ("out", "err")
    );
    assert_eq!((&*transcript.error, transcript.code), (SUCCESS, Some(1000)));

    let recorded_requests = cluster.stream_requests();
    assert_eq!(
        recorded_requests.len(),
        1,
        "no other request was tried before"
    );
    assert_eq!(recorded_requests[0].method, "POST");
    assert_eq!(recorded_requests[0].target, EXEC);
    assert_eq!(recorded_requests[0].header("x-remote-user"), Some("alice"));
    assert_eq!(
        recorded_requests[0].all("x-stream-protocol-version"),
        ["v4.channel.k8s.io"]
    );
    assert_eq!(recorded_requests[0].header("sec-websocket-key"), None);
    drop(client);
    eventually("metrics", TEST_TIMEOUT, async || {
        has_metric(&bridge, r#"apiserver_stream_translator_requests_total{code="200"} 1"#).await
            && has_metric(&bridge, r#"skewbridge_streams_total{kind="exec",client="websocket",upstream="spdy",outcome="complete",result="complete"} 1"#).await
            && has_metric(&bridge, r#"skewbridge_stream_bytes_total{kind="exec",direction="up"} 5"#).await
            && has_metric(&bridge, r#"skewbridge_stream_bytes_total{kind="exec",direction="down"} 6"#).await
            && has_metric(&bridge, r#"skewbridge_streams_open{kind="exec"} 0"#).await
    })
    .await;
}

#[tokio::test]
async fn an_exit_code_is_forwarded_verbatim() {
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with_version(&pki, VERSION_WITHOUT_TRANSLATION).await;
    let bridge = start_bridge(&pki, &cluster, |_| ()).await;
    // An exit code above `i32::MAX`, as on Windows.
    let status = r#"{"metadata":{},"status":"Failure","message":"command terminated with non-zero exit code","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3221225786"}],"x":1}}"#;
    let mut client = WebSocket::open(&pki.client(), bridge.address(), EXEC, Protocol::V5).await;
    cluster.next_command(4).await.end(status).await;
    let transcript = client.read_to_end().await;
    assert_eq!((&*transcript.error, transcript.code), (status, Some(1000)));
}

#[tokio::test]
async fn a_terminal_has_resize_events_and_no_stderr() {
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with_version(&pki, VERSION_WITHOUT_TRANSLATION).await;
    let bridge = start_bridge(&pki, &cluster, |_| ()).await;
    let mut client = WebSocket::open(&pki.client(), bridge.address(), TTY_EXEC, Protocol::V5).await;
    let mut node = cluster.next_command(4).await;
    assert_eq!(node.order, ["error", "stdin", "stdout", "resize"]);
    let size = br#"{"Width":80,"Height":24}"#;
    client.write(Input::Resize, size).await.unwrap();
    assert_eq!(node.read("resize").await.unwrap(), &size[..]);
    node.end(SUCCESS).await;
    assert!(client.read_to_end().await.looks_successful());
}

#[tokio::test]
async fn older_protocols_are_used_where_the_node_rejects_newer_ones() {
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with_version(&pki, VERSION_WITH_TRANSLATION).await;
    let bridge = start_bridge(&pki, &cluster, |_| ()).await;
    for protocol in Protocol::ALL {
        let mut client = WebSocket::open(&pki.client(), bridge.address(), EXEC, protocol).await;
        let mut node = cluster.next_command(4).await;
        client.write(Input::Stdin, b"\x00\xffin").await.unwrap();
        assert_eq!(node.read("stdin").await.unwrap(), &b"\x00\xffin"[..]);
        node.write("stdout", &b"\x00\xffout"[..]).await;
        let failure = r#"{"metadata":{},"status":"Failure","message":"command terminated with non-zero exit code: command terminated with exit code 3","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}"#;
        node.end(failure).await;
        let transcript = client.read_to_end().await;
        assert_eq!(transcript.stdout, b"\x00\xffout", "{protocol:?}");
        let expected = if protocol.version().has_status() {
            failure
        } else {
            "command terminated with non-zero exit code: command terminated with exit code 3"
        };
        assert_eq!(
            (&*transcript.error, transcript.code),
            (expected, Some(1000)),
            "{protocol:?}"
        );
    }
    // Each protocol is rejected once, and the result is cached.
    let each = Protocol::ALL.len();
    let recorded_requests = |method| {
        let recorded_requests = cluster.stream_requests();
        recorded_requests
            .iter()
            .filter(|recorded| recorded.method == method)
            .count()
    };
    assert_eq!(
        (recorded_requests("GET"), recorded_requests("POST")),
        (each, each)
    );
    for protocol in Protocol::ALL {
        WebSocket::open(&pki.client(), bridge.address(), EXEC, protocol).await;
    }
    assert_eq!(
        (recorded_requests("GET"), recorded_requests("POST")),
        (each, 2 * each)
    );
}

#[tokio::test]
async fn an_upstream_that_translates_itself_gets_the_websocket_request() {
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with(&pki, VERSION_WITH_TRANSLATION, Arc::new(|_| None)).await;
    let bridge = start_bridge(&pki, &cluster, |_| ()).await;
    let mut http = pki.client().http1(bridge.address()).await.unwrap();
    http.send(upgrade_request(EXEC, "v5.channel.k8s.io", ""))
        .await
        .unwrap();
    assert_eq!(http.read_head().await.unwrap().status, 101);
    let server_io = cluster.next_connection().await;
    let recorded_requests = cluster.stream_requests();
    assert_eq!(
        (
            recorded_requests.len(),
            recorded_requests[0].method.as_str()
        ),
        (1, "GET")
    );
    drop((server_io, http));
    eventually("metrics", TEST_TIMEOUT, async || {
        let text = metrics(&bridge).await;
        text.contains(r#"client="websocket",upstream="websocket""#)
            && !text.contains("apiserver_stream_translator_requests_total{")
    })
    .await;
}

#[tokio::test]
async fn translate_always_and_never_override_the_version() {
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with(&pki, VERSION_WITH_TRANSLATION, Arc::new(|_| None)).await;
    let always = start_bridge(&pki, &cluster, always_translate).await;
    let mut client = WebSocket::open(&pki.client(), always.address(), EXEC, Protocol::V5).await;
    cluster.next_command(4).await.end(SUCCESS).await;
    assert!(client.read_to_end().await.looks_successful());

    let old = SpdyUpstream::with_version(&pki, VERSION_WITHOUT_TRANSLATION).await;
    let never = start_bridge(&pki, &old, |config| {
        config.streams.translate = TranslateStreams::Never;
    })
    .await;
    let mut http = pki.client().http1(never.address()).await.unwrap();
    http.send(upgrade_request(EXEC, "v5.channel.k8s.io", ""))
        .await
        .unwrap();
    assert_eq!(http.read_head().await.unwrap().status, 403);
}

#[tokio::test]
async fn errors_before_the_upgrade_are_http_responses() {
    let pki = PkiFixture::new();
    let cluster = SpdyUpstream::with(
        &pki,
        VERSION_WITHOUT_TRANSLATION,
        Arc::new(|recorded| {
            let forbidden = Reply::json(r#"{"kind":"Status","code":403}"#).status(403);
            recorded.header("upgrade").map(|_| forbidden)
        }),
    )
    .await;
    let bridge = start_bridge(&pki, &cluster, |_| ()).await;
    for (path, offer, name) in [
        (EXEC, "v5.channel.k8s.io", "translator"),
        (FORWARD, "SPDY/3.1+portforward.k8s.io", "tunnel"),
    ] {
        let mut http = pki.client().http1(bridge.address()).await.unwrap();
        http.send(upgrade_request(path, offer, "")).await.unwrap();
        let answer = http.read_response().await.unwrap();
        assert_eq!(
            (answer.status, &*answer.text()),
            (403, r#"{"kind":"Status","code":403}"#)
        );
        let line = format!(r#"apiserver_stream_{name}_requests_total{{code="403"}} 1"#);
        assert!(has_metric(&bridge, &line).await, "{line}");
    }
}

#[tokio::test]
async fn a_token_in_the_websocket_subprotocol_authenticates() {
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with_version(&pki, VERSION_WITHOUT_TRANSLATION).await;
    let bridge = start_bridge(&pki, &cluster, always_translate).await;
    let mut http = pki.client().http1(bridge.address()).await.unwrap();
    let offers = "base64url.bearer.authorization.k8s.io.dG9rZW4, base64.channel.k8s.io";
    http.send(upgrade_request(EXEC, offers, "")).await.unwrap();
    let head = http.read_head().await.unwrap();
    assert_eq!(
        head.header("sec-websocket-protocol"),
        Some("base64.channel.k8s.io")
    );
    let _node = cluster.next_command(4).await;
    assert_eq!(
        cluster.stream_requests()[0].header("authorization"),
        Some("Bearer token")
    );
    assert_eq!(
        cluster.stream_requests()[0].header("sec-websocket-protocol"),
        None
    );
}

#[tokio::test]
async fn idle_streams_are_pinged() {
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with_version(&pki, VERSION_WITHOUT_TRANSLATION).await;
    let bridge = start_bridge(&pki, &cluster, |config| {
        config.streams.ping_interval = Duration::from_millis(200);
    })
    .await;
    let mut client = WebSocket::open(&pki.client(), bridge.address(), EXEC, Protocol::V5).await;
    let node = cluster.next_command(4).await;
    client.next_message().await.unwrap();
    let pinged = async {
        while client.pings < 3 {
            client.answer_next_ping().await;
        }
    };
    timeout(TEST_TIMEOUT, pinged).await.expect("three pings");
    node.end(SUCCESS).await;
    assert!(client.read_to_end().await.looks_successful());
}

#[tokio::test]
async fn a_port_forward_is_unwrapped_from_its_websocket() {
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with_version(&pki, VERSION_WITHOUT_TRANSLATION).await;
    let bridge = start_bridge(&pki, &cluster, |_| ()).await;
    let mut http = pki.client().http1(bridge.address()).await.unwrap();
    http.send(upgrade_request(FORWARD, "SPDY/3.1+portforward.k8s.io", ""))
        .await
        .unwrap();
    let head = http.read_head().await.unwrap();
    assert_eq!(
        head.header("sec-websocket-protocol"),
        Some("SPDY/3.1+portforward.k8s.io")
    );
    let mut client = WebSocket::accept(http.into_connection(), Protocol::V5);
    let mut server_io = cluster.next_connection().await;
    let recorded_requests = &cluster.stream_requests()[0];
    assert_eq!(
        (
            recorded_requests.method.as_str(),
            recorded_requests.header("upgrade")
        ),
        ("POST", Some("SPDY/3.1"))
    );
    assert_eq!(
        recorded_requests.header("x-stream-protocol-version"),
        Some("portforward.k8s.io")
    );

    client.binary(b"up").await;
    let mut up = [0; 2];
    server_io.read_exact(&mut up).await.unwrap();
    assert_eq!(&up, b"up");
    server_io.write_all(b"down").await.unwrap();
    server_io.flush().await.unwrap();
    assert_eq!(client.next_chunk().await.bytes, "down");
    server_io.shutdown().await.unwrap();
    assert_eq!(
        client.next_message().await.unwrap(),
        ClientMessage::Closed(1000, String::new())
    );
    assert!(
        has_metric(
            &bridge,
            r#"apiserver_stream_tunnel_requests_total{code="101"} 1"#
        )
        .await
    );
}

#[tokio::test]
async fn a_node_that_rejects_v3_may_still_support_other_protocols() {
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with(
        &pki,
        VERSION_WITH_TRANSLATION,
        Arc::new(|recorded| {
            let v3 = recorded.header("sec-websocket-protocol") == Some("v3.channel.k8s.io");
            v3.then(|| Reply::new(403))
        }),
    )
    .await;
    let bridge = start_bridge(&pki, &cluster, |_| ()).await;
    let _client_v3 = WebSocket::open(
        &pki.client(),
        bridge.address(),
        EXEC,
        Protocol::from_name("v3.channel.k8s.io").unwrap(),
    )
    .await;
    let _node = cluster.next_command(4).await;
    // Clients that may only `get` would be denied a POST.
    for offer in ["v5", "v4", "base64"].map(|it| format!("{it}.channel.k8s.io")) {
        let mut http = pki.client().http1(bridge.address()).await.unwrap();
        http.send(upgrade_request(EXEC, &offer, "")).await.unwrap();
        assert_eq!(http.read_head().await.unwrap().status, 101);
    }
    let methods: Vec<_> = cluster
        .stream_requests()
        .iter()
        .map(|it| it.method.to_string())
        .collect();
    assert_eq!(methods, ["GET", "POST", "GET", "GET", "GET"]);
}

#[tokio::test]
async fn a_status_in_yaml_is_parsed() {
    let pki = PkiFixture::new();
    let cluster = SpdyUpstream::with(
        &pki,
        VERSION_WITH_TRANSLATION,
        Arc::new(|recorded| {
            (recorded.header("upgrade") == Some("websocket")).then(|| {
                Reply::new(403)
                    .header("Content-Type", "application/yaml")
                    .body("kind: Status\ncode: 403\n")
            })
        }),
    )
    .await;
    let bridge = start_bridge(&pki, &cluster, |_| ()).await;
    let mut http = pki.client().http1(bridge.address()).await.unwrap();
    http.send(upgrade_request(
        EXEC,
        "v5.channel.k8s.io",
        "Accept: application/yaml\r\n",
    ))
    .await
    .unwrap();
    assert_eq!(http.read_head().await.unwrap().status, 403);
}
