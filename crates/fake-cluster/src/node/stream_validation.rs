//! Validates requests for exec, attach, port-forward and logs, with the checks and messages of
//! an API server and of a kubelet.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::header::{CONNECTION, CONTENT_TYPE, UPGRADE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use percent_encoding::percent_decode_str;
use skewbridge_k8s_api::status::Status;
use skewbridge_remotecommand::port_forward::tunnel::{
    PORT_FORWARD, TUNNELLED_PORT_FORWARD, tunnelled_protocols,
};
use skewbridge_remotecommand::{
    Channel, ExitCode, Options, Outcome, Protocol, QueryDialect, ServerKind, SpdyProtocol,
    negotiate, negotiate_spdy,
};
use skewbridge_stream_io::Rewind;
use skewbridge_websocket::{is_upgrade, parse_upgrade_request, set_response_headers, subprotocols};
use tokio::io::{AsyncRead, AsyncWrite, duplex};
use tokio::sync::mpsc;

use super::channel_forward::{self, ForwardRequest};
use super::command_pipes::ProcessEnd;
use super::container::Container;
use super::container_log::LogOptions;
use super::exec::{Exec, attach};
use super::pod_sync::{Pod, Pods};
use super::port_forward::{self, PodDialer};
use super::process::Launcher;
use super::{spdy, websocket};
use crate::server::pod_streams::{
    PodStreamHandler, StreamKind, StreamRequest, StreamResponse, UpgradedStream,
};
use crate::time::Time;

const SPDY: &str = "SPDY/3.1";
const PROTOCOL_VERSION: &str = "x-stream-protocol-version";

/// Buffer between SPDY and the WebSocket around it, in bytes.
const TUNNEL_BUFFER_BYTES: usize = 64 * 1024;

/// The exit code that shells report for SIGKILL.
const EXIT_KILLED: u8 = 128 + 9;

/// Chunks of a log that wait for the reader.
const LOG_QUEUE_LENGTH: usize = 4;

/// Serves a request for a subresource of a pod.
pub(super) fn answer(pods: &Pods, launcher: &Launcher, request: &StreamRequest) -> StreamResponse {
    let answered = match request.kind {
        StreamKind::Log => log(pods, request),
        StreamKind::Exec => exec(pods, launcher, request),
        StreamKind::Attach => attached(pods, request),
        StreamKind::PortForward => forwarded(pods, launcher, request),
    };
    answered.unwrap_or_else(StreamResponse::Refused)
}

/// The values of a query.
struct Query<'a>(&'a str);

impl<'a> Query<'a> {
    fn all(&self, key: &'a str) -> impl Iterator<Item = String> + 'a {
        self.0
            .split('&')
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .filter(move |(name, _)| *name == key)
            .map(|(_, value)| decode(value))
    }

    fn first(&self, key: &'a str) -> Option<String> {
        self.all(key).next()
    }

    fn is_on(&self, key: &'a str) -> bool {
        self.first(key)
            .is_some_and(|value| !matches!(value.as_str(), "0" | "false" | "False" | "FALSE"))
    }

    fn number(&self, key: &'a str) -> Result<Option<u64>, Status> {
        let Some(text) = self.first(key) else {
            return Ok(None);
        };
        text.parse().map(Some).map_err(|_| {
            Status::bad_request(format!(
                "unable to decode query: {key}: Invalid value: {text:?}"
            ))
        })
    }
}

fn decode(text: &str) -> String {
    let spaced: Cow<'_, str> = if text.contains('+') {
        text.replace('+', " ").into()
    } else {
        text.into()
    };
    percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
}

