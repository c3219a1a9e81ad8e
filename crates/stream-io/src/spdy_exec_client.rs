//! A remote command by SPDY, as its client: the streams to the client, and how it
//! ends.

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
    /// Whether the node still lives.
    pub pinger: SpdyPinger,
    /// Moves the bytes, until the connection has ended.
    driver: Option<Driver<ObservedIo<Rewind<T>>>>,
    stdin: Option<Sender>,
    resize: Option<Sender>,
    stdout: Option<Receiver>,
    stderr: Option<Receiver>,
    /// Whose turn it is.
    stderr_first: bool,
    error: Option<Receiver>,
    error_channel: Option<ErrorChannel>,
    /// An output was cut off.
    output_truncated: bool,
    /// What was told was cut off.
    error_truncated: bool,
    /// What is only read, or only written: clients of Kubernetes do not end the
    /// other half of it.
    unused_halves: Vec<UnusedHalf>,
}

#[derive(Debug)]
#[allow(dead_code)] // kept, not used
enum UnusedHalf {
    Sender(Sender),
    Receiver(Receiver),
}

/// What comes from the command.
#[derive(Debug)]
pub enum ExecEvent {
    /// It has written this.
    Data(Output, Bytes),
    /// All is said.
    Ended(ExecResult),
}

/// How a command ended.
#[derive(Debug)]
pub struct ExecResult {
    /// What it comes to.
    pub outcome: Outcome,
    /// What the node told of it, word for word.
    pub error_bytes: Bytes,
}

impl<T: AsyncRead + AsyncWrite + Unpin> SpdyExecClient<T> {
    /// Opens the streams of a command, in the order of Kubernetes' own clients, on a
    /// connection of which these bytes have been read already.
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
        // Nodes open none.
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

    /// Moves bytes both ways, as far as it goes now.
    pub fn drive(&mut self, cx: &mut Context<'_>) {
        self.pinger.before_drive();
        if let Some(driver) = &mut self.driver
            && let Poll::Ready(ended) = Pin::new(driver).poll(cx)
        {
            if let Err(error) = ended {
                tracing::debug!(%error, "the connection to a node failed");
            }
            self.driver = None;
        }
    }

    /// The client has left: sends what it has written, and resets the streams. They
    /// are not ended, or an upload that was interrupted would look complete.
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
        // Who holds a handle keeps the connection.
        drop(pinger);
        // What still comes is for nobody: it must not keep the node from reading.
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
        // A stream that somebody holds keeps the connection.
        drop((stdin, resize, unused_halves));
        handle.close();
        drop(handle);
        let _ = driver.await;
    }

    /// Whether an input has room. What nobody listens to has.
    pub fn poll_ready(&mut self, input: Input, cx: &Context<'_>) -> Poll<()> {
        let sender = self.sender(input);
        match sender.as_mut().map(|sender| sender.poll_ready(cx)) {
            Some(Poll::Pending) => Poll::Pending,
            Some(Poll::Ready(Err(_))) => {
                // The command has closed its stdin, or is over.
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

    /// Whether nobody listens to an input.
    pub fn is_closed(&self, input: Input) -> bool {
        match input {
            Input::Stdin => self.stdin.is_none(),
            Input::Resize => self.resize.is_none(),
        }
    }

    /// Ends an input.
    pub fn close(&mut self, input: Input) {
        if let Some(mut sender) = self.sender(input).take() {
            // If it is over already, so is the input.
            let _ = sender.finish();
        }
    }

    fn sender(&mut self, input: Input) -> &mut Option<Sender> {
        match input {
            Input::Stdin => &mut self.stdin,
            Input::Resize => &mut self.resize,
        }
    }

    /// What the command says next. How it ended is told when all it has written is:
    /// whoever hears the end has heard everything.
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

    /// Not all that the command wrote has come, or nobody has said how it ended:
    /// then nothing else that was said counts.
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

/// The next bytes of one output; `None` when it has ended.
fn poll_half(half: &mut Option<Receiver>, cut: &mut bool, cx: &Context<'_>) -> Poll<Option<Bytes>> {
    let Some(receiver) = half else {
        return Poll::Ready(None);
    };
    match receiver.poll_read(cx) {
        Poll::Pending => Poll::Pending,
        Poll::Ready(Ok(Some(data))) => Poll::Ready(Some(data)),
        Poll::Ready(ended) => {
            *cut |= ended.is_err_and(|error| !is_end(&error));
            *half = None;
            Poll::Ready(None)
        }
    }
}

/// Whether a stream that was ended by force has come to its end all the same:
/// Kubernetes' servers say how a command ended, and then reset what they have and go
/// away. If they have not read all input by then, TCP resets the connection, and some
/// or all of that is lost; what was said is not. A Status that has come whole is the
/// last that they write, so everything came that was written before it; without one
/// nobody knows, and [`ErrorChannel`] says so.
fn is_end(error: &StreamError) -> bool {
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

    /// Longer than anything here takes.
    const TEST_TIMEOUT: Duration = Duration::from_secs(20);

    const CONFIG: KeepaliveConfig = KeepaliveConfig {
        interval: TEST_TIMEOUT,
        timeout: TEST_TIMEOUT,
    };

    #[tokio::test]
    async fn a_client_that_leaves_has_left_when_all_is_said() {
        let query = "command=sh&stdin=true&stdout=true&tty=true";
        let options = Options::from_query(QueryDialect::Api, Some(query));
        let (here, there) = tokio::io::duplex(4096);
        let mut client =
            SpdyExecClient::open(here, BytesMut::new(), options, SpdyProtocol::V4, CONFIG).unwrap();
        let (_handle, mut incoming, driver) = connection::server(there, Config::default());
        let node_ended = tokio::spawn(driver);
        let taking = tokio::spawn(async move {
            let mut streams = Vec::new();
            for _ in options.streams(SpdyProtocol::V4) {
                let request = incoming.next().await.unwrap();
                streams.push(request.accept(Headers::new()).unwrap());
            }
            (streams, incoming)
        });
        client.write(Input::Stdin, Bytes::from_static(b"last words"));
        // Its output is not read by anybody here.
        timeout(TEST_TIMEOUT, client.disconnect())
            .await
            .expect("it waits for nobody");
        timeout(TEST_TIMEOUT, node_ended)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        let (mut streams, _incoming) = taking.await.unwrap();
        let mut all = Vec::new();
        for stream in &mut streams {
            let mut said = Vec::new();
            let end = loop {
                match stream.receiver.read().await {
                    Ok(Some(data)) => said.extend_from_slice(&data),
                    end => break end,
                }
            };
            // None of them looks complete.
            let reset = StreamError::ResetByRemote(ResetStatus::Cancel);
            assert_eq!(end.unwrap_err().to_string(), reset.to_string());
            all.extend_from_slice(&said);
        }
        assert_eq!(all, b"last words");
    }
}
