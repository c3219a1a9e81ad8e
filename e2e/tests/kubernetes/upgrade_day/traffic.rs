//! What the clients of the cluster send while it is upgraded and rolled back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::kubeadm_cluster::client::Request;
use crate::kubeadm_cluster::load::Traffic;

/// An API that only the new version has.
pub(super) const NEW_API: &str = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies";

/// Another one, which has objects: the servers of the old version do not serve it in these clusters.
const SCALERS: &str = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";

/// Objects with a field that only the new version has.
const DRIVERS: &str = "/apis/storage.k8s.io/v1/csidrivers";
const DRIVER: &str = "vault";
pub(super) const NEW_FIELD: &str = "serviceAccountTokenInSecrets";

const AGGREGATED_DISCOVERY: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Aggregated discovery. Groups never vanish from it.
pub(super) struct Discovery {
    /// Whether every server's discovery has to have the APIs of the new version.
    pub(super) has_new_apis: Arc<AtomicBool>,
}

impl Traffic for Discovery {
    fn request(&mut self, _number: usize) -> Request {
        Request::get("/apis").accept(AGGREGATED_DISCOVERY)
    }

    fn problem(&mut self, body: &str) -> Option<String> {
        let document: Value = serde_json::from_str(body).ok()?;
        let groups = document["items"].as_array();
        let has = |name: &str| {
            let mut groups = groups.into_iter().flatten();
            groups.any(|it| it["metadata"]["name"] == name)
        };
        let mut expected = vec!["apps", "storage.k8s.io"];
        if self.has_new_apis.load(Ordering::Relaxed) {
            expected.push("autoscaling");
        }
        let missing: Vec<_> = expected.into_iter().filter(|it| !has(it)).collect();
        (!missing.is_empty()).then(|| format!("discovery lacks {missing:?}"))
    }
}

/// Objects of APIs of the new version: listed, created, read and deleted.
pub(super) struct NewApis;

impl Traffic for NewApis {
    fn request(&mut self, number: usize) -> Request {
        let name = format!("load-{}", number / 4);
        match number % 4 {
            0 => Request::get(NEW_API),
            1 => {
                let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
                let scaler = json!({
                    "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
                    "metadata": {"name": name},
                    "spec": {"maxReplicas": 3, "scaleTargetRef": target},
                });
                Request::post(SCALERS, &scaler)
            }
            2 => Request::get(format!("{SCALERS}/{name}")),
            _ => Request::new("DELETE", format!("{SCALERS}/{name}")),
        }
    }
}

/// Updates of an object that has a field of the new version.
pub(super) struct FieldUpdates;

impl FieldUpdates {
    /// Creates the object.
    pub(super) fn create() -> Request {
        let driver = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER},
            "spec": {NEW_FIELD: true, "tokenRequests": [{"audience": "vault"}]},
        });
        Request::post(DRIVERS, &driver)
    }
}

impl Traffic for FieldUpdates {
    fn request(&mut self, number: usize) -> Request {
        let patch = json!({"metadata": {"annotations": {"number": number.to_string()}}});
        Request::merge_patch(format!("{DRIVERS}/{DRIVER}"), &patch)
    }

    fn problem(&mut self, body: &str) -> Option<String> {
        let driver: Value = serde_json::from_str(body).ok()?;
        let is_kept = driver["spec"][NEW_FIELD] == true;
        (!is_kept).then(|| format!("the field is lost: {driver}"))
    }
}
