//! Forwards a local port to a port of a pod, until it is interrupted: `cargo run -p
//! skewbridge-client --example forward_a_port -- POD PORT`

use skewbridge_client::remote_command::{Port, PortForwarder};
use skewbridge_client::{Endpoint, Kubeconfig};
use tokio::net::TcpListener;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let pod = words.next().ok_or("give a pod")?;
    let port: Port = words.next().ok_or("give a port")?.parse()?;
    let target = Kubeconfig::load(None)?.target(None)?;
    let endpoint = Endpoint::prepare(&target, None).await?;
    let namespace = target.namespace.as_deref().unwrap_or("default");
    let forwarder = PortForwarder::connect(&endpoint, namespace, &pod).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let stream = forwarder.open(port)?;
                let (local, _) = accepted?;
                tokio::spawn(async move {
                    if let Err(error) = stream.forward(local).await {
                        eprintln!("{error}");
                    }
                });
            }
            cause = forwarder.closed() => return Err(cause.into()),
        }
    }
}
