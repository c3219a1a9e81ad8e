//! Behaviour of resources on write: status subresources, generations and finalizers.

use serde_json::{Value, json};

use crate::catalogue::Served;
use crate::defaults::quality_of_service;
use crate::object::{Object, texts};
use crate::status::GroupResource;

/// The properties of a resource that the store depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definition {
    /// Without the version.
    pub resource: GroupResource,
    /// The kind of its objects.
    pub kind: String,
    /// Its scope.
    pub scope: Scope,
    /// How the status is written.
    pub status: StatusPart,
}

/// The scope of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Cluster-scoped.
    Cluster,
    /// Namespaced.
    Namespaced,
}

/// How the status of an object is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusPart {
    /// Only by a subresource.
    Separate,
    /// With the rest, or there is no status.
    Together,
}

/// The part of an object that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// All but the parts with a subresource.
    Main,
    /// `/status`
    Status,
    /// `/finalize` of namespaces.
    Finalize,
}

/// The default grace period of pods.
const DEFAULT_POD_GRACE_SECONDS: u32 = 30;

/// Metadata that only the server writes.
const SERVER_METADATA: [&str; 6] = [
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "selfLink",
];

impl Definition {
    /// The definition of a served resource.
    pub fn of(served: &Served<'_>) -> Self {
        Self {
            resource: served.group_resource(),
            kind: served.kind().to_owned(),
            scope: if served.is_namespaced() {
                Scope::Namespaced
            } else {
                Scope::Cluster
            },
            status: if served.has_status() {
                StatusPart::Separate
            } else {
                StatusPart::Together
            },
        }
    }

    /// Whether it is the resource of namespaces.
    pub fn is_namespaces(&self) -> bool {
        self.resource.group.is_empty() && self.resource.resource == "namespaces"
    }

    /// Initializes a new object.
    pub(crate) fn prepare_new(&self, object: &mut Object) {
        for field in SERVER_METADATA {
            object.remove(&["metadata", field]);
        }
        if self.has_generation() {
            object.set(&["metadata", "generation"], 1);
        }
        let core = self.resource.group.is_empty();
        // A kubelet registers its node with a status.
        if self.status == StatusPart::Separate && !(core && self.resource.resource == "nodes") {
            object.remove(&["status"]);
        }
        match (core, self.resource.resource.as_str()) {
            (true, "pods") => {
                let class = quality_of_service(&object.value()["spec"]);
                object.set(&["status"], json!({"phase": "Pending", "qosClass": class}));
            }
            (true, "namespaces") => {
                let name = object.name().to_owned();
                object.set(&["metadata", "labels", "kubernetes.io/metadata.name"], name);
                object.set(&["spec"], json!({"finalizers": ["kubernetes"]}));
                object.set(&["status"], json!({"phase": "Active"}));
            }
            (true, "persistentvolumeclaims") => {
                object.set(&["status"], json!({"phase": "Pending"}));
            }
            _ if self.status == StatusPart::Separate => self.begin_status(object),
            _ => {}
        }
        self.count_templates(None, object);
    }

    /// Counts template changes of daemon sets in an annotation, which is older than generations.
    fn count_templates(&self, before: Option<&Object>, object: &mut Object) {
        const COUNT: [&str; 3] = [
            "metadata",
            "annotations",
            "deprecated.daemonset.template.generation",
        ];
        if self.resource.group != "apps" || self.resource.resource != "daemonsets" {
            return;
        }
        let template = ["spec", "template"];
        let count = before.map_or(1, |before| {
            let count: i64 = before.text(&COUNT).parse().unwrap_or(1);
            count + i64::from(before.at(&template) != object.at(&template))
        });
        object.set(&COUNT, count.to_string());
    }

    /// The initial status that kube-apiserver writes.
    fn begin_status(&self, object: &mut Object) {
        let group = self.resource.group.as_str();
        let status = match (group, self.resource.resource.as_str()) {
            ("apps", "replicasets") => json!({"replicas": 0}),
            ("apps", "statefulsets") => json!({"availableReplicas": 0, "replicas": 0}),
            ("apps", "daemonsets") => json!({
                "currentNumberScheduled": 0,
                "desiredNumberScheduled": 0,
                "numberMisscheduled": 0,
                "numberReady": 0,
            }),
            ("apps" | "batch", _) => json!({}),
            _ => return,
        };
        object.set(&["status"], status);
    }

