//! The program of `e2e/websocket`: the WebSocket libraries of Kubernetes.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use skewbridge_testkit::{PATIENCE, eventually};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::binaries;
use crate::kubectl::Output;
use crate::ports::free_address;
use crate::process::Process;

/// What Kubernetes speaks WebSocket with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    /// `github.com/gorilla/websocket`: clients, and tunnels.
    Gorilla,
    /// `golang.org/x/net/websocket`: servers.
    Net,
}

impl Library {
    /// As the program calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gorilla => "gorilla",
            Self::Net => "x-net",
        }
    }
}

/// Starts a server that sends back what it gets, at `/LIBRARY`.
pub async fn serve_websocket(directory: &Path) -> (Process, SocketAddr) {
    let address = free_address();
    let arguments = ["serve".to_owned(), address.to_string()];
    let program = binaries::websocket();
    let process = Process::start("websocket", "websocket", &program, &arguments, directory);
    eventually("the server listens", PATIENCE, async || {
        TcpStream::connect(address).await.is_ok()
    })
    .await;
    (process, address)
}

/// Lets a client talk to a server that sends back what it gets.
pub async fn dial_websocket(library: Library, server: SocketAddr) -> Output {
    let output = Command::new(binaries::websocket())
        .args(["dial", library.name(), &format!("ws://{server}/")])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .expect("the program starts");
    Output::of(&output)
}
