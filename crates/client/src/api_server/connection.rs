//! An HTTP/1.1 connection that carries one request after the other, or becomes a raw stream
//! after an upgrade.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use skewbridge_http_engine::body::{BodyError, Frame, RequestBody, ResponseBody};
use skewbridge_http_engine::client::h1::{ConnectionReturn, H1Connection};
use skewbridge_http_engine::client::{ReplayBody, RetryClass, SendError, UpstreamResponse};

use crate::error::{Error, ErrorResponse};
use crate::exec_plugin::ConnectionCredential;
use crate::transport::Stream;

/// Default limit of a response body: more than any discovery document.
const DEFAULT_MAX_RESPONSE_BYTES: usize = 32 * 1024 * 1024;

/// A connection to a server. It carries one request at a time.
pub struct Connection {
    state: State,
    server: String,
    prefix: String,
    headers: HeaderMap,
    /// The credential that a plugin issued for this connection.
    credential: Option<ConnectionCredential>,
    timeout: Option<Duration>,
}

enum State {
    /// Holds the connection between requests, unless the server allows no further request.
    Http(Arc<IdleConnection>),
    /// After 101.
    Upgraded(Stream, BytesMut),
}

/// Where the connection is between requests. A request that is in progress or was aborted has
/// taken it.
#[derive(Debug, Default)]
struct IdleConnection(Mutex<Option<H1Connection<Stream>>>);

impl IdleConnection {
    fn lock(&self) -> MutexGuard<'_, Option<H1Connection<Stream>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionReturn<Stream> for IdleConnection {
    fn return_connection(&self, mut connection: H1Connection<Stream>) {
        connection.park();
        *self.lock() = Some(connection);
    }
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
        let connection = H1Connection::new(stream, None, None).with_input(buffer);
        let idle = IdleConnection(Mutex::new(Some(connection)));
        Self {
            state: State::Http(Arc::new(idle)),
            server,
            prefix,
            headers,
            credential,
            timeout,
        }
    }

    /// Whether the connection is ready for another request.
    pub fn is_ready(&self) -> bool {
        match &self.state {
            State::Http(idle) => idle.lock().is_some(),
            State::Upgraded(..) => false,
        }
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
    pub fn into_parts(self) -> Result<(Stream, Bytes), Error> {
        let (stream, input) = self.into_buffered()?;
        Ok((stream, input.freeze()))
    }

    /// Like [`Connection::into_parts`], for a reader that continues with the buffer.
    pub(crate) fn into_buffered(self) -> Result<(Stream, BytesMut), Error> {
        match self.state {
            State::Upgraded(stream, input) => Ok((stream, input)),
            State::Http(_) => Err(Error::ConnectionLost {
                server: self.server,
                cause: "the connection was not upgraded".to_owned(),
            }),
        }
    }

    /// `HOST:PORT`
    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    async fn exchange(&mut self, request: &Request) -> Result<Response, Error> {
        let idle = match &self.state {
            State::Http(idle) => idle.clone(),
            State::Upgraded(..) => Arc::default(),
        };
        let connection = idle.lock().take();
        let Some(connection) = connection else {
            return Err(self.connection_lost("the connection accepts no further request"));
        };
        let head = self.head(request)?;
        let body = RequestBody::from(request.body.clone());
        let mut body = ReplayBody::new(body, Arc::new(()), RetryClass::OnlyIfUnsent);
        let sent = connection.send(&head, &mut body, idle).await;
        let response = sent.map_err(|error| self.send_error(error))?;
        let is_unauthorized = response.status() == StatusCode::UNAUTHORIZED;
        let may_be_from_workload = is_unauthorized && self.reaches_workload(request);
        if is_unauthorized && !may_be_from_workload {
            self.mark_unauthorized();
        }
        let response = match response.into_response(body) {
            UpstreamResponse::Response(response) => response,
            UpstreamResponse::Upgraded(response, upgraded) => {
                self.state = State::Upgraded(upgraded.io, upgraded.input);
                return Ok(Response {
                    status: response.status(),
                    headers: response.headers().clone(),
                    body: Bytes::new(),
                });
            }
        };
        let (head, body) = response.into_parts();
        let body = read_body(body, &self.server, request).await?;
        if may_be_from_workload
            && ErrorResponse::parse(head.status.as_u16(), &body).is_unauthorized()
        {
            self.mark_unauthorized();
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

    fn head(&self, request: &Request) -> Result<Parts, Error> {
        let target = format!("{}{}", self.prefix, request.path);
        let is_path = target.starts_with('/') && target.bytes().all(|byte| byte.is_ascii_graphic());
        let uri = target.parse::<Uri>().ok().filter(|_| is_path);
        let uri =
            uri.ok_or_else(|| Error::InvalidRequest(format!("the path {:?}", request.path)))?;
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
        let (mut head, ()) = http::Request::new(()).into_parts();
        head.method = request.method.clone();
        head.uri = uri;
        head.headers = headers;
        Ok(head)
    }

    fn send_error(&self, error: SendError) -> Error {
        match error {
            SendError::InvalidResponse(cause) => self.not_http(cause),
            SendError::NotProcessed(cause)
            | SendError::GoAway(cause)
            | SendError::ConnectionLost(cause)
            | SendError::Client(cause) => self.connection_lost(cause),
            SendError::Connect(_) | SendError::Declined(_) => self.connection_lost(error),
        }
    }

    fn not_http(&self, cause: String) -> Error {
        Error::NotHttp {
            server: self.server.clone(),
            cause,
        }
    }

    fn connection_lost(&self, cause: impl std::fmt::Display) -> Error {
        Error::ConnectionLost {
            server: self.server.clone(),
            cause: cause.to_string(),
        }
    }
}

async fn read_body(
    mut body: ResponseBody,
    server: &str,
    request: &Request,
) -> Result<Bytes, Error> {
    let server = || server.to_owned();
    let mut complete = BytesMut::new();
    while let Some(frame) = poll_fn(|cx| body.poll_frame(cx)).await {
        match frame {
            Ok(Frame::Data(data)) if complete.len() + data.len() > request.limit => {
                return Err(Error::TooLarge {
                    server: server(),
                    path: request.path.clone(),
                    limit: request.limit,
                });
            }
            Ok(Frame::Data(data)) => complete.extend_from_slice(&data),
            Ok(Frame::Trailers(_)) => {}
            Err(BodyError::Malformed(cause)) => {
                return Err(Error::NotHttp {
                    server: server(),
                    cause,
                });
            }
            Err(BodyError::Client(cause) | BodyError::Upstream(cause)) => {
                return Err(Error::ConnectionLost {
                    server: server(),
                    cause,
                });
            }
        }
    }
    Ok(complete.freeze())
}

/// Headers contain credentials, so only the server and the state are shown.
impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("server", &self.server)
            .field("is_ready", &self.is_ready())
            .finish_non_exhaustive()
    }
}
