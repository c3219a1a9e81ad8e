//! Real kubectls with the playground: what they print is what a real kube-apiserver
//! has them print.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use skewbridge_e2e::{
    Output, Plane, Playground, Server, Staying, User, planes_are_chosen, versions,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

/// For a command that takes a second or two on an idle machine.
const BOUND: Duration = Duration::from_mins(1);

/// Runs a command to its end.
async fn run(mut command: Command, words: &[&str], stdin: &str) -> Output {
    let mut child = command
        .args(words)
        // Instead of somebody who edits.
        .env("KUBE_EDITOR", "sed -i s/two:.*/two:\\ zwei/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut to = child.stdin.take().unwrap();
    let ended = async {
        // It need not read all of it.
        let _ = to.write_all(stdin.as_bytes()).await;
        drop(to);
        child.wait_with_output().await.unwrap()
    };
    let ended = tokio::time::timeout(BOUND, ended).await;
    Output::of(&ended.unwrap_or_else(|_| panic!("{words:?} does not end")))
}

/// Without what is another each time, and without what `explain` says in prose: the
/// playground has its own words for that.
fn steady(text: &str) -> String {
    let text = text.split("DESCRIPTION:").next().unwrap_or_default();
    let varies = ["uid:", "resourceVersion:", "creationTimestamp:", "time:"];
    let lines = text.lines().map(|line| {
        let word = line.trim_start().trim_start_matches("- ");
        match varies.iter().find(|it| word.starts_with(**it)) {
            Some(name) => format!(
                "{}{name} ...",
                &line[..line.len() - line.trim_start().len()]
            ),
            None => line.to_owned(),
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// What the playground has servers of.
const RELEASES: [&str; 3] = ["1.28", "1.34", "1.36"];

fn minor(version: &str) -> String {
    version.rsplit_once('.').unwrap().0.to_owned()
}

const CONFIG: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, labels: {x: one}}\n\
                      data: {one: '1'}\n";
const CHANGED: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, labels: {x: one}}\n\
                       data: {one: '2', two: '2'}\n";
const DEPLOYMENT: &str = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec:\n  \
                          selector: {matchLabels: {app: d}}\n  template:\n    metadata: {labels: \
                          {app: d}}\n    spec: {containers: [{name: c, image: i:1}]}\n";
const BROKEN: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: A_B}\n";

/// What is done in a namespace, in order: words, and what is typed.
const STEPS: &[(&[&str], &str)] = &[
    (&["apply", "-f", "-"], CONFIG),
    (&["apply", "-f", "-"], CONFIG),
    (&["apply", "-f", "-"], CHANGED),
    (&["diff", "-f", "-"], CHANGED),
    (&["apply", "-f", "-", "--dry-run=server"], CONFIG),
    (&["get", "configmap", "a", "-o", "jsonpath={.data}"], ""),
    (&["get", "configmap", "a", "-o", "name"], ""),
    (&["get", "configmap", "-l", "x=one", "-o", "name"], ""),
    (
        &[
            "get",
            "configmap",
            "-l",
            "x!=one",
            "-o",
            "name",
            "--field-selector=metadata.name=a",
        ],
        "",
    ),
    (
        &["patch", "configmap", "a", "-p", r#"{"data":{"three":"3"}}"#],
        "",
    ),
    (
        &[
            "patch",
            "configmap",
            "a",
            "--type=merge",
            "-p",
            r#"{"data":{"one":null}}"#,
        ],
        "",
    ),
    (
        &[
            "patch",
            "configmap",
            "a",
            "--type=json",
            "-p",
            r#"[{"op":"test","path":"/data/three","value":"4"}]"#,
        ],
        "",
    ),
    (
        &[
            "patch",
            "configmap",
            "a",
            "--type=json",
            "-p",
            r#"[{"op":"remove","path":"/data/three"}]"#,
        ],
        "",
    ),
    (&["label", "configmap", "a", "z=1"], ""),
    (&["annotate", "configmap", "a", "note=hello"], ""),
    (
        &[
            "get",
            "configmap",
            "a",
            "-o",
            "jsonpath={.metadata.labels}{.data}",
        ],
        "",
    ),
    (&["edit", "configmap", "a"], ""),
    (&["get", "configmap", "a", "-o", "yaml"], ""),
    (&["create", "configmap", "a"], ""),
    (&["explain", "configmap.metadata.name"], ""),
    (&["explain", "pods.spec.nope"], ""),
    (
        &["auth", "whoami", "-o", "jsonpath={.status.userInfo.groups}"],
        "",
    ),
    (&["auth", "can-i", "list", "nopes"], ""),
    (&["get", "--raw", "/healthz"], ""),
    (&["get", "--raw", "/nope"], ""),
    (&["create", "namespace", "default"], ""),
    (&["rollout", "status", "deployment/nope"], ""),
    (&["get", "configmap", "-o", "name", "--chunk-size=1"], ""),
    (
        &[
            "wait",
            "configmap/a",
            "--for=jsonpath={.data.two}=zwei",
            "--timeout=20s",
        ],
        "",
    ),
    (
        &["replace", "-f", "-"],
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, resourceVersion: '1'}\n",
    ),
    (&["get", "configmap", "nope"], ""),
    (&["delete", "configmap", "nope"], ""),
    (&["get", "nopes"], ""),
    (&["create", "-f", "-"], BROKEN),
    (
        &[
            "create",
            "configmap",
            "b",
            "--from-literal=k=v",
            "--dry-run=server",
            "-o",
            "name",
        ],
        "",
    ),
    (
        &["apply", "--server-side", "-f", "-"],
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: s}\ndata: {one: '1'}\n",
    ),
    (
        &["apply", "--server-side", "--field-manager=other", "-f", "-"],
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: s}\ndata: {one: '2'}\n",
    ),
    (
        &[
            "apply",
            "--server-side",
            "--field-manager=other",
            "--force-conflicts",
            "-f",
            "-",
        ],
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: s}\ndata: {one: '2'}\n",
    ),
    (&["get", "configmap", "s", "-o", "jsonpath={.data.one}"], ""),
    (&["auth", "can-i", "create", "pods"], ""),
    (&["auth", "can-i", "create", "pods", "--as=nobody"], ""),
    (&["api-resources", "--no-headers"], ""),
    (&["api-versions"], ""),
    (&["delete", "configmap", "a", "s"], ""),
    (&["get", "configmaps", "-o", "name"], ""),
    (&["apply", "-f", "-"], DEPLOYMENT),
    (&["scale", "deployment", "d", "--replicas=3"], ""),
    (
        &[
            "get",
            "deployment",
            "d",
            "-o",
            "jsonpath={.spec.replicas}{.metadata.generation}",
        ],
        "",
    ),
    (&["set", "image", "deployment/d", "c=i:2"], ""),
    (
        &[
            "get",
            "deployment",
            "d",
            "-o",
            "jsonpath={.spec.template.spec.containers[0].image}",
        ],
        "",
    ),
    (&["delete", "deployment", "d"], ""),
    (&["delete", "namespace", "kube-system"], ""),
];

