//! `agent`: requests and streams through the plugin `skewbridge agent`, next to direct
//! ones with the same certificate.

mod kubeconfig;
mod requests;
mod result;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use skewbridge_e2e::{ControlPlane, Node, ServerSpec, User, Via};

use self::requests::LoadClient;
use self::result::AgentResult;
use crate::args::{Agent, AgentSizes};
use crate::pattern::{is_same, write_noise};
use crate::proxies::bridge;
use crate::ratio::rotated;
use crate::report;
use crate::scratch_dir::ScratchDir;
use crate::timed_child::{Streams, run_timed};

const MIB: u64 = 1 << 20;
const WARM_UP: Duration = Duration::from_millis(500);

pub(crate) async fn run(args: Agent) -> Result<()> {
    let program = bridge::client_program(args.program.clone()).await?;
    let sizes = args.sizes();
    let version = skewbridge_e2e::newest(&skewbridge_e2e::versions()).to_owned();
    let path = args.path.unwrap_or_else(|| {
        let (namespace, pod) = (Node::NAMESPACE, Node::POD);
        format!("/api/v1/namespaces/{namespace}/pods/{pod}")
    });
    let measured = measure(sizes, &path, &program, &version).await?;
    let result = AgentResult::new(version, path, sizes, &measured)?;
    report::print(&result, args.output)
}

/// How clients reach the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Route {
    Direct,
    Plugin,
}

impl Route {
    const BOTH: [Self; 2] = [Self::Direct, Self::Plugin];

    fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Plugin => "plugin",
        }
    }
}

/// The load that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Load {
    /// One request after the other, on each of this many connections.
    Requests { connections: u32 },
    /// `skewbridge exec` with much output.
    Stdout,
    /// `skewbridge exec -i` with much input.
    Stdin,
    /// `kubectl cp` of a file to the pod; with the plugin under `skewbridge run`.
    CopyIn,
    /// `kubectl cp` of a file from the pod; with the plugin under `skewbridge run`.
    CopyOut,
}

impl Load {
    fn all(sizes: AgentSizes) -> [Self; 6] {
        let connections = sizes.connections;
        [
            Self::Requests { connections: 1 },
            Self::Requests { connections },
            Self::Stdout,
            Self::Stdin,
            Self::CopyIn,
            Self::CopyOut,
        ]
    }

    /// The unit of the rate.
    fn unit(self) -> &'static str {
        match self {
            Self::Requests { .. } => "req/s",
            _ => "MiB/s",
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requests { connections: 1 } => f.write_str("requests, one at a time"),
            Self::Requests { connections } => write!(f, "requests, {connections} connections"),
            Self::Stdout => f.write_str("exec, stdout"),
            Self::Stdin => f.write_str("exec, stdin"),
            Self::CopyIn => f.write_str("kubectl cp to the pod"),
            Self::CopyOut => f.write_str("kubectl cp from the pod"),
        }
    }
}

/// The rates of a load for each route, round by round.
#[derive(Debug)]
struct Measured {
    load: Load,
    rates: [Vec<f64>; Route::BOTH.len()],
}

async fn measure(
    sizes: AgentSizes,
    path: &str,
    program: &Path,
    version: &str,
) -> Result<Vec<Measured>> {
    // Declared before the plane, so dropped after it.
    let scratch = ScratchDir::create()?;
    let plane = ControlPlane::start(&[ServerSpec::of(version).without_bridge()]).await;
    let node = plane.start_node().await;
    let configs = kubeconfig::write(&scratch, &plane, program)?;
    let callers = [
        LoadClient::prepare(&configs[0], path)
            .await
            .context("without a plugin")?,
        LoadClient::prepare(&configs[1], path)
            .await
            .context("with the plugin")?,
    ];
    let routes = Routes {
        mib: sizes.mib,
        noise: scratch.path("noise"),
        pod_path: node.directory.join("copy"),
        back: scratch.path("back"),
        configs,
        callers,
        program,
        plane: &plane,
        scratch: &scratch,
    };
    write_noise(&routes.noise, u64::from(sizes.mib) * MIB)?;
    let loads = Load::all(sizes);
    for load in loads {
        for route in Route::BOTH {
            routes
                .run_load(route, load, WARM_UP)
                .await
                .context("warm-up")?;
        }
    }
    let mut measured: Vec<Measured> = loads
        .into_iter()
        .map(|load| Measured {
            load,
            rates: Default::default(),
        })
        .collect();
    let time = Duration::from_secs(sizes.seconds.into());
    for round in 0..sizes.rounds {
        for Measured { load, rates } in &mut measured {
            for index in rotated(Route::BOTH.len(), round as usize) {
                let route = Route::BOTH[index];
                let rate = routes.run_load(route, *load, time).await?;
                report::progress(format_args!(
                    "round {}/{}: {load}: {} {rate:.0} {}",
                    round + 1,
                    sizes.rounds,
                    route.name(),
                    load.unit(),
                ));
                rates[index].push(rate);
            }
        }
    }
    Ok(measured)
}

