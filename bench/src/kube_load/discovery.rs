//! `discovery`: merged discovery of two servers at a bridge, next to kube-apiserver's own discovery
//! document and next to nginx with the same bytes in a file, which is the limit of the machine.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use skewbridge_e2e::{
    AGGREGATED, ControlPlane, Protocol as Http, Request, ServerSpec, Via, newest, oldest,
};
use skewbridge_testkit::Response;
use tokio::time::sleep;

use super::candidate::{Candidate, CountedProcess};
use super::result::{KubeLoadResult, RatioGoal};
use super::{TOKEN, compare, load_of, start_plane};
use crate::args::KubeLoad;
use crate::pki::Pki;
use crate::proxies::{backend, free_ports};
use crate::ratio::Goal;
use crate::scratch_dir::ScratchDir;

const PATH: &str = "/apis";
const KUBE_APISERVER: &str = "kube-apiserver";
const BRIDGE: &str = "bridge";
const NGINX: &str = "nginx, a file";

/// For the bridges to discover what the servers serve, and then for changes of the start to settle.
const DISCOVERY_TIMEOUT: Duration = Duration::from_mins(1);
const SETTLING_PERIOD: Duration = Duration::from_secs(8);
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

const OLD: usize = 0;
const NEW: usize = 1;

pub(super) async fn measure(args: &KubeLoad, program: &Path) -> Result<KubeLoadResult> {
    let versions = skewbridge_e2e::versions();
    let (old, new) = (oldest(&versions), newest(&versions));
    ensure!(old != new, "it needs two versions in E2E_VERSIONS");
    // Declared before the children, so dropped after them.
    let scratch = ScratchDir::create()?;
    let server = |version| ServerSpec::of(version).peer().bridge_program(program);
    let plane = start_plane(&[server(old), server(new)]).await;
    let direct = get(&plane, Via::Server, None).await?;
    let merged = wait_until_merged(&plane, &direct).await?;
    sleep(SETTLING_PERIOD).await;

    let pki = Pki::issued_by(plane.ca(), &scratch)?;
    let [port] = free_ports()?;
    let file = backend::start_file(&scratch, &pki, port, PATH, merged.body.clone())?;
    file.process().until_listening(file.address()).await?;
    let mut result = KubeLoadResult {
        kube_apiserver: new.to_owned(),
        rounds: args.rounds,
        seconds: args.seconds,
        comparisons: Vec::new(),
    };
    let etag_of_file = {
        let mut client = plane.http_client_at(file.address(), Http::H1);
        let answer = client.send(&Request::get(PATH)).await?;
        etag(&answer)?
    };
    let goals = |kube_apiserver: f64| {
        [(KUBE_APISERVER, kube_apiserver), (NGINX, 0.6)].map(|(to, least)| RatioGoal {
            of: BRIDGE,
            to,
            goal: Goal::AtLeast(least),
        })
    };
    for &protocol in args.proto.selected() {
        for (title, is_conditional) in [("discovery", false), ("discovery, 304", true)] {
            let load = |answer_bytes: usize, etag: &str| -> Result<_> {
                let size = u32::try_from(answer_bytes)?;
                let load = load_of(PATH, size)?.with_header("accept", AGGREGATED);
                Ok(if is_conditional {
                    load.with_header("if-none-match", etag).not_modified()
                } else {
                    load
                })
            };
            let candidates = [
                Candidate::of(
                    KUBE_APISERVER,
                    &plane,
                    NEW,
                    Via::Server,
                    load(direct.body.len(), &etag(&direct)?)?,
                ),
                Candidate::of(
                    BRIDGE,
                    &plane,
                    NEW,
                    Via::Bridge,
                    load(merged.body.len(), &etag(&merged)?)?,
                ),
                Candidate {
                    name: NGINX,
                    port,
                    processes: vec![CountedProcess::Group(file.process().pid())],
                    load: load(merged.body.len(), &etag_of_file)?,
                },
            ];
            let goals = goals(if is_conditional { 2.5 } else { 4.0 });
            let title = format!("{title}, {} bytes", merged.body.len());
            let compared = compare(&title, &candidates, &goals, args, protocol).await?;
            result.comparisons.push(compared);
        }
    }
    Ok(result)
}

async fn get(plane: &ControlPlane, via: Via, etag: Option<&str>) -> Result<Response> {
    let mut client = plane.http_client(NEW, via, Http::H2);
    let request = Request::get(PATH)
        .header("accept", AGGREGATED)
        .header("authorization", &format!("Bearer {TOKEN}"));
    let request = match etag {
        Some(etag) => request.header("if-none-match", etag),
        None => request,
    };
    Ok(client.send(&request).await?)
}

/// Waits until the bridge serves more than its server.
async fn wait_until_merged(plane: &ControlPlane, direct: &Response) -> Result<Response> {
    let deadline = Instant::now() + DISCOVERY_TIMEOUT;
    loop {
        let merged = get(plane, Via::Bridge, None).await?;
        if merged.status == 200 && merged.body.len() > direct.body.len() {
            return Ok(merged);
        }
        ensure!(
            Instant::now() < deadline,
            "the bridge of server {NEW} shows nothing of server {OLD}"
        );
        sleep(RETRY_INTERVAL).await;
    }
}

fn etag(answer: &Response) -> Result<String> {
    let etag = answer.header("etag").context("no ETag")?;
    Ok(etag.to_owned())
}
