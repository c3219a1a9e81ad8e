//! `exec`: skewbridge's client commands compared with kubectl's, with the same server and pod.

mod audit_log;
mod file_tree;
mod result;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use skewbridge_e2e::{ControlPlane, Node, ServerSpec, User, Via};

use self::result::ExecResult;
use crate::args::{Exec, ExecSizes};
use crate::pattern::write_noise;
use crate::proxies::bridge;
use crate::ratio::rotated;
use crate::report;
use crate::scratch_dir::ScratchDir;
use crate::timed_child::{Cost, Streams, run_timed};

const MIB: u64 = 1 << 20;
/// How often a client may fail at a load before the run fails. kubectl 1.36.4 fails at
/// times, with a large tree from a pod on a slow disk.
const MAX_ATTEMPTS: u32 = 10;

pub(crate) async fn run(args: Exec) -> Result<()> {
    let program = bridge::client_program(args.program.clone()).await?;
    let sizes = args.sizes();
    let version = skewbridge_e2e::newest(&skewbridge_e2e::versions()).to_owned();
    let measured = measure(sizes, &program, &version).await?;
    let result = ExecResult::new(version, sizes, &measured)?;
    report::print(&result, args.output)
}

/// The measured client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Client {
    Kubectl,
    Skewbridge,
}

impl Client {
    const BOTH: [Self; 2] = [Self::Kubectl, Self::Skewbridge];

    fn name(self) -> &'static str {
        match self {
            Self::Kubectl => "kubectl",
            Self::Skewbridge => "skewbridge",
        }
    }
}

/// The load that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Load {
    /// `exec` with much output.
    Stdout,
    /// `exec -i` with much input.
    Stdin,
    /// `cp` of the tree to the pod.
    CopyIn,
    /// `cp` of the tree from the pod.
    CopyOut,
    /// `exec` of a command that prints a word.
    FirstByte,
}

impl Load {
    const ALL: [Self; 5] = [
        Self::Stdout,
        Self::Stdin,
        Self::CopyIn,
        Self::CopyOut,
        Self::FirstByte,
    ];

    /// How often the load runs in a round.
    fn times(self, sizes: ExecSizes) -> u32 {
        match self {
            Self::FirstByte => sizes.starts,
            _ => 1,
        }
    }

    /// Decimals of a second: some loads are short.
    fn decimals(self) -> usize {
        match self {
            Self::FirstByte => 3,
            _ => 2,
        }
    }

    /// The measured time.
    fn seconds(self, cost: &Cost) -> Option<f64> {
        match self {
            Self::FirstByte => cost.first_byte,
            _ => Some(cost.seconds),
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stdout => "stdout",
            Self::Stdin => "stdin",
            Self::CopyIn => "cp to the pod",
            Self::CopyOut => "cp from the pod",
            Self::FirstByte => "first byte",
        })
    }
}

/// The cost of a load for each client, run by run, with the same run at the same index.
#[derive(Debug)]
struct Measured {
    load: Load,
    costs: [Vec<Cost>; Client::BOTH.len()],
    /// How often each client has failed and was run again.
    failed: [u32; Client::BOTH.len()],
}

async fn measure(sizes: ExecSizes, program: &Path, version: &str) -> Result<Vec<Measured>> {
    // Declared before the plane, so dropped after it.
    let scratch = ScratchDir::create()?;
    let plane = ControlPlane::start(&[ServerSpec::of(version).without_bridge()]).await;
    let node = plane.start_node().await;
    let pair = Clients {
        program,
        config: plane.kubeconfig_of(&[("c", plane.servers[0].address)]),
        bytes: u64::from(sizes.mib) * MIB,
        noise: scratch.path("noise"),
        tree: scratch.path("tree"),
        in_pod: node.directory.join("copy"),
        back: scratch.path("back"),
        plane: &plane,
        scratch: &scratch,
    };
    write_noise(&pair.noise, pair.bytes)?;
    file_tree::write(&pair.tree, sizes.files)?;
    // From here on programs, files and kubectl's discovery cache are warm.
    for load in Load::ALL {
        for client in Client::BOTH {
            pair.run_load(client, load).await.context("warm-up")?;
        }
    }
    let mut measured: Vec<Measured> = Load::ALL
        .into_iter()
        .map(|load| Measured {
            load,
            costs: Default::default(),
            failed: Default::default(),
        })
        .collect();
    for round in 0..sizes.rounds {
        for Measured {
            load,
            costs,
            failed,
        } in &mut measured
        {
            for time in 0..load.times(sizes) {
                for index in rotated(Client::BOTH.len(), (round + time) as usize) {
                    let client = Client::BOTH[index];
                    let (cost, failures) = pair.run_load(client, *load).await?;
                    report::progress(format_args!(
                        "round {}/{}: {load}: {:<10} {:.3} s, CPU {:.3} s, {} MiB",
                        round + 1,
                        sizes.rounds,
                        client.name(),
                        load.seconds(&cost).unwrap_or_default(),
                        cost.cpu,
                        cost.peak_kib >> 10,
                    ));
                    costs[index].push(cost);
                    failed[index] += failures;
                }
            }
        }
    }
    let log = &plane.servers[0].audit_log;
    let log = fs::read_to_string(log).with_context(|| log.display().to_string())?;
    audit_log::all_by_websocket(&log)?;
    Ok(measured)
}

