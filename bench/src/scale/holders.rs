//! A process that keeps connections or streams to a bridge open, and does nothing else with them.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, StatusCode};
use rustls::ClientConfig;
use skewbridge_remotecommand::Protocol;
use skewbridge_websocket::{Key, set_request_headers};
use tokio::process::ChildStdin;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::responses::{ANSWER, EXEC, TOKEN};
use crate::args::{Held, Holders};
use crate::child_messages::{ChildMessage, ChildOutput, end_of_input, this_program};
use crate::h1_client::{H1Connection, get_request, get_request_with};
use crate::open_files::allow_connections;
use crate::pki;
use crate::process::OwnedProcess;
use crate::scratch_dir::ScratchDir;

/// Handshakes at the same time.
const OPENING: usize = 64;
const OPEN_TIMEOUT: Duration = Duration::from_secs(20);
const ALL_OPEN_TIMEOUT: Duration = Duration::from_mins(3);

/// The running process.
pub(super) struct OpenHolders {
    _process: OwnedProcess,
    /// Closing it ends the process.
    _input: ChildStdin,
}

impl OpenHolders {
    /// Returns when all of them are open.
    pub(super) async fn start(
        scratch: &ScratchDir,
        ca: &std::path::Path,
        target: SocketAddr,
        held: Held,
        count: u32,
    ) -> Result<Self> {
        let mut command = this_program("holders")?;
        let held = match held {
            Held::Connections => "connections",
            Held::Streams => "streams",
        };
        command.arg(format!("--target={target}")).arg(held);
        command.arg(format!("--count={count}"));
        command.arg("--ca").arg(ca);
        let (process, input, output) = OwnedProcess::with_pipes("holders", command, scratch)?;
        let mut output = ChildOutput::new(output);
        let opened = ChildMessage::Opened(count);
        output.until(&process, &opened, ALL_OPEN_TIMEOUT).await?;
        Ok(Self {
            _process: process,
            _input: input,
        })
    }
}

/// The process itself.
pub(crate) async fn run(args: Holders) -> Result<()> {
    let possible = allow_connections(args.count);
    ensure!(possible >= args.count, "at most {possible} open files");
    let config = pki::h1_client(&args.ca)?;
    let message = tokio::select! {
        opened = open_all(&args, config) => match opened {
            Ok(connections) => {
                print_message(&ChildMessage::Opened(args.count))?;
                end_of_input().await;
                drop(connections);
                return Ok(());
            }
            Err(error) => ChildMessage::Failed(format!("{error:#}")),
        },
        () = end_of_input() => return Ok(()),
    };
    print_message(&message)
}

async fn open_all(args: &Holders, config: Arc<ClientConfig>) -> Result<Vec<H1Connection>> {
    let permits = Arc::new(Semaphore::new(OPENING));
    let mut opening = JoinSet::new();
    for _ in 0..args.count {
        let (config, permits) = (config.clone(), permits.clone());
        let (target, held) = (args.target, args.held);
        opening.spawn(async move {
            let _permit = permits.acquire_owned().await?;
            let opened = timeout(OPEN_TIMEOUT, open(config, target, held)).await;
            opened.with_context(|| format!("not open within {OPEN_TIMEOUT:?}"))?
        });
    }
    let mut connections = Vec::new();
    while let Some(opened) = opening.join_next().await {
        let number = connections.len();
        connections.push(opened?.with_context(|| format!("after {number} others"))?);
    }
    Ok(connections)
}

async fn open(config: Arc<ClientConfig>, target: SocketAddr, held: Held) -> Result<H1Connection> {
    let mut connection = H1Connection::open(config, target).await?;
    match held {
        Held::Connections => {
            let status = connection.send(&get_request(ANSWER, Some(TOKEN))).await?;
            ensure!(status == StatusCode::OK, "answered {status}");
        }
        Held::Streams => {
            let response = connection.send_head(&exec_request()?).await?;
            if response.status != StatusCode::SWITCHING_PROTOCOLS {
                bail!("answered {}", response.status);
            }
        }
    }
    Ok(connection)
}

/// The request of `kubectl exec`.
fn exec_request() -> Result<Bytes> {
    let mut headers = HeaderMap::new();
    let token = HeaderValue::from_str(&format!("Bearer {TOKEN}"))?;
    headers.insert(AUTHORIZATION, token);
    set_request_headers(&Key::random(), [Protocol::V5.name()], &mut headers)?;
    let path = format!("{EXEC}?command=sh&stdin=true&stdout=true");
    Ok(get_request_with(&path, &headers))
}

fn print_message(message: &ChildMessage) -> Result<()> {
    writeln!(std::io::stdout(), "{message}").context("the output is closed")
}
