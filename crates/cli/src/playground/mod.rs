//! `skewbridge playground`: the whole system in one process.

mod client;
mod commands;
mod control;
mod directory;
mod exec;
mod flags;
mod keys;
mod topology;
mod tour;

use std::ffi::OsString;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use http::StatusCode;
use skewbridge_fake_cluster::catalogue::Release;
use skewbridge_fake_cluster::cluster::{
    Cluster, ClusterConfig, ClusterError, POD, POLICY_PATH, Ports,
};
use skewbridge_fake_cluster::node::Program;
use skewbridge_gateway::config::{LogFormat, Logs};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use crate::console::Color;
use client::Contexts;
use commands::{Command, CommandResult, ControlRequest, ServerAction, execute};
use control::Control;
use directory::Directory;
pub(crate) use flags::Flags;
use flags::Output;
use keys::{Key, Keys};
use topology::Topology;
use tour::{Tour, TourOutput};

/// The first argument of a process of a pod. It is not a command for users.
const PROCESS: &str = "playground-process";

/// Time until every bridge has the discovery of every server.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// Interval between checks whether everything is ready.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Commands that wait to be executed.
const COMMAND_QUEUE_LENGTH: usize = 8;

/// The offset of the control port.
const CONTROL_PORT_OFFSET: usize = 6;

/// Runs as a process of a pod, if the first argument is [`PROCESS`]. The arguments after it are
/// the command line of a container, so clap does not parse them.
pub(crate) fn run_pod_process(mut arguments: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let is_pod_process = arguments.next()? == PROCESS;
    is_pod_process.then(|| skewbridge_fake_cluster::node::process_entry::run_in_pod(arguments))
}

