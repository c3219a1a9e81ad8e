//! A cluster, a kubeconfig for it, and `skewbridge run`.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use skewbridge_testkit::{ApiServer, Ca, Options, RecordedRequest, Reply, ScratchDir};

/// Longer than any command of the tests takes.
pub(crate) const REQUEST_TIMEOUT: Option<Duration> = Some(Duration::from_mins(1));

/// The header that the plugin adds to each request.
pub(crate) const PLUGIN_HEADER: &str = "x-badge";

pub(crate) struct RunFixture {
    pub(crate) dir: ScratchDir,
    pub(crate) ca: Ca,
    pub(crate) server: ApiServer,
}

impl RunFixture {
    pub(crate) async fn new() -> Self {
        Self::with(|seen| {
            let header = |name| seen.header(name).unwrap_or("none").to_owned();
            Reply::json(format!(
                "{} {} {}",
                seen.target,
                header("authorization"),
                header(PLUGIN_HEADER)
            ))
        })
        .await
    }

    pub(crate) async fn with(
        answer: impl Fn(RecordedRequest) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let ca = Ca::new("cluster");
        let options = Options::new(ca.server(&["127.0.0.1"]));
        Self {
            dir: ScratchDir::new(),
            server: ApiServer::start(options, answer).await,
            ca,
        }
    }

    /// The plugin, as in a kubeconfig.
    pub(crate) fn plugin(&self) -> Value {
        // The test program prints to its standard output; that of the plugin is descriptor 3.
        let script = "exec \"$0\" --ignored --exact a_plugin --nocapture 3>&1 >/dev/null";
        json!({"exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "sh",
            "args": ["-c", script, std::env::current_exe().unwrap()],
            "env": [{"name": "PLUGIN_DIR", "value": self.dir.path()}],
            "interactiveMode": "Never",
            "provideClusterInfo": true,
        }})
    }

    pub(crate) fn kubeconfig(&self, user: &Value) -> PathBuf {
        let ca = self.dir.write("ca.crt", self.ca.pem());
        let config = json!({
            "current-context": "elsewhere",
            "contexts": [
                {"name": "elsewhere", "context": {"cluster": "none", "user": "none"}},
                {"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "shop"}},
            ],
            "clusters": [{"name": "k", "cluster": {
                "server": format!("https://{}/prefix", self.server.addr()),
                "certificate-authority": ca,
            }}],
            "users": [{"name": "u", "user": user}],
        });
        self.dir.write("kubeconfig", config.to_string())
    }

    /// `skewbridge run` as this user, with these arguments.
    pub(crate) fn run(&self, user: &Value) -> Command {
        let runtime = self.dir.path().join("runtime");
        let _ = std::fs::DirBuilder::new().mode(0o700).create(&runtime);
        let mut command = Command::new(env!("CARGO_BIN_EXE_skewbridge"));
        command
            .arg("run")
            .arg("--kubeconfig")
            .arg(self.kubeconfig(user))
            .arg("--context=c")
            .env("XDG_RUNTIME_DIR", runtime)
            .env("CHILD_DIR", self.dir.path())
            .env_remove("KUBECONFIG")
            .stdin(Stdio::null());
        command
    }

    /// The same, with a script as its command.
    pub(crate) fn script(&self, user: &Value, script: &str) -> Command {
        let mut command = self.run(user);
        command.args(["--", "sh", "-c", script]);
        command
    }

    /// The same, with this test program as its command, which performs this action.
    pub(crate) fn test_command(&self, user: &Value, action: &str) -> Command {
        let mut command = self.run(user);
        command
            .arg("--")
            .arg(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "a_command"])
            .env("CHILD_ACTION", action);
        command
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }

    /// The remaining files of commands and plugins.
    pub(crate) fn remaining_files(&self) -> usize {
        std::fs::read_dir(self.dir.path().join("runtime"))
            .unwrap()
            .count()
    }
}

/// Runs a command while the servers of this test run. Returns the output of the command, which ends
/// when this is dropped.
pub(crate) async fn output(command: Command) -> Output {
    let mut command = tokio::process::Command::from(command);
    command.kill_on_drop(true).output().await.unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn token() -> Value {
    json!({"token": "secret-token"})
}

/// Whether a process has ended, including zombies.
pub(crate) fn is_gone(process: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"));
    stat.map_or(true, |stat| stat.contains(") Z "))
}

pub(crate) fn parent_of(process: i32) -> i32 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let (_, rest) = stat.rsplit_once(')').unwrap();
    rest.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The same command, started by these arguments.
pub(crate) fn started_by(args: &[&str], command: &Command) -> Command {
    let mut started = Command::new(args[0]);
    started
        .args(&args[1..])
        .arg(command.get_program())
        .args(command.get_args())
        .stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => started.env(name, value),
            None => started.env_remove(name),
        };
    }
    started
}
