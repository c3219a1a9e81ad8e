//! A playground as its users run it.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use http::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use skewbridge_client::{Endpoint, Kubeconfig, Request, Response};
use skewbridge_testkit::{ScratchDir, Terminal, eventually};

/// Long enough for a busy machine.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_mins(1);

pub(crate) fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skewbridge"));
    command.arg("playground").args(words).stdin(Stdio::null());
    command
}

pub(crate) fn run(words: &[&str]) -> Output {
    command(words).output().unwrap()
}

/// A running playground, and its output.
pub(crate) struct Playground {
    pub(crate) child: Child,
    pub(crate) printed: String,
    reader: Option<JoinHandle<()>>,
    /// The directory of the playground, removed when it ends.
    pub(crate) directory: PathBuf,
    /// Its parent directory.
    _scratch: ScratchDir,
}

impl Playground {
    pub(crate) fn start() -> Self {
        Self::start_with("--default-signal=HUP,INT,QUIT,TERM")
    }

    /// Starts a playground by `env` with these signal options.
    pub(crate) fn start_with(signals: &str) -> Self {
        let scratch = ScratchDir::new();
        let directory = scratch.path().join("play");
        let mut child = Command::new("env")
            .args([signals, env!("CARGO_BIN_EXE_skewbridge"), "playground"])
            .arg("--directory")
            .arg(&directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut printed = String::new();
        while !printed.contains("Ctrl-C ends it.") {
            let line = lines.next().unwrap().unwrap();
            printed.push_str(&line);
            printed.push('\n');
        }
        // Further output is drained.
        let reader = std::thread::spawn(move || lines.for_each(drop));
        Self {
            child,
            printed,
            reader: Some(reader),
            directory,
            _scratch: scratch,
        }
    }

    /// Starts a playground on this terminal, as a shell does.
    pub(crate) fn start_in(terminal: &Terminal) -> Self {
        let scratch = ScratchDir::new();
        let directory = scratch.path().join("play");
        let program = env!("CARGO_BIN_EXE_skewbridge");
        // The controlling terminal of a new session: keys go to its foreground process.
        let child = Command::new("env")
            .args(["--default-signal=HUP,INT,QUIT,TERM", "setsid", "--ctty"])
            .args([program, "playground", "--directory"])
            .arg(&directory)
            .stdin(terminal.end())
            .stdout(terminal.end())
            .stderr(terminal.end())
            .spawn()
            .unwrap();
        Self {
            child,
            printed: String::new(),
            reader: None,
            directory,
            _scratch: scratch,
        }
    }

    /// Starts a playground that runs the tour.
    pub(crate) fn tour(words: &[&str], stdout: Stdio) -> Self {
        let scratch = ScratchDir::new();
        let directory = scratch.path().join("play");
        let child = command(&["--tour", "--directory", directory.to_str().unwrap()])
            .args(words)
            .stdout(stdout)
            .spawn()
            .unwrap();
        Self {
            child,
            printed: String::new(),
            reader: None,
            directory,
            _scratch: scratch,
        }
    }

    /// Waits until a file in the directory is complete.
    pub(crate) fn file(&self, name: &str, end: &str) -> String {
        let path = self.directory.join(name);
        let started = Instant::now();
        loop {
            match fs::read_to_string(&path) {
                Ok(text) if text.contains(end) => return text,
                _ => assert!(started.elapsed() < TEST_TIMEOUT, "there is no {name}"),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The output of the demo build with its files in another directory.
    pub(crate) fn printed_as_from(&self, directory: &str) -> String {
        let printed = &self.printed;
        let printed = printed.replace(self.directory.to_str().unwrap(), directory);
        printed.replace(env!("CARGO_BIN_EXE_skewbridge"), "target/demo/skewbridge")
    }

    pub(crate) fn id(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap()
    }

    /// The processes that the playground has started.
    pub(crate) fn children(&self) -> Vec<i32> {
        children(self.id().as_raw_nonzero().get())
    }

    pub(crate) async fn get(&self, context: &str, path: &str) -> Response {
        let request = Request::get(path).header("accept", "application/json");
        self.send(context, &request).await
    }

    pub(crate) async fn send(&self, context: &str, request: &Request) -> Response {
        let config = Kubeconfig::load(Some(&self.directory.join("kubeconfig"))).unwrap();
        let target = config.target(Some(context)).unwrap();
        let endpoint = Endpoint::prepare(&target, Some(TEST_TIMEOUT))
            .await
            .unwrap();
        let mut connection = endpoint.connect().await.unwrap();
        connection.send(request).await.unwrap()
    }

    /// Runs a script as a pod. Its process writes its pid, and so does a child that leaves the
    /// process group of the pod.
    pub(crate) async fn run_pod_with_detached_child(&self, name: &str) -> [i32; 2] {
        let script = "setsid sh -c 'echo $$ > away; exec sleep 1000' & echo $$ > own; \
                      exec sleep 1000";
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"containers": [{"name": name, "image": name, "command": ["sh", "-c", script]}]},
        });
        let request = Request::new(Method::POST, "/api/v1/namespaces/default/pods")
            .header("content-type", "application/json")
            .body(pod.to_string());
        let made = self.send("bridge-1.28", &request).await;
        let made: Value = serde_json::from_slice(&made.body).unwrap();
        let uid = made["metadata"]["uid"].as_str().unwrap();
        let directory = self.directory.join("pods").join(uid);
        let read = |file| -> Option<i32> {
            let text = fs::read_to_string(directory.join(file)).ok()?;
            text.trim().parse().ok()
        };
        let ids = || Some([read("own")?, read("away")?]);
        eventually("a pod that runs", TEST_TIMEOUT, async || ids().is_some()).await;
        ids().unwrap()
    }

    /// Repeats the request until the response has this code.
    pub(crate) async fn wait_for_status(&self, context: &str, path: &str, code: u16) {
        let what = format!("{code} of {path} by {context}");
        eventually(&what, TEST_TIMEOUT, async || {
            self.get(context, path).await.status == code
        })
        .await;
    }

    /// Sends a request to the control API, with or without the token.
    pub(crate) async fn send_control_request(
        &self,
        method: Method,
        path: &str,
        token: Option<&str>,
    ) -> (u16, Value) {
        let at = self.printed.find("http://127.0.0.1:").unwrap();
        let url = &self.printed[at..];
        let url = url.split("/servers").next().unwrap();
        let config = format!(
            "clusters: [{{name: a, cluster: {{server: '{url}'}}}}]\n\
             contexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n\
             users: [{{name: a, user: {{}}}}]\ncurrent-context: a\n"
        );
        let scratch = ScratchDir::new();
        let config = Kubeconfig::load(Some(&scratch.write("config", config))).unwrap();
        let target = config.target(None).unwrap();
        let endpoint = Endpoint::prepare(&target, Some(TEST_TIMEOUT))
            .await
            .unwrap();
        let mut connection = endpoint.connect().await.unwrap();
        let mut request = Request::new(method, path);
        if let Some(token) = token {
            request = request.header("authorization", &format!("Bearer {token}"));
        }
        let answer = connection.send(&request).await.unwrap();
        let value = serde_json::from_slice(&answer.body).unwrap();
        (answer.status.as_u16(), value)
    }

    pub(crate) fn end(mut self, signal: Signal) {
        let children = self.children();
        assert!(!children.is_empty(), "a pod runs");
        kill_process(self.id(), signal).unwrap();
        let status = wait(&mut self.child);
        assert!(status.success(), "{status}");
        for id in children {
            assert!(!is_alive(id), "{id} is left");
        }
        assert!(!self.directory.exists(), "its directory is left");
    }
}

impl Drop for Playground {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

/// The processes that a process has started.
pub(crate) fn children(id: i32) -> Vec<i32> {
    let mut found = Vec::new();
    for task in fs::read_dir(format!("/proc/{id}/task")).unwrap() {
        let children = task.unwrap().path().join("children");
        let text = fs::read_to_string(children).unwrap_or_default();
        found.extend(text.split_whitespace().flat_map(str::parse::<i32>));
    }
    found
}

/// The peak memory of a process, in KiB.
pub(crate) fn peak_memory_kib(id: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = status.lines().find_map(|it| it.strip_prefix("VmHWM:"));
    let number = line.unwrap().trim().strip_suffix(" kB").unwrap();
    number.parse().unwrap()
}

/// Whether a process exists that is not a zombie.
pub(crate) fn is_alive(id: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{id}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

pub(crate) fn wait(child: &mut Child) -> std::process::ExitStatus {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(started.elapsed() < TEST_TIMEOUT, "the process does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
}
