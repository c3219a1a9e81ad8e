//! End-to-end tests against real Kubernetes: control planes of real kube-apiservers on one real
//! etcd, with a bridge in front of each, on loopback.
//!
//! ```no_run
//! # async fn example() {
//! use skewbridge_e2e::{ControlPlane, ServerSpec, User, Via};
//!
//! let plane = ControlPlane::start(&[ServerSpec::of("1.34.4"), ServerSpec::of("1.36.4")]).await;
//! let pods = plane.kubectl(0, Via::Bridge, User::Admin, &["get", "ns"]).await;
//! assert!(pods.stdout.contains("kube-system"));
//! # }
//! ```

#![allow(clippy::expect_used)] // a test fixture: an error here fails the test

mod binaries;
mod bridge;
mod browser;
mod client_go;
mod control_plane;
mod controller_manager;
mod discovered_resource;
mod endpoint;
mod etcd;
mod haproxy;
mod http_client;
mod kubectl;
mod machine;
mod machine_agent;
mod metrics;
mod network_namespace;
mod nginx;
mod node;
mod normalize;
mod pki;
mod playground;
mod png;
mod ports;
mod process;
mod prometheus;
mod response_diff;
mod running_kubectl;
mod service_account_token;
mod skewbridge_command;
mod skewbridge_run;
mod spdystream;
mod stock_client;
mod tmux;
mod unit_sandbox;
mod version_specific_api;
mod versions;
mod virtual_ip;
mod websocket;

pub use binaries::{bridge as bridge_program, of_control_plane};
pub use bridge::Bridge;
pub use browser::{Browser, JavaScript};
pub use control_plane::{ControlPlane, ServerInstance, ServerSpec};
pub use discovered_resource::{AGGREGATED, DiscoveredResource};
pub use endpoint::Via;
pub use etcd::{Etcd, EtcdTls};
pub use haproxy::Haproxy;
pub use http_client::{HttpClient, Protocol, Request, ResponseStream};
pub use kubectl::{Output, User};
pub use machine::{Machine, create_network_of_machines};
pub use machine_agent::{MachineAgent, RunningPods};
pub use metrics::Metrics;
pub use network_namespace::run_in_network_namespace;
pub use nginx::Nginx;
pub use node::{Node, Programs};
pub use normalize::normalize;
pub use playground::Playground;
pub use png::with_few_colours;
pub use ports::free_address;
pub use process::Process;
pub use prometheus::Prometheus;
pub use response_diff::ResponseSnapshot;
pub use running_kubectl::RunningKubectl;
pub use service_account_token::base64url;
pub use spdystream::Spdystream;
pub use stock_client::{StockClient, StockClientRun};
pub use tmux::Tmux;
pub use unit_sandbox::UnitSandbox;
pub use version_specific_api::VersionSpecificApi;
pub use versions::{
    control_planes, has_custom_control_planes, is_since, kube_apiserver_versions,
    minors_of_one_plane, newest, old_and_new_versions, oldest, versions,
};
pub use virtual_ip::VirtualIp;
pub use websocket::{Library, dial_websocket, serve_websocket};
