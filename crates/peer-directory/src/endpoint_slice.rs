//! The addresses that kube-apiservers publish themselves: the `EndpointSlices` of the Service
//! `default/kubernetes` (`discovery.k8s.io/v1`). They name addresses, and no identities.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use serde::Deserialize;

use crate::watch::{Metadata, WatchEvent, WatchedObject};

/// The API path of the `EndpointSlices` of the namespace `default`.
pub const ENDPOINT_SLICES_PATH: &str =
    "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";

/// Selects the `EndpointSlices` of the Service `kubernetes`, as a query parameter.
pub const SELECTOR: &str = "&labelSelector=kubernetes.io%2Fservice-name%3Dkubernetes";

/// The name of the port in an `EndpointSlice`.
const PORT_NAME: &str = "https";

/// The largest number of addresses that are used, of all `EndpointSlices` together: many more
/// servers than a control plane has.
pub const MAX_ENDPOINT_ADDRESSES: usize = 256;

/// The largest number of `EndpointSlices` that are kept. kube-apiserver writes one.
pub const MAX_ENDPOINT_SLICES: usize = 64;

/// The addresses in one `EndpointSlice`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "RawSlice")]
pub struct EndpointSlice {
    metadata: Metadata,
    addresses: BTreeSet<SocketAddr>,
}

impl WatchedObject for EndpointSlice {
    fn name(&self) -> &str {
        &self.metadata.name
    }

    fn resource_version(&self) -> &str {
        &self.metadata.resource_version
    }
}

impl EndpointSlice {
    /// Its addresses, at most [`MAX_ENDPOINT_ADDRESSES`]: those of ready endpoints, with the port
    /// named `https`.
    pub fn addresses(&self) -> &BTreeSet<SocketAddr> {
        &self.addresses
    }
}

/// The `EndpointSlices` of the Service `kubernetes`, as they change.
#[derive(Debug, Default)]
pub struct KubernetesEndpoints(BTreeMap<String, BTreeSet<SocketAddr>>);

impl KubernetesEndpoints {
    /// Replaces all `EndpointSlices`.
    pub fn set_all(&mut self, all: Vec<EndpointSlice>) {
        self.0.clear();
        for slice in all {
            self.insert(slice);
        }
    }

    /// An `EndpointSlice` was added, modified or deleted.
    pub fn apply(&mut self, event: WatchEvent<EndpointSlice>) {
        match event {
            WatchEvent::Added(slice) | WatchEvent::Modified(slice) => self.insert(slice),
            WatchEvent::Deleted(slice) => {
                self.0.remove(slice.name());
            }
            WatchEvent::Bookmark { .. } | WatchEvent::Error(_) => {}
        }
    }

    /// The addresses of all `EndpointSlices`, at most [`MAX_ENDPOINT_ADDRESSES`].
    pub fn addresses(&self) -> BTreeSet<SocketAddr> {
        let all: BTreeSet<_> = self.0.values().flatten().copied().collect();
        all.into_iter().take(MAX_ENDPOINT_ADDRESSES).collect()
    }

    fn insert(&mut self, slice: EndpointSlice) {
        let name = slice.metadata.name;
        if self.0.len() < MAX_ENDPOINT_SLICES || self.0.contains_key(&name) {
            self.0.insert(name, slice.addresses);
        }
    }
}

#[derive(Deserialize)]
struct RawSlice {
    metadata: Metadata,
    // Lists may be encoded as null.
    #[serde(default)]
    endpoints: Option<Vec<RawEndpoint>>,
    #[serde(default)]
    ports: Option<Vec<RawPort>>,
}

#[derive(Deserialize)]
struct RawEndpoint {
    #[serde(default)]
    addresses: Option<Vec<String>>,
    #[serde(default)]
    conditions: Option<Conditions>,
}

#[derive(Deserialize)]
struct Conditions {
    ready: Option<bool>,
}

#[derive(Deserialize)]
struct RawPort {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    port: Option<i64>,
}

impl From<RawSlice> for EndpointSlice {
    fn from(raw: RawSlice) -> Self {
        let ports = raw.ports.unwrap_or_default();
        let port = ports
            .iter()
            .find(|port| port.name.as_deref() == Some(PORT_NAME))
            .and_then(|port| u16::try_from(port.port?).ok())
            .filter(|port| *port != 0);
        // No condition means ready.
        let is_ready = |endpoint: &RawEndpoint| {
            let ready = endpoint.conditions.as_ref().and_then(|it| it.ready);
            ready != Some(false)
        };
        let endpoints = raw.endpoints.unwrap_or_default();
        let texts = endpoints
            .iter()
            .filter(|endpoint| is_ready(endpoint))
            .flat_map(|endpoint| endpoint.addresses.iter().flatten());
        let addresses = port.map_or_else(BTreeSet::new, |port| {
            texts
                .filter_map(|text| text.parse().ok())
                .filter(is_usable)
                .map(|ip| SocketAddr::new(ip, port))
                .take(MAX_ENDPOINT_ADDRESSES)
                .collect()
        });
        Self {
            metadata: raw.metadata,
            addresses,
        }
    }
}

