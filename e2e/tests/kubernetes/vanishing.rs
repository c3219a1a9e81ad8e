//! The ledger of calls to APIs that vanish, beside real servers of two versions.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde_json::Value;
use skewbridge_e2e::{
    ControlPlane, HttpClient, Protocol, Request, ServerSpec, User, VersionSpecificApi, Via,
    free_address, old_and_new_versions,
};
use skewbridge_testkit::eventually;
use tokio::task::JoinSet;

use crate::peer_pair::{NEW, OLD, PEER_DISCOVERY_TIMEOUT, wait_until_served_by};

/// Only the older server serves it, and the next minor version of neither does.
const GONE: VersionSpecificApi = VersionSpecificApi::ATTRIBUTES_CLASSES;

/// Deprecated since 1.33.
const ENDPOINTS: &str = "/api/v1/namespaces/default/endpoints";

const AGENTS: usize = 10;

/// The callers that a bridge counts by name.
const MAX_CALLERS: usize = 10_000;

/// How many callers each of ten clients is: a few more than the limit in total.
const CALLERS_OF_A_CLIENT: usize = MAX_CALLERS / AGENTS + 5;

/// The number of calls that a client sends through a bridge.
fn calls(agent: usize, bridge: usize) -> usize {
    1 + agent * (bridge + 1)
}

fn agent(number: usize) -> String {
    format!("ledger-client-{number}/v1.{number}")
}

/// A client of one of three kinds, with the name of its user.
fn client(
    plane: &ControlPlane,
    number: usize,
    bridge: usize,
) -> (HttpClient, Request, &'static str) {
    let (tls, request, user) = match number % 3 {
        0 => (plane.client("admin"), Request::get(GONE.path), "admin"),
        // Forbidden for this user: the call is one nevertheless.
        1 => (plane.client("alice"), Request::get(GONE.path), "alice"),
        _ => {
            let request = Request::get(GONE.path).header("Authorization", "Bearer bob-token");
            (plane.anonymous_client(), request, "bob")
        }
    };
    let address = plane.servers[bridge].bridge;
    let request = request.header("User-Agent", &agent(number));
    let protocol = [Protocol::H1, Protocol::H2][number % 2];
    (HttpClient::new(tls, address, protocol), request, user)
}

/// Runs `skewbridge vanishing -o json` for these admin ports.
async fn vanishing(plane: &ControlPlane, bridges: &[String]) -> (Option<i32>, Value) {
    let config = plane.kubeconfig_of(&[("old", plane.servers[OLD].bridge)]);
    let mut words = vec!["vanishing", "-o", "json", "--tls-server-name=localhost"];
    words.extend(bridges.iter().map(String::as_str));
    let output = plane.skewbridge(&config, &words).await;
    let document = serde_json::from_str(&output.stdout);
    (
        output.code,
        document.unwrap_or_else(|_| panic!("{output:?}")),
    )
}

/// The counts of the clients of this test, by user, user agent and resource.
fn counts(document: &Value) -> BTreeMap<[String; 3], u64> {
    let calls = document["calls"].as_array().unwrap().iter();
    let calls = calls.filter(|it| {
        let agent = it["userAgent"].as_str().unwrap();
        agent.starts_with("ledger-client-")
    });
    let counts = calls.map(|it| {
        assert_eq!(it["verb"], "list", "{it}");
        let key =
            ["user", "userAgent", "resource"].map(|name| it[name].as_str().unwrap().to_owned());
        (key, it["count"].as_u64().unwrap())
    });
    counts.collect()
}

/// Ten clients send one call each as many callers, through the bridge of the older server.
async fn send_as_many_callers(plane: &ControlPlane) {
    let mut clients = JoinSet::new();
    for number in 0..AGENTS {
        let address = plane.servers[OLD].bridge;
        let mut client = HttpClient::new(plane.client("alice"), address, Protocol::H2);
        clients.spawn(async move {
            for caller in 0..CALLERS_OF_A_CLIENT {
                let agent = format!("ledger-crowd-{number}-{caller}");
                let request = Request::get(GONE.path).header("User-Agent", &agent);
                assert_eq!(client.send(&request).await.unwrap().status, 403);
            }
        });
    }
    clients.join_all().await;
}

/// Each call is counted, those of callers beyond the limit without a name.
async fn the_number_of_callers_is_bounded(plane: &ControlPlane, bridges: &[String]) {
    send_as_many_callers(plane).await;
    let metrics = plane.metrics(plane.servers[OLD].admin).await;
    let callers = metrics.sum("skewbridge_vanishing_callers", &[]);
    assert_eq!(callers, MAX_CALLERS as u64);
    let (_, document) = vanishing(plane, bridges).await;
    let calls = document["calls"].as_array().unwrap().iter();
    let is_of_crowd = |it: &&Value| {
        let agent = it["userAgent"].as_str().unwrap();
        agent.starts_with("ledger-crowd-")
    };
    let named: u64 = calls
        .filter(is_of_crowd)
        .map(|it| it["count"].as_u64().unwrap())
        .sum();
    let others = document["other"]["count"].as_u64().unwrap();
    println!("{named} calls of callers by name, {others} of others");
    assert!(
        named < MAX_CALLERS as u64,
        "the ten clients are callers too"
    );
    assert_eq!(named + others, (AGENTS * CALLERS_OF_A_CLIENT) as u64);
}

