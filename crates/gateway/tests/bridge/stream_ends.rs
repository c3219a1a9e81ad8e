//! How translated streams end, and what does not end them: no data is lost, and a disconnected
//! stream never looks successful.

use std::sync::Arc;
use std::time::{Duration, Instant};

use skewbridge_remotecommand::{Input, Protocol};
use skewbridge_testkit::{TEST_TIMEOUT, eventually};
use skewbridge_websocket::{Close, CloseCode, Control};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::support::pki::PkiFixture;
use crate::support::spdy_upstream::{
    ClientMessage, EXEC, FORWARD, Node, RecordingIo, SUCCESS, SpdyUpstream,
    VERSION_WITH_TRANSLATION, VERSION_WITHOUT_TRANSLATION, WebSocket, always_translate, has_metric,
    metrics, start_bridge, text, upgrade_request, wait_for_stream_result,
};

#[tokio::test]
async fn a_stream_without_a_status_never_looks_successful() {
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with_version(&pki, VERSION_WITH_TRANSLATION).await;
    let bridge = start_bridge(&pki, &cluster, always_translate).await;
    for protocol in Protocol::ALL {
        for turn in 0..5 {
            let mut client = WebSocket::open(&pki.client(), bridge.address(), EXEC, protocol).await;
            match turn {
                // Disconnected before a stream is open, after that, and during output.
                0 => drop(cluster.next_connection().await),
                1 => cluster.next_command(4).await.kill(),
                2 => {
                    let mut node = cluster.next_command(4).await;
                    node.write("stdout", "half").await;
                    client.next_message().await.unwrap();
                    client.next_message().await.unwrap();
                    node.kill();
                }
                // All streams are finished, but no status is sent.
                3 => {
                    let mut node = cluster.next_command(4).await;
                    for stream in node.streams.values_mut() {
                        stream.sender.finish().unwrap();
                    }
                    node.handle.close();
                }
                // A truncated status.
                _ => {
                    let mut node = cluster.next_command(4).await;
                    node.write("error", r#"{"metadata":{},"status":"Succ"#)
                        .await;
                    node.kill();
                }
            }
            let transcript = timeout(Duration::from_secs(15), client.read_to_end())
                .await
                .unwrap();
            assert!(
                !transcript.looks_successful(),
                "{protocol:?} {turn}: {transcript:?}"
            );
            assert!(
                !transcript.error.is_empty(),
                "{protocol:?} {turn}: {transcript:?}"
            );
            assert_eq!(transcript.code, Some(1011), "{protocol:?} {turn}");
        }
    }
}

#[tokio::test]
async fn a_status_is_delivered_although_the_connection_fails_after_it() {
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with_version(&pki, VERSION_WITHOUT_TRANSLATION).await;
    let bridge = start_bridge(&pki, &cluster, |_| ()).await;
    let mut client = WebSocket::open(&pki.client(), bridge.address(), EXEC, Protocol::V5).await;
    let mut node = cluster.next_command(4).await;
    node.write("stdout", "out").await;
    node.write("error", SUCCESS).await;
    // The status has been received when the bridge answers a ping that was sent after it.
    node.handle.ping().await.unwrap();
    node.kill();
    let transcript = client.read_to_end().await;
    assert_eq!(
        (text(&transcript.stdout), &*transcript.error),
        ("out", SUCCESS)
    );
    assert!(transcript.looks_successful(), "{transcript:?}");
}

#[tokio::test]
async fn a_stream_disconnected_at_any_byte_looks_successful_only_if_it_is_complete() {
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with_version(&pki, VERSION_WITHOUT_TRANSLATION).await;
    let bridge = start_bridge(&pki, &cluster, |_| ()).await;
    // Record the bytes of a node whose command succeeds.
    let mut client = WebSocket::open(&pki.client(), bridge.address(), EXEC, Protocol::V5).await;
    let written = Arc::default();
    let tap = RecordingIo {
        io: cluster.next_connection().await,
        written: Arc::clone(&written),
    };
    let mut node = Node::accept(tap, 4).await;
    node.write("stdout", "all of it").await;
    node.end(SUCCESS).await;
    assert!(client.read_to_end().await.looks_successful());
    let recorded_bytes = std::mem::take(&mut *written.lock().unwrap());

    let mut successes = 0;
    for truncated_at in 0..=recorded_bytes.len() {
        let mut client = WebSocket::open(&pki.client(), bridge.address(), EXEC, Protocol::V5).await;
        let mut server_io = cluster.next_connection().await;
        server_io
            .write_all(&recorded_bytes[..truncated_at])
            .await
            .unwrap();
        server_io.flush().await.unwrap();
        if truncated_at % 2 == 0 {
            // Like kube-apiserver when the node is lost; otherwise like a lost kube-apiserver.
            server_io.shutdown().await.unwrap();
        }
        drop(server_io);
        let transcript = timeout(Duration::from_secs(15), client.read_to_end())
            .await
            .unwrap();
        if transcript.looks_successful() {
            assert_eq!(
                text(&transcript.stdout),
                "all of it",
                "truncated after {truncated_at} bytes"
            );
            successes += 1;
        } else {
            assert!(
                !transcript.error.is_empty(),
                "truncated after {truncated_at} bytes: {transcript:?}"
            );
            assert_eq!(
                transcript.code,
                Some(1011),
                "truncated after {truncated_at} bytes"
            );
        }
    }
    assert!(
        (1..recorded_bytes.len()).contains(&successes),
        "{successes} of {}",
        recorded_bytes.len()
    );
}

#[tokio::test]
async fn all_output_is_delivered_before_the_end_to_a_slow_client() {
    const CHUNK_BYTES: usize = 32 * 1024;
    const CHUNK_COUNT: usize = 512;

    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with_version(&pki, VERSION_WITHOUT_TRANSLATION).await;
    let bridge = start_bridge(&pki, &cluster, |_| ()).await;
    let mut client = WebSocket::open(&pki.client(), bridge.address(), EXEC, Protocol::V5).await;
    let mut node = cluster.next_command(4).await;
    let writer = tokio::spawn(async move {
        for number in 0..CHUNK_COUNT {
            node.write(
                "stdout",
                vec![u8::try_from(number % 251).unwrap(); CHUNK_BYTES],
            )
            .await;
        }
        node.end(SUCCESS).await;
    });
    // The buffers on the way hold less than the output of the process.
    wait_until_stable(async || down_bytes(&bridge).await).await;
    assert!(!writer.is_finished(), "a slow reader blocks the process");
    let transcript = client.read_to_end().await;
    writer.await.unwrap();
    assert_eq!(transcript.stdout.len(), CHUNK_BYTES * CHUNK_COUNT);
    for (number, piece) in transcript.stdout.chunks(CHUNK_BYTES).enumerate() {
        let expected = u8::try_from(number % 251).unwrap();
        assert!(piece.iter().all(|byte| *byte == expected), "{number}");
    }
    assert!(transcript.looks_successful());
}

#[tokio::test]
async fn a_client_may_read_the_end_of_a_stream_late() {
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with_version(&pki, VERSION_WITHOUT_TRANSLATION).await;
    let bridge = start_bridge(&pki, &cluster, |_| ()).await;
    let mut client = WebSocket::open(&pki.client(), bridge.address(), EXEC, Protocol::V5).await;
    let mut node = cluster.next_command(4).await;
    node.write("stdout", vec![b'x'; 200 * 1024]).await;
    node.end(SUCCESS).await;
    // The command has ended. The sleep proves an absence: the client is not disconnected, although
    // it pauses for longer than the bridge waits for a close handshake.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let transcript = client.read_to_end().await;
    assert_eq!(transcript.stdout.len(), 200 * 1024);
    assert!(transcript.looks_successful());
}

#[tokio::test]
async fn unread_output_does_not_block_input() {
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with_version(&pki, VERSION_WITHOUT_TRANSLATION).await;
    let bridge = start_bridge(&pki, &cluster, |_| ()).await;
    let mut client = WebSocket::open(&pki.client(), bridge.address(), EXEC, Protocol::V5).await;
    let mut node = cluster.next_command(4).await;
    // Fill all buffers with output that the client does not read.
    let stdout = node.streams.remove("stdout").unwrap();
    let writing = tokio::spawn(async move {
        let mut stdout = stdout;
        loop {
            if stdout
                .sender
                .write(vec![b'y'; 32 * 1024].into())
                .await
                .is_err()
            {
                return;
            }
        }
    });
    wait_until_stable(async || down_bytes(&bridge).await).await;
    client.write(Input::Stdin, b"\x03").await.unwrap();
    let received = timeout(Duration::from_secs(5), node.read("stdin"))
        .await
        .unwrap();
    assert_eq!(received.unwrap(), &b"\x03"[..]);
    writing.abort();
}

#[tokio::test]
async fn a_client_that_disconnects_resets_the_streams_of_its_command() {
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with_version(&pki, VERSION_WITHOUT_TRANSLATION).await;
    let bridge = start_bridge(&pki, &cluster, |_| ()).await;
    for with_close_frame in [true, false] {
        let mut client = WebSocket::open(&pki.client(), bridge.address(), EXEC, Protocol::V5).await;
        let mut node = cluster.next_command(4).await;
        if with_close_frame {
            let close = Close::new(CloseCode::NORMAL, "");
            client.control(&Control::Close(Some(close))).await;
        } else {
            drop(client);
        }
        let stdin = &mut node.streams.get_mut("stdin").unwrap().receiver;
        let read = timeout(Duration::from_secs(5), stdin.read()).await.unwrap();
        assert!(read.is_err(), "{read:?}");
    }
    eventually("metrics", TEST_TIMEOUT, async || {
        has_metric(&bridge, r#"skewbridge_streams_total{kind="exec",client="websocket",upstream="spdy",outcome="client_left",result="client_left"} 2"#).await
    })
    .await;
}

#[tokio::test]
async fn a_protocol_violation_of_the_client_closes_the_stream_with_its_reason() {
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with_version(&pki, VERSION_WITHOUT_TRANSLATION).await;
    let bridge = start_bridge(&pki, &cluster, |_| ()).await;
    let mut client = WebSocket::open(&pki.client(), bridge.address(), EXEC, Protocol::V5).await;
    let _node = cluster.next_command(4).await;
    client.next_message().await.unwrap();
    client.binary(&[255]).await;
    let ClientMessage::Closed(code, reason) = client.next_message().await.unwrap() else {
        panic!();
    };
    assert_eq!(code, 1002);
    assert!(reason.contains("close signal"), "{reason}");
    drop(client);
    wait_for_stream_result(&bridge, "exec", "client_error").await;
}

/// Bytes of exec streams that the bridge has forwarded to clients.
async fn down_bytes(bridge: &skewbridge_gateway::Handle) -> usize {
    let text = metrics(bridge).await;
    let name = r#"skewbridge_stream_bytes_total{kind="exec",direction="down"} "#;
    let line = text.lines().find_map(|it| it.strip_prefix(name));
    line.map_or(0, |it| it.parse().unwrap())
}

/// Waits until a counter is above zero and has not grown for a while, and returns its value.
async fn wait_until_stable(counter: impl AsyncFn() -> usize) -> usize {
    let mut last = (0, Instant::now());
    eventually("the counter no longer grows", TEST_TIMEOUT, async || {
        let now = counter().await;
        if now != last.0 {
            last = (now, Instant::now());
        }
        now > 0 && last.1.elapsed() >= Duration::from_millis(300)
    })
    .await;
    last.0
}

#[tokio::test]
async fn a_failed_command_is_distinguished_from_one_that_could_not_run() {
    const EXITED: &str = r#"{"metadata":{},"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}"#;
    const FAILED: &str = r#"{"metadata":{},"status":"Failure","message":"no such container","reason":"InternalError","code":500}"#;
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with_version(&pki, VERSION_WITHOUT_TRANSLATION).await;
    let bridge = start_bridge(&pki, &cluster, |_| ()).await;
    for (status, outcome) in [(EXITED, "exited"), (FAILED, "failed")] {
        let mut client = WebSocket::open(&pki.client(), bridge.address(), EXEC, Protocol::V5).await;
        cluster.next_command(4).await.end(status).await;
        let transcript = client.read_to_end().await;
        assert_eq!((&*transcript.error, transcript.code), (status, Some(1000)));
        drop(client);
        wait_for_stream_result(&bridge, "exec", outcome).await;
    }
    for line in [
        r#"apiserver_stream_translator_requests_total{code="200"} 1"#,
        r#"apiserver_stream_translator_requests_total{code="500"} 1"#,
    ] {
        assert!(has_metric(&bridge, line).await, "{line}");
    }
}

#[tokio::test]
async fn a_process_that_reads_stdin_late_keeps_its_client() {
    const BYTES_SENT: usize = 8 << 20;
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with_version(&pki, VERSION_WITHOUT_TRANSLATION).await;
    let bridge = start_bridge(&pki, &cluster, |config| {
        config.streams.ping_interval = Duration::from_millis(300);
    })
    .await;
    let mut client = WebSocket::open(&pki.client(), bridge.address(), EXEC, Protocol::V5).await;
    let mut node = cluster.next_command(4).await;
    let client = tokio::spawn(async move {
        let wrote = client.write(Input::Stdin, &vec![7; BYTES_SENT]).await;
        (client, wrote)
    });
    // The sleep proves an absence: the client is not disconnected after six ping intervals, which
    // are 1.8 s.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let mut read = 0;
    while read < BYTES_SENT {
        let stdin = &mut node.streams.get_mut("stdin").unwrap().receiver;
        match stdin.read().await {
            Ok(Some(data)) => read += data.len(),
            other => panic!("after {read} of {BYTES_SENT}: {other:?}"),
        }
    }
    node.end(SUCCESS).await;
    let (mut client, wrote) = client.await.unwrap();
    wrote.unwrap();
    assert!(client.read_to_end().await.looks_successful());
}

#[tokio::test]
async fn a_port_that_reads_late_keeps_its_client() {
    const BYTES_SENT: usize = 16 << 20;
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with_version(&pki, VERSION_WITHOUT_TRANSLATION).await;
    let bridge = start_bridge(&pki, &cluster, |config| {
        config.streams.ping_interval = Duration::from_millis(300);
    })
    .await;
    let mut http = pki.client().http1(bridge.address()).await.unwrap();
    http.send(upgrade_request(FORWARD, "SPDY/3.1+portforward.k8s.io", ""))
        .await
        .unwrap();
    assert_eq!(http.read_head().await.unwrap().status, 101);
    let mut client = WebSocket::accept(http.into_connection(), Protocol::V5);
    let mut server_io = cluster.next_connection().await;
    let client = tokio::spawn(async move {
        client.binary(&vec![7; BYTES_SENT]).await;
        client
    });
    // The sleep proves an absence: the client is not disconnected after six ping intervals, which
    // are 1.8 s.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let mut up = vec![0; BYTES_SENT];
    server_io.read_exact(&mut up).await.unwrap();
    drop(client);
}

#[tokio::test]
async fn a_client_that_pauses_at_the_end_loses_no_output() {
    const CHUNK_BYTES: usize = 8 * 1024;
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with_version(&pki, VERSION_WITHOUT_TRANSLATION).await;
    let bridge = start_bridge(&pki, &cluster, |_| ()).await;
    // How much the kernel and the bridge buffer for a client that does not read.
    let probe = WebSocket::open(&pki.client(), bridge.address(), EXEC, Protocol::V5).await;
    let mut node = cluster.next_command(4).await;
    while timeout(
        Duration::from_millis(500),
        node.write("stdout", vec![b'y'; CHUNK_BYTES]),
    )
    .await
    .is_ok()
    {}
    let buffered = wait_until_stable(async || down_bytes(&bridge).await).await;
    drop((probe, node));
    let mut readers = Vec::new();
    for less in 0..12 {
        let size = buffered - less * CHUNK_BYTES;
        let mut client = WebSocket::open(&pki.client(), bridge.address(), EXEC, Protocol::V5).await;
        let mut node = cluster.next_command(4).await;
        for at in (0..size).step_by(CHUNK_BYTES) {
            node.write("stdout", vec![b'y'; CHUNK_BYTES.min(size - at)])
                .await;
        }
        node.end(SUCCESS).await;
        readers.push(tokio::spawn(async move {
            // The sleep proves an absence: the client is not disconnected during its pause.
            tokio::time::sleep(Duration::from_secs(8)).await;
            let transcript = client.read_to_end().await;
            (
                size,
                transcript.stdout.len(),
                transcript.error,
                transcript.code,
            )
        }));
    }
    let mut lost = Vec::new();
    for reader in readers {
        let transcript = reader.await.unwrap();
        if transcript.0 != transcript.1 || transcript.2 != SUCCESS || transcript.3 != Some(1000) {
            lost.push(transcript);
        }
    }
    assert!(lost.is_empty(), "buffered {buffered}: {lost:?}");
}

#[tokio::test]
async fn input_sent_before_the_close_reaches_the_process() {
    const BYTES_SENT: usize = 2 << 20;
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with_version(&pki, VERSION_WITHOUT_TRANSLATION).await;
    let bridge = start_bridge(&pki, &cluster, always_translate).await;
    let mut client = WebSocket::open(&pki.client(), bridge.address(), EXEC, Protocol::V4).await;
    let mut node = cluster.next_command(4).await;
    let reading = tokio::spawn(async move {
        let mut read = 0;
        let stdin = &mut node.streams.get_mut("stdin").unwrap().receiver;
        while let Ok(Some(data)) = stdin.read().await {
            read += data.len();
        }
        read
    });
    client
        .write(Input::Stdin, &vec![7; BYTES_SENT])
        .await
        .unwrap();
    let close = Close::new(CloseCode::NORMAL, "");
    client.control(&Control::Close(Some(close))).await;
    assert_eq!(reading.await.unwrap(), BYTES_SENT);
}

#[tokio::test]
async fn output_that_was_reset_with_an_error_does_not_look_successful() {
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with_version(&pki, VERSION_WITHOUT_TRANSLATION).await;
    let bridge = start_bridge(&pki, &cluster, |_| ()).await;
    let mut client = WebSocket::open(&pki.client(), bridge.address(), EXEC, Protocol::V5).await;
    let mut node = cluster.next_command(4).await;
    node.write("stdout", "half").await;
    client.next_message().await.unwrap();
    client.next_message().await.unwrap();
    let stdout = node.streams.remove("stdout").unwrap();
    stdout.reset(skewbridge_spdy::frame::ResetStatus::InternalError);
    node.end(SUCCESS).await;
    let transcript = client.read_to_end().await;
    assert!(!transcript.looks_successful(), "{transcript:?}");
}

#[tokio::test]
async fn a_bridge_that_shuts_down_reports_it_to_its_streams() {
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with_version(&pki, VERSION_WITHOUT_TRANSLATION).await;
    let mut bridge = start_bridge(&pki, &cluster, |config| {
        config.shutdown.delay = Duration::ZERO;
        config.shutdown.drain = Duration::from_secs(1);
    })
    .await;
    let mut client = WebSocket::open(&pki.client(), bridge.address(), EXEC, Protocol::V5).await;
    let _node = cluster.next_command(4).await;
    let leaving = tokio::spawn(async move { bridge.finish().await });
    let transcript = timeout(Duration::from_secs(15), client.read_to_end())
        .await
        .unwrap();
    assert!(
        !transcript.error.is_empty() && transcript.code == Some(1001),
        "{transcript:?}"
    );
    leaving.await.unwrap();
}
