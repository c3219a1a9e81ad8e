//! Where servers tell each other their addresses.

mod etcd;
pub mod file;
mod memory;

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;

use tokio::sync::watch;

pub use etcd::{EtcdRegistry, TlsSource};
pub use file::FileRegistry;
pub use memory::{Exchange, MemoryRegistry};

use crate::identity::Identity;

/// Everyone's address.
pub type Addresses = BTreeMap<Identity, SocketAddr>;

/// Publishes one address, and watches everyone's.
///
/// Whatever happens to it (etcd restarts, a file is broken for a while), it goes
/// on trying, and what was known stays known.
pub trait Registry: Send + Sync + 'static {
    /// Runs until the sender of `own` is dropped or says `None`; then takes back
    /// what it has published, and ends. Whoever waits for that end sets a limit.
    fn run(
        &self,
        own: watch::Receiver<Option<(Identity, SocketAddr)>>,
        found: watch::Sender<Addresses>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// Waits until there is nothing to publish any more.
async fn over(own: &mut watch::Receiver<Option<(Identity, SocketAddr)>>) {
    // An error is the end of the sender, which is an end as well.
    let _ = own.wait_for(Option::is_none).await;
}

/// Tells about addresses, if there is something new.
fn tell(found: &watch::Sender<Addresses>, now: Addresses) {
    found.send_if_modified(|before| {
        let changed = *before != now;
        *before = now;
        changed
    });
}
