//! Addresses in the memory of one process: for the playground and for tests.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::watch;

use super::{Addresses, Registry, over, tell};
use crate::identity::Identity;

/// What the servers of one process share.
#[derive(Debug, Clone)]
pub struct Exchange(Arc<watch::Sender<Addresses>>);

impl PartialEq for Exchange {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Exchange {}

impl Default for Exchange {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Addresses::new())))
    }
}

impl Exchange {
    /// A server's view of it.
    pub fn registry(&self) -> MemoryRegistry {
        MemoryRegistry(self.clone())
    }
}

/// A registry for servers that share a process.
#[derive(Debug, Clone)]
pub struct MemoryRegistry(Exchange);

impl Registry for MemoryRegistry {
    fn run(
        &self,
        mut own: watch::Receiver<Option<(Identity, SocketAddr)>>,
        found: watch::Sender<Addresses>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move {
            let exchange = &*self.0.0;
            let published = own.borrow_and_update().clone();
            if let Some((identity, address)) = &published {
                exchange.send_modify(|all| {
                    all.insert(identity.clone(), *address);
                });
            }
            let mut changes = exchange.subscribe();
            let follow = async {
                loop {
                    tell(&found, changes.borrow_and_update().clone());
                    if changes.changed().await.is_err() {
                        return;
                    }
                }
            };
            tokio::select! {
                () = over(&mut own) => {}
                () = follow => {}
            }
            if let Some((identity, _)) = &published {
                exchange.send_modify(|all| {
                    all.remove(identity);
                });
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(name: &str) -> Identity {
        Identity::named(name).unwrap()
    }

    #[tokio::test]
    async fn who_publishes_is_seen_by_all_until_it_leaves() {
        let exchange = Exchange::default();
        let address: SocketAddr = "127.0.0.1:6443".parse().unwrap();
        let (leave, own) = watch::channel(Some((identity("apiserver-a"), address)));
        let registry = exchange.registry();
        let (found, _) = watch::channel(Addresses::new());
        let publisher = tokio::spawn(async move { registry.run(own, found).await });

        let (_stays, nothing) = watch::channel(Some((identity("apiserver-b"), address)));
        let looks = exchange.registry();
        let (found, mut seen) = watch::channel(Addresses::new());
        tokio::spawn(async move { looks.run(nothing, found).await });
        let a = identity("apiserver-a");
        seen.wait_for(|all| all.contains_key(&a)).await.unwrap();

        leave.send_replace(None);
        publisher.await.unwrap();
        seen.wait_for(|all| !all.contains_key(&a)).await.unwrap();
    }
}