#[tokio::test]
async fn ten_clients_of_two_bridges_are_counted_once_each() {
    let Some(versions) = old_and_new_versions() else {
        return;
    };
    let secure = [free_address(), free_address()];
    let servers = [OLD, NEW].map(|number| {
        ServerSpec::of(&versions[number])
            .peer()
            .bridge_flag(&format!("--admin-secure-address={}", secure[number]))
    });
    let plane = ControlPlane::start(&servers).await;
    for server in [OLD, NEW] {
        wait_until_served_by(&plane, server, &GONE, PEER_DISCOVERY_TIMEOUT).await;
        eventually(
            "both versions are known",
            PEER_DISCOVERY_TIMEOUT,
            async || {
                let page = plane.admin_page(server, "/debug/vanishing").await;
                let page: Value = serde_json::from_str(&page).unwrap();
                page["newestServer"] == "1.36" && page["targetKnown"] == true
            },
        )
        .await;
    }

    let mut expected = BTreeMap::new();
    for number in 0..AGENTS {
        let mut sent = 0;
        for bridge in [OLD, NEW] {
            let (mut client, request, user) = client(&plane, number, bridge);
            let status = if user == "admin" { 200 } else { 403 };
            for _ in 0..calls(number, bridge) {
                // The bridge of the newer server sends it to that of the older one.
                let response = client.send(&request).await.unwrap();
                assert_eq!(response.status, status, "{user} {}", response.text());
            }
            sent += calls(number, bridge) as u64;
            let key = [
                user.to_owned(),
                agent(number),
                "volumeattributesclasses".to_owned(),
            ];
            expected.insert(key, sent);
        }
    }
    for bridge in [OLD, NEW] {
        let address = plane.servers[bridge].bridge;
        let mut client = HttpClient::new(plane.client("admin"), address, Protocol::H2);
        let request = Request::get(ENDPOINTS).header("User-Agent", &agent(0));
        assert_eq!(client.send(&request).await.unwrap().status, 200);
    }
    let endpoints = ["admin".to_owned(), agent(0), "endpoints".to_owned()];
    expected.insert(endpoints, 2);

    let loopback = [OLD, NEW].map(|it| format!("--bridge=http://{}", plane.servers[it].admin));
    let over_tls = secure.map(|it| format!("--bridge=https://{it}"));
    for bridges in [loopback, over_tls] {
        // The user of a token is found out after its call.
        let mut found = (None, Value::Null);
        eventually(
            "all calls are counted",
            PEER_DISCOVERY_TIMEOUT,
            async || {
                found = vanishing(&plane, &bridges).await;
                counts(&found.1).values().sum::<u64>() == expected.values().sum::<u64>()
            },
        )
        .await;
        let (code, document) = found;
        assert_eq!(counts(&document), expected);
        assert_eq!(code, Some(2));
        let calls = document["calls"].as_array().unwrap();
        // Calls before the newer server was known are compared with the version after the older one.
        let first_agent = agent(0);
        let is = |name: &'static str| {
            let first_agent = first_agent.clone();
            move |it: &&Value| it["resource"] == name && it["userAgent"] == *first_agent
        };
        let gone = calls.iter().find(is("volumeattributesclasses")).unwrap();
        assert_eq!(
            (&gone["reason"], &gone["unavailableIn"]),
            (&"removed".into(), &"1.37".into())
        );
        let deprecated = calls.iter().find(is("endpoints")).unwrap();
        assert_eq!(deprecated["reason"], "deprecated");
        assert_eq!(
            deprecated["replacement"],
            "discovery.k8s.io/v1 EndpointSlice"
        );
    }

    // Each bridge has only counted the calls of its own clients.
    for bridge in [OLD, NEW] {
        let only = [format!("--bridge=http://{}", plane.servers[bridge].admin)];
        let (_, document) = vanishing(&plane, &only).await;
        let sent: usize = (0..AGENTS).map(|number| calls(number, bridge)).sum();
        let counted: u64 = counts(&document).values().sum();
        assert_eq!(counted, sent as u64 + 1, "{bridge}");
    }

    let bridges = [OLD, NEW].map(|it| format!("--bridge=http://{}", plane.servers[it].admin));
    the_number_of_callers_is_bounded(&plane, &bridges).await;

    users_without_the_right_cannot_read_it(&plane, secure[OLD]).await;
}

async fn users_without_the_right_cannot_read_it(plane: &ControlPlane, secure: SocketAddr) {
    let mut command = plane.skewbridge_command(OLD, Via::Bridge, User::Alice);
    let bridge = format!("--bridge=https://{secure}");
    command.args(["vanishing", "--tls-server-name=localhost", &bridge]);
    let output = command.output().await.unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let problem = String::from_utf8(output.stderr).unwrap();
    assert!(
        problem.contains("User \"alice\" cannot get path \"/debug/vanishing\""),
        "{problem}"
    );
}
