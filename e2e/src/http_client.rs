//! An HTTP client for given requests, over either protocol, on persistent connections.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use skewbridge_testkit::{H1Client, H2Client, H2Stream, Response, TEST_TIMEOUT, TlsClient};

/// The HTTP version of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    H1,
    /// HTTP/2.
    H2,
}

/// A request; `Host` is added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The method.
    pub method: String,
    /// The path and the query, as sent.
    pub target: String,
    /// The headers in order.
    pub headers: Vec<(String, String)>,
    /// The body; empty for none.
    pub body: String,
}

impl Request {
    /// A request without headers and body.
    pub fn new(method: &str, target: &str) -> Self {
        Self {
            method: method.to_owned(),
            target: target.to_owned(),
            headers: Vec::new(),
            body: String::new(),
        }
    }

    /// A GET request.
    pub fn get(target: &str) -> Self {
        Self::new("GET", target)
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds a body.
    #[must_use]
    pub fn body(mut self, content_type: &str, body: &str) -> Self {
        body.clone_into(&mut self.body);
        self.header("Content-Type", content_type)
    }

    fn to_h1(&self) -> String {
        let mut text = format!(
            "{} {} HTTP/1.1\r\nHost: localhost\r\n",
            self.method, self.target
        );
        for (name, value) in &self.headers {
            text.extend([name, ": ", value, "\r\n"]);
        }
        if !self.body.is_empty() {
            let length = self.body.len().to_string();
            text.extend(["Content-Length: ", &length, "\r\n"]);
        }
        text.extend(["\r\n", &self.body]);
        text
    }

    fn to_h2(&self) -> io::Result<http::Request<()>> {
        let mut request = http::Request::builder()
            .method(self.method.as_str())
            .uri(format!("https://localhost{}", self.target));
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        request.body(()).map_err(io::Error::other)
    }
}

/// A client of one address with one protocol. Its connection is reused while it works, and
/// opened again for the next request after a failure.
#[derive(Debug)]
pub struct HttpClient {
    tls: TlsClient,
    address: SocketAddr,
    protocol: Protocol,
    open: Option<Open>,
}

#[derive(Debug)]
enum Open {
    H1(Box<H1Client>),
    H2(H2Client),
}

/// A response that is read in parts.
#[derive(Debug)]
pub struct ResponseStream {
    /// The status code.
    pub status: u16,
    /// The headers, like those of [`Response`].
    pub headers: Vec<(String, String)>,
    source: Source,
}

#[derive(Debug)]
enum Source {
    H1(Box<H1Client>),
    /// The stream does not outlive its connection.
    H2(
        H2Stream,
        #[expect(dead_code, reason = "kept open")] H2Client,
    ),
}

impl HttpClient {
    /// Creates a client that connects with its first request.
    pub fn new(tls: TlsClient, address: SocketAddr, protocol: Protocol) -> Self {
        Self {
            tls,
            address,
            protocol,
            open: None,
        }
    }

    /// A client with its own connection.
    #[must_use]
    pub fn with_new_connection(&self) -> Self {
        Self::new(self.tls.clone(), self.address, self.protocol)
    }

    /// Sends a request and reads the whole response.
    pub async fn send(&mut self, request: &Request) -> io::Result<Response> {
        with_timeout(
            TEST_TIMEOUT,
            Box::pin(async {
                let mut open = match self.open.take() {
                    Some(open) => open,
                    None => self.connect().await?,
                };
                let response = match &mut open {
                    Open::H1(client) => {
                        client.send(request.to_h1()).await?;
                        if request.method == "HEAD" {
                            client.read_response_to_head().await?
                        } else {
                            client.read_response().await?
                        }
                    }
                    Open::H2(client) => client
                        .request(request.to_h2()?, request.body.clone())
                        .await
                        .map_err(io::Error::other)?,
                };
                let closes = response
                    .header("connection")
                    .is_some_and(|it| it.eq_ignore_ascii_case("close"));
                self.open = (!closes).then_some(open);
                Ok(response)
            }),
        )
        .await
    }

    /// Sends a request on its own connection and reads the head of the response.
    pub async fn stream(&self, request: &Request) -> io::Result<ResponseStream> {
        with_timeout(
            TEST_TIMEOUT,
            Box::pin(async {
                match self.connect().await? {
                    Open::H1(mut client) => {
                        client.send(request.to_h1()).await?;
                        let head = client.read_head().await?;
                        Ok(ResponseStream {
                            status: head.status,
                            headers: head.headers,
                            source: Source::H1(client),
                        })
                    }
                    Open::H2(client) => {
                        let stream = client.stream(request.to_h2()?).await;
                        let mut stream = stream.map_err(io::Error::other)?;
                        stream.finish().map_err(io::Error::other)?;
                        let head = stream.head().await.map_err(io::Error::other)?;
                        let text = |value: &http::HeaderValue| {
                            String::from_utf8_lossy(value.as_bytes()).into_owned()
                        };
                        let headers = head.headers.iter();
                        Ok(ResponseStream {
                            status: head.status.as_u16(),
                            headers: headers
                                .map(|(name, value)| (name.to_string(), text(value)))
                                .collect(),
                            source: Source::H2(stream, client),
                        })
                    }
                }
            }),
        )
        .await
    }

    async fn connect(&self) -> io::Result<Open> {
        Ok(match self.protocol {
            Protocol::H1 => Open::H1(Box::new(self.tls.http1(self.address).await?)),
            Protocol::H2 => Open::H2(self.tls.http2(self.address).await?),
        })
    }
}

impl ResponseStream {
    /// The next part; `None` at a clean end, an error if the stream was cut.
    pub async fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        let part = match &mut self.source {
            Source::H1(client) => client.read_chunk().await?,
            Source::H2(stream, _) => {
                let part = stream.chunk().await;
                part.transpose().map_err(io::Error::other)?
            }
        };
        Ok(part.map(|part| part.to_vec()))
    }

    /// Reads the remaining body.
    pub async fn rest(&mut self) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        while let Some(part) = with_timeout(TEST_TIMEOUT, self.next()).await? {
            all.extend(part);
        }
        Ok(all)
    }
}

async fn with_timeout<T>(
    timeout: Duration,
    work: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    tokio::time::timeout(timeout, work)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
