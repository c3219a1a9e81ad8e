//! The status page of a bridge, in a real browser, over a real control plane of mixed versions.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use skewbridge_e2e::{
    Browser, ControlPlane, JavaScript, Metrics, Node, Protocol, Request, RunningKubectl,
    ServerSpec, User, VersionSpecificApi, Via, old_and_new_versions, with_few_colours,
};
use skewbridge_testkit::{Stopwatch, TEST_TIMEOUT, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::peer_pair::{NEW, OLD, PEER_DISCOVERY_TIMEOUT, wait_until_served};

/// How soon the page shows a change.
const SHOWN_WITHIN: Duration = Duration::from_secs(2);

/// Markup where text is expected.
const HOSTILE: &str = "<img/src=x/onerror=alert(1)>";

const REFUSED_PATH: &str = "/api/v1/namespaces/%3Cimg%20src=x%3E";

/// Deprecated by 1.33.
const DEPRECATED_PATH: &str = "/api/v1/namespaces/default/endpoints";

/// The placement rules.
const RULES: [&str; 5] = ["available", "serves", "admission", "fields", "version"];

/// The size of a screenshot in the documentation.
const MAX_SCREENSHOT_BYTES: usize = 150_000;

/// The screenshots of the documentation are written again if this is set.
const WRITE_DOCS: &str = "SKEWBRIDGE_WRITE_DOCS";

/// The viewers, and the share of a CPU that they may cost together.
const VIEWERS: usize = 10;
const MAX_CPU_OF_VIEWERS: f64 = 0.01;

/// The time over which CPU time is measured.
const CPU_PERIOD: Duration = Duration::from_secs(20);

fn url(plane: &ControlPlane) -> String {
    format!("http://{}/status", plane.servers[OLD].admin)
}

async fn json_of(plane: &ControlPlane, path: &str) -> Value {
    serde_json::from_str(&plane.admin_page(OLD, path).await).unwrap()
}

/// The test blocks its thread while a process exits: the browser is driven from another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_shows_the_control_plane_and_its_changes() {
    let Some([old, new]) = old_and_new_versions() else {
        return;
    };
    let servers = [&old, &new, &new].map(|version| ServerSpec::of(version).peer());
    let mut plane = ControlPlane::start(&servers).await;
    wait_until_served(
        &plane,
        &VersionSpecificApi::POLICIES,
        PEER_DISCOVERY_TIMEOUT,
    )
    .await;
    let _watch =
        RunningKubectl::start(plane.kubectl_command(OLD, Via::Bridge, User::Admin).args([
            "get",
            "namespaces",
            "--watch",
        ]));
    let _node = plane.start_node().await;
    let script = "echo started; sleep 300";
    let words = [
        "exec",
        "-n",
        Node::NAMESPACE,
        Node::POD,
        "--",
        "sh",
        "-c",
        script,
    ];
    let mut command = plane.kubectl_command(OLD, Via::Bridge, User::Admin);
    let mut exec = RunningKubectl::start(command.args(words));
    assert_eq!(exec.line().await, "started");
    send_requests(&plane).await;

    let browser = plane.start_browser(JavaScript::On).await;
    browser.open(&url(&plane)).await;
    eventually("live updates", TEST_TIMEOUT, async || {
        text_of(&browser, "#connection").await == "live"
    })
    .await;
    values_equal_those_of_other_pages(&plane, &browser).await;
    counts_equal_the_metrics(&plane).await;
    open_requests_equal_the_metrics(&plane, &browser).await;
    callers_equal_the_ledger(&plane, &browser).await;
    hostile_text_is_text(&browser).await;
    for (name, width, scheme) in [
        ("light", 1280, "light"),
        ("dark", 1280, "dark"),
        ("narrow", 390, "light"),
    ] {
        let image = browser.screenshot(width, scheme).await;
        assert!(
            image.starts_with(b"\x89PNG") && image.len() > 10_000,
            "{name}"
        );
        let image = with_few_colours(&image);
        assert!(
            image.len() < MAX_SCREENSHOT_BYTES,
            "{name}: {}",
            image.len()
        );
        write_screenshot(name, &image);
        let overflow = "const page = document.documentElement; \
                        return page.scrollWidth - page.clientWidth;";
        let overflow = browser.run(overflow).await;
        assert_eq!(overflow, 0, "{name}: the page scrolls sideways");
        let problems = browser.accessibility_problems().await;
        let is_serious =
            |it: &&String| it.starts_with("\"serious\"") || it.starts_with("\"critical\"");
        let serious: Vec<_> = problems.iter().filter(is_serious).collect();
        assert!(serious.is_empty(), "{name}: {serious:#?}");
    }
    changes_are_shown(&mut plane, &browser, &new).await;
    let errors = browser.console().await;
    assert!(errors.is_empty(), "{errors:#?}");
    drop(browser);

    it_works_without_javascript(&mut plane).await;
}

