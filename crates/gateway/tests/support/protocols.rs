//! A bridge between a client and an upstream, in every combination of HTTP/1.1 and HTTP/2.

use bytes::Bytes;
use http::{Request, Version};
use skewbridge_gateway::Handle;
use skewbridge_gateway::config::Limits;
use skewbridge_testkit::{
    ApiServer, BodySender, ClientAuth, H1Client, H2Client, H2Stream, Options, RecordedRequest,
    Reply, Response, ScriptedConn, ScriptedServer, TEST_TIMEOUT,
};
use tokio::sync::mpsc;

use crate::support::pki::PkiFixture;

/// The HTTP version of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proto {
    H1,
    H2,
}

use Proto::{H1, H2};

/// Client and upstream in all combinations.
pub(crate) const COMBINATIONS: [(Proto, Proto); 4] = [(H1, H1), (H1, H2), (H2, H1), (H2, H2)];

impl Proto {
    pub(crate) fn alpn(self) -> &'static [&'static str] {
        match self {
            H1 => &["http/1.1"],
            H2 => &["h2"],
        }
    }

    pub(crate) fn version(self) -> Version {
        match self {
            H1 => Version::HTTP_11,
            H2 => Version::HTTP_2,
        }
    }
}

/// Awaits this with the timeout of tests.
pub(crate) async fn with_timeout<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(TEST_TIMEOUT, what)
        .await
        .expect("done before the timeout")
}

/// A bridge in front of a well-behaved upstream. Upstream requires the front-proxy certificate, and
/// so records the requests of users but not the bridge's own ones.
pub(crate) struct ApiServerFixture {
    pub(crate) pki: PkiFixture,
    pub(crate) upstream: ApiServer,
    pub(crate) bridge: Handle,
}

impl ApiServerFixture {
    /// Upstream supports only this protocol.
    pub(crate) async fn new(
        upstream: Proto,
        handler: impl Fn(RecordedRequest) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::with(upstream, |options| options, handler).await
    }

    pub(crate) async fn with(
        upstream: Proto,
        change: impl FnOnce(Options<'_>) -> Options<'_>,
        handler: impl Fn(RecordedRequest) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let pki = PkiFixture::new();
        let options = Options::new(pki.upstream.clone())
            .clients(ClientAuth::Require(&pki.front_proxy_ca))
            .alpn(upstream.alpn());
        let upstream = ApiServer::start(change(options), handler).await;
        let bridge = pki.start_bridge(upstream.addr());
        Self {
            pki,
            upstream,
            bridge,
        }
    }

    /// Upstream answers every request with a body that the test sends.
    pub(crate) async fn streaming(upstream: Proto) -> (Self, mpsc::UnboundedReceiver<BodySender>) {
        Self::streaming_with(upstream, |options| options).await
    }

    pub(crate) async fn streaming_with(
        upstream: Proto,
        change: impl FnOnce(Options<'_>) -> Options<'_>,
    ) -> (Self, mpsc::UnboundedReceiver<BodySender>) {
        let (senders, bodies) = mpsc::unbounded_channel();
        let fixture = Self::with(upstream, change, move |_| {
            let (reply, sender) = Reply::stream();
            senders.send(sender).unwrap();
            reply
        })
        .await;
        (fixture, bodies)
    }

    pub(crate) async fn client(&self, proto: Proto) -> Client {
        client(&self.pki, &self.bridge, proto).await
    }

    pub(crate) async fn h1(&self) -> H1Client {
        let user = self.pki.user("alice", &["dev"]);
        user.http1(self.bridge.address()).await.unwrap()
    }

    pub(crate) async fn h2(&self) -> H2Client {
        let user = self.pki.user("alice", &["dev"]);
        user.http2(self.bridge.address()).await.unwrap()
    }

    /// The only request that upstream has recorded.
    pub(crate) fn only_request(&self) -> RecordedRequest {
        let mut requests = self.upstream.requests();
        assert_eq!(requests.len(), 1, "{requests:#?}");
        requests.remove(0)
    }
}

/// A bridge in front of a scripted upstream that writes raw bytes. Upstream requires the
/// front-proxy certificate, and so the script gets only the connections for users.
pub(crate) struct ScriptedFixture {
    pub(crate) pki: PkiFixture,
    pub(crate) upstream: ScriptedServer,
    pub(crate) bridge: Handle,
}

impl ScriptedFixture {
    pub(crate) async fn new<F, Fut>(upstream: Proto, script: F) -> Self
    where
        F: Fn(ScriptedConn) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        Self::with(upstream, |_| {}, script).await
    }

    /// The same, with other limits.
    pub(crate) async fn with<F, Fut>(
        upstream: Proto,
        change: impl FnOnce(&mut Limits),
        script: F,
    ) -> Self
    where
        F: Fn(ScriptedConn) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let pki = PkiFixture::new();
        let ca = Some(&pki.front_proxy_ca);
        let upstream = ScriptedServer::start(&pki.upstream, ca, upstream.alpn(), script).await;
        let mut config = pki.config(upstream.addr());
        change(&mut config.limits);
        let bridge = crate::support::pki::start(&config);
        Self {
            pki,
            upstream,
            bridge,
        }
    }

