//! The streams of a request for a remote command.

use crate::channel::{Channel, Output};
use crate::protocol::SpdyProtocol;
use crate::query;

/// Which channels a remote command has besides the error channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    stdin: bool,
    stdout: bool,
    stderr: Stderr,
}

/// A terminal has one output: kubelets and clients ignore stderr even if it is requested, and
/// runtimes refuse it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stderr {
    Off,
    On,
    Terminal,
}

/// How a query names the options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueryDialect {
    /// `stdin`, `stdout`, `stderr` and `tty`, in requests of clients to kube-apiserver: true unless
    /// they are missing, `0` or `false`.
    Api,
    /// `input`, `output`, `error` and `tty`, in requests of kube-apiserver to kubelets: true if
    /// they are `1`.
    Kubelet,
}

impl Options {
    /// Parses the query of a request. Options that are missing are off, contrary to the defaults in
    /// the API documentation.
    pub fn from_query(dialect: QueryDialect, query: Option<&str>) -> Self {
        let query = query.unwrap_or_default();
        let is_on = |key| {
            let first = query::values(query, key).next();
            first.is_some_and(|value| match dialect {
                QueryDialect::Api => value != "0" && !value.eq_ignore_ascii_case("false"),
                QueryDialect::Kubelet => value == "1",
            })
        };
        let [stdin, stdout, stderr] = match dialect {
            QueryDialect::Api => ["stdin", "stdout", "stderr"],
            QueryDialect::Kubelet => ["input", "output", "error"],
        };
        Self {
            stdin: is_on(stdin),
            stdout: is_on(stdout),
            stderr: match (is_on("tty"), is_on(stderr)) {
                (true, _) => Stderr::Terminal,
                (false, true) => Stderr::On,
                (false, false) => Stderr::Off,
            },
        }
    }

    /// Whether a terminal is requested.
    pub fn tty(self) -> bool {
        self.stderr == Stderr::Terminal
    }

    /// Whether any stream is requested. Otherwise kubelets answer 400.
    pub fn has_any_stream(self) -> bool {
        self.stdin || self.stdout || self.stderr == Stderr::On
    }

    /// Whether a channel is in use over WebSocket. The error channel always is, and terminal
    /// sizes are always read, in every version.
    pub fn has(self, channel: Channel) -> bool {
        match channel {
            Channel::Stdin => self.stdin,
            Channel::Stdout => self.stdout,
            Channel::Stderr => self.stderr == Stderr::On,
            Channel::Error | Channel::Resize => true,
        }
    }

    /// The channel on which a server first writes an empty message, which shows the client
    /// that it is connected: the lowest channel that it may write.
    pub fn initial_channel(self) -> Output {
        if self.stdout {
            Output::Stdout
        } else if self.stderr == Stderr::On {
            Output::Stderr
        } else {
            Output::Error
        }
    }

    /// The streams that an SPDY client opens, in this order, all of them before it writes to
    /// any. A server waits up to 30 s for all streams that it expects.
    pub fn streams(self, protocol: SpdyProtocol) -> impl Iterator<Item = Channel> {
        [
            (Channel::Error, true),
            (Channel::Stdin, self.stdin),
            (Channel::Stdout, self.stdout),
            (Channel::Stderr, self.has(Channel::Stderr)),
            (Channel::Resize, self.tty() && protocol.has_resize_stream()),
        ]
        .into_iter()
        .filter_map(|(channel, is_on)| is_on.then_some(channel))
    }
}

#[cfg(test)]
mod tests {
    use super::Channel::{Error, Resize, Stderr, Stdin, Stdout};
    use super::*;

    fn api(query: &str) -> Options {
        Options::from_query(QueryDialect::Api, Some(query))
    }

    #[test]
    fn options_are_read_as_kube_apiserver_reads_them() {
        let on = |options: Options| {
            let stderr = options.has(Stderr);
            [options.stdin, options.stdout, stderr, options.tty()].map(u8::from)
        };
        let rows = [
            ("", [0, 0, 0, 0]),
            ("command=ls&stdout=true&stderr=true", [0, 1, 1, 0]),
            ("stdin&stdout=&stderr=yes", [1, 1, 1, 0]),
            ("stdin=0&stdout=FALSE&stderr=00", [0, 0, 1, 0]),
            ("stdin=true&stdin=false", [1, 0, 0, 0]),
            ("stdin=true&stdout=true&stderr=true&tty=true", [1, 1, 0, 1]),
            ("st%64in=1&command=a%26stdout=1", [1, 0, 0, 0]),
            ("input=1&output=1", [0, 0, 0, 0]),
        ];
        for (query, expected) in rows {
            assert_eq!(on(api(query)), expected, "{query}");
        }
        let kubelet = |query| on(Options::from_query(QueryDialect::Kubelet, Some(query)));
        assert_eq!(kubelet("input=1&output=1&error=1"), [1, 1, 1, 0]);
        assert_eq!(kubelet("input=true&output=1&error=1&tty=1"), [0, 1, 0, 1]);
        assert_eq!(on(Options::from_query(QueryDialect::Api, None)), [0; 4]);
        assert!(!api("tty=1&stderr=1").has_any_stream());
        assert!(api("stdin=1").has_any_stream());
    }

    #[test]
    fn streams_are_opened_in_the_order_of_client_go() {
        let rows: &[(&str, SpdyProtocol, &[Channel])] = &[
            (
                "stdin=1&stdout=1&stderr=1",
                SpdyProtocol::V4,
                &[Error, Stdin, Stdout, Stderr],
            ),
            (
                "stdin=1&stdout=1&stderr=1&tty=1",
                SpdyProtocol::V4,
                &[Error, Stdin, Stdout, Resize],
            ),
            (
                "stdin=1&stdout=1&tty=1",
                SpdyProtocol::V3,
                &[Error, Stdin, Stdout, Resize],
            ),
            (
                "stdin=1&stdout=1&tty=1",
                SpdyProtocol::V2,
                &[Error, Stdin, Stdout],
            ),
            ("stdout=1", SpdyProtocol::V1, &[Error, Stdout]),
            ("", SpdyProtocol::V4, &[Error]),
        ];
        for (query, protocol, expected) in rows {
            let streams: Vec<_> = api(query).streams(*protocol).collect();
            assert_eq!(streams, *expected, "{query} {protocol:?}");
        }
    }

    #[test]
    fn the_first_message_is_on_the_lowest_channel_that_is_written() {
        assert_eq!(
            api("stdin=1&stdout=1&stderr=1").initial_channel(),
            Output::Stdout
        );
        assert_eq!(api("stderr=1").initial_channel(), Output::Stderr);
        assert_eq!(api("stdin=1").initial_channel(), Output::Error);
        assert_eq!(
            api("stdin=1&stderr=1&tty=1").initial_channel(),
            Output::Error
        );
    }
}
