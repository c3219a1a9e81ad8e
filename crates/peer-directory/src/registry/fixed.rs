//! The kube-apiservers behind one bridge, as each other's peers: configured, or listed in
//! `EndpointSlices`.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::sync::watch;
use tokio::time::sleep;

use super::{
    Activity, Addresses, AdvertisedAddress, Registry, StatusReporter, send_if_changed,
    wait_until_withdrawn,
};
use crate::identity::Identity;

/// The interval between two lookups of host names. An address changes when a host is replaced, which
/// takes minutes.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(30);

/// The interval while a host name has no address.
const FAILED_LOOKUP_INTERVAL: Duration = Duration::from_secs(2);

/// A kube-apiserver that is configured by host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FixedServer {
    /// The identity by which the bridge names it.
    pub identity: Identity,
    /// A name or an address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl FixedServer {
    /// Host and port, with brackets around an IPv6 address.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

/// A registry of the servers behind one bridge. It publishes nothing.
#[derive(Debug)]
pub struct FixedRegistry {
    /// All of them, with the own one.
    servers: watch::Receiver<Vec<FixedServer>>,
    reporter: Arc<StatusReporter>,
}

impl FixedRegistry {
    /// A registry of these servers.
    pub fn new(servers: watch::Receiver<Vec<FixedServer>>) -> Self {
        Self {
            servers,
            reporter: Arc::new(StatusReporter::new("upstream flags", &[Activity::Read])),
        }
    }

    /// Looks all servers up, except for the own one. A server that has no address now keeps its last
    /// one.
    async fn look_up(
        servers: &[FixedServer],
        own: Option<&Identity>,
        known: &mut Addresses,
    ) -> Result<(), String> {
        let mut outcome = Ok(());
        known.retain(|identity, _| servers.iter().any(|it| it.identity == *identity));
        for server in servers.iter().filter(|it| Some(&it.identity) != own) {
            match address(&server.host, server.port).await {
                Ok(address) => {
                    let advertised = AdvertisedAddress::by_server(address);
                    known.insert(server.identity.clone(), advertised);
                }
                Err(problem) => outcome = Err(problem),
            }
        }
        outcome
    }
}

async fn address(host: &str, port: u16) -> Result<SocketAddr, String> {
    let found = lookup_host((host, port)).await;
    let mut found = found.map_err(|error| format!("{host}: {error}"))?;
    found.next().ok_or_else(|| format!("{host} has no address"))
}

impl Registry for FixedRegistry {
    fn run(
        &self,
        mut own: watch::Receiver<Option<(Identity, SocketAddr)>>,
        found: watch::Sender<Addresses>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move {
            let own_identity = own.borrow().as_ref().map(|(identity, _)| identity.clone());
            let mut servers = self.servers.clone();
            let follow = async {
                let mut known = Addresses::new();
                let mut is_first = true;
                loop {
                    let current = servers.borrow_and_update().clone();
                    let outcome = Self::look_up(&current, own_identity.as_ref(), &mut known).await;
                    send_if_changed(&found, known.clone());
                    if std::mem::take(&mut is_first) {
                        // A name without an address must not keep the others from being used.
                        self.reporter.succeeded(Activity::Read);
                    }
                    let pause = match outcome {
                        Ok(()) => {
                            self.reporter.succeeded(Activity::Read);
                            LOOKUP_INTERVAL
                        }
                        Err(problem) => {
                            self.reporter.failed(Activity::Read, problem);
                            FAILED_LOOKUP_INTERVAL
                        }
                    };
                    let changed = async {
                        if servers.changed().await.is_err() {
                            std::future::pending::<()>().await;
                        }
                    };
                    tokio::select! {
                        () = sleep(pause) => {}
                        () = changed => {}
                    }
                }
            };
            tokio::select! {
                () = wait_until_withdrawn(&mut own) => {}
                () = follow => {}
            }
        })
    }

    fn reporter(&self) -> Arc<StatusReporter> {
        self.reporter.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(name: &str, host: &str) -> FixedServer {
        FixedServer {
            identity: Identity::named(name).unwrap(),
            host: host.to_owned(),
            port: 6443,
        }
    }

    #[tokio::test]
    async fn servers_are_found_at_their_addresses_and_followed() {
        let first = server("upstream-1", "192.0.2.1");
        let second = server("upstream-2", "::1");
        let own = server("upstream-3", "192.0.2.3");
        let (change, servers) = watch::channel(vec![first, second.clone(), own.clone()]);
        let registry = FixedRegistry::new(servers);
        let (publish, own_address) = watch::channel(Some((
            own.identity.clone(),
            SocketAddr::from(([127, 0, 0, 1], 1)),
        )));
        let (found, mut addresses) = watch::channel(Addresses::new());
        let texts = |found: &Addresses| -> Vec<_> {
            let found = found.iter();
            let text = |(identity, it): (&Identity, &AdvertisedAddress)| {
                format!("{}={}", identity.as_str(), it.address)
            };
            found.map(text).collect()
        };
        let follow = async {
            let before = addresses.wait_for(|it| it.len() == 2).await;
            let before = texts(&before.unwrap());
            change.send_replace(vec![second, own, server("upstream-4", "192.0.2.4")]);
            let is_changed = |it: &Addresses| it.keys().any(|it| it.as_str() == "upstream-4");
            let after = texts(&addresses.wait_for(is_changed).await.unwrap());
            publish.send_replace(None);
            (before, after)
        };
        let ((), (before, after)) = tokio::join!(registry.run(own_address, found), follow);
        assert_eq!(
            before,
            ["upstream-1=192.0.2.1:6443", "upstream-2=[::1]:6443"]
        );
        assert_eq!(
            after,
            ["upstream-2=[::1]:6443", "upstream-4=192.0.2.4:6443"]
        );
        assert!(registry.status().borrow().read);
    }
}
