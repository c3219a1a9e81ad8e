//! Port forwarding.

use std::io::ErrorKind;

use skewbridge_client::remote_command::{
    Port, PortForwardOptions, PortForwarder, Transport, TransportPreference,
};
use skewbridge_testkit::{Pods, ReservedPort, TEST_TIMEOUT, UpgradeResponse};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::endpoint;

/// An echo server.
async fn echo() -> (Port, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let task = tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let (mut read, mut write) = tcp.into_split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
            });
        }
    });
    (Port::new(port).unwrap(), task)
}

async fn connect(pods: &Pods, transport: TransportPreference) -> PortForwarder {
    let options = PortForwardOptions {
        transport,
        ..PortForwardOptions::default()
    };
    PortForwarder::connect_with(&endpoint(pods).await, "default", "web", options)
        .await
        .unwrap()
}

async fn forwarders_of_both_protocols(pods: &Pods) -> [PortForwarder; 2] {
    [
        connect(pods, TransportPreference::WebSocket).await,
        connect(pods, TransportPreference::Spdy).await,
    ]
}

/// A connection of a local program, and our end of it.
async fn local() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (program, accepted) = tokio::join!(TcpStream::connect(addr), listener.accept());
    (program.unwrap(), accepted.unwrap().0)
}

#[tokio::test]
async fn many_streams_share_one_connection() {
    let pods = Pods::start().await;
    let (port, task) = echo().await;
    for forwarder in forwarders_of_both_protocols(&pods).await {
        let mut connections = Vec::new();
        for number in 0..8u8 {
            let mut stream = forwarder.open(port).unwrap();
            connections.push(async move {
                let sent = vec![number; 300_000];
                let all = sent.clone();
                let (mut read, mut write) = tokio::io::split(&mut stream);
                let mut received = Vec::new();
                let writing = async {
                    write.write_all(&all).await?;
                    write.shutdown().await
                };
                let (written, read) = tokio::join!(writing, read.read_to_end(&mut received));
                written.unwrap();
                read.unwrap();
                assert!(received == sent);
            });
        }
        for connection in connections {
            timeout(TEST_TIMEOUT, connection).await.unwrap();
        }
    }
    task.abort();
}

#[tokio::test]
async fn a_port_without_a_listener_is_reported_and_other_streams_continue() {
    let pods = Pods::start().await;
    let (port, task) = echo().await;
    let unused_port = ReservedPort::new();
    let closed = Port::new(unused_port.addr().port()).unwrap();
    for forwarder in forwarders_of_both_protocols(&pods).await {
        let mut good = forwarder.open(port).unwrap();
        good.write_all(b"before").await.unwrap();
        let mut bad = forwarder.open(closed).unwrap();
        let error = bad.read_to_end(&mut Vec::new()).await.unwrap_err();
        assert!(
            error.to_string().contains("error forwarding port"),
            "{error}"
        );
        good.shutdown().await.unwrap();
        let mut received = Vec::new();
        good.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, b"before");
        assert!(!forwarder.is_closed());
    }
    task.abort();
}

#[tokio::test]
async fn a_local_connection_is_forwarded_with_its_half_close() {
    let pods = Pods::start().await;
    let (port, task) = echo().await;
    for forwarder in forwarders_of_both_protocols(&pods).await {
        let (mut program, ours) = local().await;
        let stream = forwarder.open(port).unwrap();
        let using = async {
            program.write_all(b"hello").await.unwrap();
            program.shutdown().await.unwrap();
            let mut received = Vec::new();
            program.read_to_end(&mut received).await.unwrap();
            assert_eq!(received, b"hello");
        };
        let both = async { tokio::join!(stream.forward(ours), using) };
        let (carried, ()) = timeout(TEST_TIMEOUT, both).await.unwrap();
        carried.unwrap();
    }
    task.abort();
}

#[tokio::test]
async fn a_lost_connection_resets_the_local_program() {
    let pods = Pods::start().await;
    let (port, task) = echo().await;
    // The connection to the cluster is lost, or the forwarding task is dropped.
    for (by, left) in [
        (TransportPreference::WebSocket, false),
        (TransportPreference::WebSocket, true),
        (TransportPreference::Spdy, false),
        (TransportPreference::Spdy, true),
    ] {
        let forwarder = connect(&pods, by).await;
        let (mut program, ours) = local().await;
        let forwarding = tokio::spawn(forwarder.open(port).unwrap().forward(ours));
        let mut received = [0; 5];
        program.write_all(b"hello").await.unwrap();
        program.read_exact(&mut received).await.unwrap();
        if left {
            forwarding.abort();
        } else {
            pods.cut_all();
        }
        let ended = timeout(TEST_TIMEOUT, program.read(&mut received))
            .await
            .unwrap();
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert!(!matches!(forwarding.await, Ok(Ok(()))));
    }
    task.abort();
}

#[tokio::test]
async fn a_port_without_a_listener_resets_the_local_connection() {
    let pods = Pods::start().await;
    let unused_port = ReservedPort::new();
    let closed = Port::new(unused_port.addr().port()).unwrap();
    for forwarder in forwarders_of_both_protocols(&pods).await {
        let (mut program, ours) = local().await;
        let forwarding = tokio::spawn(forwarder.open(closed).unwrap().forward(ours));
        let ended = timeout(TEST_TIMEOUT, program.read(&mut [0; 1]))
            .await
            .unwrap();
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert!(forwarding.await.unwrap().is_err());
    }
}

#[tokio::test]
async fn a_lost_pod_ends_all_streams() {
    let pods = Pods::start().await;
    let (port, task) = echo().await;
    let mut streams = Vec::new();
    let mut byte = [0];
    for forwarder in forwarders_of_both_protocols(&pods).await {
        let mut stream = forwarder.open(port).unwrap();
        stream.write_all(b"x").await.unwrap();
        stream.read_exact(&mut byte).await.unwrap();
        streams.push((forwarder, stream));
    }
    pods.cut_all();
    for (forwarder, mut stream) in streams {
        let cause = timeout(TEST_TIMEOUT, forwarder.closed()).await.unwrap();
        assert!(!cause.is_empty());
        assert!(forwarder.is_closed());
        assert!(stream.read_exact(&mut byte).await.is_err());
        assert!(forwarder.open(port).is_err());
    }
    task.abort();
}

#[tokio::test]
async fn port_forwarding_falls_back_to_spdy() {
    let pods = Pods::start().await;
    pods.websocket(UpgradeResponse::Reject(400, "no".to_owned()));
    let forwarder = PortForwarder::connect(&endpoint(&pods).await, "default", "web")
        .await
        .unwrap();
    let fallback_reason = Some("no (400)".to_owned());
    assert_eq!(*forwarder.transport(), Transport::Spdy { fallback_reason });
}
