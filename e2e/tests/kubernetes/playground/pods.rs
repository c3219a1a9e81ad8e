//! Running pods: get, exec, cp, port-forward. The pod of the playground is used directly
//! and through the bridge, by every kubectl; that of the real server is in the same state,
//! and its fake kubelet runs the same commands.

use std::net::SocketAddr;

use skewbridge_e2e::{RunningKubectl, normalize};
use skewbridge_testkit::ReservedPort;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::join;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::fixture::Targets::{All, Servers};
use super::fixture::{COMMAND_TIMEOUT, Entry, Target};
use super::kubelet::Kubelet;
use super::{OtherKubectl, compare};
use crate::kubectl_terminal::Terminal;

/// The name of the playground's own pod.
const POD: &str = "web";

/// The data sent to the port of a pod, and its response.
const PING: &[u8] = b"ping";
const PONG: &[u8] = b"pong";

/// A pod with a Perl script (Debian includes Perl), which listens and then logs the same text as
/// every container of the fake kubelet: after this log line it accepts connections.
fn manifest(port: u16) -> String {
    let listen = format!(
        "$s=IO::Socket::INET->new(Listen=>9,LocalAddr=>\"127.0.0.1\",LocalPort=>{port},\
         ReusePort=>1) or die $@"
    );
    let log = "$|=1; print \"line $_ of c\\n\" for 1..1000";
    let answer = "while($c=$s->accept){sysread $c,$b,4; syswrite $c,\"pong\" if $b eq \"ping\"}";
    let script = format!("{listen}; {log}; {answer}");
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {POD}, labels: {{app: pod}}}}\nspec:\n  \
         terminationGracePeriodSeconds: 1\n  containers:\n  - name: c\n    image: none\n    \
         command: [perl, -MIO::Socket::INET, -e, '{script}']\n    \
         ports: [{{containerPort: {port}}}]\n"
    )
}

