//! The two addresses of a server of a control plane.

/// Which address of a server a client uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// That of the server itself.
    Server,
    /// That of its bridge.
    Bridge,
}
