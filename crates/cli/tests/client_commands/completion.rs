//! Completion: by the shells themselves at a terminal, and by calls as they and kubectl make them.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use skewbridge_testkit::{Stopwatch, TEST_TIMEOUT, Terminal};
use tokio::process::Command;
use tokio::time::timeout;

use super::Cluster;

/// A cluster with names, and a kubeconfig with several contexts.
async fn cluster() -> Cluster {
    let cluster = Cluster::start().await;
    let pods = &cluster.pods;
    let list = |names: &[&str]| {
        let items = names.iter();
        let items = items.map(|name| format!(r#"{{"metadata":{{"name":"{name}"}}}}"#));
        format!(r#"{{"items":[{}]}}"#, items.collect::<Vec<_>>().join(","))
    };
    let rows: [(&str, &[&str]); 5] = [
        ("/api/v1/namespaces", &["default", "kube-system", "shop"]),
        (
            "/api/v1/namespaces/default/pods",
            &["db-0", "web-0", "web-1"],
        ),
        (
            "/api/v1/namespaces/shop/pods",
            &["cart", "evil$(x)", "bad\\u001b[2J"],
        ),
        (
            "/apis/apps/v1/namespaces/shop/deployments",
            &["carts", "tills"],
        ),
        ("/apis/apps/v1/namespaces/other/deployments", &[]),
    ];
    for (path, names) in rows {
        pods.object(path, &list(names));
    }
    pods.pod("default", "web-0", &["app", "sidecar"]);
    pods.pod("shop", "cart", &["till"]);
    pods.object(
        "/apis/apps/v1/namespaces/shop/deployments/carts",
        r#"{"spec":{"selector":{"matchLabels":{"app":"cart"}}}}"#,
    );
    let selected = "/api/v1/namespaces/shop/pods?labelSelector=app%3Dcart&limit=500";
    pods.object(
        selected,
        r#"{"items":[{"metadata":{"name":"cart"},"spec":{"initContainers":[{"name":"prepare"}],
            "containers":[{"name":"till","ports":[{"containerPort":8080}]}],
            "ephemeralContainers":[{"name":"debugger"}]}}]}"#,
    );
    pods.object(
        "/api/v1/namespaces/shop/services/cart",
        r#"{"spec":{"ports":[{"port":80},{"port":443}]}}"#,
    );
    let server = pods.addr();
    cluster.dir.write(
        "config",
        format!(
            "current-context: c\n\
             contexts: [{{name: c, context: {{cluster: k}}}}, {{name: 'arn:aws:eks', context: {{cluster: k}}}}, {{name: 'my shop', context: {{cluster: k, namespace: shop}}}}]\n\
             clusters: [{{name: k, cluster: {{server: 'http://{server}'}}}}, {{name: lost, cluster: {{server: 'http://192.0.2.1'}}}}]\n\
             users: [{{name: me, user: {{token: secret-token}}}}]\n"
        ),
    );
    cluster
}