    pub(crate) async fn client(&self, proto: Proto) -> Client {
        client(&self.pki, &self.bridge, proto).await
    }
}

async fn client(pki: &PkiFixture, bridge: &Handle, proto: Proto) -> Client {
    let user = pki.user("alice", &["dev"]);
    match proto {
        H1 => Client::H1(Box::new(user.http1(bridge.address()).await.unwrap())),
        H2 => Client::H2(user.http2(bridge.address()).await.unwrap()),
    }
}

/// A request to the host that all tests use.
pub(crate) fn request(method: &str, path: &str) -> http::request::Builder {
    Request::builder()
        .method(method)
        .uri(format!("https://k{path}"))
}

/// A client of either HTTP version.
pub(crate) enum Client {
    H1(Box<H1Client>),
    H2(H2Client),
}

impl Client {
    pub(crate) async fn get(&mut self, path: &str) -> Response {
        self.request(request("GET", path), "").await
    }

    pub(crate) async fn post(&mut self, path: &str, body: impl Into<Bytes>) -> Response {
        self.request(request("POST", path), body).await
    }

    /// Sends a complete request and reads the complete response.
    pub(crate) async fn request(
        &mut self,
        request: http::request::Builder,
        body: impl Into<Bytes>,
    ) -> Response {
        let (request, body) = (request.body(()).unwrap(), body.into());
        match self {
            Self::H1(client) => {
                let framing = match body.len() {
                    0 => String::new(),
                    length => format!("Content-Length: {length}\r\n"),
                };
                let head = h1_head(&request, &framing);
                with_timeout(async {
                    client.send(head).await.unwrap();
                    client.send(body).await.unwrap();
                    if request.method() == "HEAD" {
                        return client.read_response_to_head().await.unwrap();
                    }
                    client.read_response().await.unwrap()
                })
                .await
            }
            Self::H2(client) => with_timeout(client.request(request, body)).await.unwrap(),
        }
    }

    /// Sends a request without a body; the response is read from the returned exchange.
    pub(crate) async fn begin(self, request: http::request::Builder) -> Exchange {
        let mut exchange = self.open(request, "").await;
        if let Exchange::H2(_, stream) = &mut exchange {
            stream.finish().unwrap();
        }
        exchange
    }

    /// Sends the head of a request whose body follows in chunks.
    pub(crate) async fn upload(self, request: http::request::Builder) -> Exchange {
        self.open(request, "Transfer-Encoding: chunked\r\n").await
    }

    async fn open(self, request: http::request::Builder, framing: &str) -> Exchange {
        let request = request.body(()).unwrap();
        match self {
            Self::H1(mut client) => {
                client.send(h1_head(&request, framing)).await.unwrap();
                Exchange::H1(client)
            }
            Self::H2(client) => {
                let stream = with_timeout(client.stream(request)).await.unwrap();
                Exchange::H2(client, Box::new(stream))
            }
        }
    }
}

fn h1_head(request: &Request<()>, framing: &str) -> String {
    let target = request.uri().path_and_query().unwrap();
    let host = request.uri().authority().unwrap();
    let fields: Vec<_> = request
        .headers()
        .iter()
        .map(|(name, value)| format!("{name}: {}\r\n", value.to_str().unwrap()))
        .collect();
    let fields = fields.concat();
    let method = request.method();
    format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{fields}{framing}\r\n")
}

