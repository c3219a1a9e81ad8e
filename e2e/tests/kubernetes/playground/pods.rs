//! Pods that run: looked at, talked with, copied from and to, forwarded to. The pod of the
//! playground is asked for straight and through the bridge, by every kubectl; that of the
//! real server is in the same state, and the stand-in for its kubelet runs the same commands.

use std::net::SocketAddr;

use skewbridge_e2e::{RunningKubectl, normalize};
use skewbridge_testkit::ReservedPort;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::join;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::fixture::At::{Everywhere, Servers};
use super::fixture::{COMMAND_TIMEOUT, Entry, Site};
use super::kubelet::Kubelet;
use super::{Other, compare};
use crate::kubectl_terminal::Terminal;

/// As the playground's own is called.
const POD: &str = "web";

/// What is said to the port of a pod, and what it says.
const PING: &[u8] = b"ping";
const PONG: &[u8] = b"pong";

/// It listens, and then logs what the stand-in for a kubelet says that every container has
/// logged: whoever has seen the log can be answered. Debian has Perl everywhere.
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

/// By the server's kubectl, and by others.
pub(super) async fn differences(
    kubelet: &Kubelet<'_>,
    sites: &[Site<'_>; 3],
    others: &[Other<'_>],
) -> Vec<String> {
    let [real, server, bridge] = sites;
    // Of the pod in the playground, which is all that is behind the stand-in as well.
    let kept = ReservedPort::new();
    let port = kept.addr().port();
    let manifest = manifest(port);
    let (expected, got) = join!(begin(real, &manifest), begin(server, &manifest));
    let mut found = compare(&expected, &server.name, &got);
    kubelet.runs("pods", POD).await;
    let (of_real, of_server) = (real.namespace("pods"), server.namespace("pods"));
    let (expected, straight, bridged, by_others) = join!(
        tell(real, &of_real, port),
        tell(server, &of_server, port),
        tell(bridge, &of_server, port),
        async {
            let mut found = Vec::new();
            for other in others {
                let [real, server, bridge] = &other.sites;
                let word = other.word("by");
                let (expected, straight, bridged) = join!(
                    stream(real, &of_real, port, &word),
                    stream(server, &of_server, port, &word),
                    stream(bridge, &of_server, port, &word),
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

async fn begin(site: &Site<'_>, manifest: &str) -> Vec<Entry> {
    let namespace = site.namespace("pods");
    let create = format!("create namespace {namespace}");
    vec![
        site.step(&namespace, &create, "").await,
        site.step(&namespace, "apply -f -", manifest).await,
    ]
}

async fn tell(site: &Site<'_>, namespace: &str, port: u16) -> Vec<Entry> {
    let looks = [
        (Everywhere, "get pods"),
        (Everywhere, "get pods -o wide"),
        (Servers, "get pod web -o yaml"),
        (Everywhere, "describe pod web"),
        (Servers, "get nodes -o wide"),
        (Everywhere, "get all"),
        (Everywhere, "logs web --tail=2"),
        (Servers, "logs web -c nope"),
        (Servers, "exec web -- nope-1"),
        (Servers, "exec web -c nope -- true"),
        (Servers, "exec nope -- true"),
        (Servers, "logs nope"),
        (Servers, "port-forward nope 8080"),
    ];
    let mut told = Vec::new();
    for (at, words) in looks {
        told.push(site.step_at(at, namespace, words, "").await);
    }
    told.push(talk(site, namespace).await);
    told.extend(stream(site, namespace, port, "own").await);
    told
}

/// All that is more than a question and an answer. The word is for a file of its own.
async fn stream(site: &Site<'_>, namespace: &str, port: u16, word: &str) -> Vec<Entry> {
    let file = format!("{word}-{}.txt", site.place);
    site.directory.write("up", "up and down");
    let mut told = vec![
        talk_in_a_terminal(site, namespace).await,
        follow(site, namespace).await,
        forward(site, namespace, port).await,
    ];
    for words in [
        format!("cp up {POD}:{file}"),
        format!("cp {POD}:{file} down"),
    ] {
        let output = site.output(namespace, &words, "").await;
        told.push(Entry::of(namespace, &words.replace(&file, "file"), &output));
    }
    let down = std::fs::read_to_string(site.directory.path().join("down"));
    told.push(Entry::seen(
        namespace,
        "what was copied",
        &format!("{:?}", down.ok()),
    ));
    told
}

/// Input, both outputs and the exit code.
async fn talk(site: &Site<'_>, namespace: &str) -> Entry {
    let words = ["exec", "-i", POD, "--", "sh", "-c"];
    let words = [&words[..], &["cat; echo err >&2; exit 3"]].concat();
    let output = super::run(site.command(namespace), &words, "typed\n").await;
    Entry::of(namespace, "exec -i", &output)
}

/// The same in a terminal, whose size changes while it is used.
async fn talk_in_a_terminal(site: &Site<'_>, namespace: &str) -> Entry {
    let script = "echo ready; until [ \"$(stty size)\" = '33 99' ]; do sleep 0.1; done; \
                  echo sized; read line; echo \"got $line\"; test -t 0 && exit 3";
    let mut command = site.command(namespace);
    command.args(["exec", "-it", POD, "--", "sh", "-c", script]);
    let mut terminal = Terminal::start(&command);
    let mut shown = terminal.lines_until("ready").await;
    terminal.resize(33, 99).await;
    shown.extend(terminal.lines_until("sized").await);
    terminal.types("hello\r").await;
    shown.extend(terminal.lines_until("got").await);
    let (rest, code) = terminal.rest().await;
    shown.extend(rest);
    Entry::seen(namespace, "exec -it", &format!("{code:?}\n{shown:#?}"))
}

/// The first lines; whether there will be more is another matter for each.
async fn follow(site: &Site<'_>, namespace: &str) -> Entry {
    let mut command = site.command(namespace);
    let mut following = RunningKubectl::start(command.args(["logs", "-f", POD, "--tail=3"]));
    let mut lines = Vec::new();
    for _ in 0..3 {
        lines.push(following.line().await);
    }
    Entry::seen(namespace, "logs -f", &lines.join("\n"))
}

async fn forward(site: &Site<'_>, namespace: &str, port: u16) -> Entry {
    let mut command = site.command(namespace);
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
        let talk = async {
            let mut stream = TcpStream::connect(local).await.unwrap();
            stream.write_all(PING).await.unwrap();
            let mut answer = [0; PONG.len()];
            stream.read_exact(&mut answer).await.unwrap();
            assert_eq!(answer, PONG, "{}", site.name);
        };
        timeout(COMMAND_TIMEOUT, talk).await.unwrap();
        lines.push(forwarding.line().await);
    }
    let said = lines.join("\n").replace(&local.port().to_string(), "LOCAL");
    Entry::seen(namespace, "port-forward", &normalize(&said))
}
