//! Servers that stand in for the kube-apiservers of a cluster: one that is behind the bridge, and
//! its peers. All of them are in one process, each with its own port.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use http::{Request, Response, StatusCode};
use skewbridge_http_engine::body::{RequestBody, ResponseBody};
use skewbridge_http_engine::drain::{Drain, drain_channel};
use skewbridge_http_engine::server::h2::H2Limits;
use skewbridge_http_engine::server::{ClientIo, ClientResponse, ClientTimeouts, Service, h1, h2};
use skewbridge_stream_io::ReadAhead;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::ChildStdin;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::responses::Server;
use crate::args::StandIn;
use crate::child_messages::{ChildMessage, ChildOutput, end_of_input, this_program};
use crate::open_files::allow_connections;
use crate::pki::{self, Pki};
use crate::process::OwnedProcess;
use crate::proxies::loopback;
use crate::scratch_dir::ScratchDir;

const START_TIMEOUT: Duration = Duration::from_secs(20);
const TIMEOUTS: ClientTimeouts = ClientTimeouts {
    head: Duration::from_secs(32),
    idle: Duration::from_hours(1),
    stall: Duration::from_mins(1),
};
/// The default of kube-apiserver.
const MAX_STREAMS: u32 = 250;
/// Streams have a connection each.
const MAX_CONNECTIONS: u32 = 5_000;

/// The running process.
pub(super) struct StandIns {
    /// The server behind the bridge, and then the peers.
    pub(super) ports: Vec<u16>,
    _process: OwnedProcess,
    /// Closing it ends the process.
    _input: ChildStdin,
}

impl StandIns {
    pub(super) async fn start(
        scratch: &ScratchDir,
        pki: &Pki,
        peers: u32,
        resources: u32,
    ) -> Result<Self> {
        let mut command = this_program("stand-in")?;
        command.arg("--certificate").arg(&pki.certificate);
        command.arg("--key").arg(&pki.key);
        command.arg(format!("--peers={peers}"));
        command.arg(format!("--resources={resources}"));
        let (process, input, output) = OwnedProcess::with_pipes("stand-in", command, scratch)?;
        let mut output = ChildOutput::new(output);
        let deadline = Instant::now() + START_TIMEOUT;
        let mut ports = Vec::new();
        for _ in 0..=peers {
            match output.next_message(&process, deadline).await? {
                Some(ChildMessage::Listening(port)) => ports.push(port),
                message => bail!("a stand-in does not listen: {message:?}"),
            }
        }
        Ok(Self {
            ports,
            _process: process,
            _input: input,
        })
    }
}

/// The process itself.
pub(crate) async fn run(args: StandIn) -> Result<()> {
    allow_connections(MAX_CONNECTIONS);
    let tls = TlsAcceptor::from(pki::http_server(&args.certificate, &args.key)?);
    // The servers do not drain; they end with this process.
    let (_trigger, drain) = drain_channel();
    let mut serving = JoinSet::new();
    for number in 0..=args.peers {
        let listener = TcpListener::bind(loopback(0)).await?;
        let listening = ChildMessage::Listening(listener.local_addr()?.port());
        writeln!(std::io::stdout(), "{listening}").context("the output is closed")?;
        let requests = Requests(Arc::new(Server::new(number, &args)));
        serving.spawn(accept(listener, tls.clone(), requests, drain.clone()));
    }
    end_of_input().await;
    Ok(())
}

async fn accept(listener: TcpListener, tls: TlsAcceptor, requests: Requests, drain: Drain) {
    while let Ok((tcp, _)) = listener.accept().await {
        tokio::spawn(connection(
            tcp,
            tls.clone(),
            requests.clone(),
            drain.clone(),
        ));
    }
}

async fn connection(tcp: TcpStream, tls: TlsAcceptor, requests: Requests, drain: Drain) {
    // A socket without the option still works.
    let _ = tcp.set_nodelay(true);
    // A connection that only checks whether the server listens fails here.
    let Ok(tls) = tls.accept(ReadAhead::new(tcp)).await else {
        return;
    };
    let is_h2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
    let io = ClientIo::Tls(Box::new(tls));
    if is_h2 {
        let limits = H2Limits {
            max_streams: MAX_STREAMS,
            timeouts: TIMEOUTS,
        };
        h2::serve(io, requests, limits, drain).await;
    } else {
        h1::serve(io, requests, TIMEOUTS, drain).await;
    }
}

/// The requests of a connection.
#[derive(Clone)]
struct Requests(Arc<Server>);

impl Service for Requests {
    type Record = ();

    async fn call(&self, request: Request<RequestBody>) -> ClientResponse {
        let (head, _) = request.into_parts();
        self.0.answer(&head).unwrap_or_else(|error| {
            eprintln!("{}: {error:#}", head.uri.path());
            let mut response = Response::new(ResponseBody::empty());
            *response.status_mut() = StatusCode::BAD_REQUEST;
            ClientResponse::new(response)
        })
    }
}
