//! skewbridge-websocket's frames and handshakes with the WebSocket libraries of Kubernetes.

use bytes::{Bytes, BytesMut};
use http::header::{HOST, HeaderMap, HeaderValue};
use http::{Method, StatusCode, Version};
use skewbridge_e2e::{Library, dial_websocket, serve_websocket};
use skewbridge_http_engine::http1::{
    parse_request, parse_response, write_headers, write_request_line, write_status_line,
};
use skewbridge_testkit::{ScratchDir, TEST_TIMEOUT};
use skewbridge_websocket::{
    Assembly, Close, CloseCode, Control, ControlPayload, Decoder, Encoder, Event, Frame, Key,
    Limits, MessageKind, Role, check_response, parse_upgrade_request, set_request_headers,
    set_response_headers, subprotocols,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// The subprotocol of both ends.
const PROTOCOL: &str = "v5.channel.k8s.io";

/// The lengths at which the frame header changes, and some more.
const LENGTHS: [usize; 12] = [
    0,
    1,
    7,
    8,
    125,
    126,
    999,
    4000,
    65535,
    65536,
    100_003,
    1 << 20,
];

/// The fragment size of fragmented messages.
const FRAGMENT_BYTES: usize = 777;

const LIMITS: Limits = Limits {
    frame: 2 << 20,
    message: 2 << 20,
};

#[tokio::test]
async fn the_client_interoperates_with_servers_of_kubernetes() {
    let directory = ScratchDir::new();
    let (_process, address) = serve_websocket(directory.path()).await;
    for library in [Library::Gorilla, Library::Net] {
        let stream = TcpStream::connect(address).await.unwrap();
        let mut client = Endpoint::connect(stream, library).await;
        for length in LENGTHS {
            let message: Bytes = (0..251).cycle().take(length).collect();
            // A library without support for fragments returns each by itself.
            let fragmented = library == Library::Gorilla;
            client.send(MessageKind::Binary, &message, fragmented).await;
            assert_eq!(client.message().await, Some((MessageKind::Binary, message)));
        }
        let ping = ControlPayload::new("are you there".into()).unwrap();
        client.control(&Control::Ping(ping.clone())).await;
        assert_eq!(
            client.next().await,
            Some(Event::Control(Control::Pong(ping)))
        );

        match library {
            Library::Gorilla => {
                let between: usize = LENGTHS.into_iter().map(|it| it.div_ceil(3000)).sum();
                assert_eq!(client.pings, between, "pings between fragments");
                let text = Bytes::from("ä€😀".repeat(5000));
                client.send(MessageKind::Text, &text, true).await;
                assert_eq!(client.message().await, Some((MessageKind::Text, text)));
                client
                    .send(MessageKind::Text, b"close 4321 enough", false)
                    .await;
                let close = Close::new(CloseCode::new(4321).unwrap(), "enough");
                let close = Event::Control(Control::Close(Some(close)));
                assert_eq!(client.next().await, Some(close));
            }
            Library::Net => {
                let close = Close::new(CloseCode::NORMAL, "");
                client.control(&Control::Close(Some(close))).await;
                assert_eq!(client.next().await, None);
            }
        }
    }
}

/// How a server of Kubernetes handles fragments, and why none are sent to it.
#[tokio::test]
async fn servers_of_kubernetes_treat_fragments_as_messages() {
    let directory = ScratchDir::new();
    let (_process, address) = serve_websocket(directory.path()).await;
    let stream = TcpStream::connect(address).await.unwrap();
    let mut client = Endpoint::connect(stream, Library::Net).await;
    client
        .send(MessageKind::Binary, &[7; FRAGMENT_BYTES + 1], true)
        .await;
    let first = Bytes::from_static(&[7; FRAGMENT_BYTES]);
    assert_eq!(client.message().await, Some((MessageKind::Binary, first)));
    let second = Bytes::from_static(&[7]);
    assert_eq!(client.message().await, Some((MessageKind::Binary, second)));
}

#[tokio::test]
async fn the_server_interoperates_with_clients_of_kubernetes() {
    for library in [Library::Gorilla, Library::Net] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = async {
            let (stream, _) = listener.accept().await.unwrap();
            let mut server = Endpoint::accept(stream).await;
            while let Some((kind, message)) = server.message().await {
                let fragmented = library == Library::Gorilla;
                server.send(kind, &message, fragmented).await;
            }
        };
        let exchange = async { tokio::join!(dial_websocket(library, address), serving) };
        let (output, ()) = tokio::time::timeout(TEST_TIMEOUT, exchange).await.unwrap();
        assert_eq!(output.code, Some(0), "{library:?}: {}", output.stderr);
    }
}