/// Whether an address names one host. kube-apiserver rejects the others in `EndpointSlices`, and
/// loopback addresses.
fn is_usable(ip: &IpAddr) -> bool {
    let is_link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        // Without a scope it names no host.
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !ip.is_unspecified() && !ip.is_multicast() && !is_link_local
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// As kube-apiserver 1.36 writes it for two servers.
    const KUBERNETES: &str = r#"{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1",
        "metadata":{"name":"kubernetes","namespace":"default","resourceVersion":"42",
        "labels":{"kubernetes.io/service-name":"kubernetes"}},"addressType":"IPv4",
        "endpoints":[{"addresses":["10.0.0.1"],"conditions":{"ready":true}},
        {"addresses":["10.0.0.2"],"conditions":{"ready":true}}],
        "ports":[{"name":"https","protocol":"TCP","port":6443}]}"#;

    fn slice(json: &str) -> EndpointSlice {
        serde_json::from_str(json).unwrap()
    }

    fn texts(addresses: &BTreeSet<SocketAddr>) -> Vec<String> {
        addresses.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_addresses_of_kube_apiserver_are_read() {
        let slice = slice(KUBERNETES);
        assert_eq!(texts(slice.addresses()), ["10.0.0.1:6443", "10.0.0.2:6443"]);
        assert_eq!(
            (slice.name(), slice.resource_version()),
            ("kubernetes", "42")
        );
    }

    #[test]
    fn only_ready_addresses_with_the_port_https_are_used() {
        let https = json!([{"name": "http", "port": 80}, {"name": "https", "port": 6443}]);
        let one = |address: &str| json!([{ "addresses": [address] }]);
        let rows = [
            (one("10.0.0.1"), https.clone(), vec!["10.0.0.1:6443"]),
            (one("fd00::1"), https.clone(), vec!["[fd00::1]:6443"]),
            (one("kube.example.org"), https.clone(), vec![]),
            (one("0.0.0.0"), https.clone(), vec![]),
            (one("169.254.0.1"), https.clone(), vec![]),
            (one("fe80::1"), https.clone(), vec![]),
            (one("ff02::1"), https.clone(), vec![]),
            (one("10.0.0.1"), json!([{"port": 6443}]), vec![]),
            (one("10.0.0.1"), json!([{"name": "https"}]), vec![]),
            (
                one("10.0.0.1"),
                json!([{"name": "https", "port": 0}]),
                vec![],
            ),
            (
                one("10.0.0.1"),
                json!([{"name": "https", "port": 65_536}]),
                vec![],
            ),
            (one("10.0.0.1"), json!(null), vec![]),
            (json!(null), https.clone(), vec![]),
            (
                json!([{"addresses": ["10.0.0.1"], "conditions": {"ready": false}},
                       {"addresses": ["10.0.0.2"], "conditions": {}},
                       {"addresses": null}]),
                https,
                vec!["10.0.0.2:6443"],
            ),
        ];
        for (endpoints, ports, expected) in rows {
            let json = json!({"metadata": {"name": "a"}, "endpoints": endpoints, "ports": ports});
            let slice = slice(&json.to_string());
            assert_eq!(texts(slice.addresses()), expected, "{json}");
        }
    }

    #[test]
    fn endpoint_slices_are_followed() {
        let with = |name: &str, address: &str| {
            slice(
                &json!({"metadata": {"name": name}, "endpoints": [{"addresses": [address]}],
                        "ports": [{"name": "https", "port": 6443}]})
                .to_string(),
            )
        };
        let mut endpoints = KubernetesEndpoints::default();
        endpoints.set_all(vec![with("a", "10.0.0.1"), with("b", "fd00::1")]);
        assert_eq!(
            texts(&endpoints.addresses()),
            ["10.0.0.1:6443", "[fd00::1]:6443"]
        );
        endpoints.apply(WatchEvent::Modified(with("a", "10.0.0.2")));
        endpoints.apply(WatchEvent::Deleted(with("b", "fd00::1")));
        endpoints.apply(WatchEvent::Added(with("c", "10.0.0.3")));
        assert_eq!(
            texts(&endpoints.addresses()),
            ["10.0.0.2:6443", "10.0.0.3:6443"]
        );
        endpoints.set_all(Vec::new());
        assert!(endpoints.addresses().is_empty());
    }

    #[test]
    fn the_number_of_addresses_and_slices_is_bounded() {
        let many: Vec<_> = (0..1000)
            .map(|number| json!({"addresses": [format!("10.0.{}.{}", number / 200, number % 200)]}))
            .collect();
        let with = |name: &str| {
            let json = json!({"metadata": {"name": name}, "endpoints": many,
                              "ports": [{"name": "https", "port": 6443}]});
            slice(&json.to_string())
        };
        assert_eq!(with("a").addresses().len(), MAX_ENDPOINT_ADDRESSES);
        let mut endpoints = KubernetesEndpoints::default();
        for number in 0..MAX_ENDPOINT_SLICES + 9 {
            endpoints.apply(WatchEvent::Added(with(&number.to_string())));
        }
        assert_eq!(endpoints.0.len(), MAX_ENDPOINT_SLICES);
        assert_eq!(endpoints.addresses().len(), MAX_ENDPOINT_ADDRESSES);
    }

    proptest! {
        #[test]
        fn parsing_any_values_does_not_panic(
            address in "\\PC*", port: i64, name in "\\PC*", ready: Option<bool>,
        ) {
            let json = json!({"metadata": {"name": name}, "endpoints": [
                {"addresses": [address], "conditions": {"ready": ready}}],
                "ports": [{"name": "https", "port": port}]});
            let parsed: Result<EndpointSlice, _> = serde_json::from_value(json);
            prop_assert!(parsed.is_ok_and(|it| it.addresses().len() <= 1));
        }
    }
}
