//! Real Kubernetes as the judge: control planes of real kube-apiservers on one
//! real etcd, with a bridge in front of each, on loopback.
//!
//! ```no_run
//! # async fn example() {
//! use skewbridge_e2e::{Plane, Server, User, Via};
//!
//! let plane = Plane::start(&[Server::of("1.34.4"), Server::of("1.36.4")]).await;
//! let pods = plane.kubectl(0, Via::Bridge, User::Admin, &["get", "ns"]).await;
//! assert!(pods.stdout.contains("kube-system"));
//! # }
//! ```

#![allow(clippy::expect_used)] // a harness of tests: what fails here fails the test

mod binaries;
mod bridge;
mod client_go;
mod command_line;
mod controller_manager;
mod discovered;
mod etcd;
mod haproxy;
mod kubectl;
mod metrics;
mod nginx;
mod node;
mod pki;
mod plane;
mod planes;
mod playground;
mod ports;
mod process;
mod raw;
mod run;
mod shape;
mod spdystream;
mod special;
mod staying;
mod steady;
mod stock;
mod tmux;
mod token;
mod vip;
mod websocket;

pub use bridge::Bridge;
pub use discovered::{AGGREGATED, Discovered};
pub use etcd::{Etcd, EtcdTls};
pub use haproxy::Haproxy;
pub use kubectl::{Output, User, Via};
pub use metrics::Metrics;
pub use nginx::Nginx;
pub use node::{Node, Programs};
pub use plane::{Plane, Running, Server};
pub use planes::{is_since, newest, oldest, planes, planes_are_chosen, told_apart, versions};
pub use playground::Playground;
pub use process::Process;
pub use raw::{Protocol, Raw, Request, Stream};
pub use shape::Shape;
pub use spdystream::Spdystream;
pub use special::Special;
pub use staying::Staying;
pub use steady::steady;
pub use stock::{Stock, StockRun};
pub use tmux::Tmux;
pub use token::base64url;
pub use vip::Vip;
pub use websocket::{Library, dial_websocket, serve_websocket};
