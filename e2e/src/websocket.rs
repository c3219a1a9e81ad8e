//! The program in `e2e/websocket`, with the WebSocket libraries of Kubernetes.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use skewbridge_testkit::{TEST_TIMEOUT, eventually};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::binaries;
use crate::kubectl::Output;
use crate::ports::free_address;
use crate::process::Process;

/// A WebSocket library of Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    /// `github.com/gorilla/websocket`: clients, and tunnels.
    Gorilla,
    /// `golang.org/x/net/websocket`: servers.
    Net,
}

impl Library {
    /// The name that the program uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gorilla => "gorilla",
            Self::Net => "x-net",
        }
    }
}

/// Starts an echo server at `/LIBRARY`.
pub async fn serve_websocket(directory: &Path) -> (Process, SocketAddr) {
    let address = free_address();
    let arguments = ["serve".to_owned(), address.to_string()];
    let program = binaries::websocket();
    let process = Process::start("websocket", "websocket", &program, &arguments, directory);
    eventually("the server listens", TEST_TIMEOUT, async || {
        TcpStream::connect(address).await.is_ok()
    })
    .await;
    (process, address)
}

/// Runs a client against an echo server.
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
