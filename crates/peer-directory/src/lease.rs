//! The identity Lease of a kube-apiserver (`coordination.k8s.io/v1`), which shows that the server
//! runs and under which identity.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::watch::WatchedObject;
use crate::{Error, Identity, MicroTime};

/// The API path of the Leases of all kube-apiservers.
pub const LEASES_PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
/// Selects the Leases of kube-apiservers.
pub const LABEL_SELECTOR: &str = "apiserver.kubernetes.io/identity=kube-apiserver";

/// How long a Lease is valid after its renewal.
const DURATION_SECONDS: u32 = 3600;

const NAMESPACE: &str = "kube-system";
const COMPONENT_LABEL: &str = "apiserver.kubernetes.io/identity";
const COMPONENT: &str = "kube-apiserver";
const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";
const ADDRESS_ANNOTATION: &str = "kubernetes.io/peer-advertise-address";
/// Written by a bridge on a Lease that its server maintains: since 1.36 a server writes the other
/// annotation itself, every 10 s.
const BRIDGE_ANNOTATION: &str = "skewbridge.io/peer-advertise-address";
/// The served record of the server, in base64, where Leases are the registry.
const SERVED_ANNOTATION: &str = "skewbridge.io/served";

/// A Lease in kube-system. It holds the complete object, so that unknown fields are preserved when
/// it is written back.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "Value")]
pub struct IdentityLease {
    identity: Identity,
    object: Value,
}

impl TryFrom<Value> for IdentityLease {
    type Error = Error;

    fn try_from(object: Value) -> Result<Self, Error> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let identity = Identity::named(name)?;
        Ok(Self { identity, object })
    }
}

impl WatchedObject for IdentityLease {
    fn name(&self) -> &str {
        self.identity.as_str()
    }

    fn resource_version(&self) -> &str {
        self.metadata("resourceVersion").unwrap_or_default()
    }
}

