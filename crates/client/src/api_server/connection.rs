//! An HTTP/1.1 connection that carries one request after the other, or becomes a raw stream
//! after an upgrade.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use skewbridge_http_engine::http1::{
    BodyEvent, HeadTerminator, ResponseHead, parse_response, write_headers, write_request_line,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::error::{Error, ErrorResponse};
use crate::exec_plugin::ConnectionCredential;
use crate::transport::Stream;

/// Default limit of a response body: more than any discovery document.
const DEFAULT_MAX_RESPONSE_BYTES: usize = 32 * 1024 * 1024;

/// How much is read from the socket at once.
const READ_CHUNK_BYTES: usize = 16 * 1024;

/// How many interim responses (such as 100 Continue) may precede the final one.
const MAX_INTERIM_RESPONSES: usize = 16;

/// A connection to a server. It carries one request at a time.
pub struct Connection {
    stream: Stream,
    buffer: BytesMut,
    server: String,
    prefix: String,
    headers: HeaderMap,
    /// The credential that a plugin issued for this connection.
    credential: Option<ConnectionCredential>,
    timeout: Option<Duration>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Ready for a request.
    Ready,
    /// A request is in progress or was aborted, or the server allows no further request.
    Finished,
}

/// A request.
#[derive(Debug, Clone)]
pub struct Request {
    method: Method,
    path: String,
    headers: Vec<(String, String)>,
    body: Bytes,
    limit: usize,
}

/// A response.
#[derive(Debug, Clone)]
pub struct Response {
    /// The status; after 101 the connection is a raw stream: see [`Connection::into_parts`].
    pub status: StatusCode,
    /// All header fields.
    pub headers: HeaderMap,
    /// The complete body.
    pub body: Bytes,
}

impl Request {
    /// A GET request.
    pub fn get(path: &str) -> Self {
        Self::new(Method::GET, path)
    }

    /// A request with any method.
    pub fn new(method: Method, path: &str) -> Self {
        Self {
            method,
            path: path.to_owned(),
            headers: Vec::new(),
            body: Bytes::new(),
            limit: DEFAULT_MAX_RESPONSE_BYTES,
        }
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Limits the response body to this many bytes.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }
}

impl Response {
    /// A header's value, if it is text.
    pub fn header(&self, name: &HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The `Content-Type`, or an empty string.
    pub fn content_type(&self) -> &str {
        self.header(&CONTENT_TYPE).unwrap_or_default()
    }
}

impl Connection {
    pub(crate) fn new(
        stream: Stream,
        buffer: BytesMut,
        server: String,
        prefix: String,
        headers: HeaderMap,
        credential: Option<ConnectionCredential>,
        timeout: Option<Duration>,
    ) -> Self {
        Self {
            stream,
            buffer,
            server,
            prefix,
            headers,
            credential,
            timeout,
            state: State::Ready,
        }
    }

    /// Whether it is ready for another request.
    pub fn is_ready(&self) -> bool {
        self.state == State::Ready
    }

    /// Whether the credential it was opened with is still valid, as far as the client knows.
    pub(crate) fn has_valid_credential(&self) -> bool {
        self.credential
            .as_ref()
            .is_none_or(ConnectionCredential::is_valid)
    }

    /// Sends a request and reads the response. If this is cancelled, the connection accepts no
    /// further request.
    pub async fn send(&mut self, request: &Request) -> Result<Response, Error> {
        if self.state != State::Ready {
            return Err(self.connection_lost("the connection accepts no further request"));
        }
        self.state = State::Finished;
        let Some(timeout) = self.timeout else {
            return self.exchange(request).await;
        };
        match tokio::time::timeout(timeout, self.exchange(request)).await {
            Ok(result) => result,
            Err(_) => Err(Error::TimedOut {
                server: self.server.clone(),
                what: "answer",
                after: timeout,
            }),
        }
    }

    /// After 101: the stream, and the bytes of it that have been read already.
    pub fn into_parts(self) -> (Stream, Bytes) {
        (self.stream, self.buffer.freeze())
    }

    /// Like [`Connection::into_parts`], for a reader that continues with the buffer.
    pub(crate) fn into_buffered(self) -> (Stream, BytesMut) {
        (self.stream, self.buffer)
    }

    /// `HOST:PORT`
    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    async fn exchange(&mut self, request: &Request) -> Result<Response, Error> {
        let head = self.encode_head(request)?;
        // A server may respond and close before it has read the whole request: its response is
        // still read.
        let written = async {
            self.stream.write_all(&head).await?;
            self.stream.write_all(&request.body).await?;
            self.stream.flush().await
        };
        let written = written.await;
        let head = match (self.read_head(&request.method).await, written) {
            (Ok(head), _) => head,
            (Err(Error::ConnectionLost { .. }), Err(error)) => {
                return Err(self.connection_lost(error));
            }
            (Err(error), _) => return Err(error),
        };
        let is_unauthorized = head.status == StatusCode::UNAUTHORIZED;
        let may_be_from_workload = is_unauthorized && self.reaches_workload(request);
        if is_unauthorized && !may_be_from_workload {
            self.mark_unauthorized();
        }
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(Response {
                status: head.status,
                headers: head.headers,
                body: Bytes::new(),
            });
        }
        let body = self.read_body(&head, request).await?;
        if may_be_from_workload
            && ErrorResponse::parse(head.status.as_u16(), &body).is_unauthorized()
        {
            self.mark_unauthorized();
        }
        if head.keep_alive {
            self.state = State::Ready;
        }
        Ok(Response {
            status: head.status,
            headers: head.headers,
            body,
        })
    }