/// Requests that stay here, are rerouted, and are refused.
async fn send_requests(plane: &ControlPlane) {
    let mut client = plane.http_client(OLD, Via::Bridge, Protocol::H1);
    for path in [
        "/api/v1/namespaces",
        VersionSpecificApi::POLICIES.path,
        DEPRECATED_PATH,
    ] {
        let request = Request::get(path).header("User-Agent", HOSTILE);
        assert_eq!(client.send(&request).await.unwrap().status, 200, "{path}");
    }
    let path = format!("{REFUSED_PATH}?secret=query");
    let refused = Request::get(&path).header("Connection", "X-Remote-User");
    let refused = refused.header("User-Agent", HOSTILE);
    assert_eq!(client.send(&refused).await.unwrap().status, 400);
}

async fn text_of(browser: &Browser, selector: &str) -> String {
    let script = format!("return document.querySelector('{selector}').innerText;");
    let text = browser.run(&script).await;
    text.as_str().unwrap_or_default().to_owned()
}

/// The cells of a table of the page.
async fn rows_of(browser: &Browser, section: &str) -> Vec<Vec<String>> {
    let script = format!(
        "return [...document.querySelectorAll('#{section} tbody tr')]\
         .map((row) => [...row.cells].map((cell) => cell.innerText));"
    );
    serde_json::from_value(browser.run(&script).await).unwrap()
}

async fn values_equal_those_of_other_pages(plane: &ControlPlane, browser: &Browser) {
    let status = json_of(plane, "/status.json").await;
    let debug = json_of(plane, "/debug/peers").await;
    let servers = status["servers"].as_array().unwrap();
    let peers = debug["peers"].as_array().unwrap();
    assert_eq!(servers.len(), plane.servers.len());
    assert_eq!(peers.len() + 1, servers.len());
    for (server, peer) in servers
        .iter()
        .zip([&debug["local"]].into_iter().chain(peers))
    {
        for field in ["identity", "host", "version", "alive", "healthy"] {
            let is_of_peers = matches!(field, "alive" | "healthy") && server["local"] == true;
            assert!(
                is_of_peers || server[field] == peer[field],
                "{field}: {server} {peer}"
            );
        }
        assert_eq!(server["servesAlone"], peer["servesAlone"]);
        if server["local"] == false {
            assert_eq!(server["address"], peer["address"]);
            assert_eq!(server["state"] == "reachable", peer["reachable"] == true);
        }
        // The same in the page, and in the picture.
        let host = server["host"].as_str().unwrap();
        let version = server["version"].as_str().unwrap();
        let rows = rows_of(browser, "servers").await;
        let row = rows.iter().find(|row| row[0].starts_with(host));
        let row = row.unwrap_or_else(|| panic!("{host}: {rows:?}"));
        assert!(
            row[1].contains("ready") || row[1].contains("reachable"),
            "{row:?}"
        );
        assert!(row[2].starts_with(version), "{row:?}");
        let picture = browser
            .run("return document.querySelector('svg.picture').textContent;")
            .await;
        let picture = picture.as_str().unwrap();
        assert!(
            picture.contains(host) && picture.contains(version),
            "{picture}"
        );
    }
}

/// By name: requests by rule, by peer, and those that no rule sends elsewhere.
type Counts = BTreeMap<String, u64>;

