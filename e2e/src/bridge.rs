//! Additional bridges with their own flags.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use skewbridge_testkit::eventually;

use crate::binaries;
use crate::control_plane::{ControlPlane, READY_TIMEOUT, admin_at, bridge_flags};
use crate::ports::free_address;
use crate::process::Process;

/// A bridge besides those of the servers of a control plane. It stops when it is dropped.
pub struct Bridge {
    /// The address it listens on.
    pub address: SocketAddr,
    /// The address of its admin port.
    pub admin: SocketAddr,
    /// The bridge process.
    pub process: Process,
}

impl ControlPlane {
    /// Starts a bridge in front of this address, and waits until it is ready.
    pub async fn start_bridge_for(&self, upstream: SocketAddr, flags: &[&str]) -> Bridge {
        let bridge = self.spawn_bridge_for(upstream, flags);
        let name = format!("a bridge at {}", bridge.address);
        self.wait_for_ready(&name, bridge.address).await;
        eventually(&name, READY_TIMEOUT, async || {
            matches!(bridge.admin_page("/readyz").await, Some((200, _)))
        })
        .await;
        bridge
    }

    /// Starts a bridge in front of this address without waiting until it is ready.
    pub fn spawn_bridge_for(&self, upstream: SocketAddr, flags: &[&str]) -> Bridge {
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
    /// The status and the body of a page of its admin port; `None` while it does not respond.
    pub async fn admin_page(&self, path: &str) -> Option<(u16, String)> {
        admin_at(self.admin, path).await
    }
}
