//! Merged discovery: the APIs of all servers as if one server served them (KEP-4020, Discovery
//! Merging, and the parts that the KEP does not cover). The control thread rebuilds the view after
//! a change; requests read the last one.

mod authz_cache;
pub(crate) mod discovery_request;
pub(crate) mod encoded_document;
pub(crate) mod freshness;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use http::HeaderValue;
use skewbridge_discovery::document::{Group, Schema, Version};
use skewbridge_discovery::lists::ApiGroup;
use skewbridge_discovery::{Document, merge};
use skewbridge_k8s_api::version::Version as KubeVersion;
use skewbridge_peer_directory::{Identity, Peers, ServedApis, SharedGroupVersions};

pub(crate) use authz_cache::{AuthzCache, CredentialDigest};
pub(crate) use discovery_request::{CompleteDiscovery, DiscoveryRequest};
use encoded_document::EncodedDocument;

/// Merged discovery, encoded for responses.
#[derive(Debug)]
pub struct View {
    own: Identity,
    /// The merged servers, in the order of their identities.
    sources: Vec<Source>,
    shared: Arc<SharedGroupVersions>,
    api: EncodedDocument,
    apis: EncodedDocument,
    /// Whether the APIs of a running server are not known yet.
    partial: bool,
    /// The version of the local server, which decides the schemas that clients get.
    local_version: Option<KubeVersion>,
    /// Group-versions that the local server does not serve completely, and the peers that
    /// contribute to them.
    pub(crate) incomplete: BTreeMap<(String, String), Vec<Identity>>,
}

/// The APIs of one server.
#[derive(Debug, Clone)]
struct Source {
    identity: Identity,
    documents: [Arc<Document>; 2],
    etags: [Option<HeaderValue>; 2],
}

/// The two documents of discovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiscoveryRoot {
    /// `/api`: the core group.
    Api,
    /// `/apis`: all other groups.
    Apis,
}

/// The first servers with v2beta1, with v2, and without v2beta1.
const V2BETA1_SINCE: (u16, u16) = (1, 26);
const V2_SINCE: (u16, u16) = (1, 30);
const V2BETA1_REMOVED_IN: (u16, u16) = (1, 33);

impl View {
    /// Merges the known APIs. Returns the previous view if nothing has changed, and `None` if the
    /// APIs of no peer are known, because discovery of the local server is complete then.
    pub(crate) fn of(
        own: &Identity,
        local: &Arc<ServedApis>,
        peers: &Peers,
        shared: &Arc<SharedGroupVersions>,
        before: Option<&Arc<Self>>,
    ) -> Option<Arc<Self>> {
        let polled =
            (peers.peers.iter()).filter_map(|peer| Some((&peer.identity, peer.served.as_ref()?)));
        let mut sources: Vec<_> = (polled.chain([(own, local)]))
            .map(|(identity, served)| Source::of(identity, served))
            .collect();
        if sources.len() == 1 {
            return None;
        }
        sources.sort_by(|one, other| one.identity.cmp(&other.identity));
        let partial = peers.peers.iter().any(|peer| peer.served.is_none());
        if let Some(before) = before
            && before.is_built_from(&sources, shared)
            && before.partial == partial
        {
            return Some(before.clone());
        }
        let view = Self::build(own.clone(), sources, shared.clone(), partial, local.version);
        Some(Arc::new(view))
    }

    fn build(
        own: Identity,
        sources: Vec<Source>,
        shared: Arc<SharedGroupVersions>,
        partial: bool,
        local_version: Option<KubeVersion>,
    ) -> Self {
        let now = Instant::now();
        let document = |root: DiscoveryRoot| {
            let documents: Vec<_> = (sources.iter())
                .map(|source| {
                    source.documents[root as usize].without(|group, version| {
                        source.identity != own && shared.contains(group, version, now)
                    })
                })
                .collect();
            EncodedDocument::of(merge(&documents.iter().collect::<Vec<_>>()))
        };
        Self {
            api: document(DiscoveryRoot::Api),
            apis: document(DiscoveryRoot::Apis),
            incomplete: incomplete(&own, &sources, &shared, now),
            own,
            sources,
            shared,
            partial,
            local_version,
        }
    }

    /// The same view with a newer document of the local server.
    pub(crate) fn with_local_document(
        &self,
        root: DiscoveryRoot,
        document: Document,
        etag: Option<HeaderValue>,
    ) -> Self {
        let mut sources = self.sources.clone();
        if let Some(local) = sources.iter_mut().find(|it| it.identity == self.own) {
            local.documents[root as usize] = Arc::new(document);
            local.etags[root as usize] = etag;
        }
        Self::build(
            self.own.clone(),
            sources,
            self.shared.clone(),
            self.partial,
            self.local_version,
        )
    }

    fn is_built_from(&self, sources: &[Source], shared: &Arc<SharedGroupVersions>) -> bool {
        self.sources.len() == sources.len()
            && self.sources.iter().zip(sources).all(Source::is_same)
            && Arc::ptr_eq(&self.shared, shared)
    }

