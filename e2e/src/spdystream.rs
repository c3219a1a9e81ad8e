//! A peer that speaks SPDY with moby/spdystream: the program of `e2e/spdystream`.

use std::net::SocketAddr;
use std::path::Path;

use crate::binaries;
use crate::ports::free_address;
use crate::process::Process;

/// The running program. It ends when this is dropped.
#[derive(Debug)]
pub struct Spdystream {
    /// Where it listens, or whom it calls.
    pub address: SocketAddr,
    /// Itself.
    pub process: Process,
}

impl Spdystream {
    /// Starts it as a server that does for each stream what its headers ask for.
    pub fn serve(directory: &Path) -> Self {
        Self::start("serve", free_address(), directory)
    }

    /// Starts it as a client that asks for everything, and fails if it is not so.
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
