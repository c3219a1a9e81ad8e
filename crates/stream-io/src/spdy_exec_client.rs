//! The client side of a remote command over SPDY: its streams and its result.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use skewbridge_remotecommand::{
    Channel, ErrorChannel, ErrorChannelEnd, Input, Options, Outcome, Output, STREAM_TYPE,
    SpdyProtocol,
};
use skewbridge_spdy::connection::{self, Driver, Handle, Receiver, Sender};
use skewbridge_spdy::frame::ResetStatus;
use skewbridge_spdy::{Config, Headers, OpenError, Role, StreamError};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::observed_io::ObservedIo;
use crate::ping_policy::PingPolicy;
use crate::rewind::Rewind;
use crate::spdy_keepalive::KeepaliveConfig;
use crate::spdy_pinger::SpdyPinger;

/// The streams of a command.
#[derive(Debug)]
pub struct SpdyExecClient<T> {
    /// The connection.
    pub handle: Handle,
    /// Keepalive of the connection.
    pub pinger: SpdyPinger,
    /// Drives the connection until it has ended.
    driver: Option<Driver<ObservedIo<Rewind<T>>>>,
    stdin: Option<Sender>,
    resize: Option<Sender>,
    stdout: Option<Receiver>,
    stderr: Option<Receiver>,
    /// Whether stderr is polled first next time.
    stderr_first: bool,
    error: Option<Receiver>,
    error_channel: Option<ErrorChannel>,
    /// An output stream ended early.
    output_truncated: bool,
    /// The error channel ended early.
    error_truncated: bool,
    /// The halves of streams that are not used: Kubernetes' own clients do not close them
    /// either.
    unused_halves: Vec<UnusedHalf>,
}

#[derive(Debug)]
#[allow(dead_code)] // kept, not used
enum UnusedHalf {
    Sender(Sender),
    Receiver(Receiver),
}

/// What the command sends.
#[derive(Debug)]
pub enum ExecEvent {
    /// A chunk of output.
    Data(Output, Bytes),
    /// The command has ended, after all output.
    Ended(ExecResult),
}

/// How a command ended.
#[derive(Debug)]
pub struct ExecResult {
    /// The decoded result.
    pub outcome: Outcome,
    /// The error channel, byte for byte.
    pub error_bytes: Bytes,
}

impl<T: AsyncRead + AsyncWrite + Unpin> SpdyExecClient<T> {
    /// Opens the streams of a command, in the order of Kubernetes' own clients, on a
    /// connection of which `input` was read already.
    pub fn open(
        io: T,
        input: BytesMut,
        options: Options,
        protocol: SpdyProtocol,
        config: KeepaliveConfig,
    ) -> Result<Self, OpenError> {
        let io = Rewind { prefix: input, io };
        let io = ObservedIo::new(io, Role::Client, config, PingPolicy::AvoidNearEof);
        let keepalive = io.keepalive_handle();
        let (handle, incoming, driver) = connection::client(io, Config::default());
        // Nodes open no streams.
        drop(incoming);
        let mut client = Self {
            pinger: SpdyPinger::new(handle.clone(), keepalive),
            handle,
            driver: Some(driver),
            stdin: None,
            resize: None,
            stdout: None,
            stderr: None,
            stderr_first: false,
            error: None,
            error_channel: Some(ErrorChannel::new(protocol.version())),
            output_truncated: false,
            error_truncated: false,
            unused_halves: Vec::new(),
        };
        for channel in options.streams(protocol) {
            let headers = Headers::new().with(STREAM_TYPE, channel.stream_type());
            let stream = client.handle.open(headers)?;
            let (sender, receiver) = (stream.sender, stream.receiver);
            let half = match channel {
                Channel::Stdin => {
                    client.stdin = Some(sender);
                    UnusedHalf::Receiver(receiver)
                }
                Channel::Resize => {
                    client.resize = Some(sender);
                    UnusedHalf::Receiver(receiver)
                }
                Channel::Stdout => {
                    client.stdout = Some(receiver);
                    UnusedHalf::Sender(sender)
                }
                Channel::Stderr => {
                    client.stderr = Some(receiver);
                    UnusedHalf::Sender(sender)
                }
                Channel::Error => {
                    client.error = Some(receiver);
                    UnusedHalf::Sender(sender)
                }
            };
            client.unused_halves.push(half);
        }
        Ok(client)
    }

