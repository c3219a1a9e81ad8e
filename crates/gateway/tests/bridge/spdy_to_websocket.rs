//! Exec and port-forward over SPDY through a bridge whose path to upstream carries only WebSocket
//! (`--upstream-streams=websocket`).

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use skewbridge_gateway::config::UpstreamStreams;
use skewbridge_remotecommand::{ChannelEvent, Input, Output, Protocol, ToClient};
use skewbridge_spdy::connection;
use skewbridge_spdy::frame::ResetStatus;
use skewbridge_spdy::{Config, Headers};
use skewbridge_testkit::{ApiServer, ClientAuth, Options, Reply, TEST_TIMEOUT};
use skewbridge_websocket::{Close, CloseCode, Control, Event, Role};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::support::pki::{PkiFixture, start};
use crate::support::websocket_upstream::{
    ACCESS_REVIEWS_PATH, EXEC, FORWARD, SUCCESS, SpdyClient, WebSocketServer, WebSocketUpstream,
    start_bridge, start_bridge_with, upgrade_request,
};

#[tokio::test]
async fn a_spdy_command_runs_over_a_websocket_only_path() {
    let pki = PkiFixture::new();
    let mut upstream = WebSocketUpstream::start(&pki).await;
    let bridge = start_bridge(&pki, &upstream).await;
    let user = pki.user("alice", &["dev"]);
    let mut client = SpdyClient::open(&user, &bridge, "v4.channel.k8s.io").await;
    let mut server = WebSocketServer::accept(upstream.next_connection().await);
    server.write(Output::Stdout, "").await;
    client
        .streams
        .get_mut("stdin")
        .unwrap()
        .sender
        .write("in".into())
        .await
        .unwrap();
    let expected = ChannelEvent::Data(Input::Stdin, Bytes::from_static(b"in"));
    assert_eq!(server.next_event().await, Some(expected));
    client
        .streams
        .get_mut("stdin")
        .unwrap()
        .sender
        .finish()
        .unwrap();
    assert_eq!(
        server.next_event().await,
        Some(ChannelEvent::Closed(Input::Stdin))
    );
    server.write(Output::Stdout, "out").await;
    server.write(Output::Stderr, "err").await;
    server.write(Output::Error, SUCCESS).await;
    server.close().await;
    assert_eq!(client.read_to_end("stdout").await, ("out".to_owned(), true));
    assert_eq!(client.read_to_end("stderr").await, ("err".to_owned(), true));
    assert_eq!(
        client.read_to_end("error").await,
        (SUCCESS.to_owned(), true)
    );

    let recorded_requests = &upstream.requests_to(EXEC)[0];
    assert_eq!(recorded_requests.method.as_str(), "GET");
    assert_eq!(recorded_requests.target, EXEC);
    assert_eq!(
        recorded_requests.header("sec-websocket-protocol"),
        Some("v5.channel.k8s.io")
    );
    assert_eq!(recorded_requests.header("x-stream-protocol-version"), None);
    assert_eq!(recorded_requests.header("x-remote-user"), Some("alice"));
    let review = &upstream.requests_to(ACCESS_REVIEWS_PATH)[0];
    assert_eq!(review.header("x-remote-user"), Some("alice"));
    assert_eq!(review.header("upgrade"), None);
    let conditional_request: serde_json::Value = serde_json::from_slice(&review.body).unwrap();
    let attributes = &conditional_request["spec"]["resourceAttributes"];
    assert_eq!(attributes["verb"], "create");
    assert_eq!(attributes["subresource"], "exec");
    assert_eq!(attributes["name"], "p");
}

