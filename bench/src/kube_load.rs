//! Measurements that load real kube-apiservers and their bridges with the same requests: `discovery`,
//! `local` and `peer-proxy`.

mod candidate;
mod discovery;
mod local;
mod peer_proxy;
mod result;

use anyhow::{Context, Result};
use skewbridge_e2e::{ControlPlane, ServerSpec};

use self::candidate::{Candidate, Round};
use self::result::{Comparison, RatioGoal};
use crate::args::{KubeLoad, KubeLoadName};
use crate::h2load::{Load, Protocol};
use crate::proxies::bridge;
use crate::ratio::rotated;
use crate::report;

const WARM_UP_SECONDS: u32 = 1;

/// The file of the tokens, which kube-apiserver reads at its start.
const TOKEN_FILE: &str = "tokens.csv";
pub(crate) const TOKEN: &str = "bench-token";

pub(crate) async fn run(name: KubeLoadName, args: KubeLoad) -> Result<()> {
    let program = bridge::client_program(args.bridge.clone()).await?;
    let result = match name {
        KubeLoadName::Discovery => discovery::measure(&args, &program).await?,
        KubeLoadName::Local => local::measure(&args, &program).await?,
        KubeLoadName::PeerProxy => peer_proxy::measure(&args, &program).await?,
    };
    report::print(&result, args.output)
}

/// Starts a control plane whose servers accept the token of the load generator, whose user may do
/// everything.
pub(crate) async fn start_plane(servers: &[ServerSpec]) -> ControlPlane {
    let with_token = |server: &ServerSpec| {
        let flag = format!("--token-auth-file={TOKEN_FILE}");
        server.clone().flag(&flag)
    };
    let servers: Vec<_> = servers.iter().map(with_token).collect();
    let mut plane = ControlPlane::prepare(&servers);
    plane.file(
        TOKEN_FILE,
        &format!("{TOKEN},bench,bench,\"system:masters\"\n"),
    );
    plane.start_all();
    plane.wait_until_ready().await;
    plane
}

/// Loads all candidates in turn, and compares them.
async fn compare(
    title: &str,
    candidates: &[Candidate],
    goals: &[RatioGoal],
    args: &KubeLoad,
    protocol: Protocol,
) -> Result<Comparison> {
    let mut rounds: Vec<Vec<Round>> = candidates.iter().map(|_| Vec::new()).collect();
    for candidate in candidates {
        let warm_up = candidate.round(protocol, WARM_UP_SECONDS).await;
        warm_up.context("warm-up")?;
    }
    for round in 0..args.rounds {
        for index in rotated(candidates.len(), round as usize) {
            let done = candidates[index].round(protocol, args.seconds).await?;
            report::progress(format_args!(
                "{title}: round {}/{}: {:<14} {:>8.0} req/s",
                round + 1,
                args.rounds,
                candidates[index].name,
                done.per_second,
            ));
            rounds[index].push(done);
        }
    }
    let names: Vec<_> = candidates.iter().map(|it| it.name).collect();
    Comparison::new(title, protocol, &names, &rounds, goals).context("no rounds")
}

fn load_of(path: &str, size: u32) -> Result<Load> {
    Ok(Load::new(path, size)?.with_token(TOKEN))
}