    /// Moves bytes in both directions, as far as possible now.
    pub fn drive(&mut self, cx: &mut Context<'_>) {
        self.pinger.before_drive();
        if let Some(driver) = &mut self.driver
            && let Poll::Ready(ended) = Pin::new(driver).poll(cx)
        {
            if let Err(error) = ended {
                tracing::debug!(%error, "SPDY connection to the node failed");
            }
            self.driver = None;
        }
    }

    /// The client has disconnected: sends what it has written and resets the streams. They are
    /// not closed, or an interrupted upload would look complete.
    pub async fn disconnect(self) {
        let Self {
            handle,
            pinger,
            driver: Some(mut driver),
            mut stdin,
            resize,
            stdout,
            stderr,
            error,
            unused_halves,
            ..
        } = self
        else {
            return;
        };
        // A handle keeps the connection open.
        drop(pinger);
        // Further output has no reader; it must not keep the node from reading.
        drop((stdout, stderr, error));
        let sent = async {
            if let Some(stdin) = &mut stdin {
                stdin.flushed().await;
            }
        };
        tokio::select! {
            biased;
            _ = &mut driver => return,
            () = sent => {}
        }
        // A stream that is not dropped keeps the connection open.
        drop((stdin, resize, unused_halves));
        handle.close();
        drop(handle);
        let _ = driver.await;
    }

    /// Whether an input can be written. A closed input always can: the data is dropped.
    pub fn poll_ready(&mut self, input: Input, cx: &Context<'_>) -> Poll<()> {
        let sender = self.sender(input);
        match sender.as_mut().map(|sender| sender.poll_ready(cx)) {
            Some(Poll::Pending) => Poll::Pending,
            Some(Poll::Ready(Err(_))) => {
                // The command has closed its stdin or has ended.
                *sender = None;
                Poll::Ready(())
            }
            Some(Poll::Ready(Ok(()))) | None => Poll::Ready(()),
        }
    }

    /// Writes to an input, after [`SpdyExecClient::poll_ready`].
    pub fn write(&mut self, input: Input, data: Bytes) {
        let sender = self.sender(input);
        if sender.as_mut().is_some_and(|it| it.send(data).is_err()) {
            *sender = None;
        }
    }

    /// Whether the command does not read an input any more.
    pub fn is_closed(&self, input: Input) -> bool {
        match input {
            Input::Stdin => self.stdin.is_none(),
            Input::Resize => self.resize.is_none(),
        }
    }

    /// Closes an input.
    pub fn close(&mut self, input: Input) {
        if let Some(mut sender) = self.sender(input).take() {
            // An error is ignored: the connection has ended, and the input with it.
            let _ = sender.finish();
        }
    }

    fn sender(&mut self, input: Input) -> &mut Option<Sender> {
        match input {
            Input::Stdin => &mut self.stdin,
            Input::Resize => &mut self.resize,
        }
    }

    /// The next event. The result comes after all output, so a client that has it has
    /// everything.
    pub fn poll_event(&mut self, cx: &Context<'_>) -> Poll<ExecEvent> {
        self.stderr_first = !self.stderr_first;
        let mut outputs = [
            (Output::Stdout, &mut self.stdout),
            (Output::Stderr, &mut self.stderr),
        ];
        if self.stderr_first {
            outputs.reverse();
        }
        for (output, receiver) in outputs {
            if let Poll::Ready(Some(data)) = poll_half(receiver, &mut self.output_truncated, cx) {
                return Poll::Ready(ExecEvent::Data(output, data));
            }
        }
        while let Poll::Ready(Some(data)) =
            poll_half(&mut self.error, &mut self.error_truncated, cx)
        {
            if let Some(error_channel) = &mut self.error_channel {
                error_channel.push(&data);
            }
        }
        if self.stdout.is_some() || self.stderr.is_some() || self.error.is_some() {
            return Poll::Pending;
        }
        match self.error_channel.take() {
            None => Poll::Pending,
            Some(error_channel) => Poll::Ready(ExecEvent::Ended(self.result(error_channel))),
        }
    }