/// With the server's kubectl, and with others.
pub(super) async fn differences(
    kubelet: &Kubelet<'_>,
    sites: &[Target<'_>; 3],
    others: &[OtherKubectl<'_>],
) -> Vec<String> {
    let [real, server, bridge] = sites;
    // The port of the playground's pod, which also serves the fake kubelet.
    let kept = ReservedPort::new();
    let port = kept.addr().port();
    let manifest = manifest(port);
    let (expected, got) = join!(start(real, &manifest), start(server, &manifest));
    let mut found = compare(&expected, &server.name, &got);
    kubelet.wait_until_running("pods", POD).await;
    let (of_real, of_server) = (real.namespace("pods"), server.namespace("pods"));
    let (expected, straight, bridged, by_others) = join!(
        run_scenario(real, &of_real, port),
        run_scenario(server, &of_server, port),
        run_scenario(bridge, &of_server, port),
        async {
            let mut found = Vec::new();
            for other in others {
                let [real, server, bridge] = &other.sites;
                let word = other.word("by");
                let (expected, straight, bridged) = join!(
                    run_streaming_steps(real, &of_real, port, &word),
                    run_streaming_steps(server, &of_server, port, &word),
                    run_streaming_steps(bridge, &of_server, port, &word),
                );
                found.extend(other.compare([&expected, &straight, &bridged]));
            }
            found
        },
    );
    found.extend(compare(&expected, &server.name, &straight));
    found.extend(compare(&expected, &bridge.name, &bridged));
    found.extend(by_others);
    found
}

async fn start(target: &Target<'_>, manifest: &str) -> Vec<Entry> {
    let namespace = target.namespace("pods");
    let create = format!("create namespace {namespace}");
    vec![
        target.step(&namespace, &create, "").await,
        target.step(&namespace, "apply -f -", manifest).await,
    ]
}

async fn run_scenario(target: &Target<'_>, namespace: &str, port: u16) -> Vec<Entry> {
    let looks = [
        (All, "get pods"),
        (All, "get pods -o wide"),
        (Servers, "get pod web -o yaml"),
        (All, "describe pod web"),
        (Servers, "get nodes -o wide"),
        (All, "get all"),
        (All, "logs web --tail=2"),
        (Servers, "logs web -c nope"),
        (Servers, "exec web -- nope-1"),
        (Servers, "exec web -c nope -- true"),
        (Servers, "exec nope -- true"),
        (Servers, "logs nope"),
        (Servers, "port-forward nope 8080"),
    ];
    let mut entries = Vec::new();
    for (at, words) in looks {
        entries.push(target.step_for(at, namespace, words, "").await);
    }
    entries.push(exec(target, namespace).await);
    entries.extend(run_streaming_steps(target, namespace, port, "own").await);
    entries
}

/// All streaming commands. The word is the name of a file.
async fn run_streaming_steps(
    target: &Target<'_>,
    namespace: &str,
    port: u16,
    word: &str,
) -> Vec<Entry> {
    let file = format!("{word}-{}.txt", target.kind);
    target.directory.write("up", "up and down");
    let mut entries = vec![
        exec_in_a_terminal(target, namespace).await,
        follow(target, namespace).await,
        forward(target, namespace, port).await,
    ];
    for words in [
        format!("cp up {POD}:{file}"),
        format!("cp {POD}:{file} down"),
    ] {
        let output = target.output(namespace, &words, "").await;
        entries.push(Entry::of(namespace, &words.replace(&file, "file"), &output));
    }
    let down = std::fs::read_to_string(target.directory.path().join("down"));
    entries.push(Entry::from_text(
        namespace,
        "what was copied",
        &format!("{:?}", down.ok()),
    ));
    entries
}

/// Input, both outputs and the exit code.
async fn exec(target: &Target<'_>, namespace: &str) -> Entry {
    let words = ["exec", "-i", POD, "--", "sh", "-c"];
    let words = [&words[..], &["cat; echo err >&2; exit 3"]].concat();
    let output = super::run(target.command(namespace), &words, "typed\n").await;
    Entry::of(namespace, "exec -i", &output)
}

/// The same in a terminal, whose size changes during its use.
async fn exec_in_a_terminal(target: &Target<'_>, namespace: &str) -> Entry {
    let script = "echo ready; until [ \"$(stty size)\" = '33 99' ]; do sleep 0.1; done; \
                  echo sized; read line; echo \"got $line\"; test -t 0 && exit 3";
    let mut command = target.command(namespace);
    command.args(["exec", "-it", POD, "--", "sh", "-c", script]);
    let mut terminal = Terminal::start(&command);
    let mut shown = terminal.lines_until("ready").await;
    terminal.resize(33, 99).await;
    shown.extend(terminal.lines_until("sized").await);
    terminal.types("hello\r").await;
    shown.extend(terminal.lines_until("got").await);
    let (rest, code) = terminal.rest().await;
    shown.extend(rest);
    Entry::from_text(namespace, "exec -it", &format!("{code:?}\n{shown:#?}"))
}

/// The first lines; whether more follow differs between targets.
async fn follow(target: &Target<'_>, namespace: &str) -> Entry {
    let mut command = target.command(namespace);
    let mut following = RunningKubectl::start(command.args(["logs", "-f", POD, "--tail=3"]));
    let mut lines = Vec::new();
    for _ in 0..3 {
        lines.push(following.line().await);
    }
    Entry::from_text(namespace, "logs -f", &lines.join("\n"))
}

async fn forward(target: &Target<'_>, namespace: &str, port: u16) -> Entry {
    let mut command = target.command(namespace);
    let ports = format!(":{port}");
    let words = ["port-forward", POD, &ports, "--address=127.0.0.1"];
    let mut forwarding = RunningKubectl::start(command.args(words));
    let line = forwarding.line().await;
    let local = line
        .split_whitespace()
        .nth(2)
        .unwrap_or_default()
        .to_owned();
    let local: SocketAddr = local.parse().unwrap();
    let mut lines = vec![line];
    for _ in 0..2 {
        let exec = async {
            let mut run_streaming_steps = TcpStream::connect(local).await.unwrap();
            run_streaming_steps.write_all(PING).await.unwrap();
            let mut answer = [0; PONG.len()];
            run_streaming_steps.read_exact(&mut answer).await.unwrap();
            assert_eq!(answer, PONG, "{}", target.name);
        };
        timeout(COMMAND_TIMEOUT, exec).await.unwrap();
        lines.push(forwarding.line().await);
    }
    let output = lines.join("\n").replace(&local.port().to_string(), "LOCAL");
    Entry::from_text(namespace, "port-forward", &normalize(&output))
}
