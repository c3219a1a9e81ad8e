//! Ports for programs whose port is configured before they start.

use std::net::{SocketAddr, TcpListener};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// The port range: below the ephemeral ports of the kernel, so that no outgoing connection
/// takes a port before its server does.
const PORT_RANGE: Range<u16> = 20_000..32_000;

/// How many ports one test process reserves at a time: more than most need.
const BLOCK_SIZE: u16 = 100;

/// A free port that is not assigned again while this process runs: not even to a concurrent
/// test, while its server starts or restarts.
pub fn free_address() -> SocketAddr {
    static OURS: Mutex<Ports> = Mutex::new(Ports::none());
    let mut ours = OURS.lock().unwrap_or_else(PoisonError::into_inner);
    ours.next()
}

/// Ports in blocks that belong to one process.
struct Ports {
    /// Listeners on the first port of each block. They claim the whole block: the kernel
    /// allows one listener, and closes it with the process.
    claims: Vec<TcpListener>,
    remaining: Range<u16>,
}

impl Ports {
    const fn none() -> Self {
        Self {
            claims: Vec::new(),
            remaining: 0..0,
        }
    }

    fn next(&mut self) -> SocketAddr {
        loop {
            let mut remaining = self.remaining.by_ref().map(loopback);
            // A program that does not use these blocks may have taken the port.
            if let Some(free) = remaining.find(|address| TcpListener::bind(address).is_ok()) {
                return free;
            }
            self.claim();
        }
    }

    fn claim(&mut self) {
        let mut blocks: Vec<u16> = PORT_RANGE.step_by(usize::from(BLOCK_SIZE)).collect();
        // Consecutive processes use different blocks: clients of an earlier process may not
        // have noticed yet that it has exited.
        let start = std::process::id() as usize % blocks.len();
        blocks.rotate_left(start);
        let mut claims = blocks
            .into_iter()
            .filter_map(|first| Some((TcpListener::bind(loopback(first)).ok()?, first)));
        let (claim, first) = claims.next().expect("a free block of ports");
        self.claims.push(claim);
        self.remaining = first + 1..first + BLOCK_SIZE;
    }
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn two_processes_never_get_the_same_port() {
        let (mut one, mut other) = (Ports::none(), Ports::none());
        let mut assigned = BTreeSet::new();
        // More than one block each, and no listener on the ports yet.
        for _ in 0..=BLOCK_SIZE {
            for ports in [&mut one, &mut other] {
                let address = ports.next();
                assert!(PORT_RANGE.contains(&address.port()), "{address}");
                assert!(assigned.insert(address), "{address} was assigned twice");
            }
        }
        assert_eq!((one.claims.len(), other.claims.len()), (2, 2));
    }

    #[test]
    fn a_port_in_use_is_skipped() {
        let mut ports = Ports::none();
        let first = ports.next();
        let taken = TcpListener::bind(loopback(first.port() + 1));
        let next = ports.next();
        assert!(taken.is_err() || next.port() > first.port() + 1, "{next}");
    }
}
