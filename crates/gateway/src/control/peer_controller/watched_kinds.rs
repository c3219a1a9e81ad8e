//! The kinds that the controller watches, and how far the objects of each are known.

use std::sync::Arc;
use std::time::Instant;

use skewbridge_peer_directory::{
    ApiService, CustomResourceDefinition, EndpointSlice, IdentityLease, endpoint_slice, lease,
};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::Event;
use super::informer::{self, WatchTarget};
use crate::control::internal_client::InternalClient;
use crate::peer_config::PeeringConfig;

const LEASES: WatchTarget<'static> = WatchTarget {
    path: lease::LEASES_PATH,
    selector: "&labelSelector=apiserver.kubernetes.io%2Fidentity%3Dkube-apiserver",
    page_size: 500,
    description: "identity Leases",
};
const API_SERVICES: WatchTarget<'static> = WatchTarget {
    path: "/apis/apiregistration.k8s.io/v1/apiservices",
    selector: "",
    page_size: 500,
    description: "APIServices",
};
/// Each can have the maximum size of an object: a small page bounds the memory.
const CUSTOM_RESOURCES: WatchTarget<'static> = WatchTarget {
    path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    selector: "",
    page_size: 20,
    description: "CustomResourceDefinitions",
};

/// kube-apiserver writes one, with all addresses.
pub(crate) const ENDPOINT_SLICES: WatchTarget<'_> = WatchTarget {
    path: endpoint_slice::ENDPOINT_SLICES_PATH,
    selector: endpoint_slice::SELECTOR,
    page_size: 100,
    description: "EndpointSlices",
};

/// Starts an informer for each kind.
pub(super) fn spawn_informers(
    tasks: &mut JoinSet<()>,
    client: &Arc<InternalClient>,
    events: &mpsc::Sender<Event>,
    peering_config: &PeeringConfig,
) {
    let handles = || (client.clone(), events.clone());
    if peering_config.registry.fixed_peers().is_none() {
        let (api, to) = handles();
        tasks.spawn(async move { informer::run::<IdentityLease, _>(&api, LEASES, &to).await });
    }
    let (api, to) = handles();
    tasks.spawn(async move { informer::run::<ApiService, _>(&api, API_SERVICES, &to).await });
    let (api, to) = handles();
    tasks.spawn(async move {
        informer::run::<CustomResourceDefinition, _>(&api, CUSTOM_RESOURCES, &to).await;
    });
    if peering_config.reads_endpoints {
        let (api, to) = handles();
        tasks.spawn(async move {
            informer::run::<EndpointSlice, _>(&api, ENDPOINT_SLICES, &to).await;
        });
    }
}

/// How far the objects of one kind are known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum InformerState {
    #[default]
    Unknown,
    /// All were listed once.
    Listed,
    /// Changes arrive as events.
    Watched,
}

impl InformerState {
    /// Whether events report changes from here on. They do only after a list.
    pub(super) fn set_watched(&mut self, is_watched: bool) {
        *self = match (is_watched, *self) {
            (true, _) => Self::Watched,
            (false, Self::Unknown) => Self::Unknown,
            (false, Self::Listed | Self::Watched) => Self::Listed,
        };
    }
}

/// How far the kinds are known that all servers share.
#[derive(Debug, Default)]
pub(super) struct InformerStates {
    pub(super) api_services: InformerState,
    pub(super) custom_resources: InformerState,
    /// Since when both are watched.
    pub(super) watched_since: Option<Instant>,
}

impl InformerStates {
    pub(super) fn least(&self) -> InformerState {
        self.api_services.min(self.custom_resources)
    }

    /// A watch was opened or has ended.
    pub(super) fn note_watch(&mut self, now: Instant) {
        let is_watched = self.least() == InformerState::Watched;
        self.watched_since = is_watched.then(|| self.watched_since.unwrap_or(now));
    }
}
