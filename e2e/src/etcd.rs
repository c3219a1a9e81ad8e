//! A real etcd of one member.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::binaries;
use crate::plane::free_address;
use crate::process::Process;

/// A running etcd. It ends when this is dropped.
#[derive(Debug)]
pub struct Etcd {
    /// Where its clients connect.
    pub address: SocketAddr,
    arguments: Vec<String>,
    directory: PathBuf,
    process: Process,
}

/// The files with which etcd serves TLS, and only to clients of the same CA.
#[derive(Debug, Clone)]
pub struct EtcdTls {
    /// Whose certificates clients must have.
    pub ca: PathBuf,
    /// What it shows.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

impl Etcd {
    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Starts it with its data and its log in `directory`.
    pub fn start(directory: &Path) -> Self {
        Self::with_flags(directory, "http", vec![])
    }

    /// As [`Etcd::start`], with TLS towards clients.
    pub fn start_tls(directory: &Path, tls: &EtcdTls) -> Self {
        let flags = vec![
            format!("--cert-file={}", tls.certificate.display()),
            format!("--key-file={}", tls.key.display()),
            format!("--trusted-ca-file={}", tls.ca.display()),
            "--client-cert-auth".to_owned(),
        ];
        Self::with_flags(directory, "https", flags)
    }

    fn with_flags(directory: &Path, scheme: &str, flags: Vec<String>) -> Self {
        let address = free_address();
        let peers = free_address();
        let mut arguments = vec![
            format!("--data-dir={}", directory.join("etcd").display()),
            format!("--listen-client-urls={scheme}://{address}"),
            format!("--advertise-client-urls={scheme}://{address}"),
            format!("--listen-peer-urls=http://{peers}"),
            format!("--initial-advertise-peer-urls=http://{peers}"),
            format!("--initial-cluster=default=http://{peers}"),
            // The data is thrown away: nothing is gained by waiting for a disk.
            "--unsafe-no-fsync".to_owned(),
        ];
        arguments.extend(flags);
        Self {
            address,
            process: run(&arguments, directory),
            arguments,
            directory: directory.to_owned(),
        }
    }

    /// Stops it where it is: it answers nobody, and nobody is told.
    pub fn suspend(&self) {
        self.process.signal("STOP");
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.process.signal("CONT");
    }

    /// Ends it at once, as a crash would, and starts it again with its data.
    pub fn restart(&mut self) {
        self.process.signal("KILL");
        self.process.wait();
        self.process = run(&self.arguments, &self.directory);
    }
}

fn run(arguments: &[String], directory: &Path) -> Process {
    Process::start("etcd", "etcd", &binaries::etcd(), arguments, directory)
}