/// Candidates without descriptions, and the directive.
async fn complete(cluster: &Cluster, words: &[&str]) -> String {
    let words: Vec<_> = ["__complete"].iter().chain(words).copied().collect();
    let output = cluster.run(&words).await;
    assert_eq!(output.code, Some(0), "{words:?}: {}", output.stderr);
    assert!(!output.stderr.contains("secret-token"), "{}", output.stderr);
    let lines = output.stdout.lines();
    let words = lines.map(|line| line.split('\t').next().unwrap());
    words.collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn names_come_from_the_kubeconfig_and_from_the_cluster() {
    const OWNERS: &str = "daemonsets/ deployments/ pods/ jobs/ replicasets/ \
                          replicationcontrollers/ services/ statefulsets/";
    let cluster = cluster().await;
    let pods_and_owners = format!("db-0 web-0 web-1 {OWNERS} :4");
    let rows: [(&[&str], &str); 30] = [
        (&["exec", "--context", ""], "arn:aws:eks c my shop :4"),
        (&["exec", "--context=arn"], "--context=arn:aws:eks :4"),
        (&["run", "--context", "c"], "c :4"),
        (&["skew", "--context", "c"], "c :4"),
        (&["exec", "--cluster", ""], "k lost :4"),
        (&["attach", "--user", ""], "me :4"),
        (&["cp", "-n", ""], "default kube-system shop :4"),
        (&["run", "--namespace=s"], "--namespace=shop :4"),
        (&["exec", "-ns"], "-nshop :4"),
        (&["exec", ""], &pods_and_owners),
        (&["exec", "-it", "web"], "web-0 web-1 :4"),
        (&["attach", "d"], "db-0 daemonsets/ deployments/ :4"),
        (&["port-forward", "se"], "services/ :6"),
        (&["exec", "-n", "shop", "c"], "cart :4"),
        (&["exec", "--context", "my shop", "c"], "cart :4"),
        // Not to be printed on a terminal.
        (&["exec", "-n", "shop", "b"], ":4"),
        (&["exec", "-n", "shop", "deploy/t"], "deploy/tills :4"),
        (
            &["attach", "-n", "shop", "deployment", ""],
            "carts tills :4",
        ),
        (&["attach", "-n", "shop", "cart", ""], ":4"),
        (&["exec", "web-0", "-c", ""], "app sidecar :4"),
        (
            &["exec", "web-0", "--container=s"],
            "--container=sidecar :4",
        ),
        (
            &["exec", "-n", "shop", "deploy/carts", "-c", ""],
            "prepare till debugger :4",
        ),
        (&["cp", "shop/cart:/tmp", ".", "-c", ""], "till :4"),
        (
            &["port-forward", "-n", "shop", "deploy/carts", ""],
            "8080:8080 :4",
        ),
        (
            &["port-forward", "-n", "shop", "svc/cart", "90"],
            "90:80 90:443 :4",
        ),
        (
            &["cp", ""],
            "default/ kube-system/ shop/ db-0: web-0: web-1: ./ / :0",
        ),
        (&["cp", "shop/c"], "shop/cart: :2"),
        (&["cp", "./x", "web-1"], "web-1: :2"),
        // Files of the container are not known; those of this machine the shell completes.
        (&["cp", "web-0:/et"], ":4"),
        (&["cp", "/et"], ":0"),
    ];
    for (words, expected) in rows {
        assert_eq!(complete(&cluster, words).await, expected, "{words:?}");
    }
}

#[tokio::test]
async fn an_error_gives_no_candidates_and_no_exit_code() {
    let cluster = cluster().await;
    let rows: [&[&str]; 6] = [
        &["exec", "-n", "other", ""],
        &["exec", "nothing", "-c", ""],
        &["exec", "--context", "none", "w"],
        &["exec", "--kubeconfig", "/none", "w"],
        &["exec", "--token=secret-token", "--request-timeout=x", "w"],
        &[
            "exec",
            "--context",
            "c",
            "--insecure-skip-tls-verify=maybe",
            "w",
        ],
    ];
    for words in rows {
        let found = complete(&cluster, words).await;
        assert!(
            found == ":4" || found.starts_with("daemonsets/"),
            "{words:?}: {found}"
        );
    }
    let output = cluster
        .run(&["__complete", "exec", "-n", "other", ""])
        .await;
    assert!(
        output.stderr.starts_with("completion: "),
        "{}",
        output.stderr
    );
}

#[tokio::test]
async fn a_cluster_that_does_not_answer_is_given_up_after_three_seconds() {
    let cluster = cluster().await;
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = format!("--server=http://{}", silent.local_addr().unwrap());
    let limit = Duration::from_secs(4);
    let time = Stopwatch::start();
    let words = ["__complete", "exec", &server, "w"];
    let mut child = cluster
        .command(&words)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    time.within(limit, "completion", async || {
        child.try_wait().unwrap().is_some()
    })
    .await;
    let output = child.wait_with_output().await.unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), ":4\n");
}

#[tokio::test]
async fn bash_gets_quoted_candidates() {
    let cluster = cluster().await;
    let breaks = " \t\n\"'@><=;|&(:";
    let rows = [
        ("sb exec --context=arn:a", "aws:eks\n"),
        ("sb exec --context m", "my\\ shop\n"),
        ("sb exec --context 'my", "my shop\n"),
        ("sb exec -n shop ev", "evil\\$\\(x\\)\n"),
        ("sb exec -n shop se", ":nospace\nservices/\n"),
        ("sb cp web-0:", ""),
        ("sb exec --kubeconfig=/e", ":files\n"),
    ];
    for (line, expected) in rows {
        let output = cluster.run(&["__complete_bash", breaks, line]).await;
        assert_eq!(output.stdout, expected, "{line}");
    }
}

/// A shell at a terminal, with the program on its path and its completion script loaded.
struct Shell<'a> {
    name: &'static str,
    cluster: &'a Cluster,
    programs: PathBuf,
}