fn counts_of_status(plane: &ControlPlane, status: &Value) -> Counts {
    let rows = status["traffic"]["rows"].as_array().unwrap();
    let sum = |is_counted: &dyn Fn(&Value) -> bool| -> u64 {
        let rows = rows.iter().filter(|it| is_counted(it));
        rows.map(|it| it["total"].as_u64().unwrap()).sum()
    };
    let is_placed = |row: &Value| RULES.iter().any(|rule| row["rule"] == *rule);
    let rules = RULES
        .iter()
        .chain(&["local", "discovery", "stream", "refused"]);
    let by_rule = rules.map(|rule| ((*rule).to_owned(), sum(&|row| row["rule"] == *rule)));
    let by_peer = plane.servers[1..].iter().map(|server| {
        let is_there = |row: &Value| row["server"] == server.host && is_placed(row);
        (server.host.clone(), sum(&is_there))
    });
    by_rule.chain(by_peer).collect()
}

fn counts_of_metrics(plane: &ControlPlane, metrics: &Metrics) -> Counts {
    let to = |destination: &str| {
        let label = format!("destination=\"{destination}\"");
        metrics.sum("skewbridge_requests_total", &[&label])
    };
    let rules = RULES.iter().map(|rule| {
        let label = format!("rule=\"{rule}\"");
        let placed = metrics.sum("skewbridge_placed_requests_total", &[&label]);
        ((*rule).to_owned(), placed)
    });
    let destinations = ["local", "discovery", "stream"].map(|it| (it.to_owned(), to(it)));
    let refused = ("refused".to_owned(), to("rejected") + to("unrouted"));
    let peers = plane.servers[1..].iter().map(|server| {
        let label = format!("host=\"{}\"", server.host);
        let rerouted = metrics.sum("skewbridge_rerouted_requests_total", &[&label]);
        (server.host.clone(), rerouted)
    });
    let all = rules.chain(destinations).chain([refused]).chain(peers);
    all.collect()
}

/// The counts of the status and of the metrics at the same time: other clients, such as peers that
/// poll, send requests meanwhile.
async fn counts(plane: &ControlPlane) -> [Counts; 2] {
    let metrics = async || {
        let metrics = plane.metrics(plane.servers[OLD].admin).await;
        counts_of_metrics(plane, &metrics)
    };
    for _ in 0..200 {
        let before = metrics().await;
        let status = json_of(plane, "/status.json").await;
        if metrics().await == before {
            return [counts_of_status(plane, &status), before];
        }
    }
    panic!("the counts change with each request");
}

/// What is added to the counts of the status is added to the metrics.
async fn counts_equal_the_metrics(plane: &ControlPlane) {
    const ROUNDS: u64 = 3;
    let start = counts(plane).await;
    for _ in 0..ROUNDS {
        send_requests(plane).await;
    }
    eventually("counts as in the metrics", TEST_TIMEOUT, async || {
        let now = counts(plane).await;
        let added = |which: usize| -> Counts {
            let now = now[which].iter();
            now.map(|(name, count)| (name.clone(), count - start[which][name]))
                .collect()
        };
        let (status, metrics) = (added(0), added(1));
        let has_all = ["serves", "local", "refused"].map(|it| status[it] >= ROUNDS);
        has_all == [true; 3] && status == metrics
    })
    .await;
}

async fn open_requests_equal_the_metrics(plane: &ControlPlane, browser: &Browser) {
    eventually("the open watch and stream", TEST_TIMEOUT, async || {
        let rows = rows_of(browser, "open").await;
        let is_open = |kind: &str| {
            let mut rows = rows.iter();
            rows.any(|row| row[0] == kind && row[3].starts_with("kubectl") && row[4] == "1")
        };
        is_open("watch") && is_open("exec")
    })
    .await;
    let metrics = plane.metrics(plane.servers[OLD].admin).await;
    let streams = metrics.sum("skewbridge_streams_open", &[]);
    assert_eq!(streams, 1);
    let status = json_of(plane, "/status.json").await;
    let open = status["open"].as_array().unwrap().iter();
    let open = open.filter(|it| it["kind"] == "exec");
    let open: u64 = open.map(|it| it["count"].as_u64().unwrap()).sum();
    assert_eq!(open, streams);
    let stops = status["ifStopped"].as_array().unwrap().iter();
    let stopped: u64 = stops.map(|it| it["streams"].as_u64().unwrap()).sum();
    assert_eq!(stopped, streams, "{}", status["ifStopped"]);
}

