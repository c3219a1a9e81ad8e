//! The arguments of `latency`.

use std::path::PathBuf;

use clap::value_parser;
use serde::Serialize;

use super::Output;

#[derive(Debug, clap::Args)]
pub(crate) struct Latency {
    /// Measured rounds, after one of a second
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Seconds of a round
    #[arg(long, default_value_t = 10, value_parser = value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Requests a second to each candidate
    #[arg(long, default_value_t = 50, value_parser = value_parser!(u32).range(1..=1000))]
    rate: u32,
    /// One short round, as a smoke test
    #[arg(long, conflicts_with_all = ["rounds", "seconds", "rate"])]
    quick: bool,
    /// A file of nginx instead of a real kube-apiserver
    #[arg(long)]
    pub(crate) stand_in: bool,
    /// The skewbridge to run [default: build it]
    #[arg(long, value_name = "PATH")]
    pub(crate) bridge: Option<PathBuf>,
    /// How to print the result
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
}

/// How much `latency` measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct LatencySizes {
    pub(crate) rounds: u32,
    pub(crate) seconds: u32,
    pub(crate) rate: u32,
}

impl Latency {
    pub(crate) fn sizes(&self) -> LatencySizes {
        let (rounds, seconds) = if self.quick {
            (1, 1)
        } else {
            (self.rounds, self.seconds)
        };
        LatencySizes {
            rounds,
            seconds,
            rate: self.rate,
        }
    }
}