    /// The number of merged servers.
    #[cfg(test)]
    pub(crate) fn source_count(&self) -> usize {
        self.sources.len()
    }

    pub(crate) fn document(&self, root: DiscoveryRoot) -> &EncodedDocument {
        match root {
            DiscoveryRoot::Api => &self.api,
            DiscoveryRoot::Apis => &self.apis,
        }
    }

    /// The `ETag` of the local server's document.
    pub(crate) fn local_etag(&self, root: DiscoveryRoot) -> Option<&HeaderValue> {
        self.local()?.etags[root as usize].as_ref()
    }

    fn local(&self) -> Option<&Source> {
        let mut sources = self.sources.iter();
        sources.find(|source| source.identity == self.own)
    }

    /// A group in merged discovery, and in discovery of the local server.
    pub(crate) fn group(&self, name: &str) -> (Option<&Group>, Option<&Group>) {
        let root = if name.is_empty() {
            DiscoveryRoot::Api
        } else {
            DiscoveryRoot::Apis
        };
        let local = self.local().map(|local| &*local.documents[root as usize]);
        (
            self.document(root).document.group(name),
            local.and_then(|local| local.group(name)),
        )
    }

    /// A version of a group in merged discovery, and in discovery of the local server.
    pub(crate) fn version(
        &self,
        group: &str,
        version: &str,
    ) -> (Option<&Version>, Option<&Version>) {
        let (merged, local) = self.group(group);
        (
            merged.and_then(|group| group.version(version)),
            local.and_then(|group| group.version(version)),
        )
    }

    /// Whether a list may contain a version: merged discovery has it, or the local server serves it
    /// although the view does not have it yet. Lists of servers also contain versions that other
    /// servers once registered and that no server serves any more. A client that requests one of
    /// them gets 404, and treats all of discovery as failed.
    pub(crate) fn is_listable(&self, group: &str, version: &str) -> bool {
        self.partial
            || self.version(group, version).0.is_some()
            || self.shared.contains(group, version, Instant::now())
    }

    /// Removes shared versions that the local server does not list any more.
    pub(crate) fn remove_deleted_versions(&self, group: &mut ApiGroup, listed: Option<&ApiGroup>) {
        let now = Instant::now();
        let name = group.name.clone();
        group.versions.retain(|version| {
            let is_listed = listed.is_some_and(|listed| listed.versions.contains(version));
            is_listed || !self.shared.contains(&name, &version.version, now)
        });
        if !group.versions.contains(&group.preferred_version) {
            group.preferred_version = group.versions.first().cloned().unwrap_or_default();
        }
    }

    /// Whether the local server serves this schema: a client gets the same schemas with and without
    /// a bridge.
    fn serves_schema(&self, schema: Schema) -> bool {
        // A server without aggregated discovery was polled by lists, which have no ETag.
        if self.local_etag(DiscoveryRoot::Apis).is_none() {
            return false;
        }
        let Some(version) = &self.local_version else {
            return schema == Schema::V2;
        };
        let version = (version.major, version.minor);
        match schema {
            Schema::V2 => version >= V2_SINCE,
            Schema::V2Beta1 => (V2BETA1_SINCE..V2BETA1_REMOVED_IN).contains(&version),
        }
    }

    /// The sizes of the JSON documents by path.
    pub(crate) fn sizes(&self) -> [(&'static str, usize); 2] {
        [
            ("/api", self.api.json.len()),
            ("/apis", self.apis.json.len()),
        ]
    }
}

/// The peers that serve APIs that the local server does not serve, by group-version.
fn incomplete(
    own: &Identity,
    sources: &[Source],
    shared: &SharedGroupVersions,
    now: Instant,
) -> BTreeMap<(String, String), Vec<Identity>> {
    let mut incomplete = BTreeMap::<_, Vec<Identity>>::new();
    let local = sources.iter().find(|source| source.identity == *own);
    for source in sources.iter().filter(|source| source.identity != *own) {
        for root in 0..2 {
            let local = local.map(|local| &*local.documents[root]);
            for (group, version) in source.documents[root].versions() {
                let local_version = local.and_then(|local| local.version(group, &version.version));
                let adds =
                    local_version.is_none_or(|local_version| !version.is_subset_of(local_version));
                if adds && !shared.contains(group, &version.version, now) {
                    let key = (group.to_owned(), version.version.clone());
                    incomplete
                        .entry(key)
                        .or_default()
                        .push(source.identity.clone());
                }
            }
        }
    }
    incomplete
}

impl Source {
    fn of(identity: &Identity, served: &ServedApis) -> Self {
        let etag = |etag: &Option<String>| HeaderValue::from_str(etag.as_ref()?).ok();
        Self {
            identity: identity.clone(),
            documents: served.documents.clone(),
            etags: [etag(&served.etags[0]), etag(&served.etags[1])],
        }
    }

    fn is_same((one, other): (&Self, &Self)) -> bool {
        let same = |at: usize| Arc::ptr_eq(&one.documents[at], &other.documents[at]);
        one.identity == other.identity && same(0) && same(1)
    }
}
