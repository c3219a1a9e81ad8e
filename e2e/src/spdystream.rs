//! The program in `e2e/spdystream`, which uses SPDY through moby/spdystream.

use std::net::SocketAddr;
use std::path::Path;

use crate::binaries;
use crate::ports::free_address;
use crate::process::Process;

/// The running program. It stops when this is dropped.
#[derive(Debug)]
pub struct Spdystream {
    /// The address that it listens on or connects to.
    pub address: SocketAddr,
    /// The process.
    pub process: Process,
}

impl Spdystream {
    /// Starts the program as a server that handles each stream as its headers specify.
    pub fn serve(directory: &Path) -> Self {
        Self::start("serve", free_address(), directory)
    }

    /// Starts the program as a client that tests every behaviour, and fails on a deviation.
    pub fn call(address: SocketAddr, directory: &Path) -> Self {
        Self::start("call", address, directory)
    }

    fn start(command: &str, address: SocketAddr, directory: &Path) -> Self {
        let arguments = [command.to_owned(), address.to_string()];
        let program = binaries::spdystream();
        let name = "spdystream";
        Self {
            address,
            process: Process::start(name, name, &program, &arguments, directory),
        }
    }
}
