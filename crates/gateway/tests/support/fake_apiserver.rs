//! A fake kube-apiserver with discovery, OpenAPI and the objects that bridges read. Tests can
//! change its behaviour at run time.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use serde_json::{Value, json};
use skewbridge_discovery::{Document, Index};
use skewbridge_k8s_api::request_info::{DecodedPath, RequestInfo};
use skewbridge_peer_directory::{Identity, IdentityLease};
use skewbridge_testkit::{ApiServer, Options, RecordedRequest, Reply};
use tokio::sync::mpsc;

pub(crate) const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
pub(crate) const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
pub(crate) const ENDPOINT_SLICES: &str =
    "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
pub(crate) const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// Served only by servers with [`POLICY_KIND`].
pub(crate) const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies";
pub(crate) const POLICY_KIND: &str = "admissionregistration.k8s.io/v1 mutatingadmissionpolicies";

const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const V2_BETA1: &str = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";

/// The discovery format of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiscoveryFormat {
    V2,
    V2Beta1,
    Legacy,
}

/// A running fake kube-apiserver.
pub(crate) struct FakeApiServer {
    pub(crate) server: ApiServer,
    state: Arc<Mutex<State>>,
}

type Hook = Arc<dyn Fn(&RecordedRequest) -> Option<Reply> + Send + Sync>;

struct State {
    name: String,
    version: String,
    /// Adds the header by which a bridge identifies itself to its peers.
    answer_as_bridge: bool,
    form: DiscoveryFormat,
    /// Lines such as `v1 pods`, `v1 pods/resize:get,patch`, `apps/v1 deployments`.
    serves: Vec<String>,
    hook: Option<Hook>,
    objects: Objects,
}

impl FakeApiServer {
    pub(crate) async fn start(options: Options<'_>, name: &str, lines: &[&str]) -> Self {
        let state = Arc::new(Mutex::new(State {
            name: name.to_owned(),
            version: "v1.36.4".to_owned(),
            answer_as_bridge: false,
            form: DiscoveryFormat::V2,
            serves: owned(lines),
            hook: None,
            objects: Objects::default(),
        }));
        let shared = Arc::clone(&state);
        let server = ApiServer::start(options, move |recorded| answer(&shared, &recorded)).await;
        Self { server, state }
    }

    /// Replaces the served resources.
    pub(crate) fn serve(&self, serves: &[&str]) {
        self.state().serves = owned(serves);
    }

    /// Answers like a bridge from now on.
    pub(crate) fn answer_as_bridge(&self) {
        self.state().answer_as_bridge = true;
    }

    pub(crate) fn set_version(&self, version: &str, form: DiscoveryFormat) {
        let mut state = self.state();
        version.clone_into(&mut state.version);
        state.form = form;
    }

    /// Called first for every request; its reply takes precedence.
    pub(crate) fn set_hook(
        &self,
        hook: impl Fn(&RecordedRequest) -> Option<Reply> + Send + Sync + 'static,
    ) {
        self.state().hook = Some(Arc::new(hook));
    }

    pub(crate) fn remove_hook(&self) {
        self.state().hook = None;
    }

    /// Creates or updates an object, and notifies the watches.
    pub(crate) fn put(&self, collection: &str, object: Value) {
        self.state().objects.put(collection, object);
    }

    pub(crate) fn delete(&self, collection: &str, name: &str) {
        self.state().objects.delete(collection, name);
    }

    /// Updates an object without notifying the watches.
    pub(crate) fn touch_without_event(&self, collection: &str, name: &str) {
        let objects = &mut self.state().objects;
        objects.revision += 1;
        let revision = objects.revision.to_string();
        let key = (collection.to_owned(), name.to_owned());
        let object = objects.all.get_mut(&key).unwrap();
        object["metadata"]["resourceVersion"] = json!(revision);
    }

    pub(crate) fn object(&self, collection: &str, name: &str) -> Option<Value> {
        let key = (collection.to_owned(), name.to_owned());
        self.state().objects.all.get(&key).cloned()
    }

