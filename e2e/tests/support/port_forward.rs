//! Connections through a port-forward.

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use bytes::BytesMut;
use skewbridge_client::remote_command::{
    KeepAlive, Port, PortForwardOptions, PortForwarder, TransportPreference,
};
use skewbridge_client::{Endpoint, Kubeconfig};
use skewbridge_e2e::{ControlPlane, Node, RunningKubectl};
use skewbridge_testkit::Connection;
use skewbridge_websocket::{Decoder, Encoder, Event, Frame, Limits, MessageKind, Role};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::streaming::{COMMAND_TIMEOUT, StreamTarget};

/// A running `kubectl port-forward`.
pub(crate) struct PortForward {
    pub(crate) child: RunningKubectl,
    /// The local addresses, in the order of the ports.
    addresses: Vec<SocketAddr>,
}

impl PortForward {
    pub(crate) async fn start(target: &StreamTarget<'_>, ports: &[u16]) -> Self {
        Self::spawn(target, ports, |_| ()).await
    }

    /// The same, with verbose output to a file.
    pub(crate) async fn start_verbose(
        target: &StreamTarget<'_>,
        ports: &[u16],
        log: &Path,
    ) -> Self {
        Self::spawn(target, ports, |command| {
            command.arg("-v=8").stderr(File::create(log).unwrap());
        })
        .await
    }

    async fn spawn(
        target: &StreamTarget<'_>,
        ports: &[u16],
        change: impl FnOnce(&mut Command),
    ) -> Self {
        let ports: Vec<_> = ports.iter().map(|port| format!(":{port}")).collect();
        let mut words = vec!["port-forward", "--address=127.0.0.1", Node::POD];
        words.extend(ports.iter().map(String::as_str));
        let mut command = target.command(&words);
        change(&mut command);
        let mut child = RunningKubectl::start(&mut command);
        let mut addresses = Vec::new();
        for _ in &ports {
            let line = child.line().await;
            let address = line.strip_prefix("Forwarding from ").expect(&line);
            let (address, _) = address.split_once(" -> ").expect(&line);
            addresses.push(address.parse().unwrap());
        }
        Self { child, addresses }
    }

    pub(crate) async fn connect(&mut self, port: usize) -> TcpStream {
        let connection = TcpStream::connect(self.addresses[port]).await.unwrap();
        let line = self.child.line().await;
        assert!(line.starts_with("Handling connection"), "{line}");
        connection
    }

    pub(crate) async fn echoes(&mut self, port: usize, bytes: &[u8]) {
        let mut connection = self.connect(port).await;
        echoes(&mut connection, bytes).await;
    }
}

/// A connection to a port of the pod, by a client that sends no pings on it.
pub(crate) struct PinglessForward {
    forwarder: PortForwarder,
    pub(crate) connection: TcpStream,
    _tasks: JoinSet<()>,
}

impl PinglessForward {
    pub(crate) async fn start(
        plane: &ControlPlane,
        address: SocketAddr,
        transport: TransportPreference,
        port: u16,
    ) -> Self {
        let config = plane.kubeconfig_of(&[("forward", address)]);
        let kubeconfig = Kubeconfig::load(Some(Path::new(&config))).unwrap();
        let target = kubeconfig.target(None).unwrap();
        let endpoint = Endpoint::prepare(&target, Some(COMMAND_TIMEOUT))
            .await
            .unwrap();
        let options = PortForwardOptions {
            transport,
            keep_alive: KeepAlive {
                interval: Duration::from_hours(1),
                timeout: Duration::from_hours(1),
            },
        };
        let forwarder = PortForwarder::connect_with(&endpoint, Node::NAMESPACE, Node::POD, options);
        let forwarder = forwarder.await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connecting = TcpStream::connect(listener.local_addr().unwrap());
        let (connection, accepted) = tokio::try_join!(connecting, listener.accept()).unwrap();
        let stream = forwarder.open(Port::new(port).unwrap()).unwrap();
        let mut carrying = JoinSet::new();
        carrying.spawn(async move {
            let _ = stream.forward(accepted.0).await;
        });
        Self {
            forwarder,
            connection,
            _tasks: carrying,
        }
    }

    /// The reason why it ended, if it ends within this time.
    pub(crate) async fn ends_within(&self, time: Duration) -> Option<String> {
        timeout(time, self.forwarder.closed()).await.ok()
    }
}

/// Copies between a WebSocket and a byte stream.
pub(crate) async fn pump(mut socket: Connection, mut bytes: DuplexStream) {
    let limits = Limits {
        frame: 1 << 20,
        message: 1 << 20,
    };
    let (mut decoder, mut encoder) = (
        Decoder::new(Role::Client, limits),
        Encoder::new(Role::Client),
    );
    let (mut input, mut output) = (BytesMut::new(), vec![0; 16 << 10]);
    loop {
        tokio::select! {
            read = socket.read_buf(&mut input) => {
                if !matches!(read, Ok(1..)) {
                    return;
                }
                while let Some(event) = decoder.decode(&mut input).unwrap() {
                    if let Event::Chunk(piece) = event && bytes.write_all(&piece.bytes).await.is_err() {
                        return;
                    }
                }
            }
            read = bytes.read(&mut output) => {
                let Ok(length @ 1..) = read else { return };
                let mut frame = BytesMut::new();
                encoder.write(Frame::Whole(MessageKind::Binary), &[&output[..length]], &mut frame);
                if socket.write_all(&frame).await.is_err() || socket.flush().await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Sends these bytes while it receives them.
pub(crate) async fn echoes(connection: &mut TcpStream, bytes: &[u8]) {
    let (mut reader, mut writer) = connection.split();
    let mut received = vec![0; bytes.len()];
    let exchange =
        async { tokio::try_join!(writer.write_all(bytes), reader.read_exact(&mut received)) };
    let exchange = timeout(COMMAND_TIMEOUT, exchange).await;
    exchange.expect("an echo in time").unwrap();
    assert!(received == bytes, "bytes of another connection");
}

/// An echo server that keeps the second half open.
pub(crate) async fn echo_server() -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut connection, _)) = listener.accept().await {
            connections.spawn(async move {
                let (mut reader, mut writer) = connection.split();
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
            });
        }
    });
    (address, tasks)
}
