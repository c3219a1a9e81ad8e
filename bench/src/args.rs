//! The command line.

mod latency;
mod scale;
mod storm;

use std::convert::Infallible;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Parser, Subcommand, ValueEnum, value_parser};
use serde::Serialize;

pub(crate) use self::latency::{Latency, LatencySizes};
pub(crate) use self::scale::{Held, Holders, Scale, ScaleAxis, ScaleSizes, StandIn};
pub(crate) use self::storm::{Storm, StormSizes};
use crate::h2load::Protocol;

/// Side-by-side measurements of Skewbridge.
#[derive(Debug, Parser)]
#[command(name = "skewbridge-bench", max_term_width = 80)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Requests per second and CPU per request next to `HAProxy` and nginx
    PassThrough(PassThrough),
    /// Requests that two bridges forward to the server that serves them, next to direct ones
    Reroute(Reroute),
    /// Merged discovery next to kube-apiserver's own and next to a file of nginx; run it with
    /// `cargo xtask bench discovery`
    Discovery(KubeLoad),
    /// A list of a real kube-apiserver through its bridge, next to the direct one; run it
    /// with `cargo xtask bench local`
    Local(KubeLoad),
    /// A list that another real kube-apiserver serves, through two bridges and through
    /// kube-apiserver's own peer proxy; run it with `cargo xtask bench peer-proxy`
    PeerProxy(KubeLoad),
    /// What a bridge adds to the latency of single requests; run it with `cargo xtask bench
    /// latency`
    Latency(Latency),
    /// TLS handshakes: thousands at once, and full and resumed ones next to `HAProxy` and nginx
    Storm(Storm),
    /// The cost of a request by the number of peers, resources, connections and streams
    Scale(Scale),
    /// The cost of a routing decision, by the number of servers
    Placement(Placement),
    /// Memory of the bridge per open watch, and the delivery time of one event to all
    Watches(Watches),
    /// Streams next to kube-apiserver's own translator, and `kubectl cp` with a bridge in
    /// front; run it with `cargo xtask bench translate`
    Translate(Translate),
    /// `skewbridge exec` and `cp` next to kubectl: time, CPU and memory; run it with `cargo
    /// xtask bench exec`
    Exec(Exec),
    /// Requests and streams through the plugin `skewbridge agent` next to direct ones; run
    /// it with `cargo xtask bench agent`
    Agent(Agent),
    /// The fake API server that `watches` starts
    #[command(hide = true)]
    FakeApiServer(FakeApiServer),
    /// The clients that `watches` starts
    #[command(hide = true)]
    Watchers(Watchers),
    /// The servers that `scale` starts
    #[command(hide = true)]
    StandIn(StandIn),
    /// The clients that `scale` starts
    #[command(hide = true)]
    Holders(Holders),
    /// The node that `translate` starts
    #[command(hide = true)]
    Node(Node),
    /// The parent of a client that `exec` and `agent` measure
    #[command(hide = true)]
    TimedChild(TimedChild),
}

#[derive(Debug, clap::Args)]
pub(crate) struct PassThrough {
    /// Measured rounds per protocol, after one warm-up round
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Seconds of load on each proxy in a round
    #[arg(long, default_value_t = 4, value_parser = value_parser!(u32).range(1..=600))]
    pub(crate) seconds: u32,
    /// Bytes of the static response
    #[arg(long, default_value_t = 20_480, value_parser = value_parser!(u32).range(1..=67_108_864))]
    pub(crate) size: u32,
    /// Protocol of the clients
    #[arg(long, value_enum, default_value_t = Protocols::Both)]
    pub(crate) proto: Protocols,
    /// Bridge to run: a path, or `none` to leave it out [default: build it]
    #[arg(
        long,
        value_name = "PATH",
        default_value = "build",
        hide_default_value = true
    )]
    pub(crate) bridge: BridgeChoice,
    /// How to print the result
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Reroute {
    /// Measured rounds per protocol, after one warm-up round
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Seconds of load on each route in a round
    #[arg(long, default_value_t = 4, value_parser = value_parser!(u32).range(1..=600))]
    pub(crate) seconds: u32,
    /// Bytes of the static response
    #[arg(long, default_value_t = 20_480, value_parser = value_parser!(u32).range(1..=67_108_864))]
    pub(crate) size: u32,
    /// Protocol of the clients
    #[arg(long, value_enum, default_value_t = Protocols::Both)]
    pub(crate) proto: Protocols,
    /// The skewbridge to run [default: build it]
    #[arg(long, value_name = "PATH")]
    pub(crate) bridge: Option<PathBuf>,
    /// How to print the result
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
}

