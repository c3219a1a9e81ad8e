//! The directory of the other kube-apiservers of a cluster: their identities, their identity
//! Leases, their addresses and served APIs, their health, the rules for the identity Lease of the
//! local server, and the group-versions that are never routed to a peer. Apart from the
//! registries, the crate does no I/O, and callers pass the time.
//!
//! ```
//! use std::time::{Duration, Instant, SystemTime};
//! use skewbridge_peer_directory::{LeaseAction, Identity, LeaseController, ClockReading, Upstream};
//!
//! let identity = Identity::of_hostname("kube-apiserver-0-1-36-4");
//! assert_eq!(identity.as_str(), "apiserver-ihqvzrdal7px3zqf5s6ecqs5ei");
//!
//! // The local kube-apiserver is ready and its Lease does not exist: the bridge creates it.
//! let mut controller = LeaseController::new(identity, "kube-apiserver-0-1-36-4", "0b2f7c1e");
//! let start = ClockReading { monotonic: Instant::now(), wall: SystemTime::now() };
//! assert!(matches!(controller.observe(None, Upstream::Ready, start), LeaseAction::Wait { .. }));
//! let later = start + Duration::from_secs(10);
//! let LeaseAction::Create(lease) = controller.observe(None, Upstream::Ready, later) else {
//!     panic!("ten seconds are enough");
//! };
//! assert_eq!(lease.hostname(), Some("kube-apiserver-0-1-36-4"));
//! ```

pub mod address_record;
pub mod confirmation;
pub mod endpoint_slice;
pub mod error;
pub mod host_time;
pub mod identity;
pub mod lease;
pub mod lease_controller;
pub mod peer;
pub mod peer_health;
pub mod peer_name;
pub mod peer_table;
pub mod reachability;
pub mod refresh_schedule;
pub mod registry;
pub mod served_apis;
pub mod served_record;
pub mod server_addresses;
pub mod shared_group_versions;
pub mod watch;

pub use address_record::AddressRecord;
pub use confirmation::Confirmation;
pub use endpoint_slice::{EndpointSlice, KubernetesEndpoints};
pub use error::Error;
pub use host_time::{HostClock, HostTime};
pub use identity::Identity;
pub use lease::{IdentityLease, LeaseDeletion};
pub use lease_controller::{ClockReading, LeaseAction, LeaseController, Upstream, stale_leases};
pub use peer::{ApiSource, Peer, PeerLookup, PeerRecord, Peers, order_candidates};
pub use peer_health::{InFlightGuard, PeerHealth};
pub use peer_name::PeerName;
pub use peer_table::{LeaseSnapshot, ListedAddresses, PeerTable};
pub use reachability::{Reachability, reachability};
pub use served_apis::ServedApis;
pub use served_record::{KeyDigest, RecordError, Records, ServedRecord, StoredDeparture};
pub use server_addresses::{KnownServers, ObservedServer, ServerAddresses};
pub use shared_group_versions::{
    ApiService, CustomResourceDefinition, SharedGroupVersionTracker, SharedGroupVersions,
};
pub use skewbridge_k8s_api::time::MicroTime;
pub use watch::{List, WatchError, WatchEvent, WatchedObject};
