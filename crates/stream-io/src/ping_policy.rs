//! The policy for keepalive pings of a stream.

/// Keepalive ping policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PingPolicy {
    /// Whenever a ping is due: the other end is a client or forwards ports, and does not close
    /// the connection first.
    Always,
    /// The other end runs a command, and closes the connection when the command has ended. It
    /// answers data that arrives after that with a TCP reset, and then output that it, or a
    /// kube-apiserver in between, has not sent yet is lost. So pings go out ahead of data that
    /// is sent anyway, or when nothing was sent or received for a while, but not while the
    /// local side does not read. Only if so much was sent that silence would be inconclusive,
    /// pings also go out while data is received.
    AvoidNearEof,
}