    /// If output is missing, or no result was received, a success that was reported does not
    /// count.
    fn result(&self, error_channel: ErrorChannel) -> ExecResult {
        let error_bytes = Bytes::copy_from_slice(error_channel.bytes());
        let end = if self.error_truncated {
            ErrorChannelEnd::Aborted
        } else {
            ErrorChannelEnd::Clean
        };
        ExecResult {
            outcome: if self.output_truncated {
                Outcome::Disconnected
            } else {
                error_channel.end(end)
            },
            error_bytes,
        }
    }
}

/// The next bytes of one stream; `None` at its end.
fn poll_half(
    half: &mut Option<Receiver>,
    truncated: &mut bool,
    cx: &Context<'_>,
) -> Poll<Option<Bytes>> {
    let Some(receiver) = half else {
        return Poll::Ready(None);
    };
    match receiver.poll_read(cx) {
        Poll::Pending => Poll::Pending,
        Poll::Ready(Ok(Some(data))) => Poll::Ready(Some(data)),
        Poll::Ready(ended) => {
            *truncated |= ended.is_err_and(|error| !is_complete(&error));
            *half = None;
            Poll::Ready(None)
        }
    }
}

/// Whether a stream that was reset is complete all the same: Kubernetes' servers write the
/// result of a command, reset their streams and close the connection. If they have not read
/// all input by then, TCP resets the connection, and some or all of that is lost, but not what
/// was received before. A complete Status is the last thing they write, so everything written
/// before it was received. Without one the result is unknown, and [`ErrorChannel`] reports
/// that.
fn is_complete(error: &StreamError) -> bool {
    matches!(
        error,
        StreamError::ResetByRemote(ResetStatus::Cancel) | StreamError::Closed(_)
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use skewbridge_remotecommand::QueryDialect;
    use tokio::time::timeout;

    use super::*;

    /// Longer than any step of the test takes.
    const TEST_TIMEOUT: Duration = Duration::from_secs(20);

    const CONFIG: KeepaliveConfig = KeepaliveConfig {
        interval: TEST_TIMEOUT,
        timeout: TEST_TIMEOUT,
    };

    #[tokio::test]
    async fn disconnecting_sends_pending_input_and_resets_the_streams() {
        let query = "command=sh&stdin=true&stdout=true&tty=true";
        let options = Options::from_query(QueryDialect::Api, Some(query));
        let (local, remote) = tokio::io::duplex(4096);
        let mut client =
            SpdyExecClient::open(local, BytesMut::new(), options, SpdyProtocol::V4, CONFIG)
                .unwrap();
        let (_handle, mut incoming, driver) = connection::server(remote, Config::default());
        let node_ended = tokio::spawn(driver);
        let taking = tokio::spawn(async move {
            let mut streams = Vec::new();
            for _ in options.streams(SpdyProtocol::V4) {
                let request = incoming.next().await.unwrap();
                streams.push(request.accept(Headers::new()).unwrap());
            }
            (streams, incoming)
        });
        client.write(Input::Stdin, Bytes::from_static(b"last input"));
        // The output is not read here.
        timeout(TEST_TIMEOUT, client.disconnect())
            .await
            .expect("disconnecting does not block");
        timeout(TEST_TIMEOUT, node_ended)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        let (mut streams, _incoming) = taking.await.unwrap();
        let mut all = Vec::new();
        for stream in &mut streams {
            let mut received = Vec::new();
            let end = loop {
                match stream.receiver.read().await {
                    Ok(Some(data)) => received.extend_from_slice(&data),
                    end => break end,
                }
            };
            // No stream looks complete.
            let reset = StreamError::ResetByRemote(ResetStatus::Cancel);
            assert_eq!(end.unwrap_err().to_string(), reset.to_string());
            all.extend_from_slice(&received);
        }
        assert_eq!(all, b"last input");
    }
}