    pub(crate) fn count(&self, collection: &str) -> usize {
        let state = self.state();
        let all = state.objects.all.keys();
        all.filter(|(at, _)| at == collection).count()
    }

    /// Writes the Lease of a server.
    pub(crate) fn lease(&self, name: &str, holder: &str) {
        self.put(LEASES, lease(name, holder));
    }

    /// Writes the `EndpointSlice` of the Service `kubernetes`. All its addresses have one port.
    pub(crate) fn endpoints(&self, name: &str, addresses: &[SocketAddr]) {
        let port = addresses.first().map_or(1, SocketAddr::port);
        let ips: Vec<_> = addresses.iter().map(SocketAddr::ip).collect();
        let endpoints: Vec<_> = ips.iter().map(|ip| json!({"addresses": [ip]})).collect();
        let slice = json!({
            "metadata": {"name": name, "namespace": "default"},
            "endpoints": endpoints,
            "ports": [{"name": "https", "port": port}],
        });
        self.put(ENDPOINT_SLICES, slice);
    }

    /// The requests of clients and peers, without those that bridges send themselves.
    pub(crate) fn client_requests(&self) -> Vec<RecordedRequest> {
        let mut recorded = self.server.requests();
        recorded.retain(|recorded| !recorded.is_probe());
        recorded
    }