/// Both clients, and their data.
struct Clients<'a> {
    plane: &'a ControlPlane,
    scratch: &'a ScratchDir,
    /// The skewbridge binary.
    program: &'a Path,
    /// The kubeconfig.
    config: String,
    bytes: u64,
    noise: PathBuf,
    tree: PathBuf,
    in_pod: PathBuf,
    back: PathBuf,
}

impl Clients<'_> {
    /// The cost, and how often the client has failed before; every byte has to arrive.
    async fn run_load(&self, client: Client, load: Load) -> Result<(Cost, u32)> {
        let mut failures = 0;
        loop {
            let why = match self.try_run_load(client, load).await {
                Ok(cost) => return Ok((cost, failures)),
                Err(why) => why.context(format!("{load}, {}", client.name())),
            };
            failures += 1;
            if failures == MAX_ATTEMPTS {
                return Err(why.context(format!("failed {MAX_ATTEMPTS} times")));
            }
            report::progress(format_args!("run again: {why:#}"));
        }
    }

    async fn try_run_load(&self, client: Client, load: Load) -> Result<Cost> {
        let copy = match load {
            Load::CopyIn => Some(&self.in_pod),
            Load::CopyOut => Some(&self.back),
            _ => None,
        };
        if let Some(copy) = copy.filter(|copy| copy.exists()) {
            fs::remove_dir_all(copy).with_context(|| copy.display().to_string())?;
        }
        let mut command = self.command(client);
        command.args(self.arguments(load));
        let streams = Streams {
            stdin: (load == Load::Stdin).then_some(self.noise.as_path()),
            expected: (load == Load::Stdout).then_some(self.bytes),
        };
        let cost = run_timed(&command, streams, self.scratch).await?;
        if let Some(copy) = copy {
            file_tree::compare(&self.tree, copy)?;
        }
        ensure!(load.seconds(&cost).is_some(), "the client wrote no output");
        Ok(cost)
    }

    fn command(&self, client: Client) -> Command {
        match client {
            Client::Kubectl => {
                let kubectl = self.plane.kubectl_command(0, Via::Server, User::Admin);
                let mut kubectl = kubectl.into_std();
                // The default, unless the environment of this run sets another.
                kubectl.env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "true");
                kubectl
            }
            Client::Skewbridge => {
                let mut command = Command::new(self.program);
                command.env("KUBECONFIG", &self.config);
                command
            }
        }
    }

    /// The same arguments for both.
    fn arguments(&self, load: Load) -> Vec<String> {
        let path = |path: &Path| path.display().to_string();
        let in_pod = |path: &Path| format!("{}:{}", Node::POD, path.display());
        let noise = path(&self.noise);
        let (command, further) = match load {
            Load::Stdout => ("exec", vec!["--".to_owned(), "cat".to_owned(), noise]),
            Load::Stdin => {
                // Compares every byte, and fails on a difference.
                let words = ["-i", "--", "cmp", "-"].map(str::to_owned);
                ("exec", words.into_iter().chain([noise]).collect())
            }
            Load::FirstByte => ("exec", ["--", "echo", "ready"].map(str::to_owned).into()),
            Load::CopyIn => ("cp", vec![path(&self.tree), in_pod(&self.in_pod)]),
            Load::CopyOut => ("cp", vec![in_pod(&self.tree), path(&self.back)]),
        };
        let mut words = vec![command.to_owned(), format!("-n={}", Node::NAMESPACE)];
        if command == "exec" {
            words.push(Node::POD.to_owned());
        }
        words.extend(further);
        words
    }
}
