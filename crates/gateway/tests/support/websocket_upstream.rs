//! Both ends of a stream that is carried upstream over WebSocket: a SPDY client like kubectl, and
//! kube-apiserver's own translator.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use skewbridge_gateway::Handle;
use skewbridge_gateway::config::{self, UpstreamStreams};
use skewbridge_remotecommand::{ChannelEvent, FromClient, Input, Output, Protocol, ToClient};
use skewbridge_spdy::connection::{self, Handle as Spdy, Stream};
use skewbridge_spdy::{Config, Headers};
use skewbridge_testkit::upstream::Upgrade;
use skewbridge_testkit::{
    ApiServer, ClientAuth, Connection, Options, RecordedRequest, Reply, TEST_TIMEOUT, TlsClient,
    eventually,
};
use skewbridge_websocket::{Close, CloseCode, Control, Decoder, Event, Key, Limits, Role};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::support::admin_client;
use crate::support::pki::{PkiFixture, start};
pub(crate) use crate::support::spdy_upstream::{EXEC, FORWARD, SUCCESS};

pub(crate) const ACCESS_REVIEWS_PATH: &str =
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// A kube-apiserver that accepts streams over WebSocket.
pub(crate) struct WebSocketUpstream {
    pub(crate) api: ApiServer,
    upgrades: mpsc::UnboundedReceiver<Upgrade>,
    /// Whether access reviews allow `create`.
    pub(crate) allows: Arc<AtomicBool>,
}

impl WebSocketUpstream {
    pub(crate) async fn start(pki: &PkiFixture) -> Self {
        let (sender, upgrades) = mpsc::unbounded_channel();
        let allows = Arc::new(AtomicBool::new(true));
        let allowed = allows.clone();
        let options =
            Options::new(pki.upstream.clone()).clients(ClientAuth::Accept(&pki.front_proxy_ca));
        let api = ApiServer::start(options, move |recorded| {
            if recorded.path() == "/version" {
                return Reply::json(r#"{"gitVersion":"v1.34.4"}"#);
            }
            if recorded.path() == ACCESS_REVIEWS_PATH {
                let allowed = allowed.load(Ordering::Relaxed);
                let body = format!(r#"{{"status":{{"allowed":{allowed},"reason":"because"}}}}"#);
                return Reply::json(body).status(201);
            }
            if recorded.header("upgrade") != Some("websocket") {
                return Reply::json("{}");
            }
            let (reply, upgrade) = Reply::upgrade("websocket");
            sender.send(upgrade).unwrap();
            let key = recorded
                .header("sec-websocket-key")
                .unwrap()
                .parse()
                .unwrap();
            let accept = Key::parse(&key).unwrap().accept();
            reply
                .header("Sec-WebSocket-Accept", accept.to_str().unwrap())
                .header(
                    "Sec-WebSocket-Protocol",
                    recorded.header("sec-websocket-protocol").unwrap(),
                )
        })
        .await;
        Self {
            api,
            upgrades,
            allows,
        }
    }

    pub(crate) async fn next_connection(&mut self) -> Connection {
        self.upgrades.recv().await.unwrap().connection().await
    }

    pub(crate) fn requests_to(&self, path: &str) -> Vec<RecordedRequest> {
        let path = path.split('?').next().unwrap();
        let mut recorded = self.api.requests();
        recorded.retain(|recorded| recorded.path() == path);
        recorded
    }
}

pub(crate) async fn start_bridge(pki: &PkiFixture, upstream: &WebSocketUpstream) -> Handle {
    start_bridge_with(pki, upstream, |_| ()).await
}

pub(crate) async fn start_bridge_with(
    pki: &PkiFixture,
    upstream: &WebSocketUpstream,
    change: fn(&mut config::Config),
) -> Handle {
    let mut config = pki.config(upstream.api.addr());
    config.streams.upstream = UpstreamStreams::WebSocket;
    change(&mut config);
    let bridge = start(&config);
    let admin = bridge.admin_address();
    eventually("the bridge is ready", TEST_TIMEOUT, async || {
        admin_client::get(admin, "/readyz").await.status == 200
    })
    .await;
    bridge
}

pub(crate) fn upgrade_request(path: &str, offers: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: k\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
         X-Stream-Protocol-Version: {offers}\r\nContent-Length: 0\r\n\r\n"
    )
}

/// A SPDY client of the bridge, like kubectl.
pub(crate) struct SpdyClient {
    pub(crate) streams: HashMap<&'static str, Stream>,
    pub(crate) handle: Spdy,
    pub(crate) driver: JoinHandle<()>,
}

impl SpdyClient {
    pub(crate) async fn open(client: &TlsClient, bridge: &Handle, protocol: &str) -> Self {
        let mut http = client.http1(bridge.address()).await.unwrap();
        http.send(upgrade_request(EXEC, protocol)).await.unwrap();
        let head = http.read_head().await.unwrap();
        assert_eq!(head.status, 101);
        assert_eq!(head.header("upgrade"), Some("SPDY/3.1"));
        assert_eq!(head.header("x-stream-protocol-version"), Some(protocol));
        let (handle, incoming, driver) =
            connection::client(http.into_connection(), Config::default());
        drop(incoming);
        let driver = tokio::spawn(async move {
            let _ = driver.await;
        });
        let streams = ["error", "stdin", "stdout", "stderr"].map(|name| {
            let headers = Headers::new().with("streamtype", name);
            (name, handle.open(headers).unwrap())
        });
        Self {
            streams: streams.into(),
            handle,
            driver,
        }
    }