/// The page names those who call a deprecated API, with the numbers of the ledger.
async fn callers_equal_the_ledger(plane: &ControlPlane, browser: &Browser) {
    eventually("the callers of the ledger", TEST_TIMEOUT, async || {
        let ledger = json_of(plane, "/debug/vanishing").await;
        let mut expected: Vec<_> = (ledger["calls"].as_array().unwrap().iter())
            .map(|it| {
                let text = |field: &str| it[field].as_str().unwrap_or_default().to_owned();
                (
                    text("resource"),
                    text("user"),
                    text("verb"),
                    it["count"].to_string(),
                )
            })
            .collect();
        expected.sort();
        let rows = rows_of(browser, "vanishing").await.into_iter();
        let mut rows: Vec<_> = rows
            .map(|row| {
                let resource = row[0].split(' ').nth(1).unwrap_or_default().to_owned();
                (resource, row[2].clone(), row[4].clone(), row[5].clone())
            })
            .collect();
        rows.sort();
        let has_endpoints = rows.iter().any(|it| it.0 == "endpoints");
        has_endpoints && rows == expected
    })
    .await;
}

async fn hostile_text_is_text(browser: &Browser) {
    eventually("the refused request", TEST_TIMEOUT, async || {
        let rows = rows_of(browser, "refused").await;
        let is_it = |row: &Vec<String>| row[2] == REFUSED_PATH && row[6].contains(HOSTILE);
        rows.iter().any(is_it)
    })
    .await;
    let rows = rows_of(browser, "rerouted").await;
    let is_it =
        |row: &Vec<String>| row[2] == VersionSpecificApi::POLICIES.path && row[6].contains(HOSTILE);
    assert!(rows.iter().any(is_it), "{rows:?}");
    let page = browser.source().await;
    assert!(!page.contains("secret=query"), "the tap shows a query");
    let elements = browser.run("return document.querySelectorAll('main img, main script').length;");
    assert_eq!(elements.await, 0);
}

/// A server is killed, returns, and another one is upgraded.
async fn changes_are_shown(plane: &mut ControlPlane, browser: &Browser, new: &str) {
    let shows = async |plane: &ControlPlane, server: usize, column: usize, text: &str| {
        let rows = rows_of(browser, "servers").await;
        let host = &plane.servers[server].host;
        let row = rows.iter().find(|row| row[0].starts_with(host));
        row.is_some_and(|row| row[column].starts_with(text))
    };
    plane.stop_server(NEW, "KILL");
    let stopwatch = Stopwatch::start();
    let stopped = async || shows(plane, NEW, 1, "unreachable").await;
    stopwatch
        .within(SHOWN_WITHIN, "a stop of a peer", stopped)
        .await;
    let news = text_of(browser, "#timeline").await;
    assert!(news.contains("is unreachable"), "{news}");
    // Only two servers serve the API, and one of them does not answer.
    let last = plane.servers[NEW + 1].host.clone();
    eventually("what stops with the other one", TEST_TIMEOUT, async || {
        let status = json_of(plane, "/status.json").await;
        let stops = status["ifStopped"].as_array().unwrap();
        let of_last = stops.iter().find(|it| it["server"] == *last);
        let apis = of_last.and_then(|it| it["apis"].as_array());
        let (group_version, resource) = VersionSpecificApi::POLICIES.path["/apis/".len()..]
            .rsplit_once('/')
            .unwrap();
        let api = format!("{group_version} {resource}");
        let rows = rows_of(browser, "stops").await;
        let row = rows.iter().find(|row| row[0] == last);
        apis.is_some_and(|it| it.iter().any(|it| *it == *api))
            && row.is_some_and(|row| row[1] != "none")
    })
    .await;

    plane.start_server(NEW);
    plane
        .wait_for_ready("the peer", plane.servers[NEW].address)
        .await;
    let stopwatch = Stopwatch::start();
    let returned = async || shows(plane, NEW, 1, "reachable").await;
    stopwatch.within(SHOWN_WITHIN, "its return", returned).await;

    plane.stop_server(OLD, "KILL");
    let stopwatch = Stopwatch::start();
    let stopped = async || shows(plane, OLD, 1, "not ready").await;
    stopwatch
        .within(SHOWN_WITHIN, "a stop of the local server", stopped)
        .await;
    let verdict = text_of(browser, ".verdict").await;
    assert!(verdict.contains("upstream"), "{verdict}");

    plane.replace_server(OLD, new);
    plane.start_server(OLD);
    plane
        .wait_for_ready("the upgraded server", plane.servers[OLD].address)
        .await;
    let stopwatch = Stopwatch::start();
    let upgraded = async || shows(plane, OLD, 2, new).await && shows(plane, OLD, 1, "ready").await;
    stopwatch.within(SHOWN_WITHIN, "an upgrade", upgraded).await;
    eventually("one version", TEST_TIMEOUT, async || {
        text_of(browser, ".verdict")
            .await
            .contains("with the same version")
    })
    .await;
}

