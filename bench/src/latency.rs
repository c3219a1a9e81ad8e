//! `latency`: what a bridge adds to the latency of single requests at low load.

mod requests;
mod result;
mod schedule;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use skewbridge_e2e::{ServerSpec, Via, newest};

use self::requests::Target;
use self::result::{LatencyResult, Round};
use self::schedule::Schedule;
use crate::args::{Latency, LatencySizes};
use crate::h1_client::get_request;
use crate::kube_load::{TOKEN, start_plane};
use crate::percentile::percentile;
use crate::pki::{self, Pki};
use crate::proxies::{backend, bridge, free_ports};
use crate::report;
use crate::scratch_dir::ScratchDir;

/// A small object that every control plane has.
const PATH: &str = "/api/v1/namespaces/default";

/// Bytes of nginx's file, about as many as the object has.
const FILE_BYTES: u32 = 400;

const WARM_UP: Duration = Duration::from_secs(1);

const DIRECT: &str = "direct";
const BRIDGE: &str = "bridge";

/// For the connections of a round to open.
const OPEN_DELAY: Duration = Duration::from_millis(500);

pub(crate) async fn run(args: Latency) -> Result<()> {
    let program = bridge::client_program(args.bridge.clone()).await?;
    let sizes = args.sizes();
    let result = if args.stand_in {
        with_nginx(&program, sizes).await?
    } else {
        with_kube_apiserver(&program, sizes).await?
    };
    report::print(&result, args.output)
}

/// A real kube-apiserver and the bridge beside it.
async fn with_kube_apiserver(program: &Path, sizes: LatencySizes) -> Result<LatencyResult> {
    let versions = skewbridge_e2e::versions();
    let version = newest(&versions);
    // Declared before the children, so dropped after them.
    let scratch = ScratchDir::create()?;
    let server = ServerSpec::of(version).peer().bridge_program(program);
    let plane = start_plane(&[server]).await;
    let ca = scratch.write("ca.crt", plane.ca().pem())?;
    let tls = pki::h1_client(&ca)?;
    let targets = [(DIRECT, Via::Server), (BRIDGE, Via::Bridge)].map(|(name, via)| Target {
        name,
        address: plane.servers[0].at(via),
        request: get_request(PATH, Some(TOKEN)),
        tls: tls.clone(),
    });
    let rounds = rounds(&targets, sizes).await?;
    LatencyResult::new(format!("kube-apiserver {version}"), sizes, &rounds)
}

/// A file of nginx, and a bridge in front of it.
async fn with_nginx(program: &Path, sizes: LatencySizes) -> Result<LatencyResult> {
    // Declared before the children, so dropped after them.
    let scratch = ScratchDir::create()?;
    let pki = Pki::generate(&scratch)?;
    let [upstream, front, admin] = free_ports()?;
    let server = backend::start(&scratch, &pki, upstream, FILE_BYTES)?;
    server.process().until_listening(server.address()).await?;
    let ports = bridge::Ports {
        front,
        admin,
        upstream,
    };
    let bridge = bridge::start(bridge::NAME, program, &scratch, &pki, ports, &[])?;
    bridge.process().until_listening(bridge.address()).await?;
    let tls = pki::h1_client(&pki.ca)?;
    let targets = [(DIRECT, &server), (BRIDGE, &bridge)].map(|(name, proxy)| Target {
        name,
        address: proxy.address(),
        request: get_request(backend::ANSWER, None),
        tls: tls.clone(),
    });
    let rounds = rounds(&targets, sizes).await?;
    LatencyResult::new("a file of nginx".to_owned(), sizes, &rounds)
}

async fn rounds(targets: &[Target; 2], sizes: LatencySizes) -> Result<Vec<Round>> {
    round(targets, sizes.rate, WARM_UP)
        .await
        .context("warm-up")?;
    let time = Duration::from_secs(sizes.seconds.into());
    let mut rounds = Vec::new();
    for number in 1..=sizes.rounds {
        let done = round(targets, sizes.rate, time).await?;
        let median = |samples| percentile(samples, 50).unwrap_or_default();
        report::progress(format_args!(
            "round {number}/{}: p50 {:?}, bridge {:?}",
            sizes.rounds,
            median(&done.direct),
            median(&done.bridge),
        ));
        rounds.push(done);
    }
    Ok(rounds)
}

/// Both candidates at the same time; their requests alternate.
async fn round(targets: &[Target; 2], rate: u32, time: Duration) -> Result<Round> {
    let start = Instant::now() + OPEN_DELAY;
    let count = u32::try_from(time.as_secs())?.saturating_mul(rate);
    let [direct, bridge] = targets.clone();
    let (direct, bridge) = tokio::try_join!(
        direct.latencies(Schedule::of(start, rate, 0, 2), count),
        bridge.latencies(Schedule::of(start, rate, 1, 2), count),
    )?;
    Ok(Round { direct, bridge })
}