/// The measurements that have the arguments of [`KubeLoad`].
#[derive(Debug, Clone, Copy)]
pub(crate) enum KubeLoadName {
    Discovery,
    Local,
    PeerProxy,
}

#[derive(Debug, clap::Args)]
pub(crate) struct KubeLoad {
    /// Measured rounds per protocol, after one warm-up round
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Seconds of load on each candidate in a round
    #[arg(long, default_value_t = 4, value_parser = value_parser!(u32).range(1..=600))]
    pub(crate) seconds: u32,
    /// Protocol of the clients
    #[arg(long, value_enum, default_value_t = Protocols::H2)]
    pub(crate) proto: Protocols,
    /// The skewbridge to run [default: build it]
    #[arg(long, value_name = "PATH")]
    pub(crate) bridge: Option<PathBuf>,
    /// How to print the result
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Placement {
    /// Measured rounds
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Decisions in a round
    #[arg(long, default_value_t = 200_000, value_parser = value_parser!(u32).range(1..))]
    pub(crate) decisions: u32,
    /// How to print the result
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Watches {
    /// Client connections
    #[arg(long, default_value_t = 100, value_parser = value_parser!(u32).range(1..=1000))]
    pub(crate) connections: u32,
    /// Watches on each connection
    #[arg(long, default_value_t = 100, value_parser = value_parser!(u32).range(1..=100))]
    pub(crate) streams: u32,
    /// Rounds of events after the first one
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Bridge to run: a path, or `none` to leave it out [default: build it]
    #[arg(
        long,
        value_name = "PATH",
        default_value = "build",
        hide_default_value = true
    )]
    pub(crate) bridge: BridgeChoice,
    /// How to print the result
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Translate {
    /// Measured rounds, after one warm-up round
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// MiB that are sent each way in a round
    #[arg(long, default_value_t = 512, value_parser = value_parser!(u32).range(1..=65_536))]
    pub(crate) mib: u32,
    /// Seconds of small messages in a round
    #[arg(long, default_value_t = 2, value_parser = value_parser!(u32).range(1..=600))]
    pub(crate) seconds: u32,
    /// Concurrent sessions, where there are several
    #[arg(long, default_value_t = 16, value_parser = value_parser!(u32).range(2..=1000))]
    pub(crate) sessions: u32,
    /// Measured rounds of `kubectl cp`
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u32).range(1..=1000))]
    pub(crate) copies: u32,
    /// MB of the file that is copied
    #[arg(long, default_value_t = 500, value_parser = value_parser!(u32).range(1..=65_536))]
    pub(crate) copy_mb: u32,
    /// Run only this part
    #[arg(long, value_enum)]
    pub(crate) only: Option<TranslatePart>,
    /// Bridge to run: a path, or `none` to leave it out [default: build it]
    #[arg(
        long,
        value_name = "PATH",
        default_value = "build",
        hide_default_value = true
    )]
    pub(crate) bridge: BridgeChoice,
    /// How to print the result
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
}

/// The parts of `translate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TranslatePart {
    /// The two translators
    Streams,
    /// `kubectl cp`
    Copy,
}

