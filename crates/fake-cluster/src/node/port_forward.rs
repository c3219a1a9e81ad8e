//! Port-forward: pairs of SPDY streams, each joined with a connection to a port that
//! the pod itself listens on, and to no other.

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use skewbridge_remotecommand::port_forward::Stream as Which;
use skewbridge_remotecommand::port_forward::pair;
use skewbridge_spdy::connection::{self, Receiver, Request, Sender, Stream};
use skewbridge_spdy::{Config, Headers};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::command_pipes::READ_BUFFER_BYTES;
use super::pod_plan::PodPlacement;
use super::process::Launcher;
use super::process_entry::PORTS_DIRECTORY;
use super::{listeners, process_tree};

/// Time limit to connect to a process.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of connections, and of incomplete pairs.
const MAX_CONNECTIONS: usize = 128;

/// How long one stream of a pair waits for the other: a kubelet's limit.
const PAIR_TIMEOUT: Duration = Duration::from_secs(30);

/// Connects to ports of a pod.
#[derive(Debug, Clone)]
pub(super) struct PodDialer {
    /// Its name.
    pub(super) pod: String,
    pub(super) placement: PodPlacement,
    pub(super) launcher: Launcher,
}

impl PodDialer {
    /// The address of the process that listens on a port. Between this check and the connection,
    /// another program could get the port only after the pod releases it.
    fn address(&self, port: u16) -> Option<SocketAddr> {
        // The sample records the port that it uses instead of a declared one.
        let directory = self.placement.directory.join(PORTS_DIRECTORY);
        let recorded_port = fs::read_to_string(directory.join(port.to_string())).ok();
        let recorded_port = recorded_port.and_then(|text| text.trim().parse().ok());
        let address = self.placement.address;
        if cfg!(not(target_os = "linux")) {
            // The owners of sockets are unknown here: only the record of the sample counts.
            return recorded_port.map(|real| SocketAddr::new(address, real));
        }
        let started = self.launcher.running(&self.placement.pod);
        let mut process_tree = process_tree::descendants(started.iter().copied());
        process_tree.extend(started);
        let own = listeners::sockets(&process_tree);
        listeners::reachable_address(
            recorded_port.unwrap_or(port),
            address,
            &own,
            &listeners::listeners(),
        )
    }

    /// A connection to a port, or a kubelet's error message.
    pub(super) async fn connect(&self, port: u16) -> Result<TcpStream, String> {
        let connected = self.dial(port).await;
        let pod = &self.pod;
        connected.map_err(|why| format!("error forwarding port {port} to pod {pod}, uid : {why}"))
    }

    async fn dial(&self, port: u16) -> Result<TcpStream, String> {
        let Some(address) = self.address(port) else {
            return Err(format!(
                "failed to connect to localhost:{port} inside the pod: connection refused"
            ));
        };
        match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(format!("dial tcp {address}: connect: {error}")),
            Err(_) => Err(format!("dial tcp {address}: i/o timeout")),
        }
    }
}

/// Forwards until the client disconnects.
pub(super) async fn serve(io: impl AsyncRead + AsyncWrite + Unpin, reach: PodDialer) {
    let reach = Arc::new(reach);
    let connect = move |port| {
        let reach = reach.clone();
        async move { reach.connect(port).await }
    };
    forward_all(io, connect).await;
}

/// The first half of a pair.
struct UnpairedStream {
    which: Which,
    stream: Stream,
    came: Instant,
}

