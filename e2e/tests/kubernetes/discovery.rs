//! Through any bridge a client discovers everything that the cluster serves, and every
//! discovered resource works.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::Value;
use skewbridge_e2e::{
    ControlPlane, DiscoveredResource, HttpClient, Protocol, Request, ServerSpec, User, Via,
    control_planes, newest, oldest,
};
use skewbridge_testkit::{Response, eventually};
use tokio::task::JoinSet;

/// From the last readiness to the time when all servers know each other.
const PEER_DISCOVERY_TIMEOUT: Duration = Duration::from_secs(30);

/// The number of concurrent clients.
const CONCURRENT_CLIENTS: usize = 16;

/// The name of an object that does not exist.
const MISSING_OBJECT: &str = "no-such-object";

async fn api_resources(plane: &ControlPlane, server: usize, via: Via) -> BTreeSet<String> {
    let words = [
        "api-resources",
        "--no-headers",
        "-o",
        "wide",
        "--cached=false",
    ];
    let output = plane.kubectl(server, via, User::Admin, &words).await;
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    // The columns are as wide as the widest entry.
    let lines = output.stdout.lines();
    lines
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

#[tokio::test]
async fn every_bridge_discovers_what_all_servers_serve() {
    for versions in control_planes() {
        if newest(&versions) == oldest(&versions) {
            continue;
        }
        println!("plane {versions:?}");
        let servers = versions
            .iter()
            .map(|version| ServerSpec::of(version).peer());
        let servers: Vec<_> = servers.collect();
        let plane = ControlPlane::start(&servers).await;
        let all = 0..versions.len();
        eventually(
            "all bridges show the same",
            PEER_DISCOVERY_TIMEOUT,
            async || {
                let mut shown_resources = BTreeSet::new();
                for server in all.clone() {
                    shown_resources.insert(api_resources(&plane, server, Via::Bridge).await);
                }
                shown_resources.len() == 1
            },
        )
        .await;
        let shown_resources = api_resources(&plane, 0, Via::Bridge).await;
        let names = |list: &BTreeSet<String>| -> BTreeSet<String> {
            let words = list.iter().filter_map(|line| line.split(' ').next());
            words.map(str::to_owned).collect()
        };
        for server in all.clone() {
            let own = api_resources(&plane, server, Via::Server).await;
            assert!(names(&own).is_subset(&names(&shown_resources)));
        }
        for server in all {
            everything_discovered_works(&plane, server).await;
        }
    }
}

/// The number of requests by kind.
type RequestCounts = BTreeMap<&'static str, usize>;

/// Each resource with each verb, and each subresource, as far as that has no side effects.
async fn everything_discovered_works(plane: &ControlPlane, server: usize) {
    let began = Instant::now();
    let all = plane.discovered(server, Via::Bridge).await;
    assert!(all.len() > 50, "{}", all.len());
    let mut walkers = JoinSet::new();
    for part in all.chunks(all.len().div_ceil(CONCURRENT_CLIENTS)) {
        let client = plane.http_client(server, Via::Bridge, Protocol::H2);
        walkers.spawn(request_part(client, part.to_vec()));
    }
    let (mut counts, mut faults) = (RequestCounts::new(), Vec::new());
    for (part_counts, part_faults) in walkers.join_all().await {
        for (what, count) in part_counts {
            *counts.entry(what).or_default() += count;
        }
        faults.extend(part_faults);
    }
    let resources = all.len();
    println!(
        "bridge {server}: {resources} resources: {counts:?} in {:.1?}",
        began.elapsed()
    );
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

async fn request_part(
    mut client: HttpClient,
    part: Vec<DiscoveredResource>,
) -> (RequestCounts, Vec<String>) {
    let (mut counts, mut faults) = (RequestCounts::new(), Vec::new());
    for resource in part {
        for (what, request, right) in probes(&resource) {
            *counts.entry(what).or_default() += 1;
            let response = client.send(&request).await.expect("an answer");
            if !right(&response) {
                let (method, target) = (&request.method, &request.target);
                let (status, text) = (response.status, response.text());
                faults.push(format!("{what}: {method} {target}: {status} {text}"));
            }
        }
    }
    (counts, faults)
}

type Probe = (&'static str, Request, fn(&Response) -> bool);

fn probes(of: &DiscoveredResource) -> Vec<Probe> {
    let everywhere = format!("{}/{}", of.prefix, of.resource);
    let collection = if of.namespaced {
        format!("{}/namespaces/default/{}", of.prefix, of.resource)
    } else {
        everywhere.clone()
    };
    let mut probes: Vec<Probe> = Vec::new();
    let can = |verb: &str| of.verbs.contains(verb);
    if can("list") {
        let request = Request::get(&format!("{everywhere}?limit=1"));
        probes.push(("list", request, is_ok));
    }
    if can("watch") {
        let target = format!("{everywhere}?watch=true&timeoutSeconds=1");
        probes.push(("watch", Request::get(&target), is_ok));
    }
    if can("get") {
        let request = Request::get(&format!("{collection}/{MISSING_OBJECT}"));
        let right = match of.resource.as_str() {
            "componentstatuses" => is_missing_component,
            _ => is_missing_object,
        };
        probes.push(("get", request, right));
    }
    if can("create") {
        // No kind accepts a number as its name: a server that validates the name serves the kind.
        let request = Request::new("POST", &format!("{collection}?dryRun=All"));
        let request = request.body("application/json", r#"{"metadata":{"name":1}}"#);
        probes.push(("create", request, is_rejected));
    }
    for (verb, method) in [("update", "PUT"), ("delete", "DELETE"), ("patch", "PATCH")] {
        if !can(verb) {
            continue;
        }
        let request = Request::new(method, &format!("{collection}/{MISSING_OBJECT}?dryRun=All"));
        match verb {
            "update" => {
                let request = request.body("application/json", r#"{"metadata":{"name":1}}"#);
                probes.push(("update", request, is_rejected));
            }
            "delete" => probes.push(("delete", request, is_missing_object)),
            _ => {
                let request = request.body("application/merge-patch+json", "{}");
                probes.push(("patch", request, is_missing_object));
            }
        }
    }
    for (name, verbs) in &of.subresources {
        if verbs.contains("get") {
            let request = Request::get(&format!("{collection}/{MISSING_OBJECT}/{name}"));
            probes.push(("get of a subresource", request, is_missing_object));
        }
    }
    probes
}

fn is_ok(response: &Response) -> bool {
    response.status == 200
}

/// The object is missing, not the path: that error would be "the server could not find the
/// requested resource", without a name.
fn is_missing_object(response: &Response) -> bool {
    let status: Value = serde_json::from_slice(&response.body).unwrap_or_default();
    response.status == 404
        && status["reason"] == "NotFound"
        && status["details"]["name"] == MISSING_OBJECT
}

/// The error of older servers.
fn is_missing_component(response: &Response) -> bool {
    is_missing_object(response)
        || response
            .text()
            .contains("Component not found: no-such-object")
}

/// The object was parsed and rejected.
fn is_rejected(response: &Response) -> bool {
    matches!(response.status, 400 | 422)
}
