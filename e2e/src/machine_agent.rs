//! What starts programs on a [`Machine`]: static pods as kubelet does, and units as systemd does.
//! The command lines are those of the manifests and of the unit, unchanged; there are no
//! containers.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::binaries;
use crate::machine::Machine;
use crate::unit_sandbox::UnitSandbox;

/// Where kubelet reads static pods.
const MANIFESTS: &str = "/etc/kubernetes/manifests";

/// Where the program `systemctl` of the machine leaves the names of units to run.
const WANTED_UNITS: &str = "/run/units/wanted";

/// Where it sees which run.
const RUNNING_UNITS: &str = "/run/units/running";

/// How often directories and processes are looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// kubelet's default for static pods without `terminationGracePeriodSeconds`.
const DEFAULT_GRACE_PERIOD: Duration = Duration::from_secs(30);

/// The restart delay of the unit and, on this machine, of containers.
const RESTART_DELAY: Duration = Duration::from_secs(1);

/// How long a failing liveness probe is tolerated: `failureThreshold` × `periodSeconds` of
/// kubeadm's manifests.
const LIVENESS_TIMEOUT: Duration = Duration::from_secs(80);

/// Replaces systemd's `systemctl`: sends the action to the agent and waits for its end. Restarts
/// are for kubelet, which does not run; what acts for it finds a file.
const SYSTEMCTL: &str = r#"#!/bin/sh
case "$*" in
  daemon-reload) exit 0 ;;
  "enable --now "*) mkdir -p /run/units/wanted && touch "/run/units/wanted/$3"
    until [ -e "/run/units/running/$3" ]; do sleep 0.1; done ;;
  "disable --now "*) rm -f "/run/units/wanted/$3"
    while [ -e "/run/units/running/$3" ]; do sleep 0.1; done ;;
  "restart "*) touch "/run/units/restarted-$2" ;;
  "is-active "*) [ -e "/run/units/running/$2" ] && echo active ;;
  *) echo "systemctl $*: the test does not know this command" >&2; exit 1 ;;
esac
"#;

/// How often the program of each static pod that is running has been started again because it
/// ended by itself.
pub type RunningPods = Arc<Mutex<BTreeMap<String, u32>>>;

/// Starts, restarts and ends programs until it is dropped.
#[derive(Debug)]
pub struct MachineAgent {
    stop: Arc<AtomicBool>,
    pods: RunningPods,
    thread: Option<JoinHandle<()>>,
    logs: PathBuf,
}

