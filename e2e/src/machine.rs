//! Machines on this host: each has namespaces of its own for network, host name and mounts, so that
//! programs on it use the literal paths, ports and addresses of an installation.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// The network of the machines. It exists in the namespace of the test only.
const BRIDGE: &str = "machines";

/// Lifetime of the process that holds the namespaces if the test does not end it.
const MAX_LIFETIME_SECONDS: &str = "3600";

/// Directories whose changes stay on the machine; everything else is this host's.
const OWN_DIRECTORIES: [&str; 3] = ["/etc", "/var/lib", "/usr/local"];

/// Makes the network of machines in the namespace of the test, which has this address.
pub fn create_network_of_machines(own: Ipv4Addr) {
    run(Command::new("ip").args(["link", "add", BRIDGE, "type", "bridge"]));
    run(Command::new("ip").args(["addr", "add", &format!("{own}/24"), "dev", BRIDGE]));
    run(Command::new("ip").args(["link", "set", BRIDGE, "up"]));
}

/// A machine. Its programs end with it.
#[derive(Debug)]
pub struct Machine {
    /// Its host name.
    pub name: String,
    /// Its address.
    pub address: Ipv4Addr,
    /// Keeps the namespaces.
    holder: Child,
    /// Where its changed files are.
    files: PathBuf,
}

impl Machine {
    /// Makes a machine with its files in this directory.
    pub fn create(name: &str, address: Ipv4Addr, files: &Path) -> Self {
        let files = files.join(name);
        std::fs::create_dir_all(&files).expect("a directory");
        // It reports when it is in its namespaces.
        let script = "echo ready && exec sleep \"$0\"";
        let mut holder = Command::new("setpriv")
            .args([
                "--pdeathsig",
                "KILL",
                "unshare",
                "--net",
                "--uts",
                "--mount",
                "sh",
                "-c",
            ])
            .args([script, MAX_LIFETIME_SECONDS])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the namespaces of a machine");
        let mut ready = [0; 6];
        let stdout = holder.stdout.as_mut().expect("a pipe");
        std::io::Read::read_exact(stdout, &mut ready).expect("the namespaces of a machine");
        let machine = Self {
            name: name.to_owned(),
            address,
            holder,
            files,
        };
        machine.connect();
        machine.mount();
        machine
    }

    fn connect(&self) {
        let outside = format!("to-{}", self.name);
        run(Command::new("ip")
            .args([
                "link", "add", &outside, "type", "veth", "peer", "name", "eth0", "netns",
            ])
            .arg(self.holder.id().to_string()));
        run(Command::new("ip").args(["link", "set", &outside, "master", BRIDGE, "up"]));
        let Self { name, address, .. } = self;
        self.shell(&format!(
            "hostname {name}\n\
             ip link set lo up\n\
             ip addr add {address}/24 dev eth0\n\
             ip link set eth0 up\n"
        ));
    }

    fn mount(&self) {
        for directory in OWN_DIRECTORIES {
            let layer = self
                .files
                .join(directory.trim_start_matches('/').replace('/', "-"));
            let [upper, work] = ["upper", "work"].map(|it| layer.join(it).display().to_string());
            self.shell(&format!(
                "mkdir -p {upper} {work}\n\
                 mount -t overlay overlay -o lowerdir={directory},upperdir={upper},workdir={work} {directory}\n"
            ));
        }
        self.shell("mount -t tmpfs tmpfs /run");
    }

    /// A command on the machine. It is killed when the thread that starts it ends.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("setpriv");
        command
            .args([
                "--pdeathsig",
                "KILL",
                "nsenter",
                "--net",
                "--uts",
                "--mount",
                "--target",
            ])
            .arg(self.holder.id().to_string())
            .arg("--")
            .arg(program)
            // kubectl's caches are the machine's.
            .env("HOME", "/run")
            .stdin(Stdio::null());
        command
    }

    /// Runs commands in a directory, up to the first that fails.
    pub fn try_shell(&self, directory: &Path, script: &str) -> Output {
        let enter = format!("cd '{}'\n{script}", directory.display());
        let mut command = self.command(Path::new("sh"));
        command.args(["-euc", &enter]).output().expect("a shell")
    }

    /// Runs commands that must succeed, and returns what they print.
    pub fn shell(&self, script: &str) -> String {
        let output = self.try_shell(Path::new("/"), script);
        let [stdout, stderr] =
            [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
        let name = &self.name;
        assert!(
            output.status.success(),
            "{name}: {script}: {stdout}{stderr}"
        );
        stdout.into_owned()
    }

    /// A file of the machine, for a program that runs outside of it.
    pub fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.holder.id()))
    }

    /// The text of a file of the machine.
    pub fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.path(path)).ok()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

fn run(command: &mut Command) {
    let output = command.output().expect("a program");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {error}");
}
