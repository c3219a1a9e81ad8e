//! Port-forward.

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use serde_json::json;
use skewbridge_fake_cluster::server::pod_streams::StreamKind::PortForward;
use skewbridge_remotecommand::port_forward::legacy::{
    FromPod, FromServer, ToPod, ToServer, decode_port,
};
use skewbridge_remotecommand::port_forward::{Port, Stream as Which, pair};
use skewbridge_remotecommand::{ChannelEvent, Protocol};
use skewbridge_spdy::connection::{self, Handle, Receiver, Stream};
use skewbridge_spdy::{Config, Headers};
use skewbridge_testkit::eventually;
use skewbridge_websocket::{Control, Decoder, Event, Limits, Role};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use crate::node_fixture::{NodeFixture, TEST_TIMEOUT, spdy_headers, websocket_headers};

fn open(handle: &Handle, stream: Which, port: u16, request: &str) -> Stream {
    let headers = pair::Headers {
        stream,
        port: Port::new(port).unwrap(),
        request: request.to_owned(),
    };
    let mut fields = Headers::new();
    for (name, value) in headers.fields() {
        fields = fields.with(name, value);
    }
    handle.open(fields).unwrap()
}

async fn read_to_end(mut receiver: Receiver) -> String {
    let mut text = Vec::new();
    let read = async {
        while let Ok(Some(data)) = receiver.read().await {
            text.extend_from_slice(&data);
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, read).await.unwrap();
    String::from_utf8(text).unwrap()
}

/// The data and the error of a port.
async fn get(handle: &Handle, port: u16, request: &str) -> (String, String) {
    let mut error = open(handle, Which::Error, port, request);
    error.sender.finish().unwrap();
    let mut data = open(handle, Which::Data, port, request);
    let request_bytes = Bytes::from_static(b"GET / HTTP/1.1\r\nhost: web\r\n\r\n");
    data.sender.write(request_bytes).await.unwrap();
    data.sender.finish().unwrap();
    tokio::join!(read_to_end(data.receiver), read_to_end(error.receiver))
}

async fn connection(fixture: &NodeFixture) -> DuplexStream {
    let headers: HeaderMap = spdy_headers("portforward.k8s.io");
    fixture.switched(PortForward, "web", "", headers).await
}

#[tokio::test]
async fn ports_that_a_pod_listens_on_are_forwarded() {
    let fixture = NodeFixture::new();
    // A privileged port and an unprivileged one.
    let ports = json!([{"containerPort": 80}, {"containerPort": 18_080}]);
    let container = json!({"name": "web", "image": "web", "ports": ports});
    fixture
        .running("web", &json!({"containers": [container]}))
        .await;
    let (handle, _incoming, driver) =
        connection::client(connection(&fixture).await, Config::default());
    let driver = tokio::spawn(driver);
    for (number, port) in [(1, 80), (2, 18_080), (3, 80)] {
        let mut attempt = 0;
        let mut data = String::new();
        eventually("the process listens", TEST_TIMEOUT, async || {
            attempt += 1;
            let (received, error) = get(&handle, port, &format!("{number}-{attempt}")).await;
            data = received;
            error.is_empty()
        })
        .await;
        let expected = format!("Hello from pod web, port {port}.\n");
        assert!(data.ends_with(&expected), "{data:?}");
    }
    driver.abort();
}

#[tokio::test]
async fn listeners_of_other_processes_are_not_reachable() {
    let fixture = NodeFixture::new();
    let pod = |port: u16| {
        let ports = json!([{"containerPort": port}]);
        json!({"containers": [{"name": "web", "command": ["sleep", "1000"], "ports": ports}]})
    };
    // Listeners of other processes: at the address of pods, at any address, and at localhost.
    let listeners = ["127.0.0.2:0", "0.0.0.0:0", "127.0.0.1:0", "[::1]:0"];
    let listeners = listeners.map(|address| std::net::TcpListener::bind(address).ok());
    let listeners: Vec<_> = listeners.into_iter().flatten().collect();
    let first = listeners[0].local_addr().unwrap().port();
    fixture.running("web", &pod(first)).await;
    let (handle, _incoming, driver) =
        connection::client(connection(&fixture).await, Config::default());
    let driver = tokio::spawn(driver);
    for (number, listener) in listeners.iter().enumerate() {
        let port = listener.local_addr().unwrap().port();
        let (data, error) = get(&handle, port, &number.to_string()).await;
        assert_eq!(data, "");
        assert_eq!(
            error,
            format!(
                "error forwarding port {port} to pod web, uid : failed to connect to \
                 localhost:{port} inside the pod: connection refused"
            )
        );
        listener.set_nonblocking(true).unwrap();
        let accepted = listener.accept().map(|(_, address)| address);
        let accepted = accepted.unwrap_err().kind();
        assert_eq!(accepted, std::io::ErrorKind::WouldBlock);
    }
    driver.abort();
}

/// A client of the channel protocol, like the Python client.
struct Channels {
    io: DuplexStream,
    buffer: BytesMut,
    decoder: Decoder,
    reader: FromServer,
    writer: ToServer,
}

impl Channels {
    async fn open(fixture: &NodeFixture, query: &str, protocol: Protocol) -> Self {
        let headers = websocket_headers(protocol.name());
        let limits = Limits {
            frame: 1 << 20,
            message: 1 << 20,
        };
        Self {
            io: fixture.switched(PortForward, "web", query, headers).await,
            buffer: BytesMut::new(),
            decoder: Decoder::new(Role::Client, limits),
            reader: FromServer::new(protocol),
            writer: ToServer::new(protocol),
        }
    }

    async fn write(&mut self, port: u8, data: &[u8]) {
        let mut out = BytesMut::new();
        self.writer.write(ToPod { port }, data, &mut out);
        self.io.write_all(&out).await.unwrap();
    }

    /// The next chunk of a message; `None` at a close.
    async fn next(&mut self) -> Option<(FromPod, Bytes)> {
        loop {
            match self.decoder.decode(&mut self.buffer).unwrap() {
                Some(Event::Chunk(chunk)) => match self.reader.read_chunk(chunk).unwrap() {
                    Some(ChannelEvent::Data(channel, data)) => return Some((channel, data)),
                    _ => continue,
                },
                Some(Event::Control(Control::Close(_))) => return None,
                Some(Event::Control(_)) => continue,
                None => {}
            }
            let read = self.io.read_buf(&mut self.buffer);
            let read = tokio::time::timeout(TEST_TIMEOUT, read).await;
            assert!(
                read.expect("data before the timeout").unwrap() > 0,
                "disconnected"
            );
        }
    }

    /// The data of each channel until the close, after the port numbers.
    async fn finish(&mut self, ports: &[u16]) -> Vec<[String; 2]> {
        let mut texts = vec![[const { Vec::new() }; 2]; ports.len()];
        let mut announced_on = Vec::new();
        while let Some((channel, data)) = self.next().await {
            let port = usize::from(channel.port);
            if announced_on.contains(&channel) {
                texts[port][usize::from(channel.stream == Which::Error)].extend_from_slice(&data);
            } else {
                assert_eq!(decode_port(&data).unwrap().number(), ports[port]);
                announced_on.push(channel);
            }
        }
        assert_eq!(announced_on.len(), 2 * ports.len());
        let text = |bytes| String::from_utf8(bytes).unwrap();
        texts.into_iter().map(|both| both.map(text)).collect()
    }
}

#[tokio::test]
async fn ports_are_forwarded_by_channels() {
    let fixture = NodeFixture::new();
    let ports = json!([{"containerPort": 18_081}, {"containerPort": 18_082}]);
    let container = json!({"name": "web", "image": "web", "ports": ports});
    fixture
        .running("web", &json!({"containers": [container]}))
        .await;
    // A closed port is reported on its own error channel.
    let ports = [18_081, 9, 18_082];
    for protocol in [Protocol::V4, Protocol::V4_BASE64] {
        let mut texts = Vec::new();
        eventually("the processes listen", TEST_TIMEOUT, async || {
            let mut client = Channels::open(&fixture, "ports=18081,9&ports=18082", protocol).await;
            for port in [0, 2] {
                let request = b"GET / HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n";
                client.write(port, request).await;
            }
            // An unknown port is ignored.
            client.write(7, b"?").await;
            texts = client.finish(&ports).await;
            texts[0][1].is_empty() && texts[2][1].is_empty()
        })
        .await;
        for port in [0, 2] {
            let expected = format!("Hello from pod web, port {}.\n", ports[port]);
            assert!(texts[port][0].ends_with(&expected), "{texts:?}");
        }
        let refused = "error forwarding port 9 to pod web, uid : failed to connect";
        assert!(texts[1][1].starts_with(refused), "{texts:?}");
    }
    let headers = websocket_headers("v4.channel.k8s.io");
    let answer = fixture.send_request(PortForward, "web", "", headers).await;
    let answer = format!("{answer:?}");
    assert!(answer.contains("is required"), "{answer}");
}
