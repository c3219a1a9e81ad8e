//! A real etcd with one or several members.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::binaries;
use crate::ports::free_address;
use crate::process::Process;

/// A member of an etcd cluster. It stops when this is dropped.
#[derive(Debug)]
pub struct Etcd {
    /// The client address.
    pub address: SocketAddr,
    name: String,
    arguments: Vec<String>,
    directory: PathBuf,
    process: Option<Process>,
}

/// The files with which etcd serves TLS, only to clients with a certificate of the CA.
#[derive(Debug, Clone)]
pub struct EtcdTls {
    /// The CA of client certificates.
    pub ca: PathBuf,
    /// The serving certificate.
    pub certificate: PathBuf,
    /// The key of the serving certificate.
    pub key: PathBuf,
}

impl Etcd {
    /// Its process ID, while it runs.
    pub fn id(&self) -> Option<u32> {
        self.process.as_ref().map(Process::id)
    }

    /// Starts a member with its data and its log in `directory`.
    pub fn start(directory: &Path) -> Self {
        Self::with_flags(directory, "http", &[], 1).remove(0)
    }

    /// Starts this many members of one etcd cluster.
    pub fn start_members(directory: &Path, count: usize) -> Vec<Self> {
        Self::with_flags(directory, "http", &[], count)
    }

    /// As [`Etcd::start`], with TLS towards clients.
    pub fn start_tls(directory: &Path, tls: &EtcdTls) -> Self {
        let flags = [
            format!("--cert-file={}", tls.certificate.display()),
            format!("--key-file={}", tls.key.display()),
            format!("--trusted-ca-file={}", tls.ca.display()),
            "--client-cert-auth".to_owned(),
        ];
        Self::with_flags(directory, "https", &flags, 1).remove(0)
    }

    fn with_flags(directory: &Path, scheme: &str, flags: &[String], count: usize) -> Vec<Self> {
        let members: Vec<_> = (0..count)
            .map(|number| (format!("etcd-{number}"), free_address()))
            .collect();
        let mut cluster = String::new();
        for (name, peer_address) in &members {
            let separator = if cluster.is_empty() { "" } else { "," };
            // Writing to a String cannot fail.
            let _ = write!(cluster, "{separator}{name}=http://{peer_address}");
        }
        let member = |(name, peer_address): (String, SocketAddr)| {
            let address = free_address();
            let mut arguments = vec![
                format!("--name={name}"),
                format!("--data-dir={}", directory.join(&name).display()),
                format!("--listen-client-urls={scheme}://{address}"),
                format!("--advertise-client-urls={scheme}://{address}"),
                format!("--listen-peer-urls=http://{peer_address}"),
                format!("--initial-advertise-peer-urls=http://{peer_address}"),
                format!("--initial-cluster={cluster}"),
                // The data is temporary: waiting for the disk has no benefit.
                "--unsafe-no-fsync".to_owned(),
            ];
            arguments.extend_from_slice(flags);
            let mut member = Self {
                address,
                name,
                arguments,
                directory: directory.to_owned(),
                process: None,
            };
            member.run();
            member
        };
        members.into_iter().map(member).collect()
    }

    /// Suspends the process: it does not respond, and its connections stay open.
    pub fn suspend(&self) {
        self.signal("STOP");
    }

    /// Resumes the process.
    pub fn resume(&self) {
        self.signal("CONT");
    }

    /// Kills the process, like a crash.
    pub fn kill(&mut self) {
        self.signal("KILL");
        if let Some(mut process) = self.process.take() {
            process.wait();
        }
    }

    /// Starts the process with its existing data.
    pub fn run(&mut self) {
        self.process = Some(Process::start(
            &self.name,
            &self.name,
            &binaries::etcd(),
            &self.arguments,
            &self.directory,
        ));
    }

    /// Kills the process, like a crash, and starts it again with its data.
    pub fn restart(&mut self) {
        self.kill();
        self.run();
    }

    /// The value of a key, as far as it is text. Only without TLS.
    pub fn stored_text(&self, key: &str) -> String {
        const SCRIPT: &str = r#"
            key=$(printf %s "$1" | base64 -w 0)
            curl -sf -d "{\"key\":\"$key\"}" "http://$2/v3/kv/range" |
                sed -n 's/.*"value":"\([^"]*\)".*/\1/p' | base64 -d
        "#;
        let address = self.address.to_string();
        let output = Command::new("sh")
            .args(["-euc", SCRIPT, "sh", key, &address])
            .output()
            .expect("sh starts");
        assert!(output.status.success(), "{key}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn signal(&self, name: &str) {
        if let Some(process) = &self.process {
            process.signal(name);
        }
    }
}
