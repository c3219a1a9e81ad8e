//! A stand-in kube-apiserver that says what it serves, keeps the objects that bridges read, and
//! can be told to do otherwise while it runs.

use std::collections::BTreeMap;
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
pub(crate) const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const V2_BETA1: &str = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";

/// In which form a server tells what it serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    V2,
    V2Beta1,
    Legacy,
}

/// A running stand-in.
pub(crate) struct FakeApiServer {
    pub(crate) server: ApiServer,
    state: Arc<Mutex<State>>,
}

type Hook = Arc<dyn Fn(&RecordedRequest) -> Option<Reply> + Send + Sync>;

struct State {
    name: String,
    version: String,
    /// It answers as a bridge does, which names itself to its peers.
    is_bridge: bool,
    form: Form,
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
            is_bridge: false,
            form: Form::V2,
            serves: owned(lines),
            hook: None,
            objects: Objects::default(),
        }));
        let shared = Arc::clone(&state);
        let server = ApiServer::start(options, move |seen| answer(&shared, &seen)).await;
        Self { server, state }
    }

    /// It serves this from now on.
    pub(crate) fn serve(&self, serves: &[&str]) {
        self.state().serves = owned(serves);
    }

    /// A bridge stands before it.
    pub(crate) fn is_bridge(&self) {
        self.state().is_bridge = true;
    }

    pub(crate) fn is_version(&self, version: &str, form: Form) {
        let mut state = self.state();
        version.clone_into(&mut state.version);
        state.form = form;
    }

    /// Asked first for every request.
    pub(crate) fn hook(
        &self,
        hook: impl Fn(&RecordedRequest) -> Option<Reply> + Send + Sync + 'static,
    ) {
        self.state().hook = Some(Arc::new(hook));
    }

    pub(crate) fn remove_hook(&self) {
        self.state().hook = None;
    }

    /// Creates or changes an object, and tells those who watch.
    pub(crate) fn put(&self, collection: &str, object: Value) {
        self.state().objects.put(collection, object);
    }

    pub(crate) fn delete(&self, collection: &str, name: &str) {
        self.state().objects.delete(collection, name);
    }

    /// Changes an object before those who watch have heard of it.
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

    /// What came from clients and peers, without a bridge's own questions.
    pub(crate) fn client_requests(&self) -> Vec<RecordedRequest> {
        let mut seen = self.server.requests();
        seen.retain(|seen| !seen.is_probe());
        seen
    }

    /// What bridges asked for themselves.
    pub(crate) fn gateway_requests(&self, path: &str) -> Vec<RecordedRequest> {
        let mut seen = self.server.requests();
        seen.retain(|seen| seen.is_probe() && seen.path() == path);
        seen
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

/// What a kube-apiserver says to a path that it does not know.
pub(crate) fn page_not_found() -> Reply {
    Reply::new(404)
        .header("Content-Type", "text/plain; charset=utf-8")
        .body("404 page not found\n")
}

fn owned(lines: &[&str]) -> Vec<String> {
    lines.iter().map(|line| (*line).to_owned()).collect()
}

fn answer(state: &Mutex<State>, seen: &RecordedRequest) -> Reply {
    let hook = state.lock().unwrap().hook.clone();
    if let Some(reply) = hook.and_then(|hook| hook(seen)) {
        return reply;
    }
    let mut state = state.lock().unwrap();
    match seen.path() {
        "/readyz" | "/livez" | "/healthz" => return Reply::new(200).body("ok"),
        "/version" => {
            let reply = Reply::json(json!({"gitVersion": state.version}).to_string());
            return if state.is_bridge {
                reply.header("x-skewbridge-answered", "true")
            } else {
                reply
            };
        }
        "/api" | "/apis" => return state.discovery(seen),
        _ => {}
    }
    if seen.path().starts_with("/openapi/") {
        return state.openapi(seen);
    }
    if let Some(reply) = state.objects.answer(seen) {
        return reply;
    }
    if let Some(list) = state.resource_list(seen.path()) {
        return Reply::json(list.to_string());
    }
    let index = Index::new(&[
        &document(&state.items(Part::Core)),
        &document(&state.items(Part::Groups)),
    ]);
    let path = DecodedPath::new(seen.path()).unwrap();
    if index.serves(&RequestInfo::parse(&seen.method, &path, seen.query())) {
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

/// Group, version, resource, subresource, verbs.
fn split(line: &str) -> [&str; 5] {
    let (group_version, rest) = line.split_once(' ').unwrap();
    let (group, version) = group_version.split_once('/').unwrap_or(("", group_version));
    let (resource, verbs) = rest.split_once(':').unwrap_or((rest, ALL_VERBS));
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    [group, version, resource, subresource, verbs]
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
                json!({"resource": resource, "scope": "Namespaced", "verbs": [],
                       "singularResource": "", "subresources": []})
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

    fn discovery(&self, seen: &RecordedRequest) -> Reply {
        let part = if seen.path() == "/api" {
            Part::Core
        } else {
            Part::Groups
        };
        let aggregated = seen
            .header("accept")
            .is_some_and(|accept| accept.contains("as=APIGroupDiscoveryList"));
        let (content_type, body) = match self.form {
            _ if !aggregated => return Reply::json(self.legacy(part).to_string()),
            Form::V2 => (V2, list("v2", &self.items(part))),
            Form::V2Beta1 => (V2_BETA1, list("v2beta1", &self.items(part))),
            Form::Legacy => return Reply::json(self.legacy(part).to_string()),
        };
        // Its content is its name, short of what a header cannot hold.
        let etag = format!("\"{}-{}\"", self.version, self.serves.join("+").len());
        if seen.header("if-none-match") == Some(etag.as_str()) {
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

    /// A path for each resource, and a hash of the server's name and version.
    fn openapi(&self, seen: &RecordedRequest) -> Reply {
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
        let document = match seen.path() {
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
        if seen.header("if-none-match") == Some(&etag) {
            return Reply::new(304).header("ETag", &etag);
        }
        let asked = seen.query().and_then(|query| query.strip_prefix("hash="));
        if asked.is_some_and(|asked| asked != hash) {
            return Reply::new(301).header("ETag", &etag);
        }
        Reply::json(document.to_string()).header("ETag", &etag)
    }

    /// `/apis/<group>/<version>`, where it serves something of it.
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
    /// Revision, collection, line.
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
        self.tell(collection, kind, &object);
        object
    }

    fn delete(&mut self, collection: &str, name: &str) -> Option<Value> {
        let key = (collection.to_owned(), name.to_owned());
        let mut object = self.all.remove(&key)?;
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        self.tell(collection, "DELETED", &object);
        Some(object)
    }

    fn tell(&mut self, collection: &str, kind: &str, object: &Value) {
        let line = format!("{}\n", json!({"type": kind, "object": object}));
        self.watches
            .retain(|(at, watch)| at != collection || watch.send(line.clone()).is_ok());
        let event = (self.revision, collection.to_owned(), line);
        self.events.push(event);
    }

    fn answer(&mut self, seen: &RecordedRequest) -> Option<Reply> {
        let path = seen.path();
        let collection = [LEASES, API_SERVICES, CRDS]
            .into_iter()
            .find(|it| path.starts_with(it))?;
        let name = path[collection.len()..].trim_start_matches('/');
        let body = || serde_json::from_slice::<Value>(&seen.body).unwrap();
        let answer = match (seen.method.as_str(), name) {
            ("GET", "") if seen.query().is_some_and(|it| it.contains("watch=true")) => {
                return Some(self.watch(collection, seen.query().unwrap()));
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
                let asked = &body()["preconditions"];
                let same = |field: &str| asked[field].is_null() || asked[field] == is[field];
                if !same("uid") || !same("resourceVersion") {
                    return Some(Reply::new(409).body("not that one"));
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
        let (tell, mut lines) = mpsc::unbounded_channel();
        for (revision, at, line) in &self.events {
            if *revision > from && at == collection {
                tell.send(line.clone()).unwrap();
            }
        }
        self.watches.push((collection.to_owned(), tell));
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
