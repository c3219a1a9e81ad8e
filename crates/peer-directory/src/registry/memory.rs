//! Addresses in the memory of one process: for the playground and for tests.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::watch;

use super::{
    Addresses, AdvertisedAddress, RecordChannels, Registry, StatusReporter, send_if_changed,
    wait_until_withdrawn,
};
use crate::identity::Identity;
use crate::served_record::Records;

/// The registry that the servers of one process share.
#[derive(Debug, Clone)]
pub struct SharedMemoryRegistry(Arc<watch::Sender<Addresses>>, Arc<watch::Sender<Records>>);

impl PartialEq for SharedMemoryRegistry {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for SharedMemoryRegistry {}

impl Default for SharedMemoryRegistry {
    fn default() -> Self {
        Self(
            Arc::new(watch::Sender::new(Addresses::new())),
            Arc::new(watch::Sender::new(Records::new())),
        )
    }
}

impl SharedMemoryRegistry {
    /// A registry handle for one server.
    pub fn registry(&self) -> MemoryRegistry {
        MemoryRegistry {
            shared: self.clone(),
            reporter: Arc::new(StatusReporter::new("memory", &[])),
        }
    }
}

/// A registry for servers that share a process.
#[derive(Debug, Clone)]
pub struct MemoryRegistry {
    shared: SharedMemoryRegistry,
    reporter: Arc<StatusReporter>,
}

impl Registry for MemoryRegistry {
    fn run(
        &self,
        mut own: watch::Receiver<Option<(Identity, SocketAddr)>>,
        found: watch::Sender<Addresses>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move {
            let shared = &*self.shared.0;
            let published = own.borrow_and_update().clone();
            if let Some((identity, address)) = &published {
                shared.send_modify(|all| {
                    all.insert(identity.clone(), AdvertisedAddress::by_bridge(*address));
                });
            }
            let mut changes = shared.subscribe();
            let follow = async {
                loop {
                    send_if_changed(&found, changes.borrow_and_update().clone());
                    if changes.changed().await.is_err() {
                        return;
                    }
                }
            };
            tokio::select! {
                () = wait_until_withdrawn(&mut own) => {}
                () = follow => {}
            }
            if let Some((identity, _)) = &published {
                shared.send_modify(|all| {
                    all.remove(identity);
                });
            }
        })
    }

    fn reporter(&self) -> Arc<StatusReporter> {
        self.reporter.clone()
    }

    fn run_records(
        &self,
        mut channels: RecordChannels,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move {
            let records = &*self.shared.1;
            let mut changes = records.subscribe();
            loop {
                let own = channels.own.borrow_and_update().clone();
                if let Some(own) = own {
                    let is_last = own.bridge_left_at.is_some();
                    records.send_if_modified(|all| {
                        let known = all.get(&own.identity);
                        let is_news = known.is_none_or(|known| !known.has_same_content(&own));
                        if is_news {
                            all.insert(own.identity.clone(), own);
                        }
                        is_news
                    });
                    if is_last {
                        return;
                    }
                }
                let all = changes.borrow_and_update().clone();
                channels.found.send_replace(Some(all));
                tokio::select! {
                    ended = changes.changed() => if ended.is_err() { return },
                    ended = channels.own.changed() => if ended.is_err() { return },
                    Some(outdated) = channels.outdated.recv() => {
                        records.send_modify(|all| {
                            if all.get(&outdated.identity).is_some_and(|it| it.observed_at == outdated.observed_at) {
                                all.remove(&outdated.identity);
                            }
                        });
                    }
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use tokio::sync::mpsc;

    use super::*;
    use crate::served_record::tests::record;

    #[tokio::test]
    async fn a_record_is_kept_when_its_bridge_departs_and_removed_when_it_is_outdated() {
        let shared = SharedMemoryRegistry::default();
        let run = |shared: &SharedMemoryRegistry, own| {
            let registry = shared.registry();
            let (found, seen) = watch::channel(None);
            let (remove, outdated) = mpsc::channel(1);
            let channels = RecordChannels {
                own,
                found,
                outdated,
            };
            let task = tokio::spawn(async move { registry.run_records(channels).await });
            (task, seen, remove)
        };
        let (_stays, nothing) = watch::channel(None);
        let (_task, mut seen, remove) = run(&shared, nothing);
        seen.wait_for(Option::is_some).await.unwrap();
        let first = record("apiserver-a", &["apps"], SystemTime::now());
        let (publish, own) = watch::channel(Some(Arc::new(first.clone())));
        let (task, _, _) = run(&shared, own);
        let a = identity("apiserver-a");
        let has = |all: &Option<Records>, left: bool| {
            let record = all.as_ref().and_then(|all| all.get(&a));
            record.is_some_and(|record| record.bridge_left_at.is_some() == left)
        };
        seen.wait_for(|all| has(all, false)).await.unwrap();
        let mut last = first.clone();
        last.bridge_left_at = Some(SystemTime::now());
        publish.send_replace(Some(Arc::new(last)));
        task.await.unwrap();
        seen.wait_for(|all| has(all, true)).await.unwrap();

        let mut other = first.clone();
        other.observed_at += std::time::Duration::from_secs(1);
        remove.send(Arc::new(other)).await.unwrap();
        remove.send(Arc::new(first)).await.unwrap();
        seen.wait_for(|all| all.as_ref().is_some_and(Records::is_empty))
            .await
            .unwrap();
    }

    fn identity(name: &str) -> Identity {
        Identity::named(name).unwrap()
    }

    #[tokio::test]
    async fn a_published_address_is_visible_to_all_until_it_is_withdrawn() {
        let shared = SharedMemoryRegistry::default();
        let address: SocketAddr = "127.0.0.1:6443".parse().unwrap();
        let (leave, own) = watch::channel(Some((identity("apiserver-a"), address)));
        let registry = shared.registry();
        let (found, _) = watch::channel(Addresses::new());
        let publisher = tokio::spawn(async move { registry.run(own, found).await });

        let (_stays, nothing) = watch::channel(Some((identity("apiserver-b"), address)));
        let looks = shared.registry();
        let (found, mut seen) = watch::channel(Addresses::new());
        tokio::spawn(async move { looks.run(nothing, found).await });
        let a = identity("apiserver-a");
        seen.wait_for(|all| all.contains_key(&a)).await.unwrap();

        leave.send_replace(None);
        publisher.await.unwrap();
        seen.wait_for(|all| !all.contains_key(&a)).await.unwrap();
    }
}