    /// Records that the cluster rejected the credential.
    fn mark_unauthorized(&self) {
        if let Some(credential) = &self.credential {
            credential.mark_unauthorized(&self.headers);
        }
    }

    /// Whether a workload or a node, not the API server, may answer this request.
    fn reaches_workload(&self, request: &Request) -> bool {
        let path = request.path.split('?').next().unwrap_or_default();
        let path = format!("{}{path}", self.prefix);
        (self.credential.as_ref()).is_some_and(|credential| credential.reaches_workload(&path))
    }

    fn encode_head(&self, request: &Request) -> Result<BytesMut, Error> {
        let target = format!("{}{}", self.prefix, request.path);
        let is_path = target.starts_with('/')
            && target.bytes().all(|byte| byte.is_ascii_graphic())
            && target.parse::<Uri>().is_ok();
        if !is_path {
            return Err(Error::InvalidRequest(format!(
                "the path {:?}",
                request.path
            )));
        }
        let mut headers = self.headers.clone();
        for (name, value) in &request.headers {
            let unsendable = || Error::InvalidRequest(format!("the header {name:?}"));
            let name = HeaderName::try_from(name).map_err(|_| unsendable())?;
            let value = HeaderValue::try_from(value).map_err(|_| unsendable())?;
            headers.append(name, value);
        }
        if !request.body.is_empty() || request.method == Method::POST {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(request.body.len()));
        }
        let mut out = BytesMut::new();
        write_request_line(&mut out, &request.method, &target);
        write_headers(&mut out, &headers);
        out.extend_from_slice(b"\r\n");
        Ok(out)
    }

    async fn read_head(&mut self, method: &Method) -> Result<ResponseHead, Error> {
        let mut interim = 0;
        let mut end = HeadTerminator::default();
        loop {
            if end.reached(&self.buffer) {
                let head =
                    parse_response(&mut self.buffer, method).map_err(|error| Error::NotHttp {
                        server: self.server.clone(),
                        cause: error.to_string(),
                    })?;
                match head {
                    Some(head)
                        if head.status.is_informational()
                            && head.status != StatusCode::SWITCHING_PROTOCOLS =>
                    {
                        interim += 1;
                        end = HeadTerminator::default();
                        if interim > MAX_INTERIM_RESPONSES {
                            return Err(Error::NotHttp {
                                server: self.server.clone(),
                                cause: "too many interim responses".to_owned(),
                            });
                        }
                        continue;
                    }
                    Some(head) => return Ok(head),
                    None => {}
                }
            }
            // Anything but HTTP is detected at once, even if no blank line ever comes.
            let prefix_pairs = b"HTTP/1.".iter().zip(&self.buffer);
            if !prefix_pairs
                .into_iter()
                .all(|(expected, byte)| expected == byte)
            {
                return Err(Error::NotHttp {
                    server: self.server.clone(),
                    cause: "the response does not begin with HTTP/1.".to_owned(),
                });
            }
            if self.fill().await? == 0 {
                return Err(self.connection_lost("no response came"));
            }
        }
    }

    async fn read_body(&mut self, head: &ResponseHead, request: &Request) -> Result<Bytes, Error> {
        let mut decoder = head.framing.decoder();
        let mut body = BytesMut::new();
        loop {
            match decoder.decode(&mut self.buffer) {
                Ok(Some(BodyEvent::Data(data))) => {
                    if body.len() + data.len() > request.limit {
                        return Err(Error::TooLarge {
                            server: self.server.clone(),
                            path: request.path.clone(),
                            limit: request.limit,
                        });
                    }
                    body.extend_from_slice(&data);
                }
                Ok(Some(BodyEvent::Trailers(_) | BodyEvent::End)) => return Ok(body.freeze()),
                Ok(None) => {
                    if self.fill().await? == 0 {
                        decoder
                            .end_of_input()
                            .map_err(|error| self.connection_lost(error))?;
                        return Ok(body.freeze());
                    }
                }
                Err(error) => {
                    return Err(Error::NotHttp {
                        server: self.server.clone(),
                        cause: error.to_string(),
                    });
                }
            }
        }
    }

    async fn fill(&mut self) -> Result<usize, Error> {
        self.buffer.reserve(READ_CHUNK_BYTES);
        let read = self.stream.read_buf(&mut self.buffer).await;
        read.map_err(|error| self.connection_lost(error))
    }

    fn connection_lost(&self, cause: impl std::fmt::Display) -> Error {
        Error::ConnectionLost {
            server: self.server.clone(),
            cause: cause.to_string(),
        }
    }
}

/// Headers contain credentials, so only the server and the state are shown.
impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("server", &self.server)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}