impl<'a> Shell<'a> {
    /// `None` where the shell is not installed, which is an error in CI.
    async fn find(name: &'static str, cluster: &'a Cluster) -> Option<Self> {
        let found = Command::new(name)
            .args(["-c", "exit 0"])
            .stdin(Stdio::null())
            .status()
            .await;
        if found.is_err() {
            let ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
            assert!(!ci, "{name} is not installed");
            println!("skipped: {name} is not installed");
            return None;
        }
        let programs = cluster.dir.path().join(format!("{name}-programs"));
        std::fs::create_dir_all(&programs).unwrap();
        symlink(
            env!("CARGO_BIN_EXE_skewbridge"),
            programs.join("skewbridge"),
        )
        .unwrap();
        Some(Self {
            name,
            cluster,
            programs,
        })
    }

    /// Types a line and the tab key, and returns the line as the shell runs it: after the
    /// completion, `echo` and marks are put around it.
    async fn completes(&self, typed: &str) -> String {
        let script = self
            .cluster
            .dir
            .path()
            .join(format!("completion.{}", self.name));
        let output = self.cluster.run(&["completion", self.name]).await;
        std::fs::write(&script, output.stdout).unwrap();
        let terminal = Terminal::open(200, 40);
        let mut command = Command::new("env");
        command.args([
            "--default-signal=HUP,INT,QUIT,TERM",
            "setsid",
            "--ctty",
            self.name,
        ]);
        let (arguments, start): (&[&str], String) = match self.name {
            "bash" => (&["--norc", "--noprofile", "-i"], source(&script)),
            "zsh" => (
                &["-f", "-i"],
                format!(
                    "PS1='> '; autoload -Uz compinit; compinit -u -D; {}",
                    source(&script)
                ),
            ),
            _ => (&["--no-config", "-i"], source(&script)),
        };
        command
            .args(arguments)
            .env_clear()
            .env("HOME", self.cluster.dir.path())
            .env("TERM", "dumb")
            .env("LANG", "C.UTF-8")
            .env("KUBECONFIG", self.cluster.dir.path().join("config"))
            .env("PATH", path_with(&self.programs))
            .current_dir(self.cluster.dir.path());
        let shell = terminal.run(command);
        let mut seen = 0;
        // The text with the quotes is what is typed, that without them what is printed.
        terminal.type_keys(&format!("{start}; echo rea''dy\r"));
        terminal.shows_next(&mut seen, "ready").await;
        // Ctrl-a goes to the beginning of the line, ctrl-e to its end.
        terminal.type_keys(&format!("{typed}\t\x05@@\x01echo '%'%\r"));
        terminal.shows_next(&mut seen, "%%").await;
        terminal.shows_next(&mut seen, "@@").await;
        let shown = terminal.shown();
        let printed = shown[..seen].rsplit("%%").next().unwrap();
        let printed = printed.trim_end_matches("@@").to_owned();
        terminal.type_keys("exit\r");
        let mut shell = shell;
        if timeout(TEST_TIMEOUT, shell.wait()).await.is_err() {
            shell.kill().await.unwrap();
        }
        printed
    }
}

fn source(script: &Path) -> String {
    format!("source {}", script.display())
}

fn path_with(first: &Path) -> std::ffi::OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let others = std::env::split_paths(&path);
    std::env::join_paths(std::iter::once(first.to_owned()).chain(others)).unwrap()
}

#[tokio::test]
async fn shells_complete_at_a_terminal() {
    let cluster = cluster().await;
    cluster.dir.write("a-file", "");
    // A space follows a complete word.
    let rows = [
        ("skewbridge ex", "skewbridge exec "),
        ("skewbridge exec --quie", "skewbridge exec --quiet "),
        ("skewbridge exec db", "skewbridge exec db-0 "),
        ("skewbridge exec web", "skewbridge exec web-"),
        (
            "skewbridge exec --context=ar",
            "skewbridge exec --context=arn:aws:eks ",
        ),
        (
            "skewbridge exec --context arn:aws:e",
            "skewbridge exec --context arn:aws:eks ",
        ),
        ("skewbridge exec -n sh", "skewbridge exec -n shop "),
        (
            "skewbridge exec web-0 -c si",
            "skewbridge exec web-0 -c sidecar ",
        ),
        (
            "skewbridge exec -n shop se",
            "skewbridge exec -n shop services/",
        ),
        ("skewbridge cp shop/c", "skewbridge cp shop/cart:"),
        (
            "skewbridge exec --kubeconfig a-f",
            "skewbridge exec --kubeconfig a-file ",
        ),
        (
            "skewbridge exec --context my",
            "skewbridge exec --context my shop ",
        ),
    ];
    for name in ["bash", "zsh", "fish"] {
        let Some(shell) = Shell::find(name, &cluster).await else {
            continue;
        };
        for (typed, expected) in rows {
            let completed = shell.completes(typed).await;
            assert_eq!(completed.trim_end(), expected.trim_end(), "{name}: {typed}");
        }
    }
}
