//! Pings to a node that uses moby/spdystream. That library distributes received frames to five
//! workers: data to the worker of its stream, pings round-robin. The worker of a stream that the
//! process does not read blocks, together with the pings queued to it.

use std::time::Duration;

use skewbridge_remotecommand::{Input, Protocol};
use skewbridge_testkit::{TEST_TIMEOUT, eventually};

use crate::support::pki::PkiFixture;
use crate::support::spdy_upstream::{
    EXEC, Node, SUCCESS, SpdyUpstream, VERSION_WITHOUT_TRANSLATION, WebSocket, start_bridge,
};
use crate::support::spdystream_workers::{PingFixture, SpdystreamWorkers};

/// Bytes sent to a command that does not read them: above and below what a node has to buffer.
const UNREAD_BYTES: [usize; 2] = [200 * 1024, 100];

#[tokio::test]
async fn a_ping_queued_behind_unread_stdin_does_not_end_the_stream() {
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with_version(&pki, VERSION_WITHOUT_TRANSLATION).await;
    let bridge = start_bridge(&pki, &cluster, |config| {
        config.streams.ping_interval = Duration::from_secs(1);
    })
    .await;
    for size in UNREAD_BYTES {
        let mut client = WebSocket::open(&pki.client(), bridge.address(), EXEC, Protocol::V5).await;
        let (workers, io) = SpdystreamWorkers::between(cluster.next_connection().await);
        let mut node = Node::accept(io, 4).await;
        client.write(Input::Stdin, &vec![7; size]).await.unwrap();
        let transcript = tokio::spawn(async move { client.read_to_end().await });
        eventually("pings are queued", TEST_TIMEOUT, async || {
            assert!(!transcript.is_finished(), "{size}: cut off");
            workers.queued_pings() >= 3
        })
        .await;
        workers.release();
        let mut read = 0;
        while read < size {
            read += node.read("stdin").await.unwrap().len();
        }
        node.end(SUCCESS).await;
        let transcript = transcript.await.unwrap();
        assert!(transcript.looks_successful(), "{size}: {transcript:?}");
    }
}

#[tokio::test]
async fn a_node_that_has_read_everything_and_stops_answering_is_detected() {
    let PingFixture {
        mut client,
        workers,
        mut node,
        _kept,
    } = PingFixture::start().await;
    let size = UNREAD_BYTES[0];
    client.write(Input::Stdin, &vec![7; size]).await.unwrap();
    let transcript = tokio::spawn(async move { client.read_to_end().await });
    // After two queued pings, every worker has got at least one.
    eventually("pings are queued", TEST_TIMEOUT, async || {
        workers.queued_pings() >= 2
    })
    .await;
    let mut read = 0;
    while read < size {
        read += node.read("stdin").await.unwrap().len();
    }
    // The answers to these pings prove that everything before them was read.
    workers.release();
    workers.stop_answering();
    let transcript = tokio::time::timeout(TEST_TIMEOUT, transcript)
        .await
        .unwrap()
        .unwrap();
    assert!(
        transcript.error.contains("connection was lost"),
        "{transcript:?}"
    );
    assert_eq!(transcript.code, Some(1011));
}

#[tokio::test]
async fn a_node_that_is_lost_during_interactive_input_is_detected() {
    /// Faster than typing, and fewer keys in a tenth of the ping interval than count as bulk data.
    const KEY_INTERVAL: Duration = Duration::from_millis(10);
    let PingFixture {
        mut client,
        workers,
        mut node,
        _kept,
    } = PingFixture::start().await;
    workers.release();
    for _ in 0..150 {
        client.write(Input::Stdin, b"x").await.unwrap();
        node.read("stdin").await.unwrap();
        node.write("stdout", "x").await;
        tokio::time::sleep(KEY_INTERVAL).await;
    }
    workers.stop_answering();
    let transcript = tokio::time::timeout(TEST_TIMEOUT, client.read_to_end()).await;
    let transcript = transcript.expect("the lost node is detected");
    assert!(
        transcript.error.contains("connection was lost"),
        "{transcript:?}"
    );
    assert_eq!(transcript.code, Some(1011));
}