impl IdentityLease {
    /// A new Lease with the fields that kube-apiserver sets.
    pub fn new(identity: &Identity, hostname: &str, holder: &str, now: SystemTime) -> Self {
        let object = json!({
            "kind": "Lease",
            "apiVersion": "coordination.k8s.io/v1",
            "metadata": {
                "name": identity.as_str(),
                "namespace": NAMESPACE,
                "labels": { COMPONENT_LABEL: COMPONENT, HOSTNAME_LABEL: hostname },
            },
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": DURATION_SECONDS,
                "renewTime": MicroTime::from(now).to_string(),
            },
        });
        Self {
            identity: identity.clone(),
            object,
        }
    }

    /// Parses a Lease.
    pub fn parse(json: &[u8]) -> Result<Self, Error> {
        Ok(serde_json::from_slice(json)?)
    }

    /// The complete object as JSON.
    pub fn to_json(&self) -> String {
        self.object.to_string()
    }

    /// The server whose Lease it is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The UID, which distinguishes the object from others of the same name.
    pub fn uid(&self) -> Option<&str> {
        self.metadata("uid")
    }

    /// Whether the Lease belongs to a kube-apiserver and not to another component.
    pub fn is_kube_apiserver(&self) -> bool {
        self.label(COMPONENT_LABEL) == Some(COMPONENT)
    }

    /// The host on which the server runs.
    pub fn hostname(&self) -> Option<&str> {
        self.label(HOSTNAME_LABEL)
    }

    /// The address for peers that its bridge, or else its kube-apiserver, has written. Every user
    /// with permission to write Leases can write it (KEP-4020, Risks 5), so it is used for routing
    /// only if an administrator has configured that.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        let annotations = &self.object["metadata"]["annotations"];
        let address = |name| annotations[name].as_str()?.parse().ok();
        address(BRIDGE_ANNOTATION).or_else(|| address(ADDRESS_ANNOTATION))
    }

    /// The address for peers that its bridge has written. A bridge that maintains the Lease itself
    /// writes no such address.
    pub fn bridge_address(&self) -> Option<SocketAddr> {
        let annotations = &self.object["metadata"]["annotations"];
        annotations[BRIDGE_ANNOTATION].as_str()?.parse().ok()
    }

    /// The served record that its bridge has written, in base64.
    pub fn served_record(&self) -> Option<&str> {
        self.object["metadata"]["annotations"][SERVED_ANNOTATION].as_str()
    }

    /// The process that maintains it. It changes at each start of a server, except that
    /// kube-apiserver before 1.35 keeps the holder that it finds.
    pub fn holder(&self) -> Option<&str> {
        self.object["spec"]["holderIdentity"].as_str()
    }

    /// How long it is valid after `renew_time`.
    pub fn duration(&self) -> Option<Duration> {
        let seconds = self.object["spec"]["leaseDurationSeconds"].as_u64()?;
        // An int32 in the API.
        u32::try_from(seconds)
            .ok()
            .map(|seconds| Duration::from_secs(seconds.into()))
    }

    /// When it was last renewed, by the clock of its holder.
    pub fn renew_time(&self) -> Option<MicroTime> {
        self.time("renewTime")
    }

    /// When its holder acquired it; kube-apiserver does not set this.
    pub fn acquire_time(&self) -> Option<MicroTime> {
        self.time("acquireTime")
    }

    /// Whether it has expired, by the local clock and that of its holder. Without a time or a
    /// duration it is expired, as in kube-apiserver.
    pub fn is_expired(&self, now: SystemTime) -> bool {
        let end = self.renew_time().zip(self.duration());
        end.is_none_or(|(renewed, duration)| SystemTime::from(renewed) + duration < now)
    }

    /// A renewed copy.
    #[must_use]
    pub fn renewed(&self, now: SystemTime) -> Self {
        let mut renewed = self.clone();
        // Items of a list have no kind.
        renewed.object["kind"] = "Lease".into();
        renewed.object["apiVersion"] = "coordination.k8s.io/v1".into();
        let spec = map(&mut renewed.object, &["spec"]);
        spec.insert("leaseDurationSeconds".into(), DURATION_SECONDS.into());
        spec.insert("renewTime".into(), MicroTime::from(now).to_string().into());
        renewed
    }

    /// A copy with another holder. Its resource version makes the write fail if another client
    /// was faster.
    #[must_use]
    pub fn taken_over(&self, hostname: &str, holder: &str, now: SystemTime) -> Self {
        let mut taken = self.renewed(now);
        let labels = map(&mut taken.object, &["metadata", "labels"]);
        labels.insert(COMPONENT_LABEL.into(), COMPONENT.into());
        labels.insert(HOSTNAME_LABEL.into(), hostname.into());
        map(&mut taken.object, &["spec"]).insert("holderIdentity".into(), holder.into());
        taken
    }

    /// A copy with the address at which peers reach the server.
    #[must_use]
    pub fn with_peer_address(mut self, address: SocketAddr) -> Self {
        map(&mut self.object, &["metadata", "annotations"])
            .insert(ADDRESS_ANNOTATION.into(), address.to_string().into());
        self
    }

    /// The deletion of this Lease in exactly this version. `None` if it was never stored.
    pub fn deletion(&self) -> Option<LeaseDeletion> {
        Some(LeaseDeletion {
            identity: self.identity.clone(),
            uid: self.uid()?.to_owned(),
            resource_version: self.metadata("resourceVersion")?.to_owned(),
        })
    }

    fn metadata(&self, field: &str) -> Option<&str> {
        let text = self.object["metadata"][field].as_str();
        text.filter(|text| !text.is_empty())
    }

    fn label(&self, label: &str) -> Option<&str> {
        self.object["metadata"]["labels"][label].as_str()
    }

    fn time(&self, field: &str) -> Option<MicroTime> {
        self.object["spec"][field].as_str()?.parse().ok()
    }
}

/// A merge patch (RFC 7396) by which a bridge sets or removes its address on a Lease that its
/// server maintains, and sets the served record in base64.
pub fn bridge_annotations_patch(address: Option<SocketAddr>, served: Option<&str>) -> String {
    let address = address.map(|it| it.to_string());
    let mut annotations = json!({ BRIDGE_ANNOTATION: address });
    // A bridge without its own record keeps the existing one.
    if let Some(served) = served {
        annotations[SERVED_ANNOTATION] = served.into();
    }
    json!({ "metadata": { "annotations": annotations } }).to_string()
}

/// The map at this path, which is created if it does not exist.
fn map<'a>(mut value: &'a mut Value, path: &[&str]) -> &'a mut Map<String, Value> {
    for key in path {
        value = as_map(value).entry(*key).or_insert(Value::Null);
    }
    as_map(value)
}

fn as_map(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        // It has just been replaced by an object.
        _ => unreachable!(),
    }
}

/// The deletion of a Lease, unless it has changed since it was observed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseDeletion {
    /// The name of the Lease.
    pub identity: Identity,
    /// The UID of the observed object.
    pub uid: String,
    /// The resource version of the observed object.
    pub resource_version: String,
}

