//! Connections to ports.

use skewbridge_client::PortForwarder;
use skewbridge_client::streams::{Port, Transport};
use skewbridge_testkit::{Grant, PATIENCE, Pods};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::endpoint;

/// Sends back what comes, until that ends.
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

async fn both(pods: &Pods) -> [PortForwarder; 2] {
    let endpoint = endpoint(pods).await;
    [
        PortForwarder::by_websocket(&endpoint, "default", "web")
            .await
            .unwrap(),
        PortForwarder::by_spdy(&endpoint, "default", "web")
            .await
            .unwrap(),
    ]
}

#[tokio::test]
async fn many_connections_go_through_one_at_once() {
    let pods = Pods::start().await;
    let (port, task) = echo().await;
    for forwarder in both(&pods).await {
        let mut connections = Vec::new();
        for number in 0..8u8 {
            let mut stream = forwarder.open(port).unwrap();
            connections.push(async move {
                let sent = vec![number; 300_000];
                let all = sent.clone();
                let (mut read, mut write) = tokio::io::split(&mut stream);
                let mut came = Vec::new();
                let writing = async {
                    write.write_all(&all).await?;
                    write.shutdown().await
                };
                let (written, read) = tokio::join!(writing, read.read_to_end(&mut came));
                written.unwrap();
                read.unwrap();
                assert!(came == sent);
            });
        }
        for connection in connections {
            timeout(PATIENCE, connection).await.unwrap();
        }
    }
    task.abort();
}

#[tokio::test]
async fn a_port_where_nobody_listens_is_told_and_the_others_stay() {
    let pods = Pods::start().await;
    let (port, task) = echo().await;
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = Port::new(free.local_addr().unwrap().port()).unwrap();
    drop(free);
    for forwarder in both(&pods).await {
        let mut good = forwarder.open(port).unwrap();
        good.write_all(b"before").await.unwrap();
        let mut bad = forwarder.open(closed).unwrap();
        let error = bad.read_to_end(&mut Vec::new()).await.unwrap_err();
        assert!(
            error.to_string().contains("error forwarding port"),
            "{error}"
        );
        good.shutdown().await.unwrap();
        let mut came = Vec::new();
        good.read_to_end(&mut came).await.unwrap();
        assert_eq!(came, b"before");
        assert!(!forwarder.is_closed());
    }
    task.abort();
}

#[tokio::test]
async fn a_local_connection_is_carried_with_its_half_close() {
    let pods = Pods::start().await;
    let (port, task) = echo().await;
    for forwarder in both(&pods).await {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let stream = forwarder.open(port).unwrap();
        let carrying = async {
            let (tcp, _) = listener.accept().await.unwrap();
            stream.carry(tcp).await
        };
        let using = async {
            let mut tcp = TcpStream::connect(addr).await.unwrap();
            tcp.write_all(b"hello").await.unwrap();
            tcp.shutdown().await.unwrap();
            let mut came = Vec::new();
            tcp.read_to_end(&mut came).await.unwrap();
            assert_eq!(came, b"hello");
        };
        let (carried, ()) = tokio::join!(carrying, using);
        carried.unwrap();
    }
    task.abort();
}

#[tokio::test]
async fn a_lost_pod_is_noticed_by_all() {
    let pods = Pods::start().await;
    let (port, task) = echo().await;
    let mut streams = Vec::new();
    let mut byte = [0];
    for forwarder in both(&pods).await {
        let mut stream = forwarder.open(port).unwrap();
        stream.write_all(b"x").await.unwrap();
        stream.read_exact(&mut byte).await.unwrap();
        streams.push((forwarder, stream));
    }
    pods.cut_all();
    for (forwarder, mut stream) in streams {
        let cause = timeout(PATIENCE, forwarder.closed()).await.unwrap();
        assert!(!cause.is_empty());
        assert!(forwarder.is_closed());
        assert!(stream.read_exact(&mut byte).await.is_err());
        assert!(forwarder.open(port).is_err());
    }
    task.abort();
}

#[tokio::test]
async fn ports_fall_back_to_spdy_too() {
    let pods = Pods::start().await;
    pods.websocket(Grant::No(400, "no".to_owned()));
    let forwarder = PortForwarder::connect(&endpoint(&pods).await, "default", "web")
        .await
        .unwrap();
    let instead = Some("no (400)".to_owned());
    assert_eq!(*forwarder.transport(), Transport::Spdy { instead });
}
