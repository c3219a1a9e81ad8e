//! Clients of both HTTP versions behind one interface, for tests of a proxy between a client and a
//! server in every combination.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, Version};

use crate::{H1Client, H2Client, H2Stream, Response, TEST_TIMEOUT, TlsClient};

/// The HTTP version of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proto {
    /// HTTP/1.1
    H1,
    /// HTTP/2
    H2,
}

use Proto::{H1, H2};

/// Client and upstream in all combinations.
pub const COMBINATIONS: [(Proto, Proto); 4] = [(H1, H1), (H1, H2), (H2, H1), (H2, H2)];

impl Proto {
    /// Its name in ALPN.
    pub fn alpn(self) -> &'static [&'static str] {
        match self {
            H1 => &["http/1.1"],
            H2 => &["h2"],
        }
    }

    /// The version as a value of the `http` crate.
    pub fn version(self) -> Version {
        match self {
            H1 => Version::HTTP_11,
            H2 => Version::HTTP_2,
        }
    }
}

/// Awaits a future with the timeout of tests.
pub async fn with_timeout<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(TEST_TIMEOUT, what)
        .await
        .expect("the operation ends before the timeout")
}

/// A request to the host that all tests use.
pub fn request(method: &str, path: &str) -> http::request::Builder {
    Request::builder()
        .method(method)
        .uri(format!("https://k{path}"))
}

/// A client of either HTTP version.
pub enum Client {
    /// HTTP/1.1
    H1(Box<H1Client>),
    /// HTTP/2
    H2(H2Client),
}

impl Client {
    /// Connects with this protocol.
    pub async fn connect(client: &TlsClient, address: SocketAddr, proto: Proto) -> Self {
        match proto {
            H1 => Self::H1(Box::new(client.http1(address).await.unwrap())),
            H2 => Self::H2(client.http2(address).await.unwrap()),
        }
    }

    /// Sends GET.
    pub async fn get(&mut self, path: &str) -> Response {
        self.request(request("GET", path), "").await
    }

    /// Sends POST.
    pub async fn post(&mut self, path: &str, body: impl Into<Bytes>) -> Response {
        self.request(request("POST", path), body).await
    }

    /// Sends a complete request and reads the complete response.
    pub async fn request(
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
    pub async fn begin(self, request: http::request::Builder) -> Exchange {
        let mut exchange = self.open(request, "").await;
        if let Exchange::H2(_, stream) = &mut exchange {
            stream.finish().unwrap();
        }
        exchange
    }

    /// Sends the head of a request whose body follows in chunks.
    pub async fn upload(self, request: http::request::Builder) -> Exchange {
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
pub enum Exchange {
    /// HTTP/1.1
    H1(Box<H1Client>),
    /// HTTP/2
    H2(H2Client, Box<H2Stream>),
}

/// The response is truncated.
#[derive(Debug, PartialEq, Eq)]
pub struct Truncated;

impl Exchange {
    /// Sends a chunk of the request body.
    pub async fn send(&mut self, piece: &[u8]) {
        with_timeout(self.push(piece)).await;
    }

    /// Sends a chunk, without a timeout.
    pub async fn push(&mut self, piece: &[u8]) {
        match self {
            Self::H1(client) => {
                let size = format!("{:x}\r\n", piece.len());
                let chunk = [size.as_bytes(), piece, b"\r\n"].concat();
                client.send(chunk).await.unwrap();
            }
            Self::H2(_, stream) => stream.send(piece.to_vec()).await.unwrap(),
        }
    }

    /// Ends the request body.
    pub async fn finish(&mut self, trailers: &[(&str, &str)]) {
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
    pub async fn head(&mut self) -> u16 {
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
    pub async fn expect(&mut self, bytes: &[u8]) {
        let mut arrived = Vec::new();
        while arrived.len() < bytes.len() {
            arrived.extend_from_slice(&self.chunk().await.unwrap().expect("more data"));
        }
        assert_eq!(arrived, bytes);
    }

    /// The next chunk of the response, `None` at its end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Truncated> {
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
    pub async fn read_to_end(&mut self) -> Result<Vec<u8>, Truncated> {
        let mut rest = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            rest.extend_from_slice(&chunk);
        }
        Ok(rest)
    }

    /// The trailers, after the body has been read; names in lower case.
    pub async fn trailers(&mut self) -> Vec<(String, String)> {
        match self {
            Self::H1(client) => lower_case_names(client.trailers()),
            Self::H2(_, stream) => with_timeout(stream.trailers()).await.unwrap(),
        }
    }

    /// Disconnects: over HTTP/1.1 by closing the connection, over HTTP/2 by resetting the stream.
    /// The returned client keeps the HTTP/2 connection open.
    pub fn disconnect(self) -> Option<H2Client> {
        match self {
            Self::H1(_) => None,
            Self::H2(client, stream) => {
                drop(stream);
                Some(client)
            }
        }
    }
}

/// Header fields as owned strings.
pub fn owned(fields: &[(&str, &str)]) -> Vec<(String, String)> {
    fields
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

/// Field names in lower case, as in HTTP/2.
pub fn lower_case_names(fields: &[(String, String)]) -> Vec<(String, String)> {
    fields
        .iter()
        .map(|(name, value)| (name.to_lowercase(), value.clone()))
        .collect()
}

/// Asserts that a response is a `metav1.Status` with this code.
#[track_caller]
pub fn assert_status(response: &Response, code: u16) {
    assert_eq!(response.status, code, "{}", response.text());
    let body: serde_json::Value = serde_json::from_slice(&response.body).unwrap();
    assert_eq!(body["kind"], "Status", "{body}");
    assert_eq!(body["code"], code, "{body}");
}
