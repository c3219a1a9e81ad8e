//! Placement: which of the servers that serve a request gets it.
//!
//! A server that serves a request may still be the wrong one. Kubernetes' version skew policy does
//! not allow a component that is newer than its kube-apiserver; an older server drops fields that it
//! does not have, and does not enforce policies of a kind that it does not serve. The local server is
//! a candidate like the others, and is preferred if it is available and satisfies every rule. Among
//! equally good peers those with fewer requests in flight come first.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Instant;

use skewbridge_k8s_api::request_info::{Kind, RequestInfo, Verb};
use skewbridge_k8s_api::version::Version;
use skewbridge_peer_directory::{Identity, Peer, ServedApis};

use crate::admission_guard::{AdmissionGuard, AdmissionPolicies, is_admitted};
use crate::cluster_state::Cluster;
use crate::field_guard::{CompleteServers, FieldGuard};
use crate::placement_rule::{Rule, RuleSet};

/// The rules that are turned on, and what they need to know of the client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlacementInput {
    /// The version of the component that sends the request; `None` for clients that may be newer
    /// than their server.
    pub component: Option<Version>,
    /// `--guard-fields`.
    pub fields: FieldGuard,
    /// `--guard-admission`.
    pub admission: AdmissionGuard,
}

/// The servers for a request, in the order in which they are tried.
#[derive(Debug, Clone, Default)]
pub struct Placement {
    /// Peers that are better than the local server, in groups of equally good ones, the best first.
    pub peers: Vec<Vec<Arc<Peer>>>,
    /// The local server is tried after them.
    pub local: bool,
    /// The rules that the local server does not satisfy.
    pub unmet_by_local: RuleSet,
    /// The rules that the best of these servers does not satisfy; `admission` if servers serve the
    /// request and none of them enforces the policies in force.
    pub unmet: RuleSet,
}

/// A server that serves a request.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// `None` for the local server.
    pub peer: Option<Arc<Peer>>,
    /// Its version, if known.
    pub version: Option<Version>,
    /// Whether it can be sent requests now.
    pub available: bool,
    /// Requests in flight that this bridge has sent to a peer; 0 for the local server, which comes
    /// first among servers of equal rank.
    pub in_flight: usize,
    /// The rules that it does not satisfy.
    pub unmet: RuleSet,
}

/// Whether a request can erase fields or evade policies if the version of a server is not the known
/// one.
pub fn depends_on_versions(request: &RequestInfo<'_>, input: PlacementInput) -> bool {
    let may_erase = !is_read(request) && input.fields.covers(request);
    may_erase || (input.admission == AdmissionGuard::On && is_admitted(request))
}

/// Places a request. Without a server that serves it the placement is empty.
pub fn place(
    request: &RequestInfo<'_>,
    input: PlacementInput,
    cluster: &Cluster,
    now: Instant,
) -> Placement {
    let requirements = Requirements::of(request, input, cluster, now);
    let mut placement = Placement {
        local: cluster.is_served_locally(request, now),
        ..Placement::default()
    };
    if placement.local {
        placement.unmet_by_local = requirements.unmet_by_local(cluster);
        let is_available = cluster.local_health.is_available();
        (placement.unmet_by_local).insert_if(!is_available, Rule::Available);
        // Most requests end here, without an allocation.
        if placement.unmet_by_local.is_empty() {
            return placement;
        }
    } else {
        placement.unmet_by_local = Rule::Serves.into();
    }
    let mut candidates = candidates(request, input, cluster, now);
    let is_served = !candidates.is_empty();
    retain_enforcing(&mut candidates);
    retain_complete(request, cluster, &mut candidates);
    placement.unmet = match candidates.first() {
        Some(best) => best.unmet,
        None if is_served => Rule::Admission.into(),
        None => RuleSet::EMPTY,
    };
    placement.local &= candidates.iter().any(|it| it.peer.is_none());
    placement.peers = groups(candidates);
    placement
}

/// The peers for a request that the local server turns out not to serve, in groups of equally good
/// ones, the best first. The update guard does not check such a write, so it is only
/// sent to servers that have every field; without one it is refused until discovery is known again.
pub fn place_among_peers(
    request: &RequestInfo<'_>,
    input: PlacementInput,
    cluster: &Cluster,
    now: Instant,
) -> Vec<Vec<Arc<Peer>>> {
    if cluster.is_shared(request, now) {
        return Vec::new();
    }
    let mut candidates = candidates(request, input, cluster, now);
    retain_enforcing(&mut candidates);
    candidates.retain(|it| it.peer.is_some());
    if !cannot_erase_fields(request, cluster) {
        candidates.retain(Candidate::is_complete);
    }
    groups(candidates)
}