    /// All data of a stream, and whether the stream ended without a reset.
    pub(crate) async fn read_to_end(&mut self, name: &str) -> (String, bool) {
        let mut all = Vec::new();
        let receiver = &mut self.streams.get_mut(name).unwrap().receiver;
        loop {
            match timeout(Duration::from_secs(15), receiver.read())
                .await
                .unwrap()
            {
                Ok(Some(data)) => all.extend_from_slice(&data),
                Ok(None) => return (String::from_utf8(all).unwrap(), true),
                Err(_) => return (String::from_utf8(all).unwrap(), false),
            }
        }
    }
}

/// kube-apiserver's own translator, as seen by its client.
pub(crate) struct WebSocketServer {
    pub(crate) io: Connection,
    pub(crate) input: BytesMut,
    pub(crate) decoder: Decoder,
    reader: FromClient,
    writer: ToClient,
}

impl WebSocketServer {
    pub(crate) fn accept(io: Connection) -> Self {
        let limits = Limits {
            frame: 1 << 30,
            message: 1 << 30,
        };
        Self {
            io,
            input: BytesMut::new(),
            decoder: Decoder::new(Role::Server, limits),
            reader: FromClient::new(Protocol::V5),
            writer: ToClient::new(Protocol::V5),
        }
    }

    pub(crate) async fn next_event(&mut self) -> Option<ChannelEvent<Input>> {
        loop {
            match self.decoder.decode(&mut self.input).unwrap() {
                Some(Event::Chunk(piece)) => {
                    if let Some(sent_status) = self.reader.read_chunk(piece).unwrap() {
                        return Some(sent_status);
                    }
                }
                Some(Event::Control(Control::Close(_))) => return None,
                Some(Event::Control(_)) => {}
                None => {
                    let read = self.io.read_buf(&mut self.input).await;
                    if read.unwrap_or_default() == 0 {
                        return None;
                    }
                }
            }
        }
    }

    pub(crate) async fn write(&mut self, output: Output, data: &str) {
        let mut out = BytesMut::new();
        self.writer.write(output, data.as_bytes(), &mut out);
        self.io.write_all(&out).await.unwrap();
        self.io.flush().await.unwrap();
    }

    pub(crate) async fn close(mut self) {
        let mut out = BytesMut::new();
        let close = Close::new(CloseCode::NORMAL, "");
        self.writer.control(&Control::Close(Some(close)), &mut out);
        self.io.write_all(&out).await.unwrap();
        self.io.flush().await.unwrap();
        // Like kube-apiserver, waits for the client's close frame.
        let _ = timeout(Duration::from_secs(5), self.next_event()).await;
    }
}