/// Both routes, and the data that they transfer. Indexed as [`Route::BOTH`].
struct Routes<'a> {
    plane: &'a ControlPlane,
    scratch: &'a ScratchDir,
    program: &'a Path,
    configs: [PathBuf; Route::BOTH.len()],
    callers: [LoadClient; Route::BOTH.len()],
    mib: u32,
    noise: PathBuf,
    pod_path: PathBuf,
    back: PathBuf,
}

impl Routes<'_> {
    /// Requests or MiB a second; every byte must have arrived.
    async fn run_load(&self, route: Route, load: Load, time: Duration) -> Result<f64> {
        let outcome = match load {
            Load::Requests { connections } => {
                self.callers[route as usize].rate(connections, time).await
            }
            Load::Stdout | Load::Stdin => self.exec(route, load).await,
            Load::CopyIn => {
                let locations = [local_path(&self.noise), pod_path(&self.pod_path)];
                self.copy(route, locations, &self.pod_path).await
            }
            Load::CopyOut => {
                let locations = [pod_path(&self.noise), local_path(&self.back)];
                self.copy(route, locations, &self.back).await
            }
        };
        outcome.with_context(|| format!("{load}, {}", route.name()))
    }

    /// Includes the start of the plugin.
    async fn exec(&self, route: Route, load: Load) -> Result<f64> {
        let mut command = Command::new(self.program);
        command.env("KUBECONFIG", &self.configs[route as usize]);
        command.args(["exec", "-n", Node::NAMESPACE, Node::POD]);
        let mut streams = Streams::default();
        if load == Load::Stdin {
            // Compares every byte, and fails on a difference.
            command.args(["-i", "--", "cmp", "-"]);
            streams.stdin = Some(&self.noise);
        } else {
            command.args(["--", "cat"]);
            streams.expected = Some(u64::from(self.mib) * MIB);
        }
        command.arg(&self.noise);
        let cost = run_timed(&command, streams, self.scratch).await?;
        Ok(f64::from(self.mib) / cost.seconds)
    }

    /// `kubectl cp` between two locations, of which this path is the copy.
    async fn copy(&self, route: Route, locations: [String; 2], copy: &Path) -> Result<f64> {
        if copy.exists() {
            fs::remove_file(copy).with_context(|| copy.display().to_string())?;
        }
        let mut command = self.kubectl(route);
        command.env("KUBECONFIG", &self.configs[route as usize]);
        command.args(["cp", "-n", Node::NAMESPACE]).args(locations);
        let cost = run_timed(&command, Streams::default(), self.scratch).await?;
        ensure!(is_same(&self.noise, copy)?, "{} differs", copy.display());
        Ok(f64::from(self.mib) / cost.seconds)
    }

    /// kubectl does not support plugins that proxy, so `skewbridge run` runs it.
    fn kubectl(&self, route: Route) -> Command {
        let plane = self.plane.kubectl_command(0, Via::Server, User::Admin);
        // Without its arguments: they name another kubeconfig.
        let kubectl = plane.as_std().get_program();
        let mut command = match route {
            Route::Direct => Command::new(kubectl),
            Route::Plugin => {
                let mut command = Command::new(self.program);
                command.args(["run", "--"]).arg(kubectl);
                command
            }
        };
        command.env("HOME", self.scratch.root());
        command
    }
}

fn local_path(path: &Path) -> String {
    path.display().to_string()
}

fn pod_path(path: &Path) -> String {
    format!("{}:{}", Node::POD, path.display())
}
