//! Who the other kube-apiservers of a cluster are, and where they listen: their
//! identities, the Leases that say who lives, the address records in etcd, who
//! keeps our own Lease, and what is never routed to a peer. Nothing here touches
//! a socket or reads a clock.
//!
//! ```
//! use std::time::{Duration, Instant, SystemTime};
//! use skewbridge_peers::{Action, Identity, Keeper, Moment, Upstream};
//!
//! let identity = Identity::of_hostname("kube-apiserver-0-1-36-4");
//! assert_eq!(identity.as_str(), "apiserver-ihqvzrdal7px3zqf5s6ecqs5ei");
//!
//! // Our kube-apiserver is up, and nobody writes its Lease: we do.
//! let mut keeper = Keeper::new(identity, "kube-apiserver-0-1-36-4", "0b2f7c1e");
//! let start = Moment { monotonic: Instant::now(), wall: SystemTime::now() };
//! assert!(matches!(keeper.observe(None, Upstream::Ready, start), Action::Wait { .. }));
//! let later = start + Duration::from_secs(10);
//! let Action::Create(lease) = keeper.observe(None, Upstream::Ready, later) else {
//!     panic!("ten seconds are enough");
//! };
//! assert_eq!(lease.hostname(), Some("kube-apiserver-0-1-36-4"));
//! ```

pub mod error;
pub mod exclusions;
pub mod host_time;
pub mod identity;
pub mod keeper;
pub mod lease;
pub mod micro_time;
pub mod name;
pub mod peer;
pub mod reachability;
pub mod record;
pub mod registry;
pub mod roster;
pub mod schedule;
pub mod served;
pub mod served_record;
pub mod standing;
pub mod watch;

pub use error::Error;
pub use exclusions::{ApiService, CustomResourceDefinition, Excluded, Exclusions};
pub use host_time::{HostClock, HostTime};
pub use identity::Identity;
pub use keeper::{Action, Keeper, Moment, Upstream, stale_leases};
pub use lease::{Deletion, IdentityLease};
pub use micro_time::MicroTime;
pub use name::PeerName;
pub use peer::{Elsewhere, Peer, PeerRecord, Peers, Source, order};
pub use reachability::{Reachability, reachability};
pub use record::Record;
pub use roster::{Roster, Seen};
pub use served::Served;
pub use served_record::{KeyDigest, RecordError, Records, ServedRecord, StoredDeparture};
pub use standing::{Burden, Standing};
pub use watch::{List, Object, WatchEvent, WatchFailure};