/// The container of the request, chosen as by an API server.
fn container(pod: &Arc<Pod>, request: &StreamRequest) -> Result<Arc<Container>, Status> {
    let name = Query(&request.query).first("container");
    let name = name.filter(|name| !name.is_empty());
    match name {
        Some(name) => {
            let found = pod.containers.iter().find(|it| it.plan.name == name);
            found.cloned().ok_or_else(|| {
                Status::bad_request(format!(
                    "container {name} is not valid for pod {}",
                    request.name
                ))
            })
        }
        None => match &pod.containers[..] {
            [only] => Ok(only.clone()),
            all => {
                let names: Vec<_> = all.iter().map(|it| it.plan.name.as_str()).collect();
                Err(Status::bad_request(format!(
                    "a container name must be specified for pod {}, choose one of: [{}]",
                    request.name,
                    names.join(" ")
                )))
            }
        },
    }
}

/// The pod, if it runs here.
fn pod(pods: &Pods, request: &StreamRequest) -> Result<Arc<Pod>, Status> {
    pods.get(request.pod.uid()).ok_or_else(|| {
        let name = &request.name;
        match request.pod.text(&["spec", "nodeName"]) {
            "" => Status::bad_request(format!("pod {name} does not have a host assigned")),
            node => Status::bad_request(format!("pod {name} does not run on node {node}")),
        }
    })
}

/// The container's process; an error if it does not run.
fn running(
    request: &StreamRequest,
    container: &Container,
) -> Result<super::container::Run, Status> {
    let phase = request.pod.text(&["status", "phase"]);
    if matches!(phase, "Succeeded" | "Failed") {
        return Err(Status::bad_request(format!(
            "cannot exec into a container in a completed pod; current phase is {phase}"
        )));
    }
    container.run().ok_or_else(|| {
        Status::internal(format!(
            "unable to upgrade connection: container not found ({:?})",
            container.plan.name
        ))
    })
}

fn log(pods: &Pods, request: &StreamRequest) -> Result<StreamResponse, Status> {
    let query = Query(&request.query);
    let pod = pod(pods, request)?;
    let container = container(&pod, request)?;
    let previous = query.is_on("previous");
    let Some(container_log) = container.container_log(previous) else {
        let (name, pod) = (&container.plan.name, &request.name);
        return Err(Status::bad_request(if previous {
            format!("previous terminated container {name:?} in pod {pod:?} not found")
        } else {
            format!("container {name:?} in pod {pod:?} is waiting to start: ContainerCreating")
        }));
    };
    let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let limit_bytes = query.number("limitBytes")?;
    if limit_bytes == Some(0) {
        return Err(Status::bad_request(
            "limitBytes: Invalid value: 0: must be greater than 0",
        ));
    }
    let since = match (query.number("sinceSeconds")?, query.first("sinceTime")) {
        (Some(seconds), _) => SystemTime::now().checked_sub(Duration::from_secs(seconds)),
        (None, Some(time)) => Time::parse(&time).map(SystemTime::from),
        (None, None) => None,
    };
    let mut reading = container_log.read(LogOptions {
        follow: query.is_on("follow"),
        timestamps: query.is_on("timestamps"),
        tail_lines: query.number("tailLines")?.map(size),
        limit_bytes: limit_bytes.map(size),
        since,
    });
    let (sender, receiver) = mpsc::channel(LOG_QUEUE_LENGTH);
    // Ends with the log, or when the client disconnects.
    tokio::spawn(async move {
        loop {
            let piece = tokio::select! {
                piece = reading.next() => piece,
                () = sender.closed() => return,
            };
            let Some(piece) = piece else { return };
            if sender.send(piece).await.is_err() {
                return;
            }
        }
    });
    let mut head = Response::new(());
    let plain = HeaderValue::from_static("text/plain");
    head.headers_mut().insert(CONTENT_TYPE, plain);
    Ok(StreamResponse::Chunked(head, receiver))
}

