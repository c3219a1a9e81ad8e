//! `skewbridge port-forward`: ports of this machine that lead to those of a pod.

mod listen;
mod printer;
mod retries;
mod session;
mod spec;

use std::fmt;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgAction, Args};
use skewbridge_client::remote_command::LocalStream;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::client_command::{self, Failure, pod_running_timeout};
use crate::cluster_flags::ClusterFlags;
use crate::console::{EXIT_INTERRUPTED, TermSignals};
use crate::pods::{Pods, Reference};
use listen::{Address, Listener};
use printer::{print_stderr, print_stdout, print_stdout_now};
use session::{ConnectionReceiver, Connector};
use spec::{Local as Listening, Spec};

/// Maximum number of connections at once: each has two streams, of which a connection to a pod
/// has 1024. Beyond it, one connection per listener is accepted and waits; the others wait in
/// the backlog.
const MAX_CONNECTIONS: usize = 500;

/// How long a connection waits for a connected pod.
const POD_WAIT_TIMEOUT: Duration = Duration::from_secs(30);

/// Delay after a failed accept, which is mostly a lack of descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

const HELP: &str = "\
If the connection to the pod is lost, it is reopened within --pod-running-timeout, to
another pod if TYPE/NAME was given. The local ports stay open meanwhile. A failed
connection does not affect others: truncated data ends with a reset, only complete
data with a normal end. A connection whose program reads nothing for 30 s, and so blocks
others, is closed.

Examples:
  skewbridge port-forward web 8080:80
  skewbridge port-forward svc/web :https 9090
  skewbridge port-forward --address 0.0.0.0 deploy/web 8080:http
  skewbridge port-forward pod/db unix:/run/user/1000/db.sock:5432";

// The flags of `port-forward`. The description of the command is in `main.rs`.
#[derive(Debug, Clone, Args)]
#[command(disable_help_flag = true, after_help = HELP)]
pub(crate) struct Flags {
    /// A pod, or TYPE/NAME of its owner (deployment, statefulset, service, job…)
    #[arg(value_name = "POD | TYPE/NAME")]
    target: String,
    /// `[LOCAL:]REMOTE`; :REMOTE for any local port; unix:PATH:REMOTE for a socket
    #[arg(value_name = "PORT", required = true)]
    ports: Vec<String>,
    /// Addresses to listen on: IP addresses, or localhost for IPv4 and IPv6
    #[arg(long, value_name = "ADDRESS", default_value = "localhost")]
    address: Vec<String>,
    /// How long to wait for a running pod of TYPE/NAME, also after one is lost
    #[arg(long, value_name = "DURATION", default_value = "1m0s")]
    pod_running_timeout: String,
    /// Print this help
    #[arg(short, long, action = ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    cluster: ClusterFlags,
}

/// Runs the command.
pub(crate) fn run(flags: &Flags) -> ExitCode {
    client_command::run(async {
        let ended = forward(flags).await;
        // The final message is queued too, because writing it may block.
        let (last, ended) = client_command::split_message(ended);
        printer::finish(last);
        ended
    })
}

async fn forward(flags: &Flags) -> Result<(), Failure> {
    let reference = Reference::parse(&flags.target)?;
    let specs = flags.ports.iter().map(|text| Spec::parse(text));
    let specs: Vec<Spec> = specs.collect::<Result<_, _>>()?;
    let addresses =
        Address::parse_all(&flags.address).map_err(|wrong| format!("--address: {wrong}"))?;
    let max_wait = pod_running_timeout(&flags.pod_running_timeout)?;
    let access = flags.cluster.access().await?;
    let linker = Connector {
        pods: Pods {
            endpoint: access.endpoint,
            namespace: access.namespace,
        },
        reference,
        remotes: specs.iter().map(|spec| spec.remote.clone()).collect(),
        max_wait,
        verbosity: access.verbosity,
    };
    let mut endings = TermSignals::listen_in_background().map_err(Failure::new)?;
    let connection = tokio::select! {
        connection = linker.connect(linker.max_wait) => Arc::new(connection?),
        code = endings.recv() => return exit_result(code),
    };
    let (printer, connections) = watch::channel(Some(connection.clone()));
    let listeners = tokio::select! {
        listeners = listen(&specs, &addresses, &connection.ports) => listeners?,
        code = endings.recv() => return exit_result(code),
    };
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut accepting = JoinSet::new();
    for (at, listener) in listeners {
        accepting.spawn(accept(listener, at, connections.clone(), permits.clone()));
    }
    drop(connections);
    // The sockets are removed with the tasks.
    tokio::select! {
        failure = linker.keep(connection, printer) => Err(failure),
        code = endings.recv() => exit_result(code),
    }
}

