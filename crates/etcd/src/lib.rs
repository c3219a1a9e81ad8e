//! A client for the dozen calls of etcd's v3 API that the gateway needs, over `h2`.
//!
//! Bridges find each other through leased keys beside kube-apiserver's own data. That takes
//! listing and watching a prefix, putting and deleting a key, and keeping a lease alive: too
//! little for a gRPC framework, which would add a second HTTP stack. So the messages are a few
//! hand-written structs with etcd's field numbers, gRPC framing is pure, and one connection,
//! reopened when it ends, carries all calls to an endpoint that works.
//!
//! ```no_run
//! use skewbridge_etcd::{Client, Endpoint, Event};
//! use std::time::Duration;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let endpoint: Endpoint = "http://127.0.0.1:2379".parse()?;
//! let client = Client::new(vec![endpoint], None)?;
//!
//! let lease = client.grant(Duration::from_secs(15)).await?;
//! client.put(b"/peers/a", b"10.0.0.1:6443", Some(lease.id)).await?;
//!
//! let listing = client.range_prefix(b"/peers/").await?;
//! let mut watch = client.watch_prefix(b"/peers/", listing.revision.next()).await?;
//! for event in watch.next().await? {
//!     match event {
//!         Event::Put(kv) => println!("{:?} at {}", kv.key, kv.mod_revision),
//!         Event::Delete { key, .. } => println!("{key:?} is gone"),
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod client;
mod connection;
mod endpoint;
mod error;
mod first_read;
mod grpc;
mod messages;
mod rpc;
mod status;
mod types;
mod watch;

pub use client::Client;
pub use endpoint::{Endpoint, EndpointError};
pub use error::Error;
pub use grpc::MAX_MESSAGE_BYTES;
pub use status::{Code, Status};
pub use types::{Event, KeyValue, Lease, LeaseId, Listing, Revision};
pub use watch::Watch;