async fn forward_all<C, F>(io: impl AsyncRead + AsyncWrite + Unpin, connect: C)
where
    C: Fn(u16) -> F,
    F: Future<Output = Result<TcpStream, String>> + Send + 'static,
{
    let (handle, mut incoming, driver) = connection::server(io, Config::default());
    let mut driver = pin!(driver);
    let mut waiting: HashMap<String, UnpairedStream> = HashMap::new();
    let mut forwards = JoinSet::new();
    loop {
        let request = tokio::select! {
            _ = &mut driver => return,
            Some(_) = forwards.join_next() => continue,
            request = incoming.next() => request,
        };
        let Some(request) = request else { break };
        if forwards.len() >= MAX_CONNECTIONS {
            // Dropping the stream refuses it.
            continue;
        }
        let Some((headers, stream)) = accept(request) else {
            continue;
        };
        waiting.retain(|_, half| half.came.elapsed() < PAIR_TIMEOUT);
        match waiting.remove(&headers.request) {
            Some(half) if half.which != headers.stream => {
                let (data, error) = match headers.stream {
                    Which::Data => (stream, half.stream),
                    Which::Error => (half.stream, stream),
                };
                let connecting = connect(headers.port.number());
                forwards.spawn(async move {
                    forward(connecting.await, data, error).await;
                });
            }
            _ if waiting.len() < MAX_CONNECTIONS => {
                let half = UnpairedStream {
                    which: headers.stream,
                    stream,
                    came: Instant::now(),
                };
                waiting.insert(headers.request, half);
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
        // Dropping the stream resets it.
        Err(_) => None,
    }
}

/// Forwards one connection to its end.
async fn forward(connected: Result<TcpStream, String>, data: Stream, error: Stream) {
    let (mut error_sender, mut to_client, from_client) = (error.sender, data.sender, data.receiver);
    match connected {
        Ok(stream) => {
            let (mut from_pod, mut to_pod) = stream.into_split();
            // While the process writes and the client reads.
            tokio::select! {
                () = pod_to_client(&mut from_pod, &mut to_client) => {}
                () = client_to_pod(from_client, &mut to_pod) => {}
            }
        }
        Err(why) => drop(error_sender.write(why.into()).await),
    }
    let _ = to_client.finish();
    let _ = error_sender.finish();
    to_client.flushed().await;
    error_sender.flushed().await;
}

/// Ends when the client resets the stream: a client that has only closed its sending side may
/// still read.
async fn client_to_pod(mut from: Receiver, to: &mut (impl AsyncWrite + Unpin)) {
    loop {
        match from.read().await {
            // A process that does not read may still write.
            Ok(Some(data)) => drop(to.write_all(&data).await),
            Ok(None) => {
                let _ = to.shutdown().await;
                return std::future::pending().await;
            }
            Err(_) => return,
        }
    }
}

/// Ends with the output of the process, or when the client stops reading.
async fn pod_to_client(from: &mut (impl AsyncRead + Unpin), to: &mut Sender) {
    loop {
        let mut piece = bytes::BytesMut::with_capacity(READ_BUFFER_BYTES);
        tokio::select! {
            read = from.read_buf(&mut piece) => if !matches!(read, Ok(1..)) {
                return;
            },
            _ = to.stopped() => return,
        }
        if to.write(piece.freeze()).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use skewbridge_remotecommand::port_forward::Port;
    use skewbridge_spdy::frame::ResetStatus;
    use tokio::net::TcpListener;

    use super::*;

    /// Long enough for a busy machine.
    const TEST_TIMEOUT: Duration = Duration::from_secs(30);

    /// A pair of streams and the pod's end of the connection, which has received a byte.
    async fn pair(handle: &connection::Handle, pod: &TcpListener) -> (Stream, Stream, TcpStream) {
        let open = |stream| {
            let headers = pair::Headers {
                stream,
                port: Port::new(80).unwrap(),
                request: "1".to_owned(),
            };
            let fields = headers.fields().into_iter();
            let fields = fields.fold(Headers::new(), |all, (name, value)| all.with(name, value));
            handle.open(fields).unwrap()
        };
        let (error, mut data) = (open(Which::Error), open(Which::Data));
        data.sender.write(Bytes::from_static(b"x")).await.unwrap();
        let (mut pod_side, _) = pod.accept().await.unwrap();
        assert_eq!(pod_side.read_u8().await.unwrap(), b'x');
        (error, data, pod_side)
    }

    #[tokio::test]
    async fn a_connection_ends_when_its_client_resets_the_stream() {
        let pod = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = pod.local_addr().unwrap();
        let connect = move |_| async move {
            TcpStream::connect(address)
                .await
                .map_err(|error| error.to_string())
        };
        let (client_io, server_io) = tokio::io::duplex(64 * 1024);
        tokio::spawn(async move { forward_all(server_io, connect).await });
        let (handle, _incoming, driver) = connection::client(client_io, Config::default());
        tokio::spawn(driver);
        let test = async {
            // While it reads, after it has closed its sending side, and while the pod does not
            // read.
            for step in 0..3 {
                let (_error, mut data, mut pod_side) = pair(&handle, &pod).await;
                match step {
                    1 => {
                        data.sender.finish().unwrap();
                        assert_eq!(pod_side.read(&mut [0]).await.unwrap(), 0);
                        pod_side.write_all(b"still").await.unwrap();
                        assert_eq!(data.receiver.read().await.unwrap().unwrap(), "still");
                    }
                    2 => {
                        let much = Bytes::from(vec![0; 256 * 1024]);
                        let full = async {
                            loop {
                                data.sender.write(much.clone()).await.unwrap();
                            }
                        };
                        assert!(timeout(Duration::from_secs(1), full).await.is_err());
                    }
                    _ => {}
                }
                data.reset(ResetStatus::Cancel);
                // Data in flight, and then the end.
                let mut bytes = vec![0; 64 * 1024];
                while let Ok(1..) = pod_side.read(&mut bytes).await {}
            }
        };
        timeout(TEST_TIMEOUT, test).await.unwrap();
    }
}