#[tokio::test]
async fn a_user_without_the_create_permission_is_rejected_before_the_command_runs() {
    let pki = PkiFixture::new();
    let upstream = WebSocketUpstream::start(&pki).await;
    let bridge = start_bridge(&pki, &upstream).await;
    upstream.allows.store(false, Ordering::Relaxed);
    for (path, offers) in [(EXEC, "v4.channel.k8s.io"), (FORWARD, "portforward.k8s.io")] {
        let mut http = pki.client().http1(bridge.address()).await.unwrap();
        http.send(upgrade_request(path, offers)).await.unwrap();
        let answer = http.read_response().await.unwrap();
        assert_eq!(answer.status, 403);
        let text = answer.text();
        assert!(text.contains(r#""reason":"Forbidden""#), "{text}");
        assert!(
            text.contains("cannot create resource") && text.contains("because"),
            "{text}"
        );
        assert!(upstream.requests_to(path).is_empty());
    }
}

#[tokio::test]
async fn every_protocol_version_gets_the_status_of_the_command() {
    let pki = PkiFixture::new();
    let mut upstream = WebSocketUpstream::start(&pki).await;
    let bridge = start_bridge(&pki, &upstream).await;
    let exit = r#"{"metadata":{},"status":"Failure","message":"command terminated with non-zero exit code: command terminated with exit code 3","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}"#;
    let words = "command terminated with non-zero exit code: command terminated with exit code 3";
    for (protocol, received) in [
        ("v4.channel.k8s.io", exit),
        ("v3.channel.k8s.io", words),
        ("v2.channel.k8s.io", words),
        ("channel.k8s.io", words),
    ] {
        let mut client = SpdyClient::open(&pki.client(), &bridge, protocol).await;
        let mut server = WebSocketServer::accept(upstream.next_connection().await);
        server.write(Output::Error, exit).await;
        server.close().await;
        assert_eq!(
            client.read_to_end("error").await,
            (received.to_owned(), true),
            "{protocol}"
        );
        // A disconnected stream reports an error.
        let mut client = SpdyClient::open(&pki.client(), &bridge, protocol).await;
        let mut server = WebSocketServer::accept(upstream.next_connection().await);
        server.write(Output::Stdout, "half").await;
        assert_eq!(
            client
                .streams
                .get_mut("stdout")
                .unwrap()
                .receiver
                .read()
                .await
                .unwrap(),
            Some("half".into())
        );
        drop(server);
        let (received, _) = client.read_to_end("error").await;
        assert!(
            received.contains("connection was lost"),
            "{protocol}: {received}"
        );
        // So does a stream that is closed cleanly without a status.
        let mut client = SpdyClient::open(&pki.client(), &bridge, protocol).await;
        WebSocketServer::accept(upstream.next_connection().await)
            .close()
            .await;
        let (received, _) = client.read_to_end("error").await;
        assert!(
            received.contains("connection was lost"),
            "{protocol}: {received}"
        );
    }
}

#[tokio::test]
async fn a_client_that_disconnects_closes_the_upstream_stream() {
    let pki = PkiFixture::new();
    let mut upstream = WebSocketUpstream::start(&pki).await;
    let bridge = start_bridge(&pki, &upstream).await;
    let client = SpdyClient::open(&pki.client(), &bridge, "v4.channel.k8s.io").await;
    let mut server = WebSocketServer::accept(upstream.next_connection().await);
    server.write(Output::Stdout, "").await;
    client.handle.close();
    drop(client);
    let left = timeout(Duration::from_secs(10), async {
        while server.next_event().await.is_some() {}
    });
    left.await.unwrap();
}

#[tokio::test]
async fn an_upstream_without_websocket_support_is_reported() {
    let pki = PkiFixture::new();
    let options =
        Options::new(pki.upstream.clone()).clients(ClientAuth::Accept(&pki.front_proxy_ca));
    let api = ApiServer::start(options, |recorded| match recorded.path() {
        "/version" => Reply::json(r#"{"gitVersion":"v1.28.15"}"#),
        ACCESS_REVIEWS_PATH => Reply::json(r#"{"status":{"allowed":true}}"#).status(201),
        _ if recorded.header("upgrade").is_some() => Reply::new(403),
        _ => Reply::json("{}"),
    })
    .await;
    let mut config = pki.config(api.addr());
    config.streams.upstream = UpstreamStreams::WebSocket;
    let bridge = start(&config);
    let mut http = pki.client().http1(bridge.address()).await.unwrap();
    http.send(upgrade_request(EXEC, "v4.channel.k8s.io"))
        .await
        .unwrap();
    let answer = http.read_response().await.unwrap();
    assert_eq!(answer.status, 502);
    assert!(
        answer.text().contains("--upstream-streams=websocket"),
        "{}",
        answer.text()
    );
}

#[tokio::test]
async fn a_reset_stdin_does_not_look_complete() {
    let pki = PkiFixture::new();
    let mut upstream = WebSocketUpstream::start(&pki).await;
    let bridge = start_bridge(&pki, &upstream).await;
    let mut client = SpdyClient::open(&pki.client(), &bridge, "v4.channel.k8s.io").await;
    let mut server = WebSocketServer::accept(upstream.next_connection().await);
    let mut stdin = client.streams.remove("stdin").unwrap();
    stdin.sender.write("half of".into()).await.unwrap();
    assert!(matches!(
        server.next_event().await,
        Some(ChannelEvent::Data(Input::Stdin, _))
    ));
    stdin.reset(ResetStatus::Cancel);
    // No more data, and no close signal.
    let end = timeout(TEST_TIMEOUT, server.next_event()).await.unwrap();
    assert!(end.is_none(), "{end:?}");
    let (received, successes) = client.read_to_end("error").await;
    assert!(
        !successes || !received.is_empty(),
        "the client would take it for success"
    );
}

#[tokio::test]
async fn a_port_forward_is_wrapped_into_a_websocket() {
    let pki = PkiFixture::new();
    let mut upstream = WebSocketUpstream::start(&pki).await;
    let bridge = start_bridge(&pki, &upstream).await;
    let mut http = pki.client().http1(bridge.address()).await.unwrap();
    http.send(upgrade_request(FORWARD, "portforward.k8s.io"))
        .await
        .unwrap();
    let head = http.read_head().await.unwrap();
    assert_eq!(
        (head.status, head.header("x-stream-protocol-version")),
        (101, Some("portforward.k8s.io"))
    );
    let mut client_io = http.into_connection();
    let mut server_io = WebSocketServer::accept(upstream.next_connection().await);
    assert_eq!(
        upstream.requests_to(FORWARD)[0].header("sec-websocket-protocol"),
        Some("SPDY/3.1+portforward.k8s.io")
    );
    client_io.write_all(b"up").await.unwrap();
    client_io.flush().await.unwrap();
    loop {
        if let Some(Event::Chunk(piece)) = server_io.decoder.decode(&mut server_io.input).unwrap() {
            assert_eq!(piece.bytes, "up");
            break;
        }
        assert!(server_io.io.read_buf(&mut server_io.input).await.unwrap() > 0);
    }
    let mut out = BytesMut::new();
    let frame = skewbridge_websocket::Frame::Whole(skewbridge_websocket::MessageKind::Binary);
    skewbridge_websocket::Encoder::new(Role::Server).write(frame, &[b"down"], &mut out);
    server_io.io.write_all(&out).await.unwrap();
    server_io.io.flush().await.unwrap();
    let mut down = [0; 4];
    client_io.read_exact(&mut down).await.unwrap();
    assert_eq!(&down, b"down");
    server_io.close().await;
    assert_eq!(client_io.read(&mut down).await.unwrap(), 0);
}

#[tokio::test]
async fn an_idle_spdy_client_gets_the_reason_of_its_disconnection() {
    let pki = PkiFixture::new();
    let mut upstream = WebSocketUpstream::start(&pki).await;
    let bridge = start_bridge_with(&pki, &upstream, |config| {
        config.streams.idle_timeout = Duration::from_millis(500);
    })
    .await;
    let mut client = SpdyClient::open(&pki.client(), &bridge, "v4.channel.k8s.io").await;
    let _server = WebSocketServer::accept(upstream.next_connection().await);
    let (received, _) = client.read_to_end("error").await;
    assert!(
        received.contains("idle-timeout"),
        "client-go takes silence for success: {received:?}"
    );
}

#[tokio::test]
async fn a_slow_spdy_client_does_not_disconnect_upstream() {
    const BYTES_SENT: usize = 4 << 20;
    let pki = PkiFixture::new();
    let mut upstream = WebSocketUpstream::start(&pki).await;
    let bridge = start_bridge_with(&pki, &upstream, |config| {
        config.streams.ping_interval = Duration::from_millis(400);
    })
    .await;
    let mut client = SpdyClient::open(&pki.client(), &bridge, "v4.channel.k8s.io").await;
    let mut server = WebSocketServer::accept(upstream.next_connection().await);
    let serving = tokio::spawn(async move {
        let data = "y".repeat(BYTES_SENT);
        server.write(Output::Stdout, &data).await;
        server.write(Output::Error, SUCCESS).await;
        server.close().await;
    });
    // The sleep proves an absence: upstream is not disconnected while the client does not read. One
    // and a half ping intervals are 0.6 s.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (stdout, _) = client.read_to_end("stdout").await;
    let (error, _) = client.read_to_end("error").await;
    assert_eq!((stdout.len(), &*error), (BYTES_SENT, SUCCESS));
    serving.await.unwrap();
}

#[tokio::test]
async fn a_process_that_reads_late_keeps_its_spdy_client() {
    const BYTES_SENT: usize = 16 << 20;
    let pki = PkiFixture::new();
    let mut upstream = WebSocketUpstream::start(&pki).await;
    let bridge = start_bridge_with(&pki, &upstream, |config| {
        config.streams.ping_interval = Duration::from_millis(300);
    })
    .await;
    let mut http = pki.client().http1(bridge.address()).await.unwrap();
    http.send(upgrade_request(EXEC, "v4.channel.k8s.io"))
        .await
        .unwrap();
    assert_eq!(http.read_head().await.unwrap().status, 101);
    // Like moby/spdystream: without windows.
    let config = Config {
        flow_control: skewbridge_spdy::FlowControl::Never,
        ..Config::default()
    };
    let (handle, incoming, driver) = connection::client(http.into_connection(), config);
    drop(incoming);
    tokio::spawn(driver);
    let mut streams = ["error", "stdin", "stdout", "stderr"].map(|name| {
        let headers = Headers::new().with("streamtype", name);
        handle.open(headers).unwrap()
    });
    let mut server = WebSocketServer::accept(upstream.next_connection().await);
    let _ = streams[1].sender.send(vec![7; BYTES_SENT].into());
    // The sleep proves an absence: the client is not disconnected after six ping intervals, which
    // are 1.8 s.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let mut read = 0;
    while read < BYTES_SENT {
        match server.next_event().await {
            Some(ChannelEvent::Data(Input::Stdin, data)) => read += data.len(),
            other => panic!("after {read} of {BYTES_SENT}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_spdy_client_that_pauses_at_the_end_loses_no_output() {
    const BYTES_SENT: usize = 400 * 1024;
    let pki = PkiFixture::new();
    let mut upstream = WebSocketUpstream::start(&pki).await;
    let bridge = start_bridge(&pki, &upstream).await;
    let mut client = SpdyClient::open(&pki.client(), &bridge, "v4.channel.k8s.io").await;
    let mut server = WebSocketServer::accept(upstream.next_connection().await);
    let serving = tokio::spawn(async move {
        let data = "y".repeat(BYTES_SENT);
        server.write(Output::Stdout, &data).await;
        server.write(Output::Error, SUCCESS).await;
        server.close().await;
    });
    // The sleep proves an absence: the client is not disconnected during its pause.
    tokio::time::sleep(Duration::from_secs(8)).await;
    let (stdout, _) = client.read_to_end("stdout").await;
    let (error, _) = client.read_to_end("error").await;
    assert_eq!((stdout.len(), &*error), (BYTES_SENT, SUCCESS));
    serving.await.unwrap();
}

#[tokio::test]
async fn unrequested_streams_are_refused() {
    let pki = PkiFixture::new();
    let mut upstream = WebSocketUpstream::start(&pki).await;
    let bridge = start_bridge(&pki, &upstream).await;
    let mut client = SpdyClient::open(&pki.client(), &bridge, "v4.channel.k8s.io").await;
    let _server = WebSocketServer::accept(upstream.next_connection().await);
    for stream in client.streams.values_mut() {
        stream.accepted().await.unwrap();
    }
    let headers = Headers::new().with("streamtype", "stdin");
    let mut more = client.handle.open(headers).unwrap();
    let answered = timeout(Duration::from_secs(5), more.accepted()).await;
    assert!(matches!(answered, Ok(Err(_))), "{answered:?}");
}

#[tokio::test]
async fn a_bridge_that_shuts_down_reports_it_to_spdy_clients() {
    let pki = PkiFixture::new();
    let mut upstream = WebSocketUpstream::start(&pki).await;
    let mut bridge = start_bridge_with(&pki, &upstream, |config| {
        config.shutdown.delay = Duration::ZERO;
        config.shutdown.drain = Duration::from_secs(1);
    })
    .await;
    let mut client = SpdyClient::open(&pki.client(), &bridge, "v4.channel.k8s.io").await;
    let _server = WebSocketServer::accept(upstream.next_connection().await);
    let leaving = tokio::spawn(async move { bridge.finish().await });
    let (received, _) = client.read_to_end("error").await;
    assert!(!received.is_empty(), "client-go takes silence for success");
    leaving.await.unwrap();
}

#[tokio::test]
async fn a_client_that_disconnects_during_output_disconnects_upstream_too() {
    let pki = PkiFixture::new();
    let mut upstream = WebSocketUpstream::start(&pki).await;
    let bridge = start_bridge(&pki, &upstream).await;
    let mut client = SpdyClient::open(&pki.client(), &bridge, "v4.channel.k8s.io").await;
    let mut server_io = upstream.next_connection().await;
    let mut flood = BytesMut::new();
    let mut writer = ToClient::new(Protocol::V5);
    writer.write(Output::Stdout, &vec![b'y'; 32 * 1024], &mut flood);
    let writing = tokio::spawn(async move {
        while server_io.write_all(&flood).await.is_ok() && server_io.flush().await.is_ok() {}
    });
    let stdout = &mut client.streams.get_mut("stdout").unwrap().receiver;
    assert!(stdout.read().await.unwrap().is_some());
    client.driver.abort();
    // kube-apiserver keeps a command running for as long as its output is read.
    let left = timeout(Duration::from_secs(4), writing).await;
    left.expect("the upstream connection is closed").unwrap();
}

#[tokio::test]
async fn output_sent_before_upstream_stopped_reading_is_delivered() {
    let pki = PkiFixture::new();
    let mut upstream = WebSocketUpstream::start(&pki).await;
    let bridge = start_bridge(&pki, &upstream).await;
    for turn in 0..20 {
        let mut client = SpdyClient::open(&pki.client(), &bridge, "v4.channel.k8s.io").await;
        let mut server_io = upstream.next_connection().await;
        let mut stdin = client.streams.remove("stdin").unwrap();
        let writing = tokio::spawn(async move {
            let data = Bytes::from(vec![b'x'; 32 * 1024]);
            while stdin.sender.write(data.clone()).await.is_ok() {}
        });
        // A command that succeeds with unread input: the rest of the input is reset.
        let mut some = [0; 1024];
        server_io.read_exact(&mut some).await.unwrap();
        let mut out = BytesMut::new();
        let mut writer = ToClient::new(Protocol::V5);
        writer.write(Output::Stdout, b"out", &mut out);
        writer.write(Output::Error, SUCCESS.as_bytes(), &mut out);
        let close = Close::new(CloseCode::NORMAL, "");
        writer.control(&Control::Close(Some(close)), &mut out);
        server_io.write_all(&out).await.unwrap();
        server_io.flush().await.unwrap();
        drop(server_io);
        assert_eq!(client.read_to_end("stdout").await.0, "out", "{turn}");
        assert_eq!(client.read_to_end("error").await.0, SUCCESS, "{turn}");
        writing.abort();
    }
}
