//! When somebody may be asked whether it lives.

/// How the other end of a stream is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PingPolicy {
    /// Whenever it is time: a client, or who forwards ports, ends nothing before we do.
    Always,
    /// Who runs a command closes the connection when that has ended. It answers whatever comes
    /// then with a reset of TCP, and what has not been sent by it, or by a kube-apiserver
    /// between, is lost: the end of an output. So it is asked before what is sent anyway, or
    /// when nothing was sent or heard for a while, but not while it is not read. Only if it was
    /// sent so much that its silence would mean nothing, it is asked while it is heard, too.
    AvoidNearEof,
}