impl Translate {
    pub(crate) fn has(&self, part: TranslatePart) -> bool {
        self.only.is_none_or(|only| only == part)
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Exec {
    /// Measured rounds, after one warm-up round
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// MiB that are sent each way in a round
    #[arg(long, default_value_t = 256, value_parser = value_parser!(u32).range(1..=65_536))]
    mib: u32,
    /// Files of the tree that is copied
    #[arg(long, default_value_t = 10_000, value_parser = value_parser!(u32).range(1..=1_000_000))]
    files: u32,
    /// Starts to the first byte in a round
    #[arg(long, default_value_t = 10, value_parser = value_parser!(u32).range(1..=1000))]
    starts: u32,
    /// One round with little data, as a smoke test
    #[arg(long, conflicts_with_all = ["rounds", "mib", "files", "starts"])]
    quick: bool,
    /// The skewbridge to run [default: build it]
    #[arg(long, value_name = "PATH")]
    pub(crate) program: Option<PathBuf>,
    /// How to print the result
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
}

/// How much `exec` measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct ExecSizes {
    pub(crate) rounds: u32,
    pub(crate) mib: u32,
    pub(crate) files: u32,
    pub(crate) starts: u32,
}

impl Exec {
    pub(crate) fn sizes(&self) -> ExecSizes {
        if self.quick {
            return ExecSizes {
                rounds: 1,
                mib: 2,
                files: 150,
                starts: 2,
            };
        }
        ExecSizes {
            rounds: self.rounds,
            mib: self.mib,
            files: self.files,
            starts: self.starts,
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Agent {
    /// Measured rounds, after one warm-up round
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Seconds of requests in a round
    #[arg(long, default_value_t = 4, value_parser = value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Concurrent connections, where there are several
    #[arg(long, default_value_t = 16, value_parser = value_parser!(u32).range(2..=1000))]
    connections: u32,
    /// MiB that are sent each way in a round
    #[arg(long, default_value_t = 256, value_parser = value_parser!(u32).range(1..=65_536))]
    mib: u32,
    /// Path of the requests [default: the pod]
    #[arg(long, value_name = "PATH")]
    pub(crate) path: Option<String>,
    /// One round with little data, as a smoke test
    #[arg(long, conflicts_with_all = ["rounds", "seconds", "connections", "mib"])]
    quick: bool,
    /// The skewbridge to run [default: build it]
    #[arg(long, value_name = "PATH")]
    pub(crate) program: Option<PathBuf>,
    /// How to print the result
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
}

/// How much `agent` measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct AgentSizes {
    pub(crate) rounds: u32,
    pub(crate) seconds: u32,
    pub(crate) connections: u32,
    pub(crate) mib: u32,
}

impl Agent {
    pub(crate) fn sizes(&self) -> AgentSizes {
        if self.quick {
            return AgentSizes {
                rounds: 1,
                seconds: 1,
                connections: 2,
                mib: 2,
            };
        }
        AgentSizes {
            rounds: self.rounds,
            seconds: self.seconds,
            connections: self.connections,
            mib: self.mib,
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct TimedChild {
    #[arg(long)]
    pub(crate) stdin: Option<PathBuf>,
    #[arg(long)]
    pub(crate) expected: Option<u64>,
    #[arg(last = true, required = true)]
    pub(crate) client: Vec<OsString>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Node {
    #[arg(long)]
    pub(crate) port: u16,
    #[arg(long)]
    pub(crate) certificate: PathBuf,
    #[arg(long)]
    pub(crate) key: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct FakeApiServer {
    #[arg(long)]
    pub(crate) certificate: PathBuf,
    #[arg(long)]
    pub(crate) key: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Watchers {
    #[arg(long)]
    pub(crate) target: SocketAddr,
    #[arg(long)]
    pub(crate) ca: PathBuf,
    #[arg(long)]
    pub(crate) connections: u32,
    #[arg(long)]
    pub(crate) streams: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BridgeChoice {
    Build,
    At(PathBuf),
    Skip,
}

impl FromStr for BridgeChoice {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "build" => Self::Build,
            "none" => Self::Skip,
            path => Self::At(path.into()),
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Protocols {
    H1,
    H2,
    Both,
}

impl Protocols {
    pub(crate) fn selected(self) -> &'static [Protocol] {
        match self {
            Self::H1 => &[Protocol::Http1],
            Self::H2 => &[Protocol::Http2],
            Self::Both => &[Protocol::Http1, Protocol::Http2],
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Table,
    Json,
    /// The table, for a page
    Markdown,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn without_flags_both_protocols_run_and_the_bridge_is_built() {
        let args = Args::parse_from(["skewbridge-bench", "pass-through"]);
        let Command::PassThrough(args) = args.command else {
            panic!("not pass-through: {args:?}");
        };
        assert_eq!(args.bridge, BridgeChoice::Build);
        assert_eq!(args.proto.selected(), [Protocol::Http1, Protocol::Http2]);
    }

    #[test]
    fn the_bridge_can_be_left_out_or_named() {
        assert_eq!("none".parse(), Ok(BridgeChoice::Skip));
        assert_eq!("./x".parse(), Ok(BridgeChoice::At("./x".into())));
    }

    #[test]
    fn quick_is_small_and_takes_no_sizes() {
        let parse = |words: &[&str]| {
            let line = ["skewbridge-bench", "exec"].iter().chain(words);
            Args::try_parse_from(line).map(|args| match args.command {
                Command::Exec(exec) => exec.sizes(),
                other => panic!("not exec: {other:?}"),
            })
        };
        assert_eq!(parse(&[]).unwrap().files, 10_000);
        assert_eq!(parse(&["--files=7"]).unwrap().files, 7);
        assert_eq!(parse(&["--quick"]).unwrap().rounds, 1);
        assert!(parse(&["--quick", "--files=7"]).is_err());
    }

    #[test]
    fn the_arguments_of_a_client_are_not_parsed() {
        let line = [
            "x",
            "timed-child",
            "--expected=3",
            "--",
            "cp",
            "-n",
            "--stdin",
        ];
        let Command::TimedChild(args) = Args::parse_from(line).command else {
            panic!("not timed-child");
        };
        assert_eq!(args.client, ["cp", "-n", "--stdin"]);
        assert_eq!((args.expected, args.stdin), (Some(3), None));
    }
}