/// A request in flight and its response, chunk by chunk. Dropping it closes the connection or
/// resets the stream.
pub(crate) enum Exchange {
    H1(Box<H1Client>),
    H2(H2Client, Box<H2Stream>),
}

/// The response is truncated.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Truncated;

impl Exchange {
    pub(crate) async fn send(&mut self, piece: &[u8]) {
        with_timeout(self.push(piece)).await;
    }

    /// Sends a chunk, without a timeout.
    pub(crate) async fn push(&mut self, piece: &[u8]) {
        match self {
            Self::H1(client) => {
                let size = format!("{:x}\r\n", piece.len());
                let chunk = [size.as_bytes(), piece, b"\r\n"].concat();
                client.send(chunk).await.unwrap();
            }
            Self::H2(_, stream) => stream.send(piece.to_vec()).await.unwrap(),
        }
    }

    pub(crate) async fn finish(&mut self, trailers: &[(&str, &str)]) {
        match self {
            Self::H1(client) => {
                let lines: Vec<_> = trailers
                    .iter()
                    .map(|(name, value)| format!("{name}: {value}\r\n"))
                    .collect();
                let lines = lines.concat();
                client.send(format!("0\r\n{lines}\r\n")).await.unwrap();
            }
            Self::H2(_, stream) if trailers.is_empty() => stream.finish().unwrap(),
            Self::H2(_, stream) => stream.finish_with(&owned(trailers)).unwrap(),
        }
    }

    /// The status of the final response.
    pub(crate) async fn head(&mut self) -> u16 {
        with_timeout(async {
            match self {
                Self::H1(client) => loop {
                    let head = client.read_head().await.unwrap();
                    if head.status >= 200 {
                        return head.status;
                    }
                },
                Self::H2(_, stream) => stream.head().await.unwrap().status.as_u16(),
            }
        })
        .await
    }

    /// Reads until these bytes have arrived, and no further ones.
    pub(crate) async fn expect(&mut self, bytes: &[u8]) {
        let mut arrived = Vec::new();
        while arrived.len() < bytes.len() {
            arrived.extend_from_slice(&self.chunk().await.unwrap().expect("more data"));
        }
        assert_eq!(arrived, bytes);
    }

    /// The next chunk of the response, `None` at its end.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, Truncated> {
        with_timeout(async {
            match self {
                Self::H1(client) => client.read_chunk().await.map_err(|_| Truncated),
                Self::H2(_, stream) => {
                    let chunk = stream.chunk().await.transpose();
                    chunk.map_err(|error| {
                        assert!(error.is_reset() && error.is_remote(), "{error}");
                        Truncated
                    })
                }
            }
        })
        .await
    }

    /// The rest of the response.
    pub(crate) async fn read_to_end(&mut self) -> Result<Vec<u8>, Truncated> {
        let mut rest = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            rest.extend_from_slice(&chunk);
        }
        Ok(rest)
    }

    /// The trailers, after the body has been read; names in lower case.
    pub(crate) async fn trailers(&mut self) -> Vec<(String, String)> {
        match self {
            Self::H1(client) => lower_case_names(client.trailers()),
            Self::H2(_, stream) => with_timeout(stream.trailers()).await.unwrap(),
        }
    }

    /// Disconnects: over HTTP/1.1 by closing the connection, over HTTP/2 by resetting the stream.
    /// The returned client keeps the HTTP/2 connection open.
    pub(crate) fn disconnect(self) -> Option<H2Client> {
        match self {
            Self::H1(_) => None,
            Self::H2(client, stream) => {
                drop(stream);
                Some(client)
            }
        }
    }
}

pub(crate) fn owned(fields: &[(&str, &str)]) -> Vec<(String, String)> {
    fields
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

/// Field names in lower case, as in HTTP/2.
pub(crate) fn lower_case_names(fields: &[(String, String)]) -> Vec<(String, String)> {
    fields
        .iter()
        .map(|(name, value)| (name.to_lowercase(), value.clone()))
        .collect()
}

/// Asserts that a response is a `metav1.Status` with this code.
#[track_caller]
pub(crate) fn assert_status(response: &Response, code: u16) {
    assert_eq!(response.status, code, "{}", response.text());
    let body: serde_json::Value = serde_json::from_slice(&response.body).unwrap();
    assert_eq!(body["kind"], "Status", "{body}");
    assert_eq!(body["code"], code, "{body}");
}
