//! Commands and ports of pods, over loopback: with correct and with faulty fake servers.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test ends where it cannot go on

mod commands;
mod disconnects;
mod examples;
mod fallback;
mod https_proxy;
mod ports;

use std::net::SocketAddr;

use skewbridge_client::remote_command::ExecRequest;
use skewbridge_client::{Endpoint, Kubeconfig};
use skewbridge_testkit::Pods;

/// An endpoint for a fake server.
async fn endpoint(pods: &Pods) -> Endpoint {
    endpoint_at(pods.addr()).await
}

/// An endpoint for a plain HTTP server.
async fn endpoint_at(addr: SocketAddr) -> Endpoint {
    let text = format!(
        "current-context: c\ncontexts: [{{name: c, context: {{cluster: k}}}}]\n\
         clusters: [{{name: k, cluster: {{server: 'http://{addr}'}}}}]\n"
    );
    let config = Kubeconfig::parse(&text, "/nonexistent/config".as_ref()).unwrap();
    let target = config.target(None).unwrap();
    Endpoint::prepare(&target, None).await.unwrap()
}

/// A shell command with all streams.
fn shell(script: &str) -> ExecRequest {
    ExecRequest {
        namespace: "default".to_owned(),
        pod: "web".to_owned(),
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        stdin: true,
        stdout: true,
        stderr: true,
        ..ExecRequest::default()
    }
}