/// As with kubectl, Ctrl-C is not an error.
fn exit_result(code: u8) -> Result<(), Failure> {
    match code {
        EXIT_INTERRUPTED => Ok(()),
        code => Err(Failure::without_message(code)),
    }
}

/// Listens for all ports, and prints kubectl's messages.
async fn listen(
    specs: &[Spec],
    addresses: &[Address],
    ports: &[spec::Resolved],
) -> Result<Vec<(usize, Listener)>, Failure> {
    let mut all = Vec::new();
    for (at, (spec, port)) in specs.iter().zip(ports).enumerate() {
        let listeners = match &spec.local {
            Listening::Unix(path) => Listener::unix(path).await.map(|it| vec![it]),
            Listening::Same => Listener::tcp(addresses, port.same.number()).await,
            Listening::Any => Listener::tcp(addresses, 0).await,
            Listening::Port(local) => Listener::tcp(addresses, local.number()).await,
        };
        for listener in listeners? {
            let remote = port.remote.number();
            print_stdout_now(format_args!("Forwarding from {listener} -> {remote}"));
            all.push((at, listener));
        }
    }
    Ok(all)
}

/// Accepts connections, and forwards each in its own task.
async fn accept(listener: Listener, at: usize, pod: ConnectionReceiver, permits: Arc<Semaphore>) {
    let name: Arc<str> = listener.name().into();
    let mut connections = JoinSet::new();
    loop {
        let local = match listener.accept().await {
            Ok(local) => local,
            Err(error) => {
                print_stderr(format_args!("error: accepting at {listener}: {error}"));
                sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        // After accept: an idle listener must not hold a permit.
        let Ok(place) = permits.clone().acquire_owned().await else {
            return;
        };
        print_stdout(format_args!("Handling connection for {name}"));
        while connections.try_join_next().is_some() {}
        let (name, pod) = (name.clone(), pod.clone());
        connections.spawn(async move {
            let _place = place;
            if let Err(Problem { remote, cause }) = forward_connection(local, at, pod).await {
                let remote = remote.map_or_else(String::new, |port| format!(" -> {port}"));
                print_stderr(format_args!(
                    "error: an error occurred forwarding {name}{remote}: {cause}"
                ));
            }
        });
    }
}

/// Why a connection failed.
struct Problem {
    /// The remote port, if it is known.
    remote: Option<u16>,
    cause: String,
}

/// Forwards one connection to its end.
async fn forward_connection(
    local: Box<dyn LocalStream>,
    at: usize,
    mut pod: ConnectionReceiver,
) -> Result<(), Problem> {
    let nowhere = |cause: &str| Problem {
        remote: None,
        cause: cause.to_owned(),
    };
    let connected = async {
        let connection = pod.wait_for(Option::is_some).await;
        connection.ok().and_then(|connection| connection.clone())
    };
    let connection = timeout(POD_WAIT_TIMEOUT, connected).await.ok().flatten();
    let connection = connection.ok_or_else(|| nowhere("no pod is connected"))?;
    let port = session::port(&connection, at).ok_or_else(|| nowhere("the pod has no such port"))?;
    let failed = |error: &dyn fmt::Display| Problem {
        remote: Some(port.number()),
        cause: error.to_string(),
    };
    let stream = connection
        .forwarder
        .open(port)
        .map_err(|error| failed(&error))?;
    stream.forward(local).await.map_err(|error| failed(&error))
}
