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
use skewbridge_websocket::{Control, Decoder, Event, Limits, Role};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use crate::node_fixture::{LIMIT, NodeFixture, spdy_headers, websocket_headers};

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

async fn all(mut receiver: Receiver) -> String {
    let mut text = Vec::new();
    let read = async {
        while let Ok(Some(data)) = receiver.read().await {
            text.extend_from_slice(&data);
        }
    };
    tokio::time::timeout(LIMIT, read).await.unwrap();
    String::from_utf8(text).unwrap()
}

/// The data and the error of a port.
async fn get(handle: &Handle, port: u16, request: &str) -> (String, String) {
    let mut error = open(handle, Which::Error, port, request);
    error.sender.finish().unwrap();
    let mut data = open(handle, Which::Data, port, request);
    let ask = Bytes::from_static(b"GET / HTTP/1.1\r\nhost: web\r\n\r\n");
    data.sender.write(ask).await.unwrap();
    data.sender.finish().unwrap();
    tokio::join!(all(data.receiver), all(error.receiver))
}

async fn connection(fixture: &NodeFixture) -> DuplexStream {
    let headers: HeaderMap = spdy_headers("portforward.k8s.io");
    fixture.switched(PortForward, "web", "", headers).await
}

#[tokio::test]
async fn what_a_pod_listens_on_is_forwarded() {
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
        // The process may not listen yet.
        let mut got = (String::new(), String::new());
        for attempt in 0..200 {
            got = get(&handle, port, &format!("{number}-{attempt}")).await;
            if got.1.is_empty() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        assert!(
            got.0
                .ends_with(&format!("Hello from pod web, port {port}.\n")),
            "{got:?}"
        );
    }
    driver.abort();
}

#[tokio::test]
async fn listeners_of_other_programs_are_not_reached() {
    let fixture = NodeFixture::new();
    let pod = |port: u16| {
        let ports = json!([{"containerPort": port}]);
        json!({"containers": [{"name": "web", "command": ["sleep", "1000"], "ports": ports}]})
    };
    // Listeners of other programs: at the address of pods, at any address, and at localhost.
    let strangers = ["127.0.0.2:0", "0.0.0.0:0", "127.0.0.1:0", "[::1]:0"];
    let strangers = strangers.map(|address| std::net::TcpListener::bind(address).ok());
    let strangers: Vec<_> = strangers.into_iter().flatten().collect();
    let first = strangers[0].local_addr().unwrap().port();
    fixture.running("web", &pod(first)).await;
    let (handle, _incoming, driver) =
        connection::client(connection(&fixture).await, Config::default());
    let driver = tokio::spawn(driver);
    for (number, stranger) in strangers.iter().enumerate() {
        let port = stranger.local_addr().unwrap().port();
        let (data, error) = get(&handle, port, &number.to_string()).await;
        assert_eq!(data, "");
        assert_eq!(
            error,
            format!(
                "error forwarding port {port} to pod web, uid : failed to connect to \
                 localhost:{port} inside the pod: connection refused"
            )
        );
        stranger.set_nonblocking(true).unwrap();
        let accepted = stranger.accept().map(|(_, address)| address);
        let accepted = accepted.unwrap_err().kind();
        assert_eq!(accepted, std::io::ErrorKind::WouldBlock);
    }
    driver.abort();
}

/// A client by channels, as the Python client is one.
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

    /// The next piece of a message; `None` at a close.
    async fn next(&mut self) -> Option<(FromPod, Bytes)> {
        loop {
            match self.decoder.decode(&mut self.buffer).unwrap() {
                Some(Event::Chunk(piece)) => match self.reader.read_chunk(piece).unwrap() {
                    Some(ChannelEvent::Data(channel, data)) => return Some((channel, data)),
                    _ => continue,
                },
                Some(Event::Control(Control::Close(_))) => return None,
                Some(Event::Control(_)) => continue,
                None => {}
            }
            let read = self.io.read_buf(&mut self.buffer);
            let read = tokio::time::timeout(LIMIT, read).await;
            assert!(read.expect("no silence").unwrap() > 0, "cut off");
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
        for attempt in 0..200 {
            let mut client = Channels::open(&fixture, "ports=18081,9&ports=18082", protocol).await;
            for port in [0, 2] {
                let ask = b"GET / HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n";
                client.write(port, ask).await;
            }
            // An unknown port is ignored.
            client.write(7, b"?").await;
            let command_result = client.finish(&ports).await;
            // The process may not listen yet.
            if attempt < 199
                && (!command_result[0][1].is_empty() || !command_result[2][1].is_empty())
            {
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                continue;
            }
            for place in [0, 2] {
                let expected = format!("Hello from pod web, port {}.\n", ports[place]);
                assert!(
                    command_result[place][0].ends_with(&expected),
                    "{command_result:?}"
                );
                assert_eq!(command_result[place][1], "");
            }
            let refused = "error forwarding port 9 to pod web, uid : failed to connect";
            assert!(
                command_result[1][1].starts_with(refused),
                "{command_result:?}"
            );
            break;
        }
    }
    let headers = websocket_headers("v4.channel.k8s.io");
    let answer = fixture.ask(PortForward, "web", "", headers).await;
    let answer = format!("{answer:?}");
    assert!(answer.contains("is required"), "{answer}");
}
