//! APIs that only some servers of a control plane serve.

use crate::versions::is_since;

/// An API that only some servers of a control plane serve.
#[derive(Debug, Clone, Copy)]
pub struct VersionSpecificApi {
    /// The argument for kubectl: resource, version and group.
    pub kubectl: &'static str,
    /// The path of its collection.
    pub path: &'static str,
    /// A manifest in which `NAME` is to be replaced.
    manifest: &'static str,
    /// The first minor version that serves it, and the first that no longer does.
    since: u16,
    before: Option<u16>,
}

impl VersionSpecificApi {
    /// Only 1.36 serves this version of it.
    pub const POLICIES: Self = Self {
        kubectl: "mutatingadmissionpolicies.v1.admissionregistration.k8s.io",
        path: "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies",
        manifest: r#"{"apiVersion":"admissionregistration.k8s.io/v1","kind":"MutatingAdmissionPolicy",
        "metadata":{"name":"NAME"},
        "spec":{"failurePolicy":"Ignore","reinvocationPolicy":"Never",
          "matchConstraints":{"resourceRules":[{"apiGroups":["none.example.com"],
            "apiVersions":["v1"],"operations":["CREATE"],"resources":["nothings"]}]},
          "mutations":[{"patchType":"JSONPatch","jsonPatch":
            {"expression":"[JSONPatch{op: \"test\", path: \"/kind\", value: \"None\"}]"}}]}}"#,
        since: 36,
        before: None,
    };

    /// Only 1.36 serves this version of it.
    pub const TAINT_RULES: Self = Self {
        kubectl: "devicetaintrules.v1beta2.resource.k8s.io",
        path: "/apis/resource.k8s.io/v1beta2/devicetaintrules",
        manifest: r#"{"apiVersion":"resource.k8s.io/v1beta2","kind":"DeviceTaintRule",
        "metadata":{"name":"NAME"},
        "spec":{"deviceSelector":{"driver":"none.example.com"},
          "taint":{"key":"example.com/none","effect":"NoSchedule"}}}"#,
        since: 36,
        before: None,
    };

    /// Only 1.34, and 1.29 beside 1.28, serve this version of it.
    pub const ATTRIBUTES_CLASSES: Self = Self {
        kubectl: "volumeattributesclasses.v1alpha1.storage.k8s.io",
        path: "/apis/storage.k8s.io/v1alpha1/volumeattributesclasses",
        manifest: r#"{"apiVersion":"storage.k8s.io/v1alpha1","kind":"VolumeAttributesClass",
        "metadata":{"name":"NAME"},"driverName":"none.example.com","parameters":{"a":"b"}}"#,
        since: 29,
        before: Some(35),
    };

    /// Only 1.28, beside 1.29, serves this version of it.
    pub const FLOW_SCHEMAS: Self = Self {
        kubectl: "flowschemas.v1beta2.flowcontrol.apiserver.k8s.io",
        path: "/apis/flowcontrol.apiserver.k8s.io/v1beta2/flowschemas",
        manifest: r#"{"apiVersion":"flowcontrol.apiserver.k8s.io/v1beta2","kind":"FlowSchema",
        "metadata":{"name":"NAME"},
        "spec":{"priorityLevelConfiguration":{"name":"exempt"}}}"#,
        since: 23,
        before: Some(29),
    };

    /// Only 1.29, beside 1.28, serves this version of it.
    pub const FLOW_SCHEMAS_V1: Self = Self {
        kubectl: "flowschemas.v1.flowcontrol.apiserver.k8s.io",
        path: "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",
        manifest: r#"{"apiVersion":"flowcontrol.apiserver.k8s.io/v1","kind":"FlowSchema",
        "metadata":{"name":"NAME"},
        "spec":{"priorityLevelConfiguration":{"name":"exempt"}}}"#,
        since: 29,
        before: None,
    };

    /// All of the above.
    pub const ALL: [Self; 5] = [
        Self::POLICIES,
        Self::TAINT_RULES,
        Self::ATTRIBUTES_CLASSES,
        Self::FLOW_SCHEMAS,
        Self::FLOW_SCHEMAS_V1,
    ];

    /// Whether this version of Kubernetes serves it.
    pub fn is_served_by(&self, version: &str) -> bool {
        let ended = |before| is_since(version, before);
        is_since(version, self.since) && !self.before.is_some_and(ended)
    }

    /// The form in which a bridge lists it: group, version and resource.
    pub fn line(&self) -> String {
        let (version, resource) = self.path.rsplit_once('/').expect("a path of a resource");
        format!("{} {resource}", version.trim_start_matches("/apis/"))
    }

    /// A manifest with this name.
    pub fn object(&self, name: &str) -> String {
        self.manifest.replace("NAME", name)
    }
}
