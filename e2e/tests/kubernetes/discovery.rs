//! Through any bridge a client sees everything that the cluster serves, and what
//! it sees works.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::Value;
use skewbridge_e2e::{
    ControlPlane, DiscoveredResource, HttpClient, Protocol, Request, ServerSpec, User, Via,
    control_planes, newest, oldest,
};
use skewbridge_testkit::{Response, eventually};
use tokio::task::JoinSet;

/// From the last readiness to when everybody knows everybody.
const FOUND: Duration = Duration::from_secs(30);

/// How many ask at a time.
const WALKERS: usize = 16;

/// Nothing has this name.
const NOBODY: &str = "no-such-object";

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
async fn every_bridge_shows_what_all_servers_serve() {
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
        eventually("all bridges show the same", FOUND, async || {
            let mut shown = BTreeSet::new();
            for server in all.clone() {
                shown.insert(api_resources(&plane, server, Via::Bridge).await);
            }
            shown.len() == 1
        })
        .await;
        let shown = api_resources(&plane, 0, Via::Bridge).await;
        let names = |list: &BTreeSet<String>| -> BTreeSet<String> {
            let words = list.iter().filter_map(|line| line.split(' ').next());
            words.map(str::to_owned).collect()
        };
        for server in all.clone() {
            let own = api_resources(&plane, server, Via::Server).await;
            assert!(names(&own).is_subset(&names(&shown)));
        }
        for server in all {
            everything_shown_works(&plane, server).await;
        }
    }
}

/// What was asked, by what.
type Asked = BTreeMap<&'static str, usize>;

/// Each resource with each verb, and each subresource, as far as that does no harm.
async fn everything_shown_works(plane: &ControlPlane, server: usize) {
    let began = Instant::now();
    let all = plane.discovered(server, Via::Bridge).await;
    assert!(all.len() > 50, "{}", all.len());
    let mut walkers = JoinSet::new();
    for part in all.chunks(all.len().div_ceil(WALKERS)) {
        let client = plane.http_client(server, Via::Bridge, Protocol::H2);
        walkers.spawn(walk_part(client, part.to_vec()));
    }
    let (mut asked, mut faults) = (Asked::new(), Vec::new());
    for (their_asked, their_faults) in walkers.join_all().await {
        for (what, count) in their_asked {
            *asked.entry(what).or_default() += count;
        }
        faults.extend(their_faults);
    }
    let resources = all.len();
    println!(
        "bridge {server}: {resources} resources: {asked:?} in {:.1?}",
        began.elapsed()
    );
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

async fn walk_part(mut client: HttpClient, part: Vec<DiscoveredResource>) -> (Asked, Vec<String>) {
    let (mut asked, mut faults) = (Asked::new(), Vec::new());
    for resource in part {
        for (what, request, right) in questions(&resource) {
            *asked.entry(what).or_default() += 1;
            let answer = client.send(&request).await.expect("an answer");
            if !right(&answer) {
                let (method, target) = (&request.method, &request.target);
                let (status, text) = (answer.status, answer.text());
                faults.push(format!("{what}: {method} {target}: {status} {text}"));
            }
        }
    }
    (asked, faults)
}

type Question = (&'static str, Request, fn(&Response) -> bool);

fn questions(of: &DiscoveredResource) -> Vec<Question> {
    let everywhere = format!("{}/{}", of.prefix, of.resource);
    let collection = if of.namespaced {
        format!("{}/namespaces/default/{}", of.prefix, of.resource)
    } else {
        everywhere.clone()
    };
    let mut questions: Vec<Question> = Vec::new();
    let can = |verb: &str| of.verbs.contains(verb);
    if can("list") {
        let request = Request::get(&format!("{everywhere}?limit=1"));
        questions.push(("list", request, is_ok));
    }
    if can("watch") {
        let target = format!("{everywhere}?watch=true&timeoutSeconds=1");
        questions.push(("watch", Request::get(&target), is_ok));
    }
    if can("get") {
        let request = Request::get(&format!("{collection}/{NOBODY}"));
        let right = match of.resource.as_str() {
            "componentstatuses" => is_missing_component,
            _ => is_missing_object,
        };
        questions.push(("get", request, right));
    }
    if can("create") {
        // No kind has a number for a name: whoever reads it knows the kind.
        let request = Request::new("POST", &format!("{collection}?dryRun=All"));
        let request = request.body("application/json", r#"{"metadata":{"name":1}}"#);
        questions.push(("create", request, is_refused));
    }
    for (verb, method) in [("update", "PUT"), ("delete", "DELETE"), ("patch", "PATCH")] {
        if !can(verb) {
            continue;
        }
        let request = Request::new(method, &format!("{collection}/{NOBODY}?dryRun=All"));
        match verb {
            "update" => {
                let request = request.body("application/json", r#"{"metadata":{"name":1}}"#);
                questions.push(("update", request, is_refused));
            }
            "delete" => questions.push(("delete", request, is_missing_object)),
            _ => {
                let request = request.body("application/merge-patch+json", "{}");
                questions.push(("patch", request, is_missing_object));
            }
        }
    }
    for (name, verbs) in &of.subresources {
        if verbs.contains("get") {
            let request = Request::get(&format!("{collection}/{NOBODY}/{name}"));
            questions.push(("get of a subresource", request, is_missing_object));
        }
    }
    questions
}

fn is_ok(answer: &Response) -> bool {
    answer.status == 200
}

/// Of the object, not of the path: that would be "the server could not find the
/// requested resource", without a name.
fn is_missing_object(answer: &Response) -> bool {
    let status: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    answer.status == 404 && status["reason"] == "NotFound" && status["details"]["name"] == NOBODY
}

/// Older servers have no better word for it.
fn is_missing_component(answer: &Response) -> bool {
    is_missing_object(answer)
        || answer
            .text()
            .contains("Component not found: no-such-object")
}

/// It was read, and is no good.
fn is_refused(answer: &Response) -> bool {
    matches!(answer.status, 400 | 422)
}
