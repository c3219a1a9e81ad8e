//! The code that runs in a process of a pod before its command: it creates a session and sets
//! the terminal. It is also the sample of pods without a command.

use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, ioctl_tiocsctty, setsid};
use tokio::signal::unix::{SignalKind, signal};

use super::process_start::{PARENT, exit_with_parent, report_failure};

/// Argument: the first process of a container, which starts the program that follows on the command
/// line.
pub(super) const INIT: &str = "init";
/// Argument: a command without a terminal.
pub(super) const SESSION: &str = "session";
/// Argument: a command on the terminal that is its stdin.
pub(super) const TERMINAL: &str = "terminal";
/// Argument: the sample.
pub(super) const SAMPLE: &str = "sample";

/// The address that the sample listens on.
pub(super) const ADDRESS: &str = "POD_IP";
/// The declared ports of the pod, separated by commas.
pub(super) const PORTS: &str = "POD_PORTS";
/// The name of the pod.
pub(super) const NAME: &str = "POD_NAME";

/// The directory in which the sample records the ports that it uses instead of declared ones:
/// the file name is the declared port, its content the used one.
pub(super) const PORTS_DIRECTORY: &str = ".ports";

/// Interval between log lines of the sample.
const LOG_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum number of connections to the sample.
const MAX_CONNECTIONS: usize = 32;

/// Time limit of a client of the sample.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum size of a request to the sample.
const MAX_REQUEST_BYTES: u64 = 16 * 1024;

/// Runs as the process of a pod. `arguments` are those that follow
/// [`Program::arguments`](super::Program).
pub fn run_in_pod(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut arguments = arguments.into_iter();
    let task = arguments.next().unwrap_or_default();
    let task = task.to_str().unwrap_or_default();
    if task == INIT {
        return super::init::run(&arguments.collect::<Vec<_>>());
    }
    if task == SAMPLE {
        exit_with_parent(Signal::KILL);
        return sample();
    }
    if ![SESSION, TERMINAL].contains(&task) {
        return report_failure("this is a part of the playground, not a command");
    }
    exit_with_parent(Signal::KILL);
    // Fails only for a group leader, which has its own session already.
    let _ = setsid();
    if task == TERMINAL
        && let Err(error) = ioctl_tiocsctty(io::stdin())
    {
        return report_failure(format_args!("no controlling terminal: {error}"));
    }
    let Some(file) = arguments.next() else {
        return report_failure("no command");
    };
    if let Err(error) = reset_ignored_signals() {
        return report_failure(format_args!("signals: {error}"));
    }
    let error = Command::new(&file)
        .args(arguments)
        .env_remove(PARENT)
        .exec();
    report_failure(format_args!("{}: {error}", Path::new(&file).display()))
}

/// A container starts with no signal ignored. Signals that the playground ignores, as background
/// jobs of a shell do, would stay ignored through exec; handlers do not.
fn reset_ignored_signals() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    let _entered = runtime.enter();
    for kind in [
        SignalKind::hangup(),
        SignalKind::interrupt(),
        SignalKind::quit(),
        SignalKind::terminate(),
        SignalKind::child(),
    ] {
        drop(signal(kind)?);
    }
    Ok(())
}

/// The sample of pods without a command: it logs, and answers on its ports.
fn sample() -> ExitCode {
    let variable = |name| std::env::var(name).unwrap_or_default();
    let name: Arc<str> = variable(NAME).into();
    let Ok(address) = variable(ADDRESS).parse::<IpAddr>() else {
        return report_failure("POD_IP is not an address");
    };
    let ports = variable(PORTS);
    let ports = ports.split(',').filter_map(|it| it.parse::<u16>().ok());
    for port in ports {
        match listen(address, port) {
            Ok(listener) => {
                let pod = name.clone();
                thread::spawn(move || answer_all(&listener, &pod, port));
                print_line(format_args!("{name}: serving on port {port}"))
            }
            Err(error) => print_line(format_args!("{name}: port {port}: {error}")),
        };
    }
    for number in 1_u64.. {
        if !print_line(format_args!("{name}: still here ({number})")) {
            break;
        }
        thread::sleep(LOG_INTERVAL);
    }
    ExitCode::SUCCESS
}

/// `false` if stdout is closed.
fn print_line(what: std::fmt::Arguments<'_>) -> bool {
    let mut out = io::stdout().lock();
    writeln!(out, "{what}").and_then(|()| out.flush()).is_ok()
}

/// Binds the port, or a free one instead: low ports need root, and another playground may use
/// the same address.
fn listen(address: IpAddr, port: u16) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(SocketAddr::new(address, port))
        .or_else(|_| TcpListener::bind(SocketAddr::new(address, 0)))?;
    std::fs::create_dir_all(PORTS_DIRECTORY)?;
    let real = listener.local_addr()?.port();
    let file = Path::new(PORTS_DIRECTORY).join(port.to_string());
    std::fs::write(file, real.to_string())?;
    Ok(listener)
}

fn answer_all(listener: &TcpListener, name: &Arc<str>, port: u16) {
    let busy = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        if busy.load(Ordering::Relaxed) >= MAX_CONNECTIONS {
            continue;
        }
        busy.fetch_add(1, Ordering::Relaxed);
        let (name, busy) = (name.clone(), busy.clone());
        thread::spawn(move || {
            let _ = answer(&stream, &name, port);
            busy.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

/// Reads one request, and answers it.
fn answer(mut stream: &TcpStream, name: &str, port: u16) -> io::Result<()> {
    stream.set_read_timeout(Some(CLIENT_TIMEOUT))?;
    stream.set_write_timeout(Some(CLIENT_TIMEOUT))?;
    let mut lines = BufReader::new(stream.take(MAX_REQUEST_BYTES));
    let mut first = String::new();
    lines.read_line(&mut first)?;
    let mut line = String::from("-");
    while !line.trim_end().is_empty() {
        line.clear();
        if lines.read_line(&mut line)? == 0 {
            break;
        }
    }
    let requested = first.split_whitespace().nth(1).unwrap_or("nothing");
    print_line(format_args!(
        "{name}: asked for {} on port {port}",
        requested.escape_debug()
    ));
    let body = format!("Hello from pod {name}, port {port}.\n");
    write!(
        stream,
        "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )?;
    stream.shutdown(std::net::Shutdown::Write)
}
