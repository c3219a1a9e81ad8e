//! Ports for programs that have to be told theirs before they start.

use std::net::{SocketAddr, TcpListener};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Where they are taken from: below those that the kernel gives to outgoing
/// connections, or one of these could take a port before its server does.
const ALL: Range<u16> = 20_000..32_000;

/// How many belong to one process of tests: more than most need.
const BLOCK: u16 = 100;

/// A port that nobody has, and that is given to nobody else as long as this
/// process lives: not to a test beside this one either, while a server that has
/// it starts, or starts again.
pub(crate) fn free_address() -> SocketAddr {
    static OURS: Mutex<Ports> = Mutex::new(Ports::none());
    let mut ours = OURS.lock().unwrap_or_else(PoisonError::into_inner);
    ours.next()
}

/// Ports in blocks that one process has for itself.
struct Ports {
    /// Who listens on the first port of a block has the others: the kernel sees to
    /// it that it is one, and takes it back when the process is gone.
    claims: Vec<TcpListener>,
    left: Range<u16>,
}

impl Ports {
    const fn none() -> Self {
        Self {
            claims: Vec::new(),
            left: 0..0,
        }
    }

    fn next(&mut self) -> SocketAddr {
        loop {
            let mut left = self.left.by_ref().map(loopback);
            // Somebody who knows nothing of blocks may have it.
            if let Some(free) = left.find(|address| TcpListener::bind(address).is_ok()) {
                return free;
            }
            self.claim();
        }
    }

    fn claim(&mut self) {
        let mut blocks: Vec<u16> = ALL.step_by(usize::from(BLOCK)).collect();
        // Of processes one after the other each has others: clients of the first
        // may not have noticed yet that it has ended.
        let begin = std::process::id() as usize % blocks.len();
        blocks.rotate_left(begin);
        let mut claims = blocks
            .into_iter()
            .filter_map(|first| Some((TcpListener::bind(loopback(first)).ok()?, first)));
        let (claim, first) = claims.next().expect("a free block of ports");
        self.claims.push(claim);
        self.left = first + 1..first + BLOCK;
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
    fn two_that_run_side_by_side_are_never_given_the_same() {
        let (mut one, mut other) = (Ports::none(), Ports::none());
        let mut given = BTreeSet::new();
        // More than a block for each, and nobody listens on them yet.
        for _ in 0..=BLOCK {
            for ports in [&mut one, &mut other] {
                let address = ports.next();
                assert!(ALL.contains(&address.port()), "{address}");
                assert!(given.insert(address), "{address} is given twice");
            }
        }
        assert_eq!((one.claims.len(), other.claims.len()), (2, 2));
    }

    #[test]
    fn a_port_that_somebody_has_is_left_out() {
        let mut ports = Ports::none();
        let first = ports.next();
        let taken = TcpListener::bind(loopback(first.port() + 1));
        let next = ports.next();
        assert!(taken.is_err() || next.port() > first.port() + 1, "{next}");
    }
}
