//! Further bridges, each with flags of its own.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use skewbridge_testkit::eventually;

use crate::binaries;
use crate::control_plane::{ControlPlane, READY, admin_at, bridge_flags};
use crate::ports::free_address;
use crate::process::Process;

/// A bridge that no server of a plane was started with. It ends when it is dropped.
pub struct Bridge {
    /// Where it listens.
    pub address: SocketAddr,
    /// Where it tells about itself.
    pub admin: SocketAddr,
    /// The bridge itself.
    pub process: Process,
}

impl ControlPlane {
    /// Starts a bridge in front of this address, and waits until it is ready.
    pub async fn bridge_before(&self, upstream: SocketAddr, flags: &[&str]) -> Bridge {
        let bridge = self.starting_bridge_before(upstream, flags);
        let name = format!("a bridge at {}", bridge.address);
        self.ready(&name, bridge.address).await;
        eventually(&name, READY, async || {
            matches!(bridge.admin_page("/readyz").await, Some((200, _)))
        })
        .await;
        bridge
    }

    /// Starts a bridge in front of this address that may never be ready.
    pub fn starting_bridge_before(&self, upstream: SocketAddr, flags: &[&str]) -> Bridge {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("further-bridge-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let (address, admin) = (free_address(), free_address());
        let mut arguments = bridge_flags(&self.pki, upstream, address, admin);
        arguments.extend(flags.iter().map(|&flag| flag.to_owned()));
        let program = binaries::bridge();
        let process = Process::start(&name, &name, &program, &arguments, self.pki.path());
        Bridge {
            address,
            admin,
            process,
        }
    }
}

impl Bridge {
    /// The status and the body of a page of its admin port, once that answers.
    pub async fn admin_page(&self, path: &str) -> Option<(u16, String)> {
        admin_at(self.admin, path).await
    }
}
