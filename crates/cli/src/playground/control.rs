//! The control API: plain HTTP on loopback, for processes that can read the private directory.
//!
//! A web page can reach loopback too. It does not have the token, its requests carry an
//! `Origin`, and a DNS name that was rebound to 127.0.0.1 is recognised by the `Host`.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE, HOST, ORIGIN};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use skewbridge_http_engine::body::{RequestBody, ResponseBody};
use skewbridge_http_engine::drain::drain_channel;
use skewbridge_http_engine::server::{ClientIo, ClientResponse, Service};
use skewbridge_http_engine::server::{ClientTimeouts, h1};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};

use super::commands::{Command, CommandResult, ControlRequest, ServerAction};

/// Enough for a user and some scripts.
const MAX_CONNECTIONS: usize = 16;

/// Timeouts of clients, which send short requests.
pub(super) const CLIENT_TIMEOUTS: ClientTimeouts = ClientTimeouts {
    head: Duration::from_secs(10),
    idle: Duration::from_secs(10),
    stall: Duration::from_secs(10),
};

/// Delay after a failed accept.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// The control.
#[derive(Clone)]
pub(super) struct Control {
    pub(super) address: SocketAddr,
    /// The bearer token that clients must send.
    pub(super) token: String,
    pub(super) commands: mpsc::Sender<Command>,
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the token.
        f.debug_struct("Control")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// Serves until it is dropped. Idle connections are closed to make room for new ones.
pub(super) async fn run(listener: TcpListener, control: Control, timeouts: ClientTimeouts) {
    let (_never, drain) = drain_channel();
    let mut connections = JoinSet::new();
    let mut open: VecDeque<OpenConnection> = VecDeque::new();
    loop {
        let Ok((tcp, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        open.retain(|it| !it.task.is_finished());
        if open.len() >= MAX_CONNECTIONS {
            let Some(idle) = open.iter().position(OpenConnection::is_idle) else {
                // All connections are busy; the new one is dropped.
                continue;
            };
            if let Some(idle) = open.remove(idle) {
                idle.task.abort();
            }
        }
        let busy = Arc::new(AtomicBool::new(false));
        let requests = Requests {
            control: control.clone(),
            busy: busy.clone(),
        };
        let io = ClientIo::Plain(tcp);
        let task = connections.spawn(h1::serve(io, requests, timeouts, drain.clone()));
        open.push_back(OpenConnection { task, busy });
    }
}

/// A connection, the oldest first.
struct OpenConnection {
    task: AbortHandle,
    /// Whether a request is in progress: then it is not closed.
    busy: Arc<AtomicBool>,
}

impl OpenConnection {
    fn is_idle(&self) -> bool {
        !self.busy.load(Ordering::Relaxed)
    }
}

/// The requests of one connection.
#[derive(Clone)]
struct Requests {
    control: Control,
    busy: Arc<AtomicBool>,
}

impl Service for Requests {
    type Record = ();

    async fn call(&self, request: Request<RequestBody>) -> ClientResponse {
        let control = &self.control;
        // RFC 9110, 15.5.6: a 405 lists the allowed methods.
        let allowed = match request.uri().path().trim_matches('/') {
            "servers" => "GET",
            _ => "POST",
        };
        let (status, value) = match control.parse_request(&request) {
            Ok(control_request) => {
                self.busy.store(true, Ordering::Relaxed);
                let result = control.execute_queued(control_request).await;
                self.busy.store(false, Ordering::Relaxed);
                result
            }
            Err(refusal) => refusal,
        };
        let mut text = value.to_string();
        text.push('\n');
        let mut response = Response::new(ResponseBody::full(Bytes::from(text)));
        *response.status_mut() = status;
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, json);
        if status == StatusCode::METHOD_NOT_ALLOWED {
            let allowed = HeaderValue::from_static(allowed);
            response.headers_mut().insert(ALLOW, allowed);
        }
        ClientResponse::new(response)
    }
}

type Refusal = (StatusCode, Value);

impl Control {
    fn parse_request(&self, request: &Request<RequestBody>) -> Result<ControlRequest, Refusal> {
        self.admit(request.headers())?;
        control_request(request.method(), request.uri().path())
    }

    fn admit(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let host = headers.get(HOST).and_then(|host| host.to_str().ok());
        let port = self.address.port();
        let ours = [self.address.to_string(), format!("localhost:{port}")];
        if !host.is_some_and(|host| ours.iter().any(|it| it == host)) {
            return Err(refuse(
                StatusCode::MISDIRECTED_REQUEST,
                "the Host header must be 127.0.0.1 or localhost",
            ));
        }
        if headers.contains_key(ORIGIN) {
            return Err(refuse(
                StatusCode::FORBIDDEN,
                "requests from web pages are refused",
            ));
        }
        let expected = format!("Bearer {}", self.token);
        let given = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
        if !given.is_some_and(|given| is_same(given, expected.as_bytes())) {
            return Err(refuse(
                StatusCode::UNAUTHORIZED,
                "send `Authorization: Bearer TOKEN` with the token in the file control-token of \
                 the playground's directory",
            ));
        }
        Ok(())
    }

    async fn execute_queued(&self, control_request: ControlRequest) -> (StatusCode, Value) {
        let (answer, answered) = oneshot::channel();
        let sent = self
            .commands
            .send(Command {
                control_request,
                answer,
            })
            .await;
        let answered = match sent {
            Ok(()) => answered.await.ok(),
            Err(_) => None,
        };
        match answered {
            Some(CommandResult::Done(value)) => (StatusCode::OK, value),
            Some(CommandResult::Unknown(why)) => refuse(StatusCode::NOT_FOUND, &why),
            Some(CommandResult::Impossible(why)) => refuse(StatusCode::CONFLICT, &why),
            Some(CommandResult::Failed(why)) => refuse(StatusCode::INTERNAL_SERVER_ERROR, &why),
            None => refuse(StatusCode::SERVICE_UNAVAILABLE, "the playground ends"),
        }
    }
}

fn refuse(status: StatusCode, why: &str) -> Refusal {
    (status, json!({"error": why}))
}

/// In constant time.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let differences = one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b));
    one.len() == other.len() && differences == 0
}

fn control_request(method: &Method, path: &str) -> Result<ControlRequest, Refusal> {
    let known = "unknown path; use GET /servers or POST /servers/VERSION/kill (or stop, \
                 start, upgrade, downgrade)";
    let words: Vec<_> = path.trim_matches('/').split('/').collect();
    match (method, &words[..]) {
        (&Method::GET, ["servers"]) => Ok(ControlRequest::Show),
        (&Method::POST, ["servers", server, action]) => match ServerAction::named(action) {
            Some(action) => Ok(ControlRequest::Do {
                server: (*server).to_owned(),
                action,
            }),
            None => Err(refuse(StatusCode::NOT_FOUND, known)),
        },
        (_, ["servers", ..]) => Err(refuse(StatusCode::METHOD_NOT_ALLOWED, known)),
        _ => Err(refuse(StatusCode::NOT_FOUND, known)),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;

    fn control() -> Control {
        Control {
            address: "127.0.0.1:7006".parse().unwrap(),
            token: "secret".to_owned(),
            commands: mpsc::channel(1).0,
        }
    }

    #[tokio::test]
    async fn idle_connections_make_room_for_new_ones() {
        let limit = Duration::from_secs(30);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (commands, mut queued) = mpsc::channel(1);
        let control = Control {
            address,
            commands,
            ..control()
        };
        // Long enough that no connection times out in this test.
        let timeouts = ClientTimeouts {
            head: 100 * limit,
            idle: 100 * limit,
            stall: 100 * limit,
        };
        let serving = tokio::spawn(run(listener, control, timeouts));
        let request_servers = async || {
            let mut requesting = TcpStream::connect(address).await.unwrap();
            let request = format!(
                "GET /servers HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer secret\r\n\r\n"
            );
            requesting.write_all(request.as_bytes()).await.unwrap();
            requesting
        };
        let test = async {
            // A connection that waits for its response is not idle.
            let mut first = request_servers().await;
            let command: Command = queued.recv().await.unwrap();
            let mut idle = Vec::new();
            for _ in 0..3 * MAX_CONNECTIONS {
                idle.push(TcpStream::connect(address).await.unwrap());
            }
            let mut last = request_servers().await;
            for (requesting, command) in [
                (&mut last, queued.recv().await.unwrap()),
                (&mut first, command),
            ] {
                command.answer.send(CommandResult::Done(json!({}))).unwrap();
                let mut response = [0; 12];
                requesting.read_exact(&mut response).await.unwrap();
                assert_eq!(&response, b"HTTP/1.1 200");
            }
            // The oldest connection was closed.
            assert!(matches!(idle[0].read(&mut [0]).await, Ok(0) | Err(_)));
        };
        tokio::time::timeout(limit, test).await.unwrap();
        serving.abort();
    }

    #[test]
    fn debug_output_has_no_token() {
        let result = format!("{:?}", control());
        assert!(
            result.contains("7006") && !result.contains("secret"),
            "{result}"
        );
    }

    #[test]
    fn requests_need_the_token_and_must_not_come_from_a_browser() {
        let rows: [(&[(&str, &str)], u16); 6] = [
            (
                &[
                    ("host", "127.0.0.1:7006"),
                    ("authorization", "Bearer secret"),
                ],
                200,
            ),
            (
                &[
                    ("host", "localhost:7006"),
                    ("authorization", "Bearer secret"),
                ],
                200,
            ),
            (
                &[
                    ("host", "evil.example:7006"),
                    ("authorization", "Bearer secret"),
                ],
                421,
            ),
            (
                &[
                    ("host", "localhost:7006"),
                    ("authorization", "Bearer secret"),
                    ("origin", "http://localhost:7006"),
                ],
                403,
            ),
            (&[("host", "localhost:7006")], 401),
            (
                &[
                    ("host", "localhost:7006"),
                    ("authorization", "Bearer secrex"),
                ],
                401,
            ),
        ];
        for (fields, expected) in rows {
            let mut headers = HeaderMap::new();
            for &(name, value) in fields {
                headers.insert(name, HeaderValue::from_static(value));
            }
            let status = control()
                .admit(&headers)
                .err()
                .map_or(200, |it| it.0.as_u16());
            assert_eq!(status, expected, "{fields:?}");
        }
    }

    #[test]
    fn commands_are_parsed_from_paths() {
        let rows = [
            (Method::GET, "/servers", 200),
            (Method::POST, "/servers/1.28/kill", 200),
            (Method::GET, "/servers/1.28/kill", 405),
            (Method::POST, "/servers/1.28/dance", 404),
            (Method::GET, "/", 404),
        ];
        for (method, path, expected) in rows {
            let status = control_request(&method, path)
                .err()
                .map_or(200, |it| it.0.as_u16());
            assert_eq!(status, expected, "{method} {path}");
        }
    }
}