    /// The requests for this path that bridges have sent themselves.
    pub(crate) fn gateway_requests(&self, path: &str) -> Vec<RecordedRequest> {
        let mut recorded = self.server.requests();
        recorded.retain(|recorded| recorded.is_probe() && recorded.path() == path);
        recorded
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

/// A Lease that has just been renewed.
pub(crate) fn lease(name: &str, holder: &str) -> Value {
    let identity = Identity::named(name).unwrap();
    let host = format!("host-of-{name}");
    let lease = IdentityLease::new(&identity, &host, holder, SystemTime::now());
    serde_json::from_str(&lease.to_json()).unwrap()
}

pub(crate) fn crd(group: &str, plural: &str) -> Value {
    json!({
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {"group": group, "versions": [{"name": "v1", "served": true}]},
    })
}

pub(crate) fn api_service(group: &str, service: &Value) -> Value {
    json!({
        "metadata": {"name": format!("v1.{group}")},
        "spec": {"group": group, "version": "v1", "service": service},
    })
}

/// kube-apiserver's response for a path that it does not serve.
pub(crate) fn page_not_found() -> Reply {
    Reply::new(404)
        .header("Content-Type", "text/plain; charset=utf-8")
        .body("404 page not found\n")
}

fn owned(lines: &[&str]) -> Vec<String> {
    lines.iter().map(|line| (*line).to_owned()).collect()
}

fn answer(state: &Mutex<State>, recorded: &RecordedRequest) -> Reply {
    let hook = state.lock().unwrap().hook.clone();
    if let Some(reply) = hook.and_then(|hook| hook(recorded)) {
        return reply;
    }
    let mut state = state.lock().unwrap();
    match recorded.path() {
        "/readyz" | "/livez" | "/healthz" => return Reply::new(200).body("ok"),
        "/version" => {
            let reply = Reply::json(json!({"gitVersion": state.version}).to_string());
            return if state.answer_as_bridge {
                reply.header("x-skewbridge-answered", "true")
            } else {
                reply
            };
        }
        "/api" | "/apis" => return state.discovery(recorded),
        _ => {}
    }
    if recorded.path().starts_with("/openapi/") {
        return state.openapi(recorded);
    }
    let is_unserved_policy = recorded.path().starts_with(POLICIES)
        && !state.serves.iter().any(|line| line == POLICY_KIND);
    if is_unserved_policy {
        return page_not_found();
    }
    if let Some(reply) = state.objects.answer(recorded) {
        return reply;
    }
    if let Some(list) = state.resource_list(recorded.path()) {
        return Reply::json(list.to_string());
    }
    let index = Index::new(&[
        &document(&state.items(Part::Core)),
        &document(&state.items(Part::Groups)),
    ]);
    let path = DecodedPath::new(recorded.path()).unwrap();
    if index.serves(&RequestInfo::parse(
        &recorded.method,
        &path,
        recorded.query(),
    )) {
        return Reply::json(json!({"servedBy": state.name}).to_string());
    }
    page_not_found()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Core,
    Groups,
}

const ALL_VERBS: &str = "create,delete,deletecollection,get,list,patch,update,watch";

/// Splits a line into group, version, resource, subresource and verbs.
fn split(line: &str) -> [&str; 5] {
    let (group_version, rest) = line.split_once(' ').unwrap();
    let (group, version) = group_version.split_once('/').unwrap_or(("", group_version));
    let (resource, verbs) = rest.split_once(':').unwrap_or((rest, ALL_VERBS));
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    [group, version, resource, subresource, verbs]
}

/// `deployments` has the kind `Deployment`.
fn kind_of(resource: &str) -> String {
    let (first, rest) = resource.trim_end_matches('s').split_at(1);
    first.to_uppercase() + rest
}

impl State {
    /// The items of an aggregated document.
    fn items(&self, part: Part) -> Vec<Value> {
        type Resources = BTreeMap<String, Value>;
        let mut groups: BTreeMap<String, BTreeMap<String, Resources>> = BTreeMap::new();
        for line in &self.serves {
            let [group, version, resource, subresource, verbs] = split(line);
            if group.is_empty() != (part == Part::Core) {
                continue;
            }
            let verbs: Vec<_> = verbs.split(',').collect();
            let versions = groups.entry(group.to_owned()).or_default();
            let resources = versions.entry(version.to_owned()).or_default();
            let entry = resources.entry(resource.to_owned()).or_insert_with(|| {
                let kind = json!({"group": "", "version": "", "kind": kind_of(resource)});
                json!({"resource": resource, "scope": "Namespaced", "verbs": [],
                       "responseKind": kind, "singularResource": "", "subresources": []})
            });
            if subresource.is_empty() {
                entry["verbs"] = json!(verbs);
            } else {
                let subresources = entry["subresources"].as_array_mut().unwrap();
                subresources.push(json!({"subresource": subresource, "verbs": verbs}));
            }
        }
        let group = |(name, versions): (String, BTreeMap<String, Resources>)| {
            let versions: Vec<_> = versions
                .into_iter()
                .map(|(version, resources)| {
                    let resources: Vec<_> = resources.into_values().collect();
                    json!({"version": version, "resources": resources, "freshness": "Current"})
                })
                .collect();
            json!({"metadata": {"name": name}, "versions": versions})
        };
        groups.into_iter().map(group).collect()
    }

    fn discovery(&self, recorded: &RecordedRequest) -> Reply {
        let part = if recorded.path() == "/api" {
            Part::Core
        } else {
            Part::Groups
        };
        let aggregated = recorded
            .header("accept")
            .is_some_and(|accept| accept.contains("as=APIGroupDiscoveryList"));
        let (content_type, body) = match self.form {
            _ if !aggregated => return Reply::json(self.legacy(part).to_string()),
            DiscoveryFormat::V2 => (V2, list("v2", &self.items(part))),
            DiscoveryFormat::V2Beta1 => (V2_BETA1, list("v2beta1", &self.items(part))),
            DiscoveryFormat::Legacy => return Reply::json(self.legacy(part).to_string()),
        };
        // The ETag depends on the version and the served resources only.
        let etag = format!("\"{}-{}\"", self.version, self.serves.join("+").len());
        if recorded.header("if-none-match") == Some(etag.as_str()) {
            return Reply::new(304).header("ETag", &etag);
        }
        Reply::new(200)
            .header("Content-Type", content_type)
            .header("ETag", &etag)
            .body(body.to_string())
    }

    fn legacy(&self, part: Part) -> Value {
        if part == Part::Core {
            return json!({"kind": "APIVersions", "versions": ["v1"]});
        }
        let groups: Vec<_> = self
            .items(part)
            .into_iter()
            .map(|group| {
                let name = group["metadata"]["name"].as_str().unwrap();
                let versions: Vec<_> = group["versions"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|it| {
                        let version = it["version"].as_str().unwrap();
                        let group_version = format!("{name}/{version}");
                        json!({"groupVersion": group_version, "version": version})
                    })
                    .collect();
                json!({"name": name, "versions": versions})
            })
            .collect();
        json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
    }

    /// One path per resource, and a hash of the server's name and version.
    fn openapi(&self, recorded: &RecordedRequest) -> Reply {
        let mut documents: BTreeMap<String, Value> = BTreeMap::new();
        let mut everything = json!({"swagger": "2.0", "paths": {}});
        for line in &self.serves {
            let [group, version, resource, ..] = split(line);
            let key = match group {
                "" => format!("api/{version}"),
                group => format!("apis/{group}/{version}"),
            };
            let path = format!("/{key}/{resource}");
            let operation = json!({"get": {"description": self.name}});
            everything["paths"][&path] = operation.clone();
            let document = documents
                .entry(key)
                .or_insert_with(|| json!({"openapi": "3.0.0", "paths": {}}));
            document["paths"][&path] = operation;
        }
        let hash: String = format!("{}{}{}", self.name, self.version, self.serves.len())
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .collect();
        let document = match recorded.path() {
            "/openapi/v2" => everything,
            "/openapi/v3" => {
                let locations = documents.keys().map(|key| {
                    let url = format!("/openapi/v3/{key}?hash={hash}");
                    (key.clone(), json!({"serverRelativeURL": url}))
                });
                let locations: serde_json::Map<_, _> = locations.collect();
                return Reply::json(json!({"paths": locations}).to_string());
            }
            path => match documents.remove(path.trim_start_matches("/openapi/v3/")) {
                Some(document) => document,
                None => return page_not_found(),
            },
        };
        let etag = format!("\"{hash}\"");
        if recorded.header("if-none-match") == Some(&etag) {
            return Reply::new(304).header("ETag", &etag);
        }
        let recorded_requests = recorded
            .query()
            .and_then(|query| query.strip_prefix("hash="));
        if recorded_requests.is_some_and(|recorded_requests| recorded_requests != hash) {
            return Reply::new(301).header("ETag", &etag);
        }
        Reply::json(document.to_string()).header("ETag", &etag)
    }

    /// `/apis/<group>/<version>`, if it serves a resource of it.
    fn resource_list(&self, path: &str) -> Option<Value> {
        let mut resources = Vec::new();
        for line in &self.serves {
            let [group, version, resource, subresource, verbs] = split(line);
            let at = match group {
                "" => format!("/api/{version}"),
                group => format!("/apis/{group}/{version}"),
            };
            if at == path {
                let name = match subresource {
                    "" => resource.to_owned(),
                    subresource => format!("{resource}/{subresource}"),
                };
                let verbs: Vec<_> = verbs.split(',').collect();
                resources.push(json!({"name": name, "singularName": "", "namespaced": true,
                                      "kind": "It", "verbs": verbs}));
            }
        }
        let group_version = path
            .trim_start_matches("/apis/")
            .trim_start_matches("/api/");
        (!resources.is_empty()).then(|| {
            json!({"kind": "APIResourceList", "apiVersion": "v1",
                   "groupVersion": group_version, "resources": resources})
        })
    }
}

fn list(version: &str, items: &[Value]) -> Value {
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": format!("apidiscovery.k8s.io/{version}"),
           "metadata": {}, "items": items})
}