impl MachineAgent {
    /// Starts what the machine should run, now and later.
    pub fn start(machine: &Arc<Machine>, logs: &Path) -> Self {
        let logs = logs.join(format!("{}-logs", machine.name));
        fs::create_dir_all(&logs).expect("a directory");
        machine.shell("mkdir -p /run/units/wanted /run/units/running /usr/local/bin");
        let systemctl = machine.path("/usr/local/bin/systemctl");
        fs::write(&systemctl, SYSTEMCTL).expect("a script");
        machine.shell("chmod +x /usr/local/bin/systemctl");
        let stop = Arc::new(AtomicBool::new(false));
        let pods = RunningPods::default();
        let mut state = State {
            machine: machine.clone(),
            logs: logs.clone(),
            running: BTreeMap::new(),
            restarts: BTreeMap::new(),
            pods: pods.clone(),
        };
        let stopped = stop.clone();
        // One thread: its children die when it ends.
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                state.reconcile();
                thread::sleep(POLL_INTERVAL);
            }
            for (_, mut running) in std::mem::take(&mut state.running) {
                let _ = running.child.kill();
                let _ = running.child.wait();
            }
        });
        Self {
            stop,
            pods,
            thread: Some(thread),
            logs,
        }
    }

    /// The static pods whose programs are running.
    pub fn pods(&self) -> RunningPods {
        self.pods.clone()
    }

    /// The log of a program.
    pub fn log(&self, name: &str) -> String {
        let bytes = fs::read(self.logs.join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for MachineAgent {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct State {
    machine: Arc<Machine>,
    logs: PathBuf,
    running: BTreeMap<String, Running>,
    restarts: BTreeMap<String, u32>,
    pods: RunningPods,
}

/// What to run.
#[derive(Debug, Clone, PartialEq)]
struct Desired {
    command: Vec<String>,
    version: Option<String>,
    /// User and group; root for none.
    user: Option<[String; 2]>,
    grace_period: Duration,
    /// A directory that the program owns.
    state_directory: Option<String>,
    liveness: Option<String>,
    /// The restrictions of a unit.
    sandbox: Option<UnitSandbox>,
}

struct Running {
    desired: Desired,
    child: Child,
    /// When SIGTERM was sent.
    ending: Option<Instant>,
    /// When it may be started again, after it has exited.
    exited: Option<Instant>,
    probe: Option<Child>,
    probed: Instant,
    alive: Option<Instant>,
}

impl State {
    fn reconcile(&mut self) {
        let desired = self.desired();
        for (name, wanted) in &desired {
            if !self.running.contains_key(name) {
                let running = self.run(name, wanted.clone());
                self.running.insert(name.clone(), running);
            }
        }
        let mut gone = Vec::new();
        for (name, running) in &mut self.running {
            let has_exited = matches!(running.child.try_wait(), Ok(Some(_)));
            let is_wanted = desired.get(name) == Some(&running.desired);
            match (has_exited, is_wanted) {
                (true, false) => {
                    self.restarts.remove(name);
                    gone.push(name.clone());
                }
                (true, true) if running.exited.is_none() => {
                    *self.restarts.entry(name.clone()).or_default() += 1;
                    running.exited = Some(Instant::now());
                }
                (true, true) => {
                    if running
                        .exited
                        .is_some_and(|at| at.elapsed() > RESTART_DELAY)
                    {
                        gone.push(name.clone());
                    }
                }
                (false, true) => running.check_liveness(&self.machine, name),
                (false, false) => running.end(),
            }
        }
        for name in gone {
            self.running.remove(&name);
        }
        self.publish_units();
        self.publish_pods();
    }

    /// The pods and units of the machine. A file that is being written is read the next time.
    fn desired(&self) -> BTreeMap<String, Desired> {
        let mut all = BTreeMap::new();
        for path in self.entries(MANIFESTS) {
            if path.extension().is_none_or(|it| it != "yaml") {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap_or_default();
            let pod = serde_saphyr::from_str::<Value>(&text).unwrap_or_default();
            if let Some(name) = pod["metadata"]["name"].as_str() {
                all.insert(name.to_owned(), Desired::of_pod(&pod));
            } else if let Some((name, running)) = self.running_of(&path) {
                all.insert(name.clone(), running.desired.clone());
            }
        }
        for path in self.entries(WANTED_UNITS) {
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let unit = self
                .machine
                .read(&format!("/etc/systemd/system/{name}.service"));
            if let Some(unit) = unit {
                all.insert(format!("{name}.service"), Desired::of_unit(&unit));
            }
        }
        all
    }

    fn entries(&self, directory: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.machine.path(directory));
        let entries = entries.into_iter().flatten().flatten();
        let visible = entries.filter(|it| !it.file_name().to_string_lossy().starts_with('.'));
        visible.map(|it| it.path()).collect()
    }

    /// The pod of this manifest, by its name: kubeadm's files have the names of their pods.
    fn running_of(&self, path: &Path) -> Option<(&String, &Running)> {
        self.running.get_key_value(path.file_stem()?.to_str()?)
    }

    fn run(&self, name: &str, desired: Desired) -> Running {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.logs.join(name));
        let log = log.expect("a log file");
        if let (Some(directory), Some([user, group])) = (&desired.state_directory, &desired.user) {
            let script = format!("install -d -o {user} -g {group} -m 0700 {directory}");
            self.machine.shell(&script);
        }
        let (program, arguments) = desired.command.split_first().expect("a program");
        let program = match &desired.version {
            Some(version) => self.released(program, version),
            None => PathBuf::from(program),
        };
        let mut command = match (&desired.user, &desired.sandbox) {
            (user, Some(sandbox)) => {
                let wrapper = sandbox.wrapper(user.as_ref());
                let mut command = self.machine.command(Path::new(&wrapper[0]));
                command.args(&wrapper[1..]).arg(program);
                command
            }
            (None, None) => self.machine.command(&program),
            (Some([user, group]), None) => {
                let mut command = self.machine.command(Path::new("setpriv"));
                command.args(["--pdeathsig=KILL", "--clear-groups", "--no-new-privs"]);
                command.args(["--bounding-set=-all", "--inh-caps=-all"]);
                command
                    .arg(format!("--regid={group}"))
                    .arg(format!("--reuid={user}"));
                command.arg("--").arg(program);
                command
            }
        };
        command.args(arguments).current_dir("/");
        let child = command
            .stdout(log.try_clone().expect("a log file"))
            .stderr(log)
            .spawn()
            .expect("a program");
        let now = Instant::now();
        Running {
            desired,
            child,
            ending: None,
            exited: None,
            probe: None,
            probed: now,
            alive: None,
        }
    }

    /// A program of a release under its plain name: it is the first word of its `User-Agent`.
    fn released(&self, program: &str, version: &str) -> PathBuf {
        let directory = format!("/run/programs-{version}");
        let link = format!("{directory}/{program}");
        let _ = fs::create_dir_all(self.machine.path(&directory));
        let target = binaries::of_control_plane(program, version);
        // It may exist.
        let _ = std::os::unix::fs::symlink(target, self.machine.path(&link));
        PathBuf::from(link)
    }

    fn publish_pods(&self) {
        let running = self.running.iter();
        let running = running.filter(|(_, it)| it.ending.is_none() && it.exited.is_none());
        let pods = running.map(|(name, _)| {
            let restarts = self.restarts.get(name).copied().unwrap_or_default();
            (name.clone(), restarts)
        });
        *self.pods.lock().expect("no panic") = pods.collect();
    }

    /// For `systemctl`: which units run.
    fn publish_units(&self) {
        let running = self
            .running
            .keys()
            .filter_map(|name| name.strip_suffix(".service"));
        let running: Vec<_> = running.collect();
        for path in self.entries(RUNNING_UNITS) {
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if !running.contains(&name.as_str()) {
                let _ = fs::remove_file(path);
            }
        }
        for name in running {
            let _ = fs::write(self.machine.path(RUNNING_UNITS).join(name), "");
        }
    }
}

impl Running {
    fn end(&mut self) {
        let Some(since) = self.ending else {
            self.ending = Some(Instant::now());
            let id = self.child.id().to_string();
            let _ = Command::new("kill").args(["-s", "TERM", &id]).status();
            return;
        };
        if since.elapsed() > self.desired.grace_period {
            let _ = self.child.kill();
        }
    }

    /// Probes as kubelet does, and ends a program that no longer answers. It is then started
    /// again.
    fn check_liveness(&mut self, machine: &Machine, name: &str) {
        let Some(url) = self.desired.liveness.clone() else {
            return;
        };
        if let Some(probe) = &mut self.probe {
            match probe.try_wait() {
                Ok(Some(status)) => {
                    if status.success() {
                        self.alive = Some(Instant::now());
                    }
                    self.probe = None;
                }
                _ => return,
            }
        }
        if self.alive.is_some_and(|at| at.elapsed() > LIVENESS_TIMEOUT) {
            eprintln!(
                "{}: the liveness probe of {name} fails: {url}",
                machine.name
            );
            let _ = self.child.kill();
        } else if self.probed.elapsed() > Duration::from_secs(5) {
            self.probed = Instant::now();
            let mut probe = machine.command(Path::new("curl"));
            probe.args([
                "-skf",
                "-o",
                "/dev/null",
                "--max-time",
                "15",
                "-A",
                "kube-probe/1.36",
            ]);
            self.probe = probe.arg(&url).spawn().ok();
        }
    }
}

impl Desired {
    fn of_pod(pod: &Value) -> Self {
        let container = &pod["spec"]["containers"][0];
        let words = container["command"].as_array().into_iter().flatten();
        let words = words.filter_map(Value::as_str).map(str::to_owned);
        let image = container["image"].as_str().unwrap_or_default();
        let tag = image
            .rsplit_once(':')
            .map(|(_, tag)| tag.trim_start_matches('v').to_owned());
        let security = &pod["spec"]["securityContext"];
        let ids = ["runAsUser", "runAsGroup"].map(|key| security[key].as_u64());
        let user = match ids {
            [Some(user), Some(group)] => Some([user, group].map(|id| id.to_string())),
            _ => None,
        };
        let seconds = pod["spec"]["terminationGracePeriodSeconds"].as_u64();
        Self {
            command: words.collect(),
            version: tag.filter(|_| image.starts_with("registry.k8s.io/")),
            user,
            grace_period: seconds.map_or(DEFAULT_GRACE_PERIOD, Duration::from_secs),
            state_directory: None,
            liveness: liveness_url(container),
            sandbox: None,
        }
    }

    fn of_unit(unit: &str) -> Self {
        let setting = |name: &str| {
            let mut lines = unit.lines();
            lines
                .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
                .map(str::to_owned)
        };
        let command = setting("ExecStart").unwrap_or_default();
        let seconds = setting("TimeoutStopSec").and_then(|it| it.parse().ok());
        Self {
            command: command.split_whitespace().map(str::to_owned).collect(),
            version: None,
            user: setting("User")
                .zip(setting("Group"))
                .map(|(user, group)| [user, group]),
            grace_period: seconds.map_or(DEFAULT_GRACE_PERIOD, Duration::from_secs),
            state_directory: setting("StateDirectory").map(|it| format!("/var/lib/{it}")),
            liveness: None,
            sandbox: UnitSandbox::of(unit),
        }
    }
}

fn liveness_url(container: &Value) -> Option<String> {
    let request = &container["livenessProbe"]["httpGet"];
    let port = &request["port"];
    let named = || {
        let mut ports = container["ports"].as_array()?.iter();
        ports.find(|it| it["name"] == *port)?["containerPort"].as_u64()
    };
    let port = port.as_u64().or_else(named)?;
    let scheme = request["scheme"].as_str().unwrap_or("HTTP").to_lowercase();
    let (host, path) = (request["host"].as_str()?, request["path"].as_str()?);
    Some(format!("{scheme}://{host}:{port}{path}"))
}
