//! The sample objects that exist at the start.

use serde_json::{Value, json};
use skewbridge_k8s_api::status::Status;

use crate::object::Object;
use crate::server::SharedStore;
use crate::status::GroupResource;

/// The sample pod.
pub const POD: &str = "web";
/// The port of the sample pod.
pub const POD_PORT: u16 = 8080;

/// An object of an API that only the newest server has.
const POLICY: &str = "hello";
/// The path of that object.
pub const POLICY_PATH: &str =
    "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies/hello";

/// Creates the sample objects.
pub(super) fn create(store: &SharedStore) -> Result<(), Status> {
    let objects: [(&str, &str, &str, Value); 4] = [
        ("", "configmaps", "default", welcome()),
        ("", "pods", "default", pod()),
        ("resource.k8s.io", "resourceclaims", "default", claim()),
        (
            "admissionregistration.k8s.io",
            "mutatingadmissionpolicies",
            "",
            policy(),
        ),
    ];
    for (group, resource, namespace, object) in objects {
        let resource = GroupResource::new(group, resource);
        store.create(&resource, namespace, Object::new(object)?)?;
    }
    Ok(())
}

fn welcome() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "welcome"},
        "data": {"text": "Three API servers of three versions, and one cluster."},
    })
}

fn pod() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": POD, "labels": {"app": POD}},
        "spec": {
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 2,
            "dnsPolicy": "ClusterFirst",
            "schedulerName": "default-scheduler",
            "containers": [{
                "name": POD,
                "image": "skewbridge/sample",
                "imagePullPolicy": "IfNotPresent",
                "ports": [{"name": "http", "containerPort": POD_PORT, "protocol": "TCP"}],
            }],
        },
    })
}

fn claim() -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "gpu"},
        "spec": {"devices": {"requests": [{
            "name": "gpu",
            "exactly": {
                "deviceClassName": "gpu.example.com",
                "allocationMode": "ExactCount",
                "count": 1,
            },
        }]}},
    })
}

fn policy() -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": POLICY},
        "spec": {
            "failurePolicy": "Ignore",
            "reinvocationPolicy": "Never",
            "matchConstraints": {
                "matchPolicy": "Equivalent",
                "resourceRules": [{
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "operations": ["CREATE"],
                    "resources": ["configmaps"],
                    "scope": "*",
                }],
            },
            "mutations": [{
                "patchType": "ApplyConfiguration",
                "applyConfiguration": {
                    "expression": "Object{metadata: Object.metadata{labels: Object.metadata.labels{greeting: 'hello'}}}",
                },
            }],
        },
    })
}
