//! Port-forward: pairs of SPDY streams, each joined with a connection to a port that
//! the pod has declared, and to no other.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use skewbridge_channels::port_forward::Stream as Which;
use skewbridge_channels::port_forward::pair;
use skewbridge_spdy::connection::{self, Receiver, Request, Sender, Stream};
use skewbridge_spdy::{Config, Headers};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::program::PORTS_DIRECTORY;
use super::remote::PIECE;

/// How long a process may take to accept a connection.
const CONNECTING: Duration = Duration::from_secs(10);

/// Connections at once, and halves of pairs that wait for the other: a client that
/// leaves pairs unfinished gets no further ones.
const MOST: usize = 128;

/// Where a pod can be reached, and at which ports.
#[derive(Debug, Clone)]
pub(super) struct Reach {
    pub(super) pod: String,
    pub(super) address: IpAddr,
    pub(super) ports: BTreeSet<u16>,
    pub(super) directory: PathBuf,
}

impl Reach {
    /// Where the process listens that stands behind a port.
    fn address(&self, port: u16) -> Result<SocketAddr, String> {
        if !self.ports.contains(&port) {
            return Err(format!(
                "port {port} is not one of the container ports of pod {}",
                self.pod
            ));
        }
        // A process that could not have the port says which one it took.
        let file = self.directory.join(PORTS_DIRECTORY).join(port.to_string());
        let real = std::fs::read_to_string(file).ok();
        let real = real.and_then(|text| text.trim().parse().ok());
        Ok(SocketAddr::new(self.address, real.unwrap_or(port)))
    }

    async fn connect(&self, port: u16) -> Result<TcpStream, String> {
        let address = self.address(port)?;
        match timeout(CONNECTING, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(format!("dial tcp {address}: connect: {error}")),
            Err(_) => Err(format!("dial tcp {address}: i/o timeout")),
        }
    }
}

/// Forwards until the client leaves.
pub(super) async fn carry(io: impl AsyncRead + AsyncWrite + Unpin, reach: Reach) {
    let (handle, mut incoming, driver) = connection::server(io, Config::default());
    let mut driver = pin!(driver);
    let mut waiting: HashMap<String, (Which, Stream)> = HashMap::new();
    let mut forwards = JoinSet::new();
    loop {
        let request = tokio::select! {
            _ = &mut driver => return,
            Some(_) = forwards.join_next() => continue,
            request = incoming.next() => request,
        };
        let Some(request) = request else { break };
        if forwards.len() >= MOST {
            // Refused by being dropped.
            continue;
        }
        let Some((headers, stream)) = accept(request) else {
            continue;
        };
        match waiting.remove(&headers.request) {
            Some((other, half)) if other != headers.stream => {
                let (data, error) = match headers.stream {
                    Which::Data => (stream, half),
                    Which::Error => (half, stream),
                };
                let reach = reach.clone();
                let port = headers.port.number();
                forwards.spawn(async move { forward(&reach, port, data, error).await });
            }
            _ if waiting.len() < MOST => {
                waiting.insert(headers.request, (headers.stream, stream));
            }
            _ => {}
        }
    }
    drop((handle, incoming));
    let _ = driver.await;
}

fn accept(request: Request) -> Option<(pair::Headers, Stream)> {
    let headers = request.headers().clone();
    let stream = request.accept(Headers::new()).ok()?;
    let number = stream.id().get();
    match pair::Headers::parse(|name| headers.get(name), number) {
        Ok(headers) => Some((headers, stream)),
        // Dropped, it is reset.
        Err(_) => None,
    }
}

/// One connection, from its beginning to its end.
async fn forward(reach: &Reach, port: u16, data: Stream, error: Stream) {
    let (mut said, mut to_client, from_client) = (error.sender, data.sender, data.receiver);
    match reach.connect(port).await {
        Ok(stream) => {
            let (mut from_pod, mut to_pod) = stream.into_split();
            let up = upwards(from_client, &mut to_pod);
            let down = downwards(&mut from_pod, &mut to_client);
            // As long as the process has something to say.
            let mut down = pin!(down);
            tokio::select! {
                () = &mut down => {}
                () = up => down.await,
            }
        }
        Err(why) => {
            let words = format!(
                "error forwarding port {port} to pod {}, uid : {why}",
                reach.pod
            );
            let _ = said.write(words.into()).await;
        }
    }
    let _ = to_client.finish();
    let _ = said.finish();
    to_client.sent().await;
    said.sent().await;
}

async fn upwards(mut from: Receiver, to: &mut (impl AsyncWrite + Unpin)) {
    while let Ok(Some(data)) = from.read().await {
        if to.write_all(&data).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

async fn downwards(from: &mut (impl AsyncRead + Unpin), to: &mut Sender) {
    loop {
        let mut piece = bytes::BytesMut::with_capacity(PIECE);
        match from.read_buf(&mut piece).await {
            Ok(1..) => {}
            Ok(0) | Err(_) => return,
        }
        if to.write(piece.freeze()).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_declared_ports_can_be_reached() {
        let reach = Reach {
            pod: "web".to_owned(),
            address: "127.0.0.2".parse().unwrap(),
            ports: [8080].into(),
            directory: "/nonexistent".into(),
        };
        assert_eq!(reach.address(8080), Ok("127.0.0.2:8080".parse().unwrap()));
        let refused = reach.address(22).unwrap_err();
        assert_eq!(
            refused,
            "port 22 is not one of the container ports of pod web"
        );
    }
}
