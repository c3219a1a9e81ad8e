//! The arguments of `scale`, and of its children.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{ValueEnum, value_parser};
use serde::Serialize;

use super::Output;

#[derive(Debug, clap::Args)]
pub(crate) struct Scale {
    /// Measured rounds for each axis, after a warm-up
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Seconds of load on each size in a round
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Run only this part
    #[arg(long, value_enum)]
    pub(crate) only: Option<ScaleAxis>,
    /// One round with small sizes, as a smoke test
    #[arg(long, conflicts_with_all = ["rounds", "seconds"])]
    quick: bool,
    /// The skewbridge to run [default: build it]
    #[arg(long, value_name = "PATH")]
    pub(crate) bridge: Option<PathBuf>,
    /// How to print the result
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
}

/// What grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ScaleAxis {
    /// Peers of the bridge
    Peers,
    /// Resources that servers serve
    Resources,
    /// Idle connections of clients
    Connections,
    /// Idle streams of `exec`
    Streams,
    /// No load: the recompute of merged discovery
    Merge,
}

impl ScaleAxis {
    /// Those on which requests are measured.
    pub(crate) const OF_REQUESTS: [Self; 4] = [
        Self::Peers,
        Self::Resources,
        Self::Connections,
        Self::Streams,
    ];

    pub(crate) fn sizes(self, quick: bool) -> [u32; 3] {
        if quick {
            return [1, 2, 5];
        }
        match self {
            Self::Peers | Self::Merge => [1, 10, 50],
            Self::Resources => [100, 1000, 5000],
            Self::Connections => [100, 2000, 20_000],
            Self::Streams => [1, 100, 1000],
        }
    }
}

/// How much `scale` measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct ScaleSizes {
    pub(crate) rounds: u32,
    pub(crate) seconds: u32,
    pub(crate) quick: bool,
}

impl Scale {
    pub(crate) fn sizes(&self) -> ScaleSizes {
        let (rounds, seconds) = if self.quick {
            (1, 1)
        } else {
            (self.rounds, self.seconds)
        };
        ScaleSizes {
            rounds,
            seconds,
            quick: self.quick,
        }
    }

    pub(crate) fn has(&self, axis: ScaleAxis) -> bool {
        self.only.is_none_or(|only| only == axis)
    }
}

/// What a process keeps open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Held {
    Connections,
    Streams,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Holders {
    #[arg(value_enum)]
    pub(crate) held: Held,
    #[arg(long)]
    pub(crate) target: SocketAddr,
    #[arg(long)]
    pub(crate) ca: PathBuf,
    #[arg(long)]
    pub(crate) count: u32,
}

#[derive(Debug, clap::Args)]
pub(crate) struct StandIn {
    #[arg(long)]
    pub(crate) certificate: PathBuf,
    #[arg(long)]
    pub(crate) key: PathBuf,
    #[arg(long)]
    pub(crate) peers: u32,
    #[arg(long)]
    pub(crate) resources: u32,
}
