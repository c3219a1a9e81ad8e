//! How soon a bridge shows the schemas of custom resources in OpenAPI, compared with its own server.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use skewbridge_e2e::{
    ControlPlane, HttpClient, Protocol, Request, ServerSpec, Via, old_and_new_versions,
};
use skewbridge_testkit::eventually;
use tokio::time::sleep;

/// From the last readiness to the time when all servers know each other.
const PEER_DISCOVERY_TIMEOUT: Duration = Duration::from_secs(30);

/// For a server to publish a schema. Kubernetes' own tests wait 30 s.
const PUBLISH_TIMEOUT: Duration = Duration::from_mins(1);

/// How much later than the server a bridge may show a schema.
const MAX_DELAY: Duration = Duration::from_secs(1);

/// The interval between two requests of a client that waits for a schema.
const REQUEST_INTERVAL: Duration = Duration::from_millis(200);

/// How many schemas are published, changed and removed.
const ROUNDS: u32 = 2;

/// The documents that Kubernetes' specs of `CustomResourcePublishOpenAPI` and `kubectl explain` read.
#[derive(Debug, Clone, Copy)]
enum Document {
    V2,
    V3,
}

/// A state of a custom resource that OpenAPI shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Published {
    First,
    Changed,
    Removed,
}

impl Published {
    fn description(self) -> &'static str {
        match self {
            Self::First => "the first schema",
            Self::Changed | Self::Removed => "the changed schema",
        }
    }
}

/// A client that follows one document with conditional requests.
struct Follower {
    client: HttpClient,
    path: String,
    known: Option<(String, Published)>,
    definition: String,
}

impl Follower {
    fn new(plane: &ControlPlane, server: usize, via: Via, document: Document, group: &str) -> Self {
        let path = match document {
            Document::V2 => "/openapi/v2".to_owned(),
            Document::V3 => format!("/openapi/v3/apis/{group}/v1"),
        };
        let mut reversed: Vec<&str> = group.split('.').collect();
        reversed.reverse();
        Self {
            client: plane.http_client(server, via, Protocol::H2),
            path,
            known: None,
            definition: format!("{}.v1.Thing", reversed.join(".")),
        }
    }

    async fn read(&mut self) -> Published {
        let mut request = Request::get(&self.path).header("Accept", "application/json");
        if let Some((etag, _)) = &self.known {
            request = request.header("If-None-Match", etag);
        }
        let response = self.client.send(&request).await.unwrap();
        match (response.status, &self.known) {
            (404, _) => Published::Removed,
            // kube-apiserver, while it removes the document.
            (200, _) if response.body.is_empty() => Published::Removed,
            (304, Some((_, published))) => *published,
            (200, _) => {
                let document: Value = serde_json::from_slice(&response.body).unwrap();
                let schemas = [&document["definitions"], &document["components"]["schemas"]];
                let schema = schemas.iter().find_map(|it| it.get(&self.definition));
                let published = match schema.and_then(|it| it["description"].as_str()) {
                    None => Published::Removed,
                    Some(text) if text == Published::First.description() => Published::First,
                    Some(_) => Published::Changed,
                };
                let etag = response.header("etag").map(str::to_owned);
                self.known = etag.map(|etag| (etag, published));
                published
            }
            (status, _) => panic!("{status} {}: {}", self.path, response.text()),
        }
    }

    /// Waits until the document has shown this state twice in a row, and returns when it did first.
    async fn wait_for(&mut self, expected: Published) -> Instant {
        let deadline = Instant::now() + PUBLISH_TIMEOUT;
        let mut first_seen: Option<Instant> = None;
        let mut repeated = 0;
        while Instant::now() < deadline {
            if self.read().await == expected {
                let first_seen = *first_seen.get_or_insert_with(Instant::now);
                repeated += 1;
                if repeated > 4 {
                    return first_seen;
                }
            } else {
                (first_seen, repeated) = (None, 0);
            }
            sleep(REQUEST_INTERVAL).await;
        }
        panic!("{} does not show {expected:?} in time", self.path);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bridge_shows_schemas_of_custom_resources_as_soon_as_its_server() {
    let Some([old, new]) = old_and_new_versions() else {
        return;
    };
    let server = |version| ServerSpec::of(version).peer();
    let plane = ControlPlane::start(&[server(&old), server(&new)]).await;
    eventually(
        "the servers know each other",
        PEER_DISCOVERY_TIMEOUT,
        async || {
            let first = plane.discovered(0, Via::Bridge).await;
            first.len() == plane.discovered(1, Via::Bridge).await.len()
                && first.len() > plane.discovered(0, Via::Server).await.len()
        },
    )
    .await;
    for document in [Document::V3, Document::V2] {
        for server in [0, 1] {
            let mut longest = Duration::ZERO;
            for round in 0..ROUNDS {
                let kind = format!("{document:?}").to_lowercase();
                let group = format!("round{round}.s{server}.{kind}.example.com");
                longest = longest.max(follow(&plane, server, document, &group).await);
            }
            println!(
                "{document:?} at bridge {server}: at most {longest:.1?} later than its server"
            );
            assert!(longest < MAX_DELAY, "{longest:?}");
        }
    }
}

/// Publishes, changes and removes a schema, and returns how much later the bridge showed a state.
async fn follow(plane: &ControlPlane, server: usize, document: Document, group: &str) -> Duration {
    let mut admin = plane.http_client(server, Via::Server, Protocol::H2);
    let mut direct = Follower::new(plane, server, Via::Server, document, group);
    let mut bridged = Follower::new(plane, server, Via::Bridge, document, group);
    let mut longest = Duration::ZERO;
    for published in [Published::First, Published::Changed, Published::Removed] {
        let changed_at = Instant::now();
        change(&mut admin, group, published).await;
        let (direct, bridged) =
            tokio::join!(direct.wait_for(published), bridged.wait_for(published));
        println!(
            "{group} {published:?}: direct {:.1?}, bridge {:.1?}",
            direct - changed_at,
            bridged - changed_at
        );
        longest = longest.max(bridged.saturating_duration_since(direct));
    }
    longest
}

async fn change(client: &mut HttpClient, group: &str, to: Published) {
    const COLLECTION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let path = format!("{COLLECTION}/things.{group}");
    let request = match to {
        Published::First => {
            let resource = custom_resource(group, to.description());
            Request::new("POST", COLLECTION).body("application/json", &resource.to_string())
        }
        Published::Changed => {
            let operations = json!([{"op": "replace", "value": to.description(),
                "path": "/spec/versions/0/schema/openAPIV3Schema/description"}]);
            Request::new("PATCH", &path)
                .body("application/json-patch+json", &operations.to_string())
        }
        Published::Removed => Request::new("DELETE", &path),
    };
    let response = client.send(&request).await.unwrap();
    assert!(response.status < 300, "{}", response.text());
}

fn custom_resource(group: &str, description: &str) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("things.{group}")},
        "spec": {"group": group, "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "description": description}}}]}})
}
