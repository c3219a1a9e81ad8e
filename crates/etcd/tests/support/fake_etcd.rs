//! A scripted gRPC server, and messages as plain bytes: the field numbers are repeated here on
//! purpose.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderMap, Request, Response};
use rustls::ServerConfig;
use skewbridge_etcd::Endpoint;
use skewbridge_k8s_api::protobuf::Writer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

/// One step of the server's reaction to a call.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// The response headers.
    Head,
    /// Response headers with this HTTP status, and the end.
    Http(u16),
    /// A chunk of the body.
    Data(Vec<u8>),
    /// The end, with a status.
    Trailers(u32, &'static str),
    /// A status in the headers, and the end.
    Refuse(u32, &'static str),
    /// The end, without a status.
    End,
    /// Nothing more on this stream.
    Hang,
    /// Nothing more on this connection, which stays open.
    Freeze,
    /// The connection is closed.
    Disconnect,
    /// GOAWAY.
    GoAway,
}

/// One message and a successful end.
pub(crate) fn answer(message: &[u8]) -> Vec<Step> {
    vec![
        Step::Head,
        Step::Data(frame(message)),
        Step::Trailers(0, ""),
    ]
}

#[derive(Debug)]
pub(crate) struct FakeEtcd {
    address: SocketAddr,
    scheme: &'static str,
    log: Arc<CallLog>,
    task: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct CallLog {
    calls: Mutex<Vec<(String, Bytes)>>,
    opened: AtomicUsize,
    open: AtomicUsize,
}

impl Drop for FakeEtcd {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl FakeEtcd {
    /// `script` gets the method and the number of earlier calls.
    pub(crate) async fn start(
        script: impl Fn(&str, usize) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        Self::listen(None, script).await
    }

    pub(crate) async fn start_tls(
        tls: Arc<ServerConfig>,
        script: impl Fn(&str, usize) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        Self::listen(Some(TlsAcceptor::from(tls)), script).await
    }

    async fn listen(
        tls: Option<TlsAcceptor>,
        script: impl Fn(&str, usize) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let log = Arc::new(CallLog::default());
        let scheme = if tls.is_some() { "https" } else { "http" };
        let script: Arc<Script> = Arc::new(script);
        let task = tokio::spawn({
            let log = log.clone();
            async move {
                let mut connections = JoinSet::new();
                loop {
                    let (tcp, _) = listener.accept().await.unwrap();
                    connections.spawn(connection(tcp, tls.clone(), script.clone(), log.clone()));
                }
            }
        });
        Self {
            address,
            scheme,
            log,
            task,
        }
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        format!("{}://{}", self.scheme, self.address)
            .parse()
            .unwrap()
    }

    /// The methods that were called.
    pub(crate) fn methods(&self) -> Vec<String> {
        let calls = self.log.calls.lock().unwrap();
        calls.iter().map(|(method, _)| method.clone()).collect()
    }

    /// The message of the last call.
    pub(crate) fn last_message(&self) -> Bytes {
        self.log.calls.lock().unwrap().last().unwrap().1.clone()
    }

    /// How many connections were opened.
    pub(crate) fn opened(&self) -> usize {
        self.log.opened.load(Ordering::SeqCst)
    }

    /// How many of them are open.
    pub(crate) fn open(&self) -> usize {
        self.log.open.load(Ordering::SeqCst)
    }
}

type Script = dyn Fn(&str, usize) -> Vec<Step> + Send + Sync;

struct OpenGuard(Arc<CallLog>);

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn connection(
    tcp: TcpStream,
    tls: Option<TlsAcceptor>,
    script: Arc<Script>,
    log: Arc<CallLog>,
) {
    match tls {
        None => serve(tcp, script, log).await,
        Some(tls) => {
            if let Ok(io) = tls.accept(tcp).await {
                serve(io, script, log).await;
            }
        }
    }
}

async fn serve<T>(io: T, script: Arc<Script>, log: Arc<CallLog>)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let Ok(mut connection) = h2::server::handshake(io).await else {
        return;
    };
    log.opened.fetch_add(1, Ordering::SeqCst);
    log.open.fetch_add(1, Ordering::SeqCst);
    let _open = OpenGuard(log.clone());
    let (steps, mut next_steps) = mpsc::unbounded_channel();
    let mut calls = JoinSet::new();
    loop {
        tokio::select! {
            accepted = connection.accept() => match accepted {
                Some(Ok((request, respond))) => {
                    calls.spawn(call(request, respond, script.clone(), log.clone(), steps.clone()));
                }
                _ => return,
            },
            Some(step) = next_steps.recv() => match step {
                Step::Freeze => std::future::pending().await,
                Step::GoAway => connection.graceful_shutdown(),
                _ => return,
            },
        }
    }
}

async fn call(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    script: Arc<Script>,
    log: Arc<CallLog>,
    steps: mpsc::UnboundedSender<Step>,
) {
    let (head, mut body) = request.into_parts();
    assert_eq!(head.headers["content-type"], "application/grpc");
    assert_eq!(head.headers["te"], "trailers");
    let method = head.uri.path().to_owned();
    let message = read_message(&mut body).await;
    let number = {
        let mut calls = log.calls.lock().unwrap();
        calls.push((method.clone(), message));
        calls.len() - 1
    };
    let grpc = |end| {
        let mut response = Response::new(());
        let kind = "application/grpc".parse().unwrap();
        response.headers_mut().insert("content-type", kind);
        (response, end)
    };
    let mut stream = None;
    for step in script(&method, number) {
        match step {
            Step::Head => {
                let (response, end) = grpc(false);
                stream = Some(respond.send_response(response, end).unwrap());
            }
            Step::Http(status) => {
                let response = Response::builder().status(status).body(()).unwrap();
                respond.send_response(response, true).unwrap();
            }
            Step::Data(data) => {
                let _ = stream.as_mut().unwrap().send_data(data.into(), false);
            }
            Step::Trailers(code, message) => {
                let _ = stream
                    .as_mut()
                    .unwrap()
                    .send_trailers(status(code, message));
            }
            Step::Refuse(code, message) => {
                let (mut response, end) = grpc(true);
                response.headers_mut().extend(status(code, message));
                respond.send_response(response, end).unwrap();
            }
            Step::End => {
                let _ = stream.as_mut().unwrap().send_data(Bytes::new(), true);
            }
            Step::Hang => std::future::pending().await,
            Step::Freeze | Step::Disconnect | Step::GoAway => steps.send(step).unwrap(),
        }
    }
}

fn status(code: u32, message: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("grpc-status", code.into());
    headers.insert("grpc-message", message.parse().unwrap());
    headers
}

async fn read_message(body: &mut RecvStream) -> Bytes {
    let mut read = BytesMut::new();
    loop {
        if let Some((prefix, rest)) = read.split_first_chunk::<5>() {
            let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]);
            if rest.len() == length as usize {
                return read.split_off(5).freeze();
            }
        }
        let chunk = body.data().await.unwrap().unwrap();
        body.flow_control().release_capacity(chunk.len()).unwrap();
        read.extend_from_slice(&chunk);
    }
}

/// A message in its frame.
pub(crate) fn frame(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], &length[..], message].concat()
}

/// A varint field.
pub(crate) fn number(tag: u8, value: u64) -> Vec<u8> {
    Writer::default().number(tag, value.cast_signed()).finish()
}

/// A field of bytes or a message.
pub(crate) fn field(tag: u8, value: impl AsRef<[u8]>) -> Vec<u8> {
    Writer::default().bytes(tag, value.as_ref()).finish()
}

/// The header of every response of etcd.
pub(crate) fn header(revision: u64) -> Vec<u8> {
    field(1, number(3, revision))
}

/// A `KeyValue`.
pub(crate) fn kv(key: &str, value: &str, mod_revision: u64) -> Vec<u8> {
    [field(1, key), number(3, mod_revision), field(5, value)].concat()
}

/// A `RangeResponse`.
pub(crate) fn listing(revision: u64, kvs: &[Vec<u8>]) -> Vec<u8> {
    let kvs: Vec<_> = kvs.iter().map(|kv| field(2, kv)).collect();
    [header(revision), kvs.concat()].concat()
}
