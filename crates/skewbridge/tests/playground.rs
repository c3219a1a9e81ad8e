//! `skewbridge playground`, run as its users run it.

#![expect(clippy::unwrap_used, reason = "a test ends where it cannot go on")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use http::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use skewbridge_client::{Endpoint, Kubeconfig, Request, Response};
use skewbridge_testkit::{ScratchDir, Terminal, eventually};

/// Generous: the machine may be busy with something else.
const LIMIT: Duration = Duration::from_mins(1);

const POLICY: &str = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies/hello";

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skewbridge"));
    command.arg("playground").args(words).stdin(Stdio::null());
    command
}

fn run(words: &[&str]) -> Output {
    command(words).output().unwrap()
}

/// A playground that runs, and all it has said.
struct Playground {
    child: Child,
    said: String,
    reader: Option<JoinHandle<()>>,
    /// Its own, which is gone with it.
    directory: PathBuf,
    /// Where that is.
    _scratch: ScratchDir,
}

impl Playground {
    fn start() -> Self {
        let scratch = ScratchDir::new();
        let directory = scratch.path().join("play");
        let mut child = command(&["--directory", directory.to_str().unwrap()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut said = String::new();
        while !said.contains("Ctrl-C ends it.") {
            let line = lines.next().unwrap().unwrap();
            said.push_str(&line);
            said.push('\n');
        }
        // What follows is not read, but has to go somewhere.
        let reader = std::thread::spawn(move || lines.for_each(drop));
        Self {
            child,
            said,
            reader: Some(reader),
            directory,
            _scratch: scratch,
        }
    }

    /// One whose terminal this is, as a shell gives it to what it runs.
    fn start_in(terminal: &Terminal) -> Self {
        let scratch = ScratchDir::new();
        let directory = scratch.path().join("play");
        let program = env!("CARGO_BIN_EXE_skewbridge");
        // The terminal of a session of its own: keys are for who is in front of it.
        let child = Command::new("setsid")
            .args(["--ctty", program, "playground", "--directory"])
            .arg(&directory)
            .stdin(terminal.end())
            .stdout(terminal.end())
            .stderr(terminal.end())
            .spawn()
            .unwrap();
        Self {
            child,
            said: String::new(),
            reader: None,
            directory,
            _scratch: scratch,
        }
    }

    fn id(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap()
    }

    /// The processes that it has started.
    fn children(&self) -> Vec<i32> {
        let own = self.child.id();
        let path = format!("/proc/{own}/task");
        let mut found = Vec::new();
        for task in fs::read_dir(path).unwrap() {
            let children = task.unwrap().path().join("children");
            let text = fs::read_to_string(children).unwrap_or_default();
            found.extend(text.split_whitespace().flat_map(str::parse::<i32>));
        }
        found
    }

    async fn get(&self, context: &str, path: &str) -> Response {
        let request = Request::get(path).header("accept", "application/json");
        self.send(context, &request).await
    }

    async fn send(&self, context: &str, request: &Request) -> Response {
        let config = Kubeconfig::load(Some(&self.directory.join("kubeconfig"))).unwrap();
        let target = config.target(Some(context)).unwrap();
        let endpoint = Endpoint::prepare(&target, Some(LIMIT)).await.unwrap();
        let mut connection = endpoint.connect().await.unwrap();
        connection.send(request).await.unwrap()
    }

    /// Runs a script as a pod, whose process and another one that leaves it say who they
    /// are.
    async fn run_leaving(&self, name: &str) -> [i32; 2] {
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
        eventually("a pod that runs", LIMIT, async || ids().is_some()).await;
        ids().unwrap()
    }

    /// Asks until the answer has this code.
    async fn until(&self, context: &str, path: &str, code: u16) {
        let what = format!("{code} of {path} by {context}");
        eventually(&what, LIMIT, async || {
            self.get(context, path).await.status == code
        })
        .await;
    }

    /// Tells the control something, with or without the token.
    async fn order(&self, method: Method, path: &str, token: Option<&str>) -> (u16, Value) {
        let at = self.said.find("http://127.0.0.1:").unwrap();
        let url = &self.said[at..];
        let url = url.split("/servers").next().unwrap();
        let config = format!(
            "clusters: [{{name: a, cluster: {{server: '{url}'}}}}]\n\
             contexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n\
             users: [{{name: a, user: {{}}}}]\ncurrent-context: a\n"
        );
        let scratch = ScratchDir::new();
        let config = Kubeconfig::load(Some(&scratch.write("config", config))).unwrap();
        let target = config.target(None).unwrap();
        let endpoint = Endpoint::prepare(&target, Some(LIMIT)).await.unwrap();
        let mut connection = endpoint.connect().await.unwrap();
        let mut request = Request::new(method, path);
        if let Some(token) = token {
            request = request.header("authorization", &format!("Bearer {token}"));
        }
        let answer = connection.send(&request).await.unwrap();
        let value = serde_json::from_slice(&answer.body).unwrap();
        (answer.status.as_u16(), value)
    }

    fn end(mut self, signal: Signal) {
        let children = self.children();
        assert!(!children.is_empty(), "a pod runs");
        kill_process(self.id(), signal).unwrap();
        let status = wait(&mut self.child);
        assert!(status.success(), "{status}");
        for id in children {
            assert!(!lives(id), "{id} is left");
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

/// Whether there is such a process, zombies apart.
fn lives(id: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{id}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

fn wait(child: &mut Child) -> std::process::ExitStatus {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(started.elapsed() < LIMIT, "it does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[tokio::test]
async fn every_context_works_and_nothing_is_left_behind() {
    let playground = Playground::start();
    let kubeconfig = playground.directory.join("kubeconfig");
    assert!(
        playground
            .said
            .contains(&format!("export KUBECONFIG={}", kubeconfig.display()))
    );
    assert!(!playground.said.contains('\x1b'), "no colour in a pipe");
    for (path, mode) in [(&playground.directory, 0o700), (&kubeconfig, 0o600)] {
        let found = fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(found & 0o777, mode, "{}", path.display());
    }
    for release in ["1.28", "1.34", "1.36"] {
        for place in ["server", "bridge"] {
            let context = format!("{place}-{release}");
            let answer = playground.get(&context, "/version").await;
            let version: Value = serde_json::from_slice(&answer.body).unwrap();
            let version = version["gitVersion"].as_str().unwrap();
            assert!(
                version.starts_with(&format!("v{release}.")),
                "{context}: {version}"
            );
            let pod = "/api/v1/namespaces/default/pods/web";
            assert_eq!(playground.get(&context, pod).await.status, 200, "{context}");
        }
    }
    assert_eq!(playground.get("server-1.28", POLICY).await.status, 404);
    assert_eq!(playground.get("bridge-1.28", POLICY).await.status, 200);
    let secrets = "/api/v1/namespaces/default/secrets";
    assert_eq!(playground.get("visitor", secrets).await.status, 403);
    let pods = "/api/v1/namespaces/default/pods";
    assert_eq!(playground.get("visitor", pods).await.status, 200);
    playground.end(Signal::INT);
}

#[tokio::test]
async fn servers_are_killed_started_and_changed_by_the_control() {
    let playground = Playground::start();
    let token = fs::read_to_string(playground.directory.join("control-token")).unwrap();
    let token = Some(token.as_str());
    let (status, _) = playground.order(Method::GET, "/servers", None).await;
    assert_eq!(status, 401);
    let (status, all) = playground.order(Method::GET, "/servers", token).await;
    assert_eq!((status, all["servers"].as_array().unwrap().len()), (200, 3));
    let post = |deed: &'static str| playground.order(Method::POST, deed, token);
    let (status, server) = post("/servers/1.36/kill").await;
    assert_eq!((status, &server["running"]), (200, &Value::Bool(false)));
    playground.until("bridge-1.28", POLICY, 503).await;
    assert_eq!(post("/servers/1.36/start").await.0, 200);
    playground.until("bridge-1.28", POLICY, 200).await;
    let (_, server) = post("/servers/1.36/downgrade").await;
    assert_eq!(server["release"], "1.34");
    playground.until("bridge-1.28", POLICY, 404).await;
    let (_, server) = post("/servers/1.36/upgrade").await;
    assert_eq!(server["release"], "1.36");
    for context in ["bridge-1.28", "bridge-1.34", "bridge-1.36"] {
        playground.until(context, POLICY, 200).await;
    }
    assert_eq!(post("/servers/1.99/kill").await.0, 404);
    playground.end(Signal::TERM);
}

#[tokio::test]
async fn nothing_of_pods_outlives_a_playground_however_it_ends() {
    let playground = Playground::start();
    let ids = playground.run_leaving("leaving").await;
    assert!(ids.iter().all(|id| lives(*id)));
    playground.end(Signal::INT);
    assert!(ids.iter().all(|id| !lives(*id)), "{ids:?}");

    let mut playground = Playground::start();
    let mut ids = playground.run_leaving("leaving").await.to_vec();
    ids.extend(playground.children());
    assert!(ids.iter().all(|id| lives(*id)));
    // Nothing can be done then but by those who see it happen.
    kill_process(playground.id(), Signal::KILL).unwrap();
    wait(&mut playground.child);
    let all_gone = async || !ids.iter().any(|id| lives(*id));
    eventually("the end of all that it has started", LIMIT, all_gone).await;
}

#[tokio::test]
async fn servers_are_stopped_started_killed_and_changed_by_keys() {
    let terminal = Terminal::open(200, 50);
    let mut seen = 0;
    let mut playground = Playground::start_in(&terminal);
    terminal.shows_next(&mut seen, "[1 server-1.28]").await;
    terminal.shows_next(&mut seen, "q quit").await;
    assert!(!terminal.is_cooked());
    let steps = [
        ("3", "[3 server-1.36]", None),
        ("k", "kill server-1.36 ...", Some(503)),
        ("s", "stop or start server-1.36 ...", Some(200)),
        ("d", "downgrade server-1.36 ...", Some(404)),
        ("u", "upgrade server-1.36 ...", Some(200)),
        ("s", "stop or start server-1.36 ...", Some(503)),
        ("S", "stop or start server-1.36 ...", Some(200)),
    ];
    for (key, shown, code) in steps {
        terminal.type_keys(key);
        terminal.shows_next(&mut seen, shown).await;
        // It is done, and the keys are told again.
        terminal.shows_next(&mut seen, "q quit").await;
        if let Some(code) = code {
            playground.until("bridge-1.28", POLICY, code).await;
        }
    }
    // Another server, and a key that means nothing.
    terminal.type_keys("x1k");
    terminal.shows_next(&mut seen, "[1 server-1.28]").await;
    terminal.shows_next(&mut seen, "kill server-1.28 ...").await;
    terminal.shows_next(&mut seen, "down").await;
    terminal.type_keys("q");
    assert!(wait(&mut playground.child).success());
    assert!(terminal.is_cooked());
    assert!(!playground.directory.exists(), "its directory is left");
}

#[test]
fn the_tour_comes_out_as_promised() {
    let plain = run(&["--tour"]);
    let text = String::from_utf8(plain.stdout).unwrap();
    assert!(plain.status.success(), "{text}");
    assert!(
        text.contains("5 of 5 steps came out as promised."),
        "{text}"
    );
    assert!(!text.contains('\x1b') && !text.contains('✗'), "{text}");
}

#[test]
fn the_tour_can_be_read_by_machines() {
    let told = run(&["--tour", "-o", "json"]);
    let report: Value = serde_json::from_slice(&told.stdout).unwrap();
    assert!(told.status.success(), "{report:#}");
    assert_eq!(report["passed"], true);
    let steps = report["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 5);
    assert!(steps.iter().all(|step| step["passed"] == true));
    assert_eq!(steps[0]["sights"][0]["context"], "server-1.28");
}

#[test]
fn a_tour_that_is_interrupted_has_not_succeeded() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let scratch = ScratchDir::new();
        let directory = scratch.path().join("play");
        let words = ["--tour", "--directory", directory.to_str().unwrap()];
        let mut tour = Playground {
            child: command(&words).stdout(Stdio::null()).spawn().unwrap(),
            said: String::new(),
            reader: None,
            directory,
            _scratch: scratch,
        };
        // All runs, and the tour is far from its end.
        let started = Instant::now();
        while !tour.directory.join("kubeconfig").exists() {
            assert!(started.elapsed() < LIMIT, "it does not start");
            std::thread::sleep(Duration::from_millis(5));
        }
        kill_process(tour.id(), signal).unwrap();
        assert_eq!(wait(&mut tour.child).code(), Some(code));
        assert!(!tour.directory.exists(), "its directory is left");
    }
}

#[test]
fn what_cannot_be_is_told_by_its_flag() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().min(65_520);
    let base = format!("--port-base={port}");
    let refused = run(&[&base]);
    let said = String::from_utf8(refused.stderr).unwrap();
    if taken.local_addr().unwrap().port() == port {
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains("is in use by another program"), "{said}");
        assert!(said.contains("--port-base"), "{said}");
    }
    let scratch = ScratchDir::new();
    scratch.write("file", "");
    let refused = run(&["--directory", scratch.path().to_str().unwrap()]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(
        said.contains("--directory: ") && said.contains("is not empty"),
        "{said}"
    );
    assert!(scratch.path().join("file").exists());
    assert_eq!(run(&["-o", "json"]).status.code(), Some(64));
}