fn exec(
    pods: &Pods,
    launcher: &Launcher,
    request: &StreamRequest,
) -> Result<StreamResponse, Status> {
    let pod = pod(pods, request)?;
    let container = container(&pod, request)?;
    let run = running(request, &container)?;
    let words: Vec<String> = Query(&request.query).all("command").collect();
    if words.is_empty() {
        return Err(Status::bad_request("you must specify at least 1 command"));
    }
    let command_protocol = requested_protocol(request)?;
    let tty = command_protocol.options().tty();
    let mut environment = container.plan.environment.clone();
    if tty && !environment.iter().any(|(name, _)| name == "TERM") {
        environment.push(("TERM".to_owned(), "xterm".to_owned()));
    }
    let task = OwnedExec {
        launcher: launcher.clone(),
        pod: pod.plan.uid.clone(),
        words,
        directory: pod.placement.directory.clone(),
        environment,
        tty,
    };
    Ok(command_protocol.switch(move |process_end| async move {
        tokio::select! {
            outcome = task.run(process_end) => outcome,
            // The command ends with its container.
            () = run.end() => ExitCode::new(EXIT_KILLED).map_or(Outcome::Success, Outcome::Exited),
        }
    }))
}

struct OwnedExec {
    launcher: Launcher,
    pod: String,
    words: Vec<String>,
    directory: PathBuf,
    environment: Vec<(String, String)>,
    tty: bool,
}

impl OwnedExec {
    async fn run(&self, process_end: ProcessEnd) -> Outcome {
        let exec = Exec {
            launcher: &self.launcher,
            pod: &self.pod,
            words: &self.words,
            directory: &self.directory,
            environment: &self.environment,
            tty: self.tty,
        };
        exec.run(process_end).await
    }
}

fn attached(pods: &Pods, request: &StreamRequest) -> Result<StreamResponse, Status> {
    let pod = pod(pods, request)?;
    let container = container(&pod, request)?;
    let run = running(request, &container)?;
    let command_protocol = requested_protocol(request)?;
    let options = command_protocol.options();
    if options.has(Channel::Stdin) && !container.plan.stdin {
        return Err(Status::bad_request(format!(
            "container {} does not allow attach on stdin",
            container.plan.name
        )));
    }
    if options.tty() && !container.plan.tty {
        return Err(Status::bad_request(format!(
            "container {} has no terminal",
            container.plan.name
        )));
    }
    Ok(command_protocol.switch(move |process_end| attach(run, process_end)))
}

/// The protocol and options of a remote command.
enum CommandProtocol {
    Spdy(SpdyProtocol, Options),
    WebSocket(HeaderMap, Protocol, Options),
}

fn requested_protocol(request: &StreamRequest) -> Result<CommandProtocol, Status> {
    let headers = &request.headers;
    let options = Options::from_query(QueryDialect::Api, Some(&request.query));
    if !options.has_any_stream() {
        return Err(Status::bad_request(
            "you must specify at least 1 of stdin, stdout, stderr",
        ));
    }
    if is_upgrade(headers) {
        let requested = parse_upgrade_request(&request.method, headers);
        let requested = requested.map_err(|refusal| Status::bad_request(refusal.to_string()))?;
        let agreed = negotiate(ServerKind::Bridge, subprotocols(headers)).ok_or_else(|| {
            Status::bad_request("none of the requested subprotocols is supported")
        })?;
        let mut answer = HeaderMap::new();
        set_response_headers(
            &requested,
            agreed.header.map(HeaderValue::from_static),
            &mut answer,
        );
        return Ok(CommandProtocol::WebSocket(answer, agreed.protocol, options));
    }
    require_spdy(headers)?;
    let offers = headers.get_all(PROTOCOL_VERSION).into_iter();
    let offers = offers.filter_map(|offer| offer.to_str().ok());
    let protocol = negotiate_spdy(offers);
    let protocol = protocol.map_err(|refusal| {
        Status::forbidden(format!(
            "unable to upgrade: {refusal} in {PROTOCOL_VERSION}"
        ))
    })?;
    Ok(CommandProtocol::Spdy(protocol, options))
}

fn require_spdy(headers: &HeaderMap) -> Result<(), Status> {
    let requested = headers.get(UPGRADE);
    if requested.is_some_and(|requested| requested.as_bytes().eq_ignore_ascii_case(SPDY.as_bytes()))
    {
        return Ok(());
    }
    Err(Status::bad_request("Upgrade request required"))
}

impl CommandProtocol {
    fn options(&self) -> Options {
        match self {
            Self::Spdy(_, options) | Self::WebSocket(_, _, options) => *options,
        }
    }