/// Runs the playground; returns when it has ended and everything is removed.
pub(crate) fn run(flags: &Flags) -> ExitCode {
    if let Some(verbosity) = flags.v {
        crate::logs::init(Logs {
            verbosity,
            format: LogFormat::Text,
        });
    }
    match run_playground(flags) {
        Ok(code) => code,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "skewbridge playground: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_playground(flags: &Flags) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    let directory = Directory::prepare(flags.directory.as_deref())?;
    let code = runtime.block_on(async {
        // Checked before the playground starts anything that needs cleanup.
        let mut signals = Signals::listen()?;
        let mut playground = None;
        let code = tokio::select! {
            played = run_cluster(flags, &directory, &mut playground) => played,
            number = signals.any() => Ok(if flags.tour {
                // The tour is incomplete; the exit code that shells report for the signal.
                ExitCode::from(128 + number)
            } else {
                ExitCode::SUCCESS
            }),
        };
        if let Some(cluster) = playground {
            cluster.end().await;
        }
        code
    });
    // All tasks that write to the directory have ended.
    drop(runtime);
    drop(directory);
    code
}

/// Starts and serves the cluster. The cluster is stored with the caller, which ends it in any case.
async fn run_cluster(
    flags: &Flags,
    directory: &Directory,
    playground: &mut Option<Cluster>,
) -> Result<ExitCode> {
    let ports = flags.port_base.map_or(Ports::Free, Ports::From);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, ports.number(CONTROL_PORT_OFFSET)));
    let listener = listener.await.map_err(|cause| ClusterError::Port {
        address: (Ipv4Addr::LOCALHOST, ports.number(CONTROL_PORT_OFFSET)).into(),
        cause,
    })?;
    let started = Cluster::start(ClusterConfig {
        directory: directory.path().to_owned(),
        ports,
        program: Program {
            file: std::env::current_exe().context("cannot find this program")?,
            arguments: vec![PROCESS.into()],
        },
    });
    let cluster = playground.insert(started.await?);
    wait_until_ready(cluster).await?;
    let color = Color::of_stdout();
    if flags.tour {
        let output = match flags.output {
            Output::Text => TourOutput::Text(color),
            Output::Json => TourOutput::Json,
        };
        if let TourOutput::Text(color) = output {
            print_stdout(&Topology::of(cluster, None).draw_topology(color));
        }
        let report = Tour::new(cluster, output, std::io::stdout())?.run().await?;
        return Ok(if report.passed() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        });
    }
    let address = listener.local_addr()?;
    let token = token()?;
    let token_file = write_token(directory.path(), &token)?;
    let (commands, ordered) = mpsc::channel(COMMAND_QUEUE_LENGTH);
    let control = Control {
        address,
        token,
        commands,
    };
    let serving = control::run(listener, control, control::CLIENT_TIMEOUTS);
    let command = format!(
        "curl -XPOST -H \"Authorization: Bearer $(cat {})\" http://{address}/servers/1.36/kill",
        topology::shell_quoted(&token_file)
    );
    print_stdout(&Topology::of(cluster, Some(command)).draw(color));
    tokio::select! {
        () = serving => {}
        () = run_interactive(cluster, ordered, color) => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits until the sample pod runs and every bridge serves the APIs of all servers.
async fn wait_until_ready(cluster: &Cluster) -> Result<()> {
    let contexts = Contexts::read(cluster.kubeconfig())?;
    let started = Instant::now();
    let running = format!("/api/v1/namespaces/default/pods/{POD}/log?tailLines=1");
    let mut questions: Vec<(String, &str)> = vec![("server-1.28".to_owned(), &running)];
    questions.extend(Release::ALL.map(|release| (format!("bridge-{release}"), POLICY_PATH)));
    for (context, path) in questions {
        loop {
            let last = match contexts.get(&context, path).await {
                Ok(response) if response.status == StatusCode::OK => break,
                Ok(response) => format!("{context}: {response}"),
                Err(error) => format!("{context}: {error:#}"),
            };
            if started.elapsed() > READY_TIMEOUT {
                bail!("not ready after {READY_TIMEOUT:?}: {last}");
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
    Ok(())
}

/// Executes commands of keys and of the control API, until the user quits.
async fn run_interactive(
    cluster: &mut Cluster,
    mut commands: mpsc::Receiver<Command>,
    color: Color,
) {
    let mut keys = Keys::listen();
    let mut chosen = 0;
    if keys.is_some() {
        print_stdout(&help(cluster, chosen, color));
    } else {
        print_stdout("Ctrl-C ends it.\n");
    }
    loop {
        let key = async {
            match &mut keys {
                Some(keys) => keys.pressed.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            order = commands.recv() => {
                let Some(Command { control_request, answer }) = order else { return };
                let result = execute(cluster, &control_request).await;
                if let ControlRequest::Do { server, action } = &control_request {
                    print_stdout(&controlled(server, *action, &result, color));
                    if keys.is_some() {
                        print_stdout(&help(cluster, chosen, color));
                    }
                }
                // The client may have disconnected.
                let _ = answer.send(result);
            }
            key = key => match key {
                Some(Key::Choose(index)) => {
                    chosen = index;
                    print_stdout(&help(cluster, chosen, color));
                }
                Some(Key::Do(action)) => run_key_action(cluster, chosen, action, color).await,
                Some(Key::Help) => print_stdout(&help(cluster, chosen, color)),
                Some(Key::Quit) | None => return,
            },
        }
    }
}

/// The line that is printed for a command of the control API.
fn controlled(server: &str, action: ServerAction, answer: &CommandResult, color: Color) -> String {
    match answer {
        CommandResult::Done(_) => format!("{action} {server}\n"),
        CommandResult::Unknown(why)
        | CommandResult::Impossible(why)
        | CommandResult::Failed(why) => {
            format!("{}\n", color.failure(why))
        }
    }
}

async fn run_key_action(cluster: &mut Cluster, chosen: usize, action: ServerAction, color: Color) {
    let before = cluster.servers().get(chosen).map(|it| it.name().to_owned());
    let name = before.unwrap_or_default();
    if let Some(reason) = commands::refusal(cluster, chosen, action) {
        print_stdout(&format!("{}\n", color.failure(reason)));
        print_stdout(&help(cluster, chosen, color));
        return;
    }
    print_stdout(&format!("{action} {name} ...\n"));
    match commands::perform(cluster, chosen, action).await {
        Ok(()) => print_stdout(&help(cluster, chosen, color)),
        Err(error) => print_stdout(&format!("{}\n", color.failure(error))),
    }
}

/// The state of the servers, and the keys.
fn help(cluster: &Cluster, chosen: usize, color: Color) -> String {
    let servers = cluster.servers().iter().enumerate();
    let servers: Vec<_> = servers
        .map(|(index, server)| {
            let state = if server.is_running() {
                color.success(server.release())
            } else {
                color.failure("down")
            };
            let name = format!("{} {}", index + 1, server.name());
            let name = if index == chosen {
                color.bold(format_args!("[{name}]"))
            } else {
                format!(" {name} ")
            };
            format!("{name} {state}")
        })
        .collect();
    format!(
        "{}   {}\n",
        servers.join("  "),
        color.dim("1 2 3 choose, k kill, s stop/start, u upgrade, d downgrade, q quit")
    )
}

fn print_stdout(text: &str) {
    // Write errors are ignored: the reader may have closed the pipe.
    let mut out = std::io::stdout();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}

/// A random token for the control API.
fn token() -> Result<String> {
    let mut bytes = [0_u8; 16];
    let mut file = std::fs::File::open("/dev/urandom").context("no randomness")?;
    std::io::Read::read_exact(&mut file, &mut bytes).context("no randomness")?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

fn write_token(directory: &Path, token: &str) -> Result<PathBuf> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let path = directory.join("control-token");
    let file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path);
    let written = file.and_then(|mut file| file.write_all(token.as_bytes()));
    written.with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// Signals that end the playground.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    fn listen() -> Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// The number of the first signal that arrives.
    async fn any(&mut self) -> u8 {
        tokio::select! {
            _ = self.interrupt.recv() => 2,
            _ = self.terminate.recv() => 15,
            _ = self.hangup.recv() => 1,
        }
    }
}