impl LeaseDeletion {
    /// The `DeleteOptions` of the request.
    pub fn to_json(&self) -> String {
        json!({
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "preconditions": { "uid": self.uid, "resourceVersion": self.resource_version },
        })
        .to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{List, WatchEvent};

    /// A line of a watch of kube-apiserver 1.36.4.
    const CAPTURED: &str = r#"{"type":"ADDED","object":{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"apiserver-ihqvzrdal7px3zqf5s6ecqs5ei","namespace":"kube-system","uid":"550b8bf3-dd67-43d4-a4ee-c7ed0a25eb89","resourceVersion":"243","creationTimestamp":"2026-11-15T12:09:13Z","labels":{"apiserver.kubernetes.io/identity":"kube-apiserver","kubernetes.io/hostname":"kube-apiserver-0-1-36-4"},"annotations":{"kubernetes.io/peer-advertise-address":"127.0.0.1:58175"},"managedFields":[{"manager":"kube-apiserver-1.36.4","operation":"Update","apiVersion":"coordination.k8s.io/v1","time":"2026-11-15T12:12:48Z","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:annotations":{".":{},"f:kubernetes.io/peer-advertise-address":{}},"f:labels":{".":{},"f:apiserver.kubernetes.io/identity":{},"f:kubernetes.io/hostname":{}}},"f:spec":{"f:holderIdentity":{},"f:leaseDurationSeconds":{},"f:renewTime":{}}}}]},"spec":{"holderIdentity":"apiserver-ihqvzrdal7px3zqf5s6ecqs5ei_ed7a137c-a1c6-457e-af40-5ef6c381ddb1","leaseDurationSeconds":3600,"renewTime":"2026-11-15T12:12:48.097568Z"}}}"#;

    fn captured() -> IdentityLease {
        match WatchEvent::parse(CAPTURED.as_bytes()).unwrap() {
            WatchEvent::Added(lease) => lease,
            other => panic!("{other:?}"),
        }
    }

    fn at(text: &str) -> SystemTime {
        text.parse::<MicroTime>().unwrap().into()
    }

    #[test]
    fn a_lease_of_kube_apiserver_is_parsed() {
        let lease = captured();
        assert_eq!(lease.name(), "apiserver-ihqvzrdal7px3zqf5s6ecqs5ei");
        assert_eq!(lease.resource_version(), "243");
        assert_eq!(lease.uid(), Some("550b8bf3-dd67-43d4-a4ee-c7ed0a25eb89"));
        assert!(lease.is_kube_apiserver());
        assert_eq!(lease.hostname(), Some("kube-apiserver-0-1-36-4"));
        assert_eq!(lease.peer_address(), "127.0.0.1:58175".parse().ok());
        let holder = "apiserver-ihqvzrdal7px3zqf5s6ecqs5ei_ed7a137c-a1c6-457e-af40-5ef6c381ddb1";
        assert_eq!(lease.holder(), Some(holder));
        assert_eq!(lease.duration(), Some(Duration::from_hours(1)));
        let renewed = "2026-11-15T12:12:48.097568Z".parse().ok();
        assert_eq!(lease.renew_time(), renewed);
        assert_eq!(lease.acquire_time(), None);
    }

    #[test]
    fn the_address_of_the_bridge_takes_precedence_over_that_of_the_server() {
        let mut lease = captured();
        let bridge = "10.0.0.1:7443".parse().unwrap();
        let patch: Value =
            serde_json::from_str(&bridge_annotations_patch(Some(bridge), Some("c2VydmVk")))
                .unwrap();
        let annotations = map(&mut lease.object, &["metadata", "annotations"]);
        annotations.extend(
            patch["metadata"]["annotations"]
                .as_object()
                .unwrap()
                .clone(),
        );
        assert_eq!(lease.peer_address(), Some(bridge));
        assert_eq!(lease.bridge_address(), Some(bridge));
        assert_eq!(lease.served_record(), Some("c2VydmVk"));
        // A server renews its Lease with the existing annotations and its own.
        let server: SocketAddr = "127.0.0.1:58175".parse().unwrap();
        let renewed = lease.clone().with_peer_address(server);
        assert_eq!(renewed, lease);

        let back: Value = serde_json::from_str(&bridge_annotations_patch(None, None)).unwrap();
        assert!(back["metadata"]["annotations"][BRIDGE_ANNOTATION].is_null());
        map(&mut lease.object, &["metadata", "annotations"]).remove(BRIDGE_ANNOTATION);
        assert_eq!(lease.peer_address(), Some(server));
        assert_eq!(lease.bridge_address(), None);
    }

    #[test]
    fn a_new_lease_equals_that_of_kube_apiserver() {
        let expected_lease = captured();
        let fresh = IdentityLease::new(
            &Identity::of_hostname("kube-apiserver-0-1-36-4"),
            "kube-apiserver-0-1-36-4",
            expected_lease.holder().unwrap(),
            at("2026-11-15T12:12:48.097568Z"),
        )
        .with_peer_address("127.0.0.1:58175".parse().unwrap());
        // Without the fields that the server adds to every object.
        let mut expected = expected_lease.object;
        let metadata = map(&mut expected, &["metadata"]);
        for field in [
            "uid",
            "resourceVersion",
            "creationTimestamp",
            "managedFields",
        ] {
            metadata.remove(field).unwrap();
        }
        assert_eq!(fresh.object, expected);
        assert!(fresh.deletion().is_none());
    }

    #[test]
    fn renewing_changes_only_the_time() {
        let lease = captured();
        let renewed = lease.renewed(at("2026-11-15T12:13:00Z"));
        assert_eq!(renewed.renew_time(), "2026-11-15T12:13:00Z".parse().ok());
        let mut back = renewed;
        back.object["spec"]["renewTime"] = lease.object["spec"]["renewTime"].clone();
        assert_eq!(back, lease);
    }

    #[test]
    fn a_takeover_preserves_unknown_fields() {
        let mut lease = captured();
        let version = lease.resource_version().to_owned();
        lease.object["spec"]["strategy"] = "OldestEmulationVersion".into();
        lease.object["metadata"]["labels"]["team"] = "a".into();
        let taken = lease.taken_over("host", "holder", at("2026-11-15T13:00:00Z"));
        assert_eq!(taken.resource_version(), version);
        assert_eq!(taken.holder(), Some("holder"));
        assert_eq!(taken.hostname(), Some("host"));
        assert_eq!(taken.object["spec"]["strategy"], "OldestEmulationVersion");
        assert_eq!(taken.object["metadata"]["labels"]["team"], "a");
        assert_eq!(
            IdentityLease::parse(taken.to_json().as_bytes()).unwrap(),
            taken
        );
    }

    #[test]
    fn a_lease_from_a_list_can_be_written() {
        let mut item = captured().object;
        let map = item.as_object_mut().unwrap();
        map.remove("kind").unwrap();
        map.remove("apiVersion").unwrap();
        let list = json!({
            "kind": "LeaseList",
            "metadata": { "resourceVersion": "206" },
            "items": [item],
        });
        let list = List::<IdentityLease>::parse(list.to_string().as_bytes()).unwrap();
        assert_eq!(list.resource_version, "206");
        let renewed = list.items[0].renewed(at("2026-11-15T12:12:48.097568Z"));
        assert_eq!(renewed, captured());
    }

    #[test]
    fn a_lease_expires_after_its_duration() {
        let spec = |renewed: &str, seconds: i64| json!({ "renewTime": renewed, "leaseDurationSeconds": seconds });
        let start = "2026-11-15T12:00:00Z";
        for (spec, now, expected) in [
            (spec(start, 3600), "2026-11-15T12:00:00Z", false),
            (spec(start, 3600), "2026-11-15T13:00:00Z", false),
            (spec(start, 3600), "2026-11-15T13:00:00.000001Z", true),
            // Clocks differ.
            (spec(start, 3600), "2026-11-15T11:00:00Z", false),
            (spec(start, 10), "2026-11-15T12:00:11Z", true),
            (spec(start, -1), "2026-11-15T12:00:00Z", true),
            (spec("soon", 3600), "2026-11-15T12:00:00Z", true),
            (json!({ "renewTime": start }), start, true),
            (json!({ "leaseDurationSeconds": 3600 }), start, true),
            (json!({}), start, true),
            (json!(7), start, true),
        ] {
            let text = format!("{spec} at {now}");
            let lease = json!({ "metadata": { "name": "a" }, "spec": spec });
            let lease = IdentityLease::try_from(lease).unwrap();
            assert_eq!(lease.is_expired(at(now)), expected, "{text}");
        }
    }

    #[test]
    fn incomplete_leases_are_parsed_and_can_be_taken_over() {
        for (metadata, spec) in [
            (json!({ "name": "a" }), json!(null)),
            (
                json!({ "name": "a", "labels": null, "annotations": [] }),
                json!("x"),
            ),
            (
                json!({ "name": "a", "annotations": { ADDRESS_ANNOTATION: "host:1" } }),
                json!({ "holderIdentity": 7 }),
            ),
        ] {
            let lease = json!({ "metadata": metadata, "spec": spec });
            let lease = IdentityLease::try_from(lease).unwrap();
            assert!(lease.holder().is_none() && lease.peer_address().is_none());
            let taken = lease
                .taken_over("h", "holder", at("2026-11-15T12:00:00Z"))
                .with_peer_address("[fd00::1]:6443".parse().unwrap());
            assert_eq!(taken.holder(), Some("holder"));
            assert_eq!(taken.peer_address(), "[fd00::1]:6443".parse().ok());
        }
        for no_lease in [
            json!(null),
            json!([]),
            json!({}),
            json!({ "metadata": { "name": "A" } }),
        ] {
            assert!(IdentityLease::try_from(no_lease).is_err());
        }
    }

    #[test]
    fn a_deletion_has_the_observed_version_as_precondition() {
        let options: Value =
            serde_json::from_str(&captured().deletion().unwrap().to_json()).unwrap();
        assert_eq!(
            options["preconditions"],
            json!({ "uid": "550b8bf3-dd67-43d4-a4ee-c7ed0a25eb89", "resourceVersion": "243" })
        );
    }
}
