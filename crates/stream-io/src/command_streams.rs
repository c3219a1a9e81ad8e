//! The SPDY streams of a remote command, on the serving side.

use bytes::Bytes;
use skewbridge_remotecommand::{Channel, Options, STREAM_TYPE, SpdyProtocol};
use skewbridge_spdy::Headers;
use skewbridge_spdy::connection::{Incoming, Receiver, Sender};
use skewbridge_spdy::frame::ResetStatus;

/// The streams that a client opened for a command. A dropped sender resets its stream, so all
/// are kept until the end.
#[derive(Debug, Default)]
pub struct CommandStreams {
    /// From the client.
    pub stdin: Option<Receiver>,
    /// From the client.
    pub resize: Option<Receiver>,
    /// To the client.
    pub stdout: Option<Sender>,
    /// To the client.
    pub stderr: Option<Sender>,
    /// To the client: the error channel.
    pub error: Option<Sender>,
    /// The sending halves of streams that are only read here.
    unused_senders: Vec<Sender>,
}

impl CommandStreams {
    /// Accepts the streams of a command and refuses others. Waits while some are missing: the
    /// caller sets the time limit, and the driver reports the end of the connection.
    pub async fn accept(incoming: &mut Incoming, options: Options, protocol: SpdyProtocol) -> Self {
        let mut missing: Vec<Channel> = options.streams(protocol).collect();
        let mut streams = Self::default();
        while !missing.is_empty() {
            let Some(request) = incoming.next().await else {
                // The driver reports the cause.
                return std::future::pending().await;
            };
            let channel = request.headers().get(STREAM_TYPE);
            let channel = channel.and_then(Channel::from_stream_type);
            let Some(at) = missing.iter().position(|it| Some(*it) == channel) else {
                request.refuse(ResetStatus::RefusedStream);
                continue;
            };
            let Ok(stream) = request.accept(Headers::new()) else {
                continue;
            };
            let (sender, receiver) = (stream.sender, stream.receiver);
            match missing.swap_remove(at) {
                Channel::Stdin => {
                    streams.stdin = Some(receiver);
                    streams.unused_senders.push(sender);
                }
                Channel::Resize => {
                    streams.resize = Some(receiver);
                    streams.unused_senders.push(sender);
                }
                Channel::Stdout => streams.stdout = Some(sender),
                Channel::Stderr => streams.stderr = Some(sender),
                Channel::Error => streams.error = Some(sender),
            }
        }
        streams
    }

    /// Writes the error channel and ends all streams. The error channel comes after all
    /// output, so a client that has it has everything.
    pub async fn finish(mut self, error_bytes: Bytes) {
        for sender in [&mut self.stdout, &mut self.stderr].into_iter().flatten() {
            if sender.finish().is_ok() {
                sender.flushed().await;
            }
        }
        if let Some(error) = &mut self.error {
            if !error_bytes.is_empty() {
                let _ = error.send(error_bytes);
            }
            if error.finish().is_ok() {
                error.flushed().await;
            }
        }
        for mut sender in self.unused_senders {
            // An error is ignored: the client may have ended the stream.
            let _ = sender.finish();
        }
    }
}