/// The available peers for a request that the local server has not processed, in groups of equally
/// good ones, the best first. A write has been checked for a server with every field, so only such a
/// peer gets it: the next attempt of its client is placed and checked again.
pub fn place_elsewhere(
    request: &RequestInfo<'_>,
    input: PlacementInput,
    cluster: &Cluster,
    now: Instant,
) -> Vec<Vec<Arc<Peer>>> {
    if request.kind != Kind::Resource {
        return Vec::new();
    }
    let mut candidates = candidates(request, input, cluster, now);
    retain_enforcing(&mut candidates);
    let is_read = is_read(request);
    candidates.retain(|it| {
        let is_safe = is_read || !it.unmet.contains(Rule::Fields);
        it.peer.is_some() && it.available && is_safe
    });
    groups(candidates)
}

/// The rules that a server does not satisfy for a request; `None` is the local server. Whether the
/// server is available does not count.
pub fn unmet_by(
    request: &RequestInfo<'_>,
    input: PlacementInput,
    cluster: &Cluster,
    now: Instant,
    server: Option<&Identity>,
) -> RuleSet {
    let requirements = Requirements::of(request, input, cluster, now);
    match server {
        None => requirements.unmet_by_local(cluster),
        Some(identity) => match cluster.peers.get(identity) {
            Some(peer) => requirements.unmet_by_peer(peer),
            None => RuleSet::EMPTY,
        },
    }
}

/// Keeps the candidates that enforce the policies in force: a write is never sent to another
/// server.
fn retain_enforcing(candidates: &mut Vec<Candidate>) {
    candidates.retain(|it| !it.unmet.contains(Rule::Admission));
}

/// A write is not sent to a server that lacks fields if one that has all of them is tried before: it
/// would erase them, unchecked, if the better server does not accept it. That holds for every write: a
/// create may have such a field, and a deletion rewrites an object with finalizers. Reads may be sent
/// there, and so may writes while the fields of a server are not known: then every kind counts as
/// different, and only few are.
fn retain_complete(request: &RequestInfo<'_>, cluster: &Cluster, candidates: &mut Vec<Candidate>) {
    if !cannot_erase_fields(request, cluster)
        && candidates.first().is_some_and(Candidate::is_complete)
    {
        candidates.retain(Candidate::is_complete);
    }
}

fn is_read(request: &RequestInfo<'_>) -> bool {
    matches!(request.verb, Verb::Get | Verb::List | Verb::Watch)
}

/// Whether a request is a read, or the fields of its kind are not known of a server.
fn cannot_erase_fields(request: &RequestInfo<'_>, cluster: &Cluster) -> bool {
    is_read(request) || !cluster.fields.is_known(request.group, request.resource)
}

/// The peers that are better than the local server, in groups of equally good ones.
fn groups(candidates: Vec<Candidate>) -> Vec<Vec<Arc<Peer>>> {
    let (mut groups, mut last_rank) = (Vec::<Vec<_>>::new(), None);
    for candidate in candidates {
        let rank = candidate.rank();
        let Some(peer) = candidate.peer else { break };
        match groups.last_mut() {
            Some(group) if last_rank == Some(rank) => group.push(peer),
            _ => groups.push(vec![peer]),
        }
        last_rank = Some(rank);
    }
    groups
}

/// All servers that serve a request, the best first. The order does not depend on the order in which
/// servers were found.
pub fn candidates(
    request: &RequestInfo<'_>,
    input: PlacementInput,
    cluster: &Cluster,
    now: Instant,
) -> Vec<Candidate> {
    let requirements = Requirements::of(request, input, cluster, now);
    let is_shared = cluster.is_shared(request, now);
    let mut candidates = Vec::new();
    if cluster.is_served_locally(request, now) {
        candidates.push(Candidate {
            peer: None,
            version: cluster.local_version(),
            available: cluster.local_health.is_available(),
            in_flight: 0,
            unmet: requirements.unmet_by_local(cluster),
        });
    }
    // Served records omit the APIs that all servers share.
    let serves = |peer: &Peer| {
        if is_shared {
            peer.served.is_some()
        } else {
            peer.serves(request)
        }
    };
    let serving = (cluster.peers.peers.iter()).filter(|peer| serves(peer));
    candidates.extend(serving.map(|peer| Candidate {
        peer: Some(peer.clone()),
        version: peer.version(),
        available: peer.is_available(now),
        in_flight: peer.health.in_flight(),
        unmet: requirements.unmet_by_peer(peer),
    }));
    candidates.sort_by(|a, b| {
        let by_rank = a.rank().cmp(&b.rank());
        let by_load = by_rank.then(a.in_flight.cmp(&b.in_flight));
        by_load.then_with(|| a.identity().cmp(&b.identity()))
    });
    candidates
}