    fn switch<R, F>(self, run: R) -> StreamResponse
    where
        R: FnOnce(ProcessEnd) -> F + Send + 'static,
        F: Future<Output = Outcome> + Send + 'static,
    {
        match self {
            Self::Spdy(protocol, options) => {
                let head = switching(spdy_headers(protocol.name()));
                let handler = PodStreamHandler::new(move |switched| async move {
                    spdy::serve(with_buffered_input(switched), options, protocol, run).await;
                });
                StreamResponse::Switch(head, handler)
            }
            Self::WebSocket(headers, protocol, options) => {
                let handler = PodStreamHandler::new(move |switched| async move {
                    websocket::serve(with_buffered_input(switched), options, protocol, run).await;
                });
                StreamResponse::Switch(switching(headers), handler)
            }
        }
    }
}

fn forwarded(
    pods: &Pods,
    launcher: &Launcher,
    request: &StreamRequest,
) -> Result<StreamResponse, Status> {
    let pod = pod(pods, request)?;
    if request.pod.text(&["status", "phase"]) != "Running" {
        return Err(Status::bad_request(format!(
            "unable to forward port because pod is not running. Current status={}",
            request.pod.text(&["status", "phase"])
        )));
    }
    let reach = PodDialer {
        pod: request.name.clone(),
        placement: pod.placement.clone(),
        launcher: launcher.clone(),
    };
    let headers = &request.headers;
    if is_upgrade(headers) {
        let requested = parse_upgrade_request(&request.method, headers);
        let requested = requested.map_err(|refusal| Status::bad_request(refusal.to_string()))?;
        let mut answer = HeaderMap::new();
        if !tunnelled_protocols(subprotocols(headers)).any(|offer| offer == PORT_FORWARD) {
            let wanted = ForwardRequest::of(subprotocols(headers), &request.query);
            let wanted = wanted.map_err(Status::bad_request)?;
            let protocol = wanted.agreed.header.map(HeaderValue::from_static);
            set_response_headers(&requested, protocol, &mut answer);
            let handler = PodStreamHandler::new(move |switched| async move {
                channel_forward::serve(with_buffered_input(switched), wanted, reach).await;
            });
            return Ok(StreamResponse::Switch(switching(answer), handler));
        }
        let protocol = HeaderValue::from_static(TUNNELLED_PORT_FORWARD);
        set_response_headers(&requested, Some(protocol), &mut answer);
        let handler = PodStreamHandler::new(move |switched| async move {
            let (outside, inside) = duplex(TUNNEL_BUFFER_BYTES);
            let forward = port_forward::serve(inside, reach);
            tokio::join!(
                websocket::tunnel(with_buffered_input(switched), outside),
                forward
            );
        });
        return Ok(StreamResponse::Switch(switching(answer), handler));
    }
    require_spdy(headers)?;
    let mut offers = headers.get_all(PROTOCOL_VERSION).into_iter();
    if !offers.any(|offer| offer == PORT_FORWARD) {
        return Err(Status::forbidden(format!(
            "unable to upgrade: only {PORT_FORWARD} is known, in {PROTOCOL_VERSION}"
        )));
    }
    let handler = PodStreamHandler::new(move |switched| async move {
        port_forward::serve(with_buffered_input(switched), reach).await;
    });
    let head = switching(spdy_headers(PORT_FORWARD));
    Ok(StreamResponse::Switch(head, handler))
}

/// The connection, including bytes that were read already.
fn with_buffered_input(switched: UpgradedStream) -> impl AsyncRead + AsyncWrite + Unpin + Send {
    Rewind {
        prefix: switched.input,
        io: switched.io,
    }
}

fn spdy_headers(protocol: &'static str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(SPDY));
    headers.insert(PROTOCOL_VERSION, HeaderValue::from_static(protocol));
    headers
}

fn switching(headers: HeaderMap) -> Response<()> {
    let mut head = Response::new(());
    *head.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *head.headers_mut() = headers;
    head
}