fn document(items: &[Value]) -> Document {
    Document::parse(list("v2", items).to_string().as_bytes()).unwrap()
}

/// Objects that can be listed, watched and written.
#[derive(Default)]
struct Objects {
    revision: u64,
    all: BTreeMap<(String, String), Value>,
    /// Revision, collection, JSON line.
    events: Vec<(u64, String, String)>,
    watches: Vec<(String, mpsc::UnboundedSender<String>)>,
}

impl Objects {
    fn put(&mut self, collection: &str, mut object: Value) -> Value {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let key = (collection.to_owned(), name);
        let (kind, uid) = match self.all.get(&key) {
            None => ("ADDED", json!(format!("uid-{}", self.revision + 1))),
            Some(before) => ("MODIFIED", before["metadata"]["uid"].clone()),
        };
        self.revision += 1;
        object["metadata"]["uid"] = uid;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        self.all.insert(key, object.clone());
        self.notify_watches(collection, kind, &object);
        object
    }

    fn delete(&mut self, collection: &str, name: &str) -> Option<Value> {
        let key = (collection.to_owned(), name.to_owned());
        let mut object = self.all.remove(&key)?;
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        self.notify_watches(collection, "DELETED", &object);
        Some(object)
    }

    fn notify_watches(&mut self, collection: &str, kind: &str, object: &Value) {
        let line = format!("{}\n", json!({"type": kind, "object": object}));
        self.watches
            .retain(|(at, watch)| at != collection || watch.send(line.clone()).is_ok());
        let event = (self.revision, collection.to_owned(), line);
        self.events.push(event);
    }