/// The page has everything, and reloads itself.
async fn it_works_without_javascript(plane: &mut ControlPlane) {
    let browser = plane.start_browser(JavaScript::Off).await;
    browser.open(&url(plane)).await;
    let page = browser.source().await;
    for server in &plane.servers {
        assert!(page.contains(&server.host), "{}", server.host);
    }
    no_script_runs(&browser).await;
    // The timeline has the changes before.
    let unreachable = ">unreachable</span>";
    assert!(!page.contains(unreachable), "{page}");
    plane.stop_server(NEW, "KILL");
    eventually("a stop, after a reload", TEST_TIMEOUT, async || {
        browser.source().await.contains(unreachable)
    })
    .await;
    no_script_runs(&browser).await;
}

/// The note for pages without scripts is shown. A page with scripts never shows it.
async fn no_script_runs(browser: &Browser) {
    eventually(
        "the note for pages without scripts",
        TEST_TIMEOUT,
        async || {
            let note = "return document.querySelector('#connection')?.innerText;";
            browser.run(note).await == "reloads every 5 seconds"
        },
    )
    .await;
    let page = browser.source().await;
    assert!(!page.contains(">live<"), "a script runs");
}

fn write_screenshot(name: &str, image: &[u8]) {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let directory = if std::env::var_os(WRITE_DOCS).is_some() {
        root.join("docs/images")
    } else {
        root.join("target/e2e/screenshots")
    };
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join(format!("status-{name}.png")), image).unwrap();
}

#[tokio::test]
async fn ten_viewers_cost_hardly_any_cpu_time() {
    let Some([old, new]) = old_and_new_versions() else {
        return;
    };
    let servers = [old, new].map(|version| ServerSpec::of(&version).peer());
    let plane = ControlPlane::start(&servers).await;
    wait_until_served(
        &plane,
        &VersionSpecificApi::POLICIES,
        PEER_DISCOVERY_TIMEOUT,
    )
    .await;
    let bridge = plane.servers[OLD].admin;
    let without = cpu_in_period(&plane).await;
    let mut viewers = Vec::new();
    for _ in 0..VIEWERS {
        viewers.push(tokio::spawn(view(bridge)));
    }
    eventually("ten viewers", TEST_TIMEOUT, async || {
        json_of(&plane, "/status.json").await["bridge"]["viewers"] == VIEWERS
    })
    .await;
    let with = cpu_in_period(&plane).await;
    let share = (with - without) / CPU_PERIOD.as_secs_f64();
    println!("CPU seconds in {CPU_PERIOD:?}: {without} without, {with} with {VIEWERS} viewers");
    assert!(share < MAX_CPU_OF_VIEWERS, "{share}");
    for viewer in viewers {
        viewer.abort();
    }
    eventually("no viewers", TEST_TIMEOUT, async || {
        json_of(&plane, "/status.json").await["bridge"]["viewers"] == 0
    })
    .await;
}

/// Reads the events of a page.
async fn view(bridge: SocketAddr) {
    let mut stream = TcpStream::connect(bridge).await.unwrap();
    let request = format!("GET /status/events HTTP/1.1\r\nHost: {bridge}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut buffer = vec![0; 64 * 1024];
    while stream.read(&mut buffer).await.unwrap() > 0 {}
}

/// The CPU seconds of the bridge during [`CPU_PERIOD`].
async fn cpu_in_period(plane: &ControlPlane) -> f64 {
    let seconds = async || {
        let metrics = plane.admin_page(OLD, "/metrics").await;
        let mut lines = metrics.lines();
        let value = lines.find_map(|it| it.strip_prefix("process_cpu_seconds_total "));
        value.and_then(|it| it.parse::<f64>().ok()).unwrap()
    };
    let before = seconds().await;
    tokio::time::sleep(CPU_PERIOD).await;
    seconds().await - before
}