#[tokio::test]
async fn kubectl_prints_what_a_real_server_has_it_print() {
    let of_playground = |version: &String| RELEASES.contains(&minor(version).as_str());
    let versions: Vec<_> = versions().into_iter().filter(of_playground).collect();
    if versions.is_empty() && planes_are_chosen() {
        println!("left out: it needs a server of one of {RELEASES:?}");
        return;
    }
    let compared: Vec<_> = versions.iter().map(|version| minor(version)).collect();
    assert!(
        planes_are_chosen()
            || RELEASES
                .iter()
                .all(|it| compared.iter().any(|got| got == it)),
        "only {compared:?} of {RELEASES:?} are there to be compared with"
    );
    let playground = Playground::start().await;
    let mut differences = Vec::new();
    for version in versions {
        let plane = Plane::start(&[Server::of(&version).runtime_config("api/ga=true")]).await;
        let real: SocketAddr = plane.servers[0].address;
        let kubectl = async |words: &[&str], stdin: &str| {
            let command = plane.kubectl_at(&version, real, User::Admin);
            run(command, words, stdin).await
        };
        for (number, place) in ["server", "bridge"].into_iter().enumerate() {
            let context = format!("{place}-{}", minor(&version));
            let namespace = format!("shop-{}-{number}", minor(&version).replace('.', "-"));
            let create = ["create", "namespace", &namespace];
            let expected = kubectl(&create, "").await;
            let got = run(playground.kubectl(&version, &context), &create, "").await;
            assert_eq!(got, expected, "{context}");
            for (words, stdin) in STEPS {
                let namespace = format!("--namespace={namespace}");
                let words = [&[namespace.as_str()][..], words].concat();
                let expected = kubectl(&words, stdin).await;
                let got = run(playground.kubectl(&version, &context), &words, stdin).await;
                let is_bridges = place == "bridge" && words.iter().any(|it| it.starts_with("api-"));
                let same = (got.code, steady(&got.stdout), steady(&got.stderr))
                    == (
                        expected.code,
                        steady(&expected.stdout),
                        steady(&expected.stderr),
                    );
                if !same && !is_bridges {
                    differences.push(format!(
                        "{context} {words:?}\n--- real {:?}\n{}{}\n--- playground {:?}\n{}{}",
                        expected.code,
                        expected.stdout,
                        expected.stderr,
                        got.code,
                        got.stdout,
                        got.stderr
                    ));
                }
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
}

#[tokio::test]
async fn every_kubectl_streams_by_every_context() {
    let playground = Playground::start().await;
    for version in versions() {
        for release in RELEASES {
            for place in ["server", "bridge"] {
                let context = format!("{place}-{release}");
                println!("kubectl {version} at {context}");
                streams(&playground, &version, &context).await;
            }
        }
    }
}

async fn streams(playground: &Playground, version: &str, context: &str) {
    let kubectl = |words: &'static [&'static str], stdin: &'static str| {
        run(playground.kubectl(version, context), words, stdin)
    };
    let script = "echo out; echo err >&2; exit 3";
    let ended = run(
        playground.kubectl(version, context),
        &["exec", "web", "--", "sh", "-c", script],
        "",
    )
    .await;
    assert_eq!(
        (ended.code, &*ended.stdout),
        (Some(3), "out\n"),
        "{ended:?}"
    );
    assert!(ended.stderr.starts_with("err\n"), "{ended:?}");
    let echoed = kubectl(&["exec", "-i", "web", "--", "cat"], "typed\n").await;
    assert_eq!(
        (echoed.code, &*echoed.stdout),
        (Some(0), "typed\n"),
        "{echoed:?}"
    );
    let missing = kubectl(&["exec", "web", "--", "nope-1"], "").await;
    assert_ne!(missing.code, Some(0));
    assert!(
        missing.stderr.contains("executable file not found"),
        "{missing:?}"
    );

    playground
        .scratch()
        .write("up", format!("{version} {context}"));
    let up = kubectl(&["cp", "up", "web:file"], "").await;
    assert_eq!(up.code, Some(0), "{up:?}");
    let down = kubectl(&["cp", "web:file", "down"], "").await;
    assert_eq!(down.code, Some(0), "{down:?}");
    let copied = std::fs::read_to_string(playground.scratch().path().join("down"));
    assert_eq!(copied.unwrap(), format!("{version} {context}"));

    let log = kubectl(&["logs", "web", "--tail=1"], "").await;
    assert_eq!(
        (log.code, log.stdout.lines().count()),
        (Some(0), 1),
        "{log:?}"
    );
    let mut following = playground.kubectl(version, context);
    let mut following = Staying::start(following.args(["logs", "-f", "web", "--tail=1"]));
    // The last line that there is, and one that is still to come.
    for _ in 0..2 {
        assert!(following.line().await.starts_with("web: "));
    }
    drop(following);
    let previous = kubectl(&["logs", "web", "--previous"], "").await;
    assert!(
        previous.stderr.contains("previous terminated container"),
        "{previous:?}"
    );

    let mut forward = playground.kubectl(version, context);
    let mut forward = Staying::start(forward.args(["port-forward", "web", ":8080"]));
    let line = forward.line().await;
    let port = line
        .split_whitespace()
        .nth(2)
        .unwrap()
        .rsplit_once(':')
        .unwrap()
        .1;
    let mut stream = tokio::net::TcpStream::connect(format!("127.0.0.1:{port}"))
        .await
        .unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: web\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer);
    tokio::time::timeout(BOUND, read).await.unwrap().unwrap();
    assert!(
        answer.ends_with("Hello from pod web, port 8080.\n"),
        "{answer}"
    );
    drop(forward);

    let words = [
        "run",
        "once",
        "-i",
        "--rm",
        "--restart=Never",
        "--image=none",
        "--",
        "sh",
    ];
    let once = run(
        playground.kubectl(version, context),
        &words,
        "sleep 1; echo done\n",
    )
    .await;
    assert_eq!(once.code, Some(0), "{once:?}");
    assert!(once.stdout.contains("done"), "{once:?}");
}