/// The available peers that serve a request and are newer than the local server. A write is only sent to
/// those that have every field and enforce the policies in force.
pub fn newer_peers(
    request: &RequestInfo<'_>,
    input: PlacementInput,
    cluster: &Cluster,
    now: Instant,
) -> Vec<Arc<Peer>> {
    let local = cluster.local_version();
    let Some(local) = local.filter(|_| !cluster.is_shared(request, now)) else {
        return Vec::new();
    };
    let is_newer = |peer: &Peer| {
        let version = peer.version();
        version.is_some_and(|version| minor(version) > minor(local))
    };
    let requirements = Requirements::of(request, input, cluster, now);
    let is_safe = |peer: &Peer| {
        let unmet = requirements.unmet_by_peer(peer);
        is_read(request) || !(unmet.contains(Rule::Fields) || unmet.contains(Rule::Admission))
    };
    let peers = cluster.peers.peers.iter();
    peers
        .filter(|peer| is_newer(peer) && peer.serves(request) && peer.is_available(now))
        .filter(|peer| is_safe(peer))
        .cloned()
        .collect()
}

/// What a request demands of its server.
struct Requirements<'a> {
    request: &'a RequestInfo<'a>,
    component: Option<Version>,
    /// The servers that have every field of the kind, if not all servers have.
    fields: Option<&'a CompleteServers>,
    policies: Option<&'a AdmissionPolicies>,
}

impl<'a> Requirements<'a> {
    fn of(
        request: &'a RequestInfo<'a>,
        input: PlacementInput,
        cluster: &'a Cluster,
        now: Instant,
    ) -> Self {
        let mut requirements = Self {
            request,
            component: input.component,
            fields: None,
            policies: None,
        };
        if input.admission == AdmissionGuard::On {
            requirements.policies = Some(&cluster.policies);
        }
        if input.fields.covers(request) {
            let fields = &cluster.fields;
            let difference = fields.difference(request.group, request.resource);
            requirements.fields = difference.map(|it| &it.complete);
        }
        // Custom resources and aggregated APIs are the same on every server.
        if (requirements.component.is_some() || requirements.fields.is_some())
            && cluster.is_shared(request, now)
        {
            (requirements.component, requirements.fields) = (None, None);
        }
        requirements
    }

    /// The rules that the local server does not satisfy. If its version is not known yet, it is not
    /// taken for an old one.
    fn unmet_by_local(&self, cluster: &Cluster) -> RuleSet {
        let mut unmet = RuleSet::EMPTY;
        let version = cluster.local_version();
        let is_older = (version.zip(self.component))
            .is_some_and(|(version, component)| minor(version) < minor(component));
        unmet.insert_if(is_older, Rule::Version);
        let lacks_fields = self.fields.is_some_and(|complete| !complete.contains(None));
        unmet.insert_if(lacks_fields, Rule::Fields);
        unmet.insert_if(
            !self.enforces_policies(cluster.local.as_deref()),
            Rule::Admission,
        );
        unmet
    }

    /// The rules that a peer does not satisfy. A peer of unknown version counts as old.
    fn unmet_by_peer(&self, peer: &Peer) -> RuleSet {
        let mut unmet = RuleSet::EMPTY;
        let is_older = self.component.is_some_and(|component| {
            let version = peer.version();
            version.is_none_or(|version| minor(version) < minor(component))
        });
        unmet.insert_if(is_older, Rule::Version);
        let lacks_fields = self.fields;
        let lacks_fields = lacks_fields.is_some_and(|it| !it.contains(Some(&peer.identity)));
        unmet.insert_if(lacks_fields, Rule::Fields);
        unmet.insert_if(
            !self.enforces_policies(peer.served.as_deref()),
            Rule::Admission,
        );
        unmet
    }

    fn enforces_policies(&self, served: Option<&ServedApis>) -> bool {
        let mut matching = (self.policies.iter()).flat_map(|it| it.matching(self.request));
        matching.all(|kind| served.is_some_and(|served| kind.is_enforced_by(served)))
    }
}

/// Sort key, lowest first: available servers, then those that satisfy all rules, then the newest.
/// With equal keys the local server comes first.
type Rank = (bool, RuleSet, Reverse<Option<(u16, u16)>>, bool);

impl Candidate {
    fn identity(&self) -> Option<&Identity> {
        self.peer.as_ref().map(|peer| &peer.identity)
    }

    /// Whether it has every field of the kind, as far as the rule applies to the request.
    fn is_complete(&self) -> bool {
        !self.unmet.contains(Rule::Fields)
    }

    fn rank(&self) -> Rank {
        // Among servers that satisfy the rules, all versions are equally good.
        let newest = (self.version.map(minor)).filter(|_| !self.unmet.is_empty());
        (
            !self.available,
            self.unmet,
            Reverse(newest),
            self.peer.is_some(),
        )
    }
}

/// The version skew policy compares minor versions: patch releases of one minor are compatible.
fn minor(version: Version) -> (u16, u16) {
    (version.major, version.minor)
}

#[cfg(test)]
mod properties;
#[cfg(test)]
pub(super) mod tests;
