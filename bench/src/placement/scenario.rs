//! Clusters of an old local server and new peers, and a request for each rule of the routing
//! decision. `instruction-counts` uses this file as well.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use http::Method;
use serde::Serialize;
use serde_json::json;
use skewbridge_discovery::{Document, Index};
use skewbridge_gateway::admission_guard::{
    AdmissionPolicies, MatchRule, PolicyKind, PolicyMatches,
};
use skewbridge_gateway::cluster_state::Cluster;
use skewbridge_gateway::field_guard::{FieldDifferences, KindDifference};
use skewbridge_gateway::local_health::LocalHealth;
use skewbridge_gateway::routing::{HopState, PlacementInput, RouteInput};
use skewbridge_k8s_api::version::Version;
use skewbridge_peer_directory::{
    Identity, Peer, PeerRecord, Peers, ServedApis, SharedGroupVersionTracker,
};

/// The resources of each server, as many as Kubernetes 1.36 has.
const RESOURCES: usize = 90;

const LOCAL_VERSION: u16 = 34;
const PEER_VERSION: u16 = 36;

/// Which rule of the routing decision applies.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Case {
    /// The local server satisfies every rule.
    Local,
    /// The component is newer than the local server.
    Version,
    /// The local server lacks fields of the kind.
    Fields,
    /// The local server does not serve the resource.
    Serves,
    /// The local server does not enforce a policy that can match.
    Admission,
    /// The local server is not available.
    Available,
}

impl Case {
    /// All of them.
    pub(crate) const ALL: [Self; 6] = [
        Self::Local,
        Self::Version,
        Self::Fields,
        Self::Serves,
        Self::Admission,
        Self::Available,
    ];

    /// The path of the request.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Local | Self::Version | Self::Admission | Self::Available => {
                "/api/v1/namespaces/default/resource-1"
            }
            Self::Fields => "/api/v1/namespaces/default/resource-2/name",
            Self::Serves => "/api/v1/namespaces/default/new/name",
        }
    }

    /// The method of the request.
    pub(crate) fn method(self) -> Method {
        match self {
            Self::Fields => Method::PATCH,
            Self::Admission => Method::POST,
            _ => Method::GET,
        }
    }

    /// The inputs besides the request.
    pub(crate) fn input(self) -> RouteInput {
        let component = matches!(self, Self::Version).then(|| version(PEER_VERSION));
        RouteInput {
            shutting_down: false,
            can_assert: true,
            hop_state: HopState::First,
            placement: PlacementInput {
                component,
                ..PlacementInput::default()
            },
        }
    }
}

fn version(minor: u16) -> Version {
    Version {
        major: 1,
        minor,
        patch: 4,
    }
}

fn served(minor: u16, has_new: bool) -> Result<Arc<ServedApis>> {
    let mut names: Vec<_> = (0..RESOURCES)
        .map(|number| format!("resource-{number}"))
        .collect();
    if has_new {
        names.push("new".to_owned());
    }
    let resources: Vec<_> = (names.iter())
        .map(|name| {
            json!({"resource": name, "scope": "Namespaced",
                "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"]})
        })
        .collect();
    let text = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2",
        "items": [{"metadata": {"name": ""},
            "versions": [{"version": "v1", "resources": resources}]}]});
    let document = Arc::new(Document::parse(text.to_string().as_bytes())?);
    let policies = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2",
        "items": [{"metadata": {"name": ADMISSION_GROUP}, "versions": [{"version": "v1",
            "resources": [{"resource": "policies", "scope": "Cluster", "verbs": ["get"]}]}]}]});
    let groups = if has_new {
        Arc::new(Document::parse(policies.to_string().as_bytes())?)
    } else {
        Arc::default()
    };
    Ok(Arc::new(ServedApis {
        index: Arc::new(Index::new(&[&document, &groups])),
        documents: [document, groups],
        etags: [None, None],
        version: Some(version(minor)),
        version_suffix: Arc::default(),
        by_bridge: true,
    }))
}

/// The group of admission policies.
const ADMISSION_GROUP: &str = "admissionregistration.k8s.io";

/// A kind of policies that only peers serve. Its objects match the creation of any resource.
fn policies() -> PolicyKind {
    let rule = MatchRule {
        operations: vec!["CREATE".to_owned()],
        resources: vec!["*".to_owned()],
    };
    PolicyKind {
        resource: "policies".to_owned(),
        version: "v1".to_owned(),
        objects: Some(1),
        matches: PolicyMatches::Rules(vec![rule]),
    }
}

/// A cluster of an old local server and new peers.
pub(crate) fn cluster(servers: usize, case: Case) -> Result<Cluster> {
    let now = Instant::now();
    let newer = served(PEER_VERSION, true)?;
    let mut peers = Vec::new();
    let mut fields = FieldDifferences::default();
    let mut complete = Vec::new();
    for number in 1..servers {
        let identity = Identity::named(&format!("apiserver-{number}"))?;
        complete.push(Some(identity.clone()));
        peers.push(Arc::new(Peer {
            identity,
            host: None,
            address: Some(([127, 0, 0, 1], 6443).into()),
            published: true,
            alive_until: now + Duration::from_hours(1),
            awaited_until: now,
            served: Some(newer.clone()),
            record: PeerRecord::default(),
            health: Arc::default(),
            last_success: None,
            problem: None,
        }));
    }
    let difference = KindDifference {
        complete: complete.into_iter().collect(),
        ..KindDifference::default()
    };
    fields.insert("", "resource-2", difference);
    let local_health = Arc::<LocalHealth>::default();
    local_health.probed(!matches!(case, Case::Available), 0);
    let kinds = match case {
        Case::Admission => vec![policies()],
        _ => Vec::new(),
    };
    Ok(Cluster {
        local_health,
        policies: Arc::new(AdmissionPolicies { kinds }),
        local: Some(served(LOCAL_VERSION, false)?),
        peers: Peers {
            leases_listed: true,
            peers,
        },
        shared: Some(SharedGroupVersionTracker::new().snapshot()),
        fields: Arc::new(fields),
        ..Cluster::default()
    })
}