    /// Restricts an update to the part that is written.
    pub(crate) fn prepare_update(&self, part: Part, before: &Object, object: Object) -> Object {
        let mut next = match part {
            Part::Main => {
                let mut next = object;
                if self.status == StatusPart::Separate {
                    next.take_from(before, &["status"]);
                }
                if self.is_namespaces() {
                    next.take_from(before, &["spec", "finalizers"]);
                }
                next
            }
            Part::Status | Part::Finalize => {
                let mut next = before.clone();
                next.take_from(&object, &["apiVersion"]);
                next.take_from(&object, &["metadata", "resourceVersion"]);
                next.take_from(&object, &["metadata", "managedFields"]);
                next.take_from(
                    &object,
                    match part {
                        Part::Finalize => &["spec", "finalizers"],
                        _ => &["status"],
                    },
                );
                next
            }
        };
        for field in SERVER_METADATA {
            next.take_from(before, &["metadata", field]);
        }
        self.count_templates(Some(before), &mut next);
        if let Some(generation) = before.generation()
            && self.desired_state_differs(before, &next)
        {
            next.set(&["metadata", "generation"], generation + 1);
        }
        next
    }

    /// Finalizers that must be removed before an object is deleted.
    pub(crate) fn pending_finalizers<'a>(&self, object: &'a Object) -> Vec<&'a str> {
        let mut pending_finalizers = object.finalizers();
        if self.is_namespaces() {
            pending_finalizers.extend(texts(object.at(&["spec", "finalizers"])));
        }
        pending_finalizers
    }

    /// The grace period of a deletion in seconds, if it is not given: only pods that are bound
    /// to a node have one, in their spec.
    pub(crate) fn grace(&self, object: &Object, requested: Option<u32>) -> u32 {
        let is_pod = self.resource.group.is_empty() && self.resource.resource == "pods";
        let is_over = matches!(object.text(&["status", "phase"]), "Succeeded" | "Failed");
        if !is_pod || is_over || object.text(&["spec", "nodeName"]).is_empty() {
            return 0;
        }
        let own = object.at(&["spec", "terminationGracePeriodSeconds"]);
        let own = own
            .and_then(Value::as_u64)
            .map(|it| u32::try_from(it).unwrap_or(u32::MAX));
        requested.or(own).unwrap_or(DEFAULT_POD_GRACE_SECONDS)
    }

    fn desired_state_differs(&self, before: &Object, next: &Object) -> bool {
        if self.resource.group.is_empty() && self.resource.resource == "pods" {
            // Binding to a node does not change the generation.
            let mut next = next.clone();
            next.take_from(before, &["spec", "nodeName"]);
            return desired_state(before) != desired_state(&next);
        }
        desired_state(before) != desired_state(next)
    }

    fn has_generation(&self) -> bool {
        match (
            self.resource.group.as_str(),
            self.resource.resource.as_str(),
        ) {
            ("apps", resource) => resource != "controllerrevisions",
            ("", resource) => matches!(resource, "pods" | "replicationcontrollers"),
            ("storage.k8s.io", resource) => resource == "csidrivers",
            ("networking.k8s.io", resource) => {
                matches!(resource, "ingresses" | "ingressclasses" | "networkpolicies")
            }
            (
                "batch"
                | "policy"
                | "admissionregistration.k8s.io"
                | "flowcontrol.apiserver.k8s.io"
                | "apiextensions.k8s.io",
                _,
            ) => true,
            _ => false,
        }
    }
}

/// The desired state of an object: all but metadata and status.
fn desired_state(object: &Object) -> impl PartialEq + '_ {
    let desired_state = object.fields().filter(|(name, _)| {
        !matches!(name.as_str(), "apiVersion" | "kind" | "metadata" | "status")
    });
    desired_state.collect::<Vec<(&String, &Value)>>()
}