/// The skewbridge end of a connection.
struct Endpoint {
    stream: TcpStream,
    buffer: BytesMut,
    decoder: Decoder,
    encoder: Encoder,
    pings: usize,
}

impl Endpoint {
    fn new(stream: TcpStream, buffer: BytesMut, role: Role) -> Self {
        Self {
            stream,
            buffer,
            decoder: Decoder::new(role, LIMITS),
            encoder: Encoder::new(role),
            pings: 0,
        }
    }

    async fn connect(mut stream: TcpStream, library: Library) -> Self {
        let (key, offers) = (Key::random(), [PROTOCOL, "unknown"]);
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_static("localhost"));
        set_request_headers(&key, offers, &mut headers).unwrap();
        let mut out = BytesMut::new();
        write_request_line(&mut out, &Method::GET, &format!("/{}", library.name()));
        write_headers(&mut out, &headers);
        out.extend_from_slice(b"\r\n");
        stream.write_all(&out).await.unwrap();

        let mut buffer = BytesMut::new();
        let head = loop {
            stream.read_buf(&mut buffer).await.unwrap();
            if let Some(head) = parse_response(&mut buffer, &Method::GET).unwrap() {
                break head;
            }
        };
        let taken = check_response(head.status, &head.headers, &key, &offers);
        assert_eq!(taken, Ok(Some(PROTOCOL)));
        Self::new(stream, buffer, Role::Client)
    }

    async fn accept(mut stream: TcpStream) -> Self {
        let mut buffer = BytesMut::new();
        let head = loop {
            stream.read_buf(&mut buffer).await.unwrap();
            if let Some(head) = parse_request(&mut buffer).unwrap() {
                break head;
            }
        };
        let request = parse_upgrade_request(&head.method, &head.headers).unwrap();
        assert!(subprotocols(&head.headers).any(|offer| offer == PROTOCOL));
        let (mut headers, mut out) = (HeaderMap::new(), BytesMut::new());
        let taken = HeaderValue::from_static(PROTOCOL);
        set_response_headers(&request, Some(taken), &mut headers);
        write_status_line(&mut out, Version::HTTP_11, StatusCode::SWITCHING_PROTOCOLS);
        write_headers(&mut out, &headers);
        out.extend_from_slice(b"\r\n");
        stream.write_all(&out).await.unwrap();
        Self::new(stream, buffer, Role::Server)
    }

    async fn send(&mut self, kind: MessageKind, message: &[u8], fragmented: bool) {
        let mut out = BytesMut::new();
        let mut parts = message.chunks(FRAGMENT_BYTES).peekable();
        if message.len() <= FRAGMENT_BYTES || !fragmented {
            self.encoder.write(Frame::Whole(kind), &[message], &mut out);
        } else {
            let mut frame = Frame::First(kind);
            while let Some(part) = parts.next() {
                if parts.peek().is_none() {
                    frame = Frame::Last;
                }
                self.encoder.write(frame, &[part], &mut out);
                frame = Frame::Middle;
            }
        }
        self.stream.write_all(&out).await.unwrap();
    }

    async fn control(&mut self, control: &Control) {
        let mut out = BytesMut::new();
        self.encoder.control(control, &mut out);
        self.stream.write_all(&out).await.unwrap();
    }

    /// The next message; pings and a close are answered.
    async fn message(&mut self) -> Option<(MessageKind, Bytes)> {
        let mut assembly = Assembly::default();
        loop {
            match self.next().await? {
                Event::Chunk(piece) => {
                    if let Some(message) = assembly.push(piece) {
                        return Some(message);
                    }
                }
                Event::Control(Control::Ping(payload)) => {
                    self.pings += 1;
                    self.control(&Control::Pong(payload)).await;
                }
                Event::Control(Control::Pong(_)) => {}
                Event::Control(close @ Control::Close(_)) => {
                    self.control(&close).await;
                    return None;
                }
            }
        }
    }

    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.decoder.decode(&mut self.buffer).unwrap() {
                return Some(event);
            }
            let reading = self.stream.read_buf(&mut self.buffer);
            let read = tokio::time::timeout(TEST_TIMEOUT, reading).await.unwrap();
            if read.unwrap() == 0 {
                return None;
            }
        }
    }
}
