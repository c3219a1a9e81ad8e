//! Connections over memory and loopback.
#![allow(clippy::unwrap_used)] // test helpers panic on failure

#[path = "support/connection_fixture.rs"]
mod connection_fixture;

use std::time::Duration;

use bytes::Bytes;
use connection_fixture::{
    ConnectionFixture, PATTERN, config, connection_fixture, pattern, read_to_end, verify_pattern,
    with_timeout,
};
use skewbridge_spdy::connection::{self, PingError, Stream};
use skewbridge_spdy::frame::ResetStatus;
use skewbridge_spdy::{Closed, Config, Error, FlowControl, Headers, OpenError, StreamError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
use tokio::task::JoinSet;

/// Echoes everything, then closes.
async fn echo(mut stream: Stream) {
    while let Some(data) = stream.receiver.read().await.unwrap() {
        stream.sender.write(data).await.unwrap();
    }
    stream.sender.finish().unwrap();
}

#[tokio::test]
async fn many_streams_share_a_connection() {
    for flow_control in [FlowControl::Never, FlowControl::Auto, FlowControl::Always] {
        let mut pair = connection_fixture(config(flow_control));
        let mut tasks = JoinSet::new();
        for index in 0..100usize {
            let name = index.to_string();
            let headers = Headers::new().with("requestid", &name);
            let mut stream = pair.client.open(headers).unwrap();
            tasks.spawn(async move {
                stream.accepted().await.unwrap();
                let bytes = index * 1000;
                stream.sender.write(pattern(0, bytes)).await.unwrap();
                stream.sender.finish().unwrap();
                assert_eq!(verify_pattern(stream.receiver).await.unwrap(), bytes);
            });
        }
        for index in 0..100 {
            let request = pair.incoming.next().await.unwrap();
            let name = index.to_string();
            assert_eq!(request.headers().get("requestID"), Some(&*name));
            tasks.spawn(echo(request.accept(Headers::new()).unwrap()));
        }
        with_timeout(tasks.join_all()).await;
        pair.close_cleanly().await;
    }
}

#[tokio::test]
async fn either_side_closes_its_half_first() {
    let mut pair = connection_fixture(Config::default());
    for client_first in [true, false] {
        let (mut client, mut server) = pair.stream().await;
        let (first, second) = if client_first {
            (&mut client, &mut server)
        } else {
            (&mut server, &mut client)
        };
        first.sender.write("one".into()).await.unwrap();
        first.sender.finish().unwrap();
        first.sender.finish().unwrap();
        let late = first.sender.write("late".into()).await;
        assert!(matches!(late, Err(StreamError::Finished)));
        assert_eq!(read_to_end(&mut second.receiver).await.unwrap(), "one");
        // The other half continues.
        second.sender.write("two ".into()).await.unwrap();
        second.sender.write("three".into()).await.unwrap();
        second.sender.finish().unwrap();
        assert_eq!(read_to_end(&mut first.receiver).await.unwrap(), "two three");
    }
    pair.close_cleanly().await;
}

#[tokio::test]
async fn a_reset_ends_one_stream_after_its_data() {
    let mut pair = connection_fixture(Config::default());
    let (mut other, echoing) = pair.stream().await;
    let echoing = tokio::spawn(echo(echoing));
    let (client, server) = pair.stream().await;
    let (mut reader, mut writer) = (client.receiver, client.sender);
    let mut server_sender = server.sender;
    server_sender.write("status".into()).await.unwrap();
    // The reply to a later ping shows that it is in flight.
    pair.server.ping().await.unwrap();
    server_sender.reset(ResetStatus::Cancel);
    assert_eq!(reader.read().await.unwrap(), Some("status".into()));
    let end = with_timeout(reader.read()).await;
    assert!(matches!(
        end,
        Err(StreamError::ResetByRemote(ResetStatus::Cancel))
    ));
    assert!(writer.write("late".into()).await.is_err());
    assert!(writer.finish().is_err());

    other.sender.write("alive".into()).await.unwrap();
    other.sender.finish().unwrap();
    assert_eq!(read_to_end(&mut other.receiver).await.unwrap(), "alive");
    echoing.await.unwrap();
}

#[tokio::test]
async fn an_idle_writer_is_notified_of_a_reset() {
    let mut pair = connection_fixture(Config::default());
    let (client, server) = pair.stream().await;
    let (mut writer, mut reader) = (client.sender, client.receiver);
    let waiting = tokio::spawn(async move { writer.stopped().await });
    // The end of reading is not the end of writing.
    let mut sender = server.sender;
    sender.finish().unwrap();
    assert_eq!(with_timeout(reader.read()).await.unwrap(), None);
    assert!(!waiting.is_finished());
    sender.reset(ResetStatus::Cancel);
    let stopped = with_timeout(waiting).await.unwrap();
    let expected = StreamError::ResetByRemote(ResetStatus::Cancel);
    assert_eq!(stopped.to_string(), expected.to_string());
}

#[tokio::test]
async fn dropping_an_unfinished_sender_resets_the_stream() {
    let mut pair = connection_fixture(Config::default());
    let (client, mut server) = pair.stream().await;
    drop(client.sender);
    let end = with_timeout(server.receiver.read()).await;
    assert!(matches!(end, Err(StreamError::ResetByRemote(_))), "{end:?}");
}

#[tokio::test]
async fn streams_that_are_not_accepted_are_refused() {
    let mut pair = connection_fixture(Config::default());
    let mut refused = pair.client.open(Headers::new()).unwrap();
    let mut dropped = pair.client.open(Headers::new()).unwrap();
    let mut unseen = pair.client.open(Headers::new()).unwrap();
    let request = pair.incoming.next().await.unwrap();
    request.refuse(ResetStatus::InternalError);
    drop(pair.incoming.next().await.unwrap());
    drop(pair.incoming);
    let answer = with_timeout(refused.accepted()).await;
    assert!(matches!(
        answer,
        Err(StreamError::ResetByRemote(ResetStatus::InternalError))
    ));
    for stream in [&mut dropped, &mut unseen] {
        let answer = with_timeout(stream.accepted()).await;
        assert!(matches!(answer, Err(StreamError::Refused)), "{answer:?}");
    }
    let mut late = pair.client.open(Headers::new()).unwrap();
    let answer = with_timeout(late.accepted()).await;
    assert!(matches!(answer, Err(StreamError::Refused)), "{answer:?}");
}

/// Writes until the stream accepts no more for a while; returns how much it accepted.
async fn fill(stream: &mut Stream) -> usize {
    let mut bytes = 0;
    loop {
        let piece = pattern(bytes, 10_000);
        let write = stream.sender.write(piece);
        if tokio::time::timeout(Duration::from_millis(300), write)
            .await
            .is_err()
        {
            return bytes;
        }
        bytes += 10_000;
        assert!(bytes < 10_000_000, "no bound");
    }
}

#[tokio::test]
async fn with_flow_control_a_slow_reader_slows_only_its_stream() {
    let mut pair = connection_fixture(config(FlowControl::Auto));
    let (mut slow, not_read) = pair.stream().await;
    let bytes = fill(&mut slow).await;
    // Its window and its queue, and the excess of one write and one chunk.
    assert!(bytes <= 100_000 + 50_000 + 2 * 10_000, "{bytes}");
    let (mut quick, echoing) = pair.stream().await;
    let echoing = tokio::spawn(echo(echoing));
    quick.sender.write(pattern(0, 500_000)).await.unwrap();
    quick.sender.finish().unwrap();
    assert_eq!(
        with_timeout(verify_pattern(quick.receiver)).await.unwrap(),
        500_000
    );
    echoing.await.unwrap();
    with_timeout(pair.client.ping()).await.unwrap();
    slow.sender.finish().unwrap();
    assert_eq!(
        with_timeout(verify_pattern(not_read.receiver))
            .await
            .unwrap(),
        bytes
    );
}

#[tokio::test]
async fn without_flow_control_a_slow_reader_stops_the_connection_and_memory_is_bounded() {
    let mut pair = connection_fixture(config(FlowControl::Never));
    let (mut slow, not_read) = pair.stream().await;
    let bytes = fill(&mut slow).await;
    // Also what is in the pipe, in the send buffer and in one read.
    assert!(bytes <= 100_000 + 50_000 + 64_000 + 512_000, "{bytes}");
    slow.sender.finish().unwrap();
    assert_eq!(
        with_timeout(verify_pattern(not_read.receiver))
            .await
            .unwrap(),
        bytes
    );
    with_timeout(pair.client.ping()).await.unwrap();
    // A dropped reader blocks nothing.
    let (mut unread, server) = pair.stream().await;
    let (receiver, _sender) = (server.receiver, server.sender);
    drop(receiver);
    for _ in 0..100 {
        with_timeout(unread.sender.write(pattern(0, 50_000)))
            .await
            .unwrap();
    }
    with_timeout(pair.client.ping()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulk_data_flows_both_ways_at_once() {
    const TOTAL_BYTES: usize = 200 << 20;
    async fn both(stream: Stream) {
        let Stream {
            mut sender,
            receiver,
        } = stream;
        let reader = tokio::spawn(verify_pattern(receiver));
        let mut sent = 0;
        while sent < TOTAL_BYTES {
            let piece = PATTERN.slice(sent % PATTERN.len()..);
            let piece = piece.slice(..piece.len().min(TOTAL_BYTES - sent).min(32 * 1024));
            sent += piece.len();
            sender.write(piece).await.unwrap();
        }
        sender.finish().unwrap();
        assert_eq!(reader.await.unwrap().unwrap(), TOTAL_BYTES);
    }
    for flow_control in [FlowControl::Never, FlowControl::Auto] {
        let config = Config {
            flow_control,
            ..Config::default()
        };
        let (local, remote) = connection_fixture::loopback().await;
        let mut over_tcp = ConnectionFixture::with_io(local, remote, config.clone());
        let (local, remote) = duplex(64 * 1024);
        let mut flat = ConnectionFixture::with_io(
            connection_fixture::NonVectoredIo(local),
            connection_fixture::NonVectoredIo(remote),
            config,
        );
        for pair in [&mut over_tcp, &mut flat] {
            let (client, server) = pair.stream().await;
            let server = tokio::spawn(both(server));
            with_timeout(both(client)).await;
            with_timeout(server).await.unwrap();
        }
        over_tcp.close_cleanly().await;
        flat.close_cleanly().await;
    }
}

#[tokio::test]
async fn a_one_byte_pipe_works() {
    let (local, remote) = duplex(1);
    let mut pair = ConnectionFixture::with_io(local, remote, Config::default());
    let (mut client, server) = pair.stream().await;
    let server = tokio::spawn(echo(server));
    client.sender.write(pattern(0, 20_000)).await.unwrap();
    client.sender.finish().unwrap();
    assert_eq!(
        with_timeout(verify_pattern(client.receiver)).await.unwrap(),
        20_000
    );
    server.await.unwrap();
    drop(client.sender);
    pair.close_cleanly().await;
}

#[tokio::test]
async fn all_streams_are_notified_when_the_remote_disconnects() {
    let mut pair = connection_fixture(Config::default());
    let (mut client, mut server) = pair.stream().await;
    let mut unanswered = pair.client.open(Headers::new()).unwrap();
    server.sender.write("last output".into()).await.unwrap();
    pair.server.ping().await.unwrap();
    pair.server_driver.abort();
    with_timeout(&mut pair.server_driver).await.unwrap_err();

    // The pipe closed between two frames: no failure, but no clean end of a stream either.
    with_timeout(&mut pair.client_driver)
        .await
        .unwrap()
        .unwrap();
    let data = client.receiver.read().await.unwrap();
    assert_eq!(data, Some("last output".into()));
    let end = with_timeout(client.receiver.read()).await;
    assert!(
        matches!(end, Err(StreamError::Closed(Closed::Remote))),
        "{end:?}"
    );
    assert!(client.sender.write("x".into()).await.is_err());
    assert!(with_timeout(unanswered.accepted()).await.is_err());
    let ping = with_timeout(pair.client.ping()).await;
    assert!(matches!(ping, Err(PingError::Closed(_))), "{ping:?}");
    let opened = pair.client.open(Headers::new());
    assert!(matches!(opened, Err(OpenError::Closed(_))), "{opened:?}");

    // Its own streams report that the driver was dropped.
    let end = with_timeout(server.receiver.read()).await;
    assert!(
        matches!(end, Err(StreamError::Closed(Closed::Local))),
        "{end:?}"
    );
    assert!(with_timeout(pair.incoming.next()).await.is_some());
    assert!(with_timeout(pair.incoming.next()).await.is_none());
}

#[tokio::test]
async fn waiting_ends_when_the_connection_does() {
    let mut pair = connection_fixture(config(FlowControl::Auto));
    let (mut client, mut server) = pair.stream().await;
    fill(&mut client).await;
    let Stream {
        mut sender,
        mut receiver,
    } = client;
    let writing = tokio::spawn(async move { sender.write("x".into()).await });
    let reading = tokio::spawn(async move { receiver.read().await });
    let handle = pair.client.clone();
    let server_handle = pair.server.clone();
    tokio::task::yield_now().await;
    pair.client_driver.abort();
    assert!(with_timeout(writing).await.unwrap().is_err());
    assert!(with_timeout(reading).await.unwrap().is_err());
    assert!(with_timeout(handle.ping()).await.is_err());
    with_timeout(pair.server_driver).await.unwrap().unwrap();
    assert!(server_handle.closed().is_some());
    while let Ok(data) = with_timeout(server.receiver.read()).await {
        assert!(data.is_some(), "a clean end");
    }
}

#[tokio::test]
async fn a_connection_that_is_closed_ends_when_its_streams_have() {
    let mut pair = connection_fixture(Config::default());
    let (mut client, mut server) = pair.stream().await;
    pair.client.close();
    assert!(matches!(
        pair.client.open(Headers::new()),
        Err(OpenError::GoingAway)
    ));
    let mut refused = pair.server.open(Headers::new()).unwrap();
    let answer = with_timeout(refused.accepted()).await;
    assert!(matches!(answer, Err(StreamError::Refused)), "{answer:?}");
    drop(refused);

    client.sender.write(pattern(0, 200_000)).await.unwrap();
    client.sender.finish().unwrap();
    server.sender.write("bye".into()).await.unwrap();
    server.sender.finish().unwrap();
    assert_eq!(read_to_end(&mut client.receiver).await.unwrap(), "bye");
    drop(client);
    with_timeout(&mut pair.client_driver)
        .await
        .unwrap()
        .unwrap();
    // Everything was received, though the connection has ended.
    assert_eq!(verify_pattern(server.receiver).await.unwrap(), 200_000);
    drop(server.sender);
    with_timeout(&mut pair.server_driver)
        .await
        .unwrap()
        .unwrap();
    assert!(pair.incoming.next().await.is_none());
}

#[tokio::test]
async fn a_driver_ends_when_all_handles_are_dropped() {
    let pair = connection_fixture(Config::default());
    drop((pair.client, pair.server, pair.incoming));
    with_timeout(pair.client_driver).await.unwrap().unwrap();
    with_timeout(pair.server_driver).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_remote_without_spdy_gets_a_goaway_and_is_disconnected() {
    let (local, mut remote) = duplex(4096);
    let (handle, _incoming, driver) = connection::server(local, Config::default());
    let driver = tokio::spawn(driver);
    let mut stream = handle.open(Headers::new()).unwrap();
    remote
        .write_all(b"\x80\x02\0\x06\0\0\0\x04\0\0\0\x07")
        .await
        .unwrap();
    let answer = with_timeout(stream.accepted()).await;
    assert!(
        matches!(
            answer,
            Err(StreamError::Closed(Closed::Failed(Error::Version(2))))
        ),
        "{answer:?}"
    );
    let mut received = Vec::new();
    with_timeout(remote.read_to_end(&mut received))
        .await
        .unwrap();
    assert!(received.ends_with(b"\x80\x03\0\x07\0\0\0\x08\0\0\0\0\0\0\0\x01"));
    drop(remote);
    assert!(with_timeout(driver).await.unwrap().is_err());
}

#[tokio::test]
async fn a_connection_that_ends_inside_a_frame_has_failed() {
    let (local, mut remote) = duplex(4096);
    let (_handle, _incoming, driver) = connection::server(local, Config::default());
    let driver = tokio::spawn(driver);
    remote
        .write_all(b"\x80\x03\0\x06\0\0\0\x04\0\0")
        .await
        .unwrap();
    drop(remote);
    let end = with_timeout(driver).await.unwrap();
    assert!(matches!(end, Err(Error::UnexpectedEof)), "{end:?}");
}

#[tokio::test]
async fn received_data_is_read_after_a_write_failure() {
    let mut pair = connection_fixture(Config::default());
    let (mut client, mut server) = pair.stream().await;
    server.sender.write("status".into()).await.unwrap();
    server.sender.finish().unwrap();
    pair.server.ping().await.unwrap();
    // The pipe breaks for the client's writes before it has read the rest.
    pair.server_driver.abort();
    client.sender.write(pattern(0, 300_000)).await.unwrap();
    assert_eq!(read_to_end(&mut client.receiver).await.unwrap(), "status");
    with_timeout(pair.client_driver).await.unwrap().unwrap();
}

#[tokio::test]
async fn pings_are_answered_during_bulk_transfer() {
    let mut pair = connection_fixture(Config::default());
    let (mut client, server) = pair.stream().await;
    let reading = tokio::spawn(verify_pattern(server.receiver));
    let sending = tokio::spawn(async move {
        for index in 0..400 {
            let data: Bytes = pattern(index * 100_000, 100_000);
            client.sender.write(data).await.unwrap();
        }
        client.sender.finish().unwrap();
        client
    });
    for _ in 0..20 {
        let (local, remote) = tokio::join!(pair.client.ping(), pair.server.ping());
        assert!(local.is_ok() && remote.is_ok());
    }
    with_timeout(sending).await.unwrap();
    assert_eq!(with_timeout(reading).await.unwrap().unwrap(), 40_000_000);
}
