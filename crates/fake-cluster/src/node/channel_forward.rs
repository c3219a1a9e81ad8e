//! Port-forward by the channels of a WebSocket (`v4.channel.k8s.io`), as the Python and
//! JavaScript clients do it: the ports are in the query, and each has one connection and two
//! channels, of which the first message names the port.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use skewbridge_remotecommand::port_forward::legacy::{
    FromClient, FromPod, ToClient, encode_port, max_ports, negotiate,
};
use skewbridge_remotecommand::port_forward::{self, Port, Stream};
use skewbridge_remotecommand::{ChannelEvent, NegotiatedProtocol, Protocol};
use skewbridge_websocket::{Close, CloseCode, Control};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::command_pipes::{QUEUE_LENGTH, READ_BUFFER_BYTES};
use super::port_forward::PodDialer;
use super::websocket::{MAX_PENDING_PONGS, MessageReader, RESULT_TIMEOUT};

/// The request of a client.
#[derive(Debug)]
pub(super) struct ForwardRequest {
    pub(super) agreed: NegotiatedProtocol,
    ports: Vec<Port>,
}

impl ForwardRequest {
    /// From the offered subprotocols and the query, or a kubelet's error message.
    pub(super) fn of<'a>(
        offers: impl IntoIterator<Item = &'a str>,
        query: &str,
    ) -> Result<Self, String> {
        let agreed = negotiate(offers).ok_or(
            "unable to upgrade: SPDY/3.1+portforward.k8s.io, v4.channel.k8s.io and \
             v4.base64.channel.k8s.io are known",
        )?;
        let ports = port_forward::ports("ports", Some(query))
            .map_err(|error| format!("unable to parse query parameter \"ports\": {error}"))?;
        let most = max_ports(agreed.protocol.encoding());
        if ports.is_empty() {
            return Err("query parameter \"ports\" is required".to_owned());
        }
        if ports.len() > most {
            return Err(format!(
                "query parameter \"ports\" has more than {most} ports"
            ));
        }
        Ok(Self { agreed, ports })
    }
}

/// A message on a channel.
type Message = (FromPod, Bytes);

/// Forwards until every connection to the pod has ended, or the client disconnects.
pub(super) async fn serve(
    io: impl AsyncRead + AsyncWrite,
    wanted: ForwardRequest,
    reach: PodDialer,
) {
    let reach = Arc::new(reach);
    let protocol = wanted.agreed.protocol;
    let (read, mut write) = tokio::io::split(io);
    let (ping, mut pings) = mpsc::channel(MAX_PENDING_PONGS);
    let (outgoing, mut from_pod) = mpsc::channel(QUEUE_LENGTH);
    // Dropped with this future, and the connections with it.
    let mut forwards = JoinSet::new();
    let mut inputs = Vec::new();
    for (placement, port) in (0..).zip(wanted.ports.iter().copied()) {
        let (input, from_client) = mpsc::channel(QUEUE_LENGTH);
        inputs.push(input);
        forwards.spawn(forward(
            reach.clone(),
            placement,
            port,
            from_client,
            outgoing.clone(),
        ));
    }
    drop(outgoing);
    let mut listening = Box::pin(listen(MessageReader::new(read, ping), protocol, inputs));
    let exchange = async {
        let mut writer = ToClient::new(protocol);
        let mut out = BytesMut::new();
        for (placement, port) in (0..).zip(wanted.ports.iter().copied()) {
            for stream in [Stream::Data, Stream::Error] {
                let channel = FromPod {
                    port: placement,
                    stream,
                };
                writer.write(channel, &encode_port(port), &mut out);
            }
        }
        loop {
            write.write_all_buf(&mut out).await?;
            write.flush().await?;
            tokio::select! {
                message = from_pod.recv() => match message {
                    Some((channel, data)) => writer.write(channel, &data, &mut out),
                    None => break,
                },
                Some(payload) = pings.recv() => writer.control(&Control::Pong(payload), &mut out),
            }
        }
        let close = Close::new(CloseCode::NORMAL, "");
        writer.control(&Control::Close(Some(close)), &mut out);
        timeout(RESULT_TIMEOUT, write.write_all_buf(&mut out)).await??;
        timeout(RESULT_TIMEOUT, write.shutdown()).await?
    };
    tokio::select! {
        () = &mut listening => return,
        result = exchange => if result.is_err() { return },
    }
    // Closing at once could lose data in flight.
    let _ = timeout(RESULT_TIMEOUT, listening).await;
}

