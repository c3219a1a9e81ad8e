//! Through any bridge a client sees everything that the cluster serves, and what
//! it sees works.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::time::Duration;

use skewbridge_e2e::{Plane, Protocol, Raw, Request, Server, User, Via, newest, oldest, planes};
use skewbridge_testkit::eventually;

/// From the last readiness to when everybody knows everybody.
const FOUND: Duration = Duration::from_secs(30);

async fn api_resources(plane: &Plane, server: usize, via: Via) -> BTreeSet<String> {
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
    for versions in planes() {
        if newest(&versions) == oldest(&versions) {
            continue;
        }
        println!("plane {versions:?}");
        let servers = versions.iter().map(|version| Server::of(version).peer());
        let servers: Vec<_> = servers.collect();
        let plane = Plane::start(&servers).await;
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
            everything_shown_is_served(&plane, server).await;
        }
    }
}

/// Every resource of the merged document can be listed.
async fn everything_shown_is_served(plane: &Plane, server: usize) {
    let address = plane.servers[server].at(Via::Bridge);
    let mut client = Raw::new(plane.client("admin"), address, Protocol::H2);
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
         application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
    let request = Request::get("/apis").header("Accept", accept);
    let document = client.send(&request).await.unwrap();
    assert_eq!(document.status, 200);
    let document: serde_json::Value = serde_json::from_slice(&document.body).unwrap();
    let mut listed = 0;
    for group in document["items"].as_array().unwrap() {
        let name = group["metadata"]["name"].as_str().unwrap();
        for version in group["versions"].as_array().unwrap() {
            for resource in version["resources"].as_array().unwrap() {
                let verbs = resource["verbs"].as_array();
                if !verbs.is_some_and(|verbs| verbs.iter().any(|verb| verb == "list")) {
                    continue;
                }
                let version = version["version"].as_str().unwrap();
                let resource = resource["resource"].as_str().unwrap();
                let path = format!("/apis/{name}/{version}/{resource}");
                let answer = client.send(&Request::get(&path)).await.unwrap();
                assert_eq!(answer.status, 200, "{server} {path}: {}", answer.text());
                listed += 1;
            }
        }
    }
    println!("{listed} resources are listed through bridge {server}");
    assert!(listed > 50);
}