    fn answer(&mut self, recorded: &RecordedRequest) -> Option<Reply> {
        let path = recorded.path();
        let collection = [LEASES, API_SERVICES, CRDS, ENDPOINT_SLICES, POLICIES]
            .into_iter()
            .find(|it| path.starts_with(it))?;
        let name = path[collection.len()..].trim_start_matches('/');
        let body = || serde_json::from_slice::<Value>(&recorded.body).unwrap();
        let answer = match (recorded.method.as_str(), name) {
            ("GET", "") if recorded.query().is_some_and(|it| it.contains("watch=true")) => {
                return Some(self.watch(collection, recorded.query().unwrap()));
            }
            ("GET", "") => {
                let items: Vec<_> = (self.all.iter())
                    .filter(|((at, _), _)| at == collection)
                    .map(|(_, object)| object)
                    .collect();
                let revision = self.revision.to_string();
                Some(json!({"metadata": {"resourceVersion": revision}, "items": items}))
            }
            ("POST", "") | ("PUT", _) => Some(self.put(collection, body())),
            ("PATCH", name) => {
                let key = (collection.to_owned(), name.to_owned());
                self.all.get(&key).cloned().map(|mut object| {
                    merge(&mut object, &body());
                    self.put(collection, object)
                })
            }
            ("DELETE", name) => {
                let key = (collection.to_owned(), name.to_owned());
                let is = &self.all.get(&key)?["metadata"];
                let recorded_requests = &body()["preconditions"];
                let same = |field: &str| {
                    recorded_requests[field].is_null() || recorded_requests[field] == is[field]
                };
                if !same("uid") || !same("resourceVersion") {
                    return Some(Reply::new(409).body("precondition failed"));
                }
                self.delete(collection, name)
            }
            ("GET", name) => {
                let key = (collection.to_owned(), name.to_owned());
                self.all.get(&key).cloned()
            }
            _ => None,
        };
        Some(answer.map_or_else(page_not_found, |it| Reply::json(it.to_string())))
    }

    fn watch(&mut self, collection: &str, query: &str) -> Reply {
        let from: u64 = query
            .split('&')
            .find_map(|it| it.strip_prefix("resourceVersion="))
            .map_or(0, |it| it.parse().unwrap());
        let (sender, mut lines) = mpsc::unbounded_channel();
        for (revision, at, line) in &self.events {
            if *revision > from && at == collection {
                sender.send(line.clone()).unwrap();
            }
        }
        self.watches.push((collection.to_owned(), sender));
        let (reply, body) = Reply::stream();
        tokio::spawn(async move {
            while let Some(line) = lines.recv().await {
                if body.send(line).await.is_err() {
                    break;
                }
            }
        });
        reply.header("Content-Type", "application/json")
    }
}

/// A JSON merge patch (RFC 7396).
fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            into.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut into[key], value);
        }
    }
}