/// Forwards data of the client, until it disconnects.
async fn listen<R: AsyncRead + Unpin>(
    mut messages: MessageReader<R>,
    protocol: Protocol,
    inputs: Vec<mpsc::Sender<Bytes>>,
) {
    let mut reader = FromClient::new(protocol);
    while let Some(piece) = messages.next().await {
        match reader.read_chunk(piece) {
            Ok(Some(ChannelEvent::Data(to, data))) => {
                if let Some(input) = inputs.get(usize::from(to.port)) {
                    // Fails when the connection to this port has ended.
                    let _ = input.send(data).await;
                }
            }
            Ok(_) => {}
            Err(_) => return,
        }
    }
}

/// Forwards one port, to the end of its connection.
async fn forward(
    reach: Arc<PodDialer>,
    placement: u8,
    port: Port,
    mut from_client: mpsc::Receiver<Bytes>,
    outgoing: mpsc::Sender<Message>,
) {
    let channel = |stream| FromPod {
        port: placement,
        stream,
    };
    let stream: TcpStream = match reach.connect(port.number()).await {
        Ok(stream) => stream,
        Err(error) => {
            let _ = outgoing.send((channel(Stream::Error), error.into())).await;
            return;
        }
    };
    let (mut from_pod, mut to_pod) = stream.into_split();
    let client_to_pod = async {
        while let Some(data) = from_client.recv().await {
            // A process that does not read may still write.
            let _ = to_pod.write_all(&data).await;
        }
    };
    let pod_to_client = async {
        loop {
            let mut piece = BytesMut::with_capacity(READ_BUFFER_BYTES);
            if !matches!(from_pod.read_buf(&mut piece).await, Ok(1..)) {
                return;
            }
            let message = (channel(Stream::Data), piece.freeze());
            if outgoing.send(message).await.is_err() {
                return;
            }
        }
    };
    // Clients of this protocol cannot half-close: the port ends with the pod's data.
    tokio::select! {
        () = pod_to_client => {}
        () = client_to_pod => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_a_known_protocol_are_required() {
        let v4 = &["v4.channel.k8s.io"][..];
        let many = |count: u16| {
            let ports: Vec<_> = (1..=count).map(|port| port.to_string()).collect();
            format!("ports={}", ports.join(","))
        };
        let rows = [
            (v4, "ports=80".to_owned(), Ok(1)),
            (&[], "ports=80&ports=81".to_owned(), Ok(2)),
            (v4, many(127), Ok(127)),
            (v4, many(128), Err("more than 127 ports")),
            (&["v4.base64.channel.k8s.io"], many(41), Err("more than 40")),
            (v4, String::new(), Err("\"ports\" is required")),
            (v4, "ports=0".to_owned(), Err("from 1 to 65535")),
            (
                &["channel.k8s.io"],
                "ports=80".to_owned(),
                Err("unable to upgrade"),
            ),
        ];
        for (offers, query, expected) in rows {
            let wanted = ForwardRequest::of(offers.iter().copied(), &query);
            match (wanted, expected) {
                (Ok(wanted), Ok(count)) => assert_eq!(wanted.ports.len(), count),
                (Err(error), Err(expected)) => assert!(error.contains(expected), "{error}"),
                (wanted, expected) => panic!("{query}: {wanted:?}, expected {expected:?}"),
            }
        }
    }
}
