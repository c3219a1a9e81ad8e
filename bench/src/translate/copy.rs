//! `kubectl cp` into a pod and out of it, with and without a bridge in front of kube-apiserver.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use skewbridge_e2e::{ControlPlane, Node, ServerSpec, User, Via};

use crate::args::Translate;
use crate::pattern::{is_same, write_noise};
use crate::process;
use crate::ratio::{Goal, Ratio, rotated};
use crate::report::{self, Spread, Table};
use crate::scratch_dir::ScratchDir;

const TIME_GOAL: Goal = Goal::AtMost(1.15);
/// A copy that takes longer hangs.
const COPY_TIMEOUT: Duration = Duration::from_mins(10);
const MB: u64 = 1_000_000;

#[derive(Debug, Serialize)]
pub(super) struct CopyResult {
    mb: u32,
    rounds: u32,
    #[serde(rename = "ways")]
    routes: Vec<RouteResult>,
    pub(super) ratios: Vec<Ratio>,
}

#[derive(Debug, Serialize)]
struct RouteResult {
    name: &'static str,
    in_seconds: Spread,
    out_seconds: Spread,
}

/// The direction of a copy.
#[derive(Debug, Clone, Copy)]
enum Direction {
    In,
    Out,
}

pub(super) async fn measure(
    args: &Translate,
    program: Option<&Path>,
    version: &str,
) -> Result<CopyResult> {
    // Declared before the plane, so dropped after it.
    let scratch = ScratchDir::create()?;
    let server = ServerSpec::of(version);
    let (server, routes) = match program {
        Some(program) => (
            server.bridge_program(program),
            vec![Via::Server, Via::Bridge],
        ),
        None => (server.without_bridge(), vec![Via::Server]),
    };
    let plane = ControlPlane::start(&[server]).await;
    let node = plane.start_node().await;
    let original = scratch.path("original");
    write_noise(&original, u64::from(args.copy_mb) * MB)?;
    let copies = Copies {
        plane: &plane,
        in_pod: &node.directory.join("copy"),
        back: &scratch.path("back"),
        original: &original,
    };
    let mut seconds: Vec<[Vec<f64>; 2]> = routes.iter().map(|_| Default::default()).collect();
    // From here on every program, and the file, has been read once.
    for direction in [Direction::In, Direction::Out] {
        copies.copy(Via::Server, direction).await?;
    }
    for round in 0..args.copies {
        for direction in [Direction::In, Direction::Out] {
            for index in rotated(routes.len(), round as usize) {
                let elapsed = copies.copy(routes[index], direction).await?;
                report::progress(format_args!(
                    "copy {}/{}: {direction:?} {}: {elapsed:.2?}",
                    round + 1,
                    args.copies,
                    name(routes[index]),
                ));
                seconds[index][direction as usize].push(elapsed.as_secs_f64());
            }
        }
    }
    CopyResult::new(args, &routes, &seconds)
}

struct Copies<'a> {
    plane: &'a ControlPlane,
    original: &'a Path,
    in_pod: &'a Path,
    back: &'a Path,
}

impl Copies<'_> {
    /// The time of a copy, which must be equal to its source.
    async fn copy(&self, via: Via, direction: Direction) -> Result<Duration> {
        let remote = format!("{}:{}", Node::POD, self.in_pod.display());
        let (from, to, copy) = match direction {
            Direction::In => (self.original.display().to_string(), remote, self.in_pod),
            Direction::Out => (remote, self.back.display().to_string(), self.back),
        };
        let _ = fs::remove_file(copy);
        let mut kubectl = self.plane.kubectl_command(0, via, User::Admin);
        kubectl.args(["-n", Node::NAMESPACE, "cp", &from, &to]);
        let start = Instant::now();
        process::output_of(&mut kubectl, COPY_TIMEOUT).await?;
        let elapsed = start.elapsed();
        ensure!(is_same(self.original, copy)?, "{} differs", copy.display());
        Ok(elapsed)
    }
}

fn name(via: Via) -> &'static str {
    match via {
        Via::Server => "direct",
        Via::Bridge => "through a bridge",
    }
}

impl CopyResult {
    fn new(args: &Translate, routes: &[Via], seconds: &[[Vec<f64>; 2]]) -> Result<Self> {
        let results = routes.iter().zip(seconds).map(|(&via, [into, out])| {
            Some(RouteResult {
                name: name(via),
                in_seconds: Spread::of(into.iter().copied())?,
                out_seconds: Spread::of(out.iter().copied())?,
            })
        });
        let ratios = match seconds {
            [direct, bridged] => ["into the pod", "out of the pod"]
                .into_iter()
                .zip(bridged.iter().zip(direct))
                .filter_map(|(way, (with, without))| {
                    let pairs = with.iter().copied().zip(without.iter().copied());
                    Ratio::new(format!("kubectl cp {way}"), TIME_GOAL, pairs)
                })
                .collect(),
            _ => Vec::new(),
        };
        Ok(Self {
            mb: args.copy_mb,
            rounds: args.copies,
            routes: results.collect::<Option<_>>().context("no rounds")?,
            ratios,
        })
    }
}

impl fmt::Display for CopyResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "kubectl cp, {} MB, {} rounds", self.mb, self.rounds)?;
        let mut table = Table::new(["", "s into the pod", "", "s out of it", ""]);
        for way in &self.routes {
            let [into, intos] = way.in_seconds.cells(2);
            let [out, outs] = way.out_seconds.cells(2);
            table.row([way.name.to_owned(), into, intos, out, outs]);
        }
        write!(f, "{table}")
    }
}

#[cfg(test)]
impl CopyResult {
    /// The same times in both directions.
    pub(super) fn sample(args: &Translate, pairs: impl Iterator<Item = (f64, f64)>) -> Self {
        let (bridged, direct): (Vec<_>, Vec<_>) = pairs.unzip();
        let seconds = [direct, bridged].map(|times| [times.clone(), times]);
        Self::new(args, &[Via::Server, Via::Bridge], &seconds).expect("rounds")
    }
}
