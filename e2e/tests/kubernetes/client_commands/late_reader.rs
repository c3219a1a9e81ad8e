//! The output of a command is read long after the command has exited.

use std::process::Stdio;
use std::time::Duration;

use skewbridge_e2e::{ControlPlane, Node, ServerSpec, User, Via, control_planes, is_since};
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use tokio::time::{sleep, timeout};

/// As long as a user looks at a page of output: several times the idle timeout.
const READER_PAUSE: Duration = Duration::from_secs(25);

/// The reader reads slowly for this long, and then everything.
const SLOW_READ_DURATION: Duration = Duration::from_secs(2);

/// The servers pause during the output, longer than a second and shorter than a ping
/// interval, as on a path that loses packets: a ping in that time would coincide with the
/// exit of the command.
const SERVER_PAUSE: Duration = Duration::from_secs(5);

/// Output sizes that fit into the kernel's buffers on the path, and sizes that do not. For
/// some of them a part is left in the buffers of the node when the command has exited.
const OUTPUT_BYTES: &[usize] = &[
    1_000_000, 4_000_000, 8_000_000, 11_000_000, 14_000_000, 30_000_000,
];

/// Sizes that leave nothing in the buffers of the node. kube-apiserver's own translator
/// (since 1.30) pings the node every 5 s. If the node has closed the connection, the
/// translator loses the data that the node has not sent yet, and reports success
/// (docs/streams.md, Limits).
const SIZES_BELOW_BUFFERS: &[usize] = &[1_000_000, 4_000_000];

const COMMAND_TIMEOUT: Duration = Duration::from_mins(2);

/// A server that has closed a connection responds to further data with a reset, which
/// discards the data that it has not sent yet.
#[tokio::test]
async fn output_that_is_read_late_is_complete() {
    let mut started = Vec::new();
    let mut reading = tokio::task::JoinSet::new();
    for versions in control_planes() {
        let servers: Vec<_> = versions
            .iter()
            .map(|version| ServerSpec::of(version).bridge_flag("--translate-streams=always"))
            .collect();
        let plane = ControlPlane::start(&servers).await;
        let node = plane.start_node().await;
        for (server, version) in versions.iter().enumerate() {
            for via in [Via::Server, Via::Bridge] {
                let sizes = if via == Via::Server && is_since(version, 30) {
                    SIZES_BELOW_BUFFERS
                } else {
                    OUTPUT_BYTES
                };
                for &size in sizes {
                    let mut command = plane.skewbridge_command(server, via, User::Admin);
                    let count = size.to_string();
                    command.args(["exec", "-n", Node::NAMESPACE, Node::POD, "--"]);
                    command.args(["head", "-c", &count, "/dev/zero"]);
                    let what = format!("{size} bytes from {version} by {via:?}");
                    reading.spawn(async move { (what, read_late(command, size).await) });
                }
            }
        }
        started.push((plane, node));
    }
    let control_planes = || started.iter().flat_map(|(plane, _)| &plane.servers);
    let servers = || control_planes().filter_map(|server| server.process.as_ref());
    sleep(READER_PAUSE + SLOW_READ_DURATION / 2).await;
    servers().for_each(|server| server.signal("STOP"));
    sleep(SERVER_PAUSE).await;
    servers().for_each(|server| server.signal("CONT"));
    let read = reading.join_all().await;
    let wrong: Vec<_> = read.iter().filter(|(_, it)| it.is_err()).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// An error contains the number of bytes received, and stderr.
async fn read_late(mut command: Command, size: usize) -> Result<(), (usize, String)> {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    sleep(READER_PAUSE).await;
    let mut stdout = child.stdout.take().unwrap();
    let mut output = Vec::new();
    let reading = async {
        // Slowly at first.
        for _ in 0..20 {
            let mut some = (&mut stdout).take(10_000);
            some.read_to_end(&mut output).await.unwrap();
            sleep(SLOW_READ_DURATION / 20).await;
        }
        stdout.read_to_end(&mut output).await.unwrap();
        let output = child.wait_with_output().await.unwrap();
        (output.status.code(), output.stderr)
    };
    let (code, stderr) = timeout(COMMAND_TIMEOUT, reading)
        .await
        .expect("an end in time");
    if code == Some(0) && output.len() == size {
        return Ok(());
    }
    let stderr_text = String::from_utf8_lossy(&stderr);
    Err((output.len(), format!("exit code {code:?}: {stderr_text}")))
}
