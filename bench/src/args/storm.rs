//! The arguments of `storm`.

use std::path::PathBuf;

use clap::value_parser;
use serde::Serialize;

use super::Output;

#[derive(Debug, clap::Args)]
pub(crate) struct Storm {
    /// Measured rounds, after a warm-up
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Seconds of handshakes of each kind with each server in a round
    #[arg(long, default_value_t = 2, value_parser = value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Connections that are opened at once
    #[arg(long, default_value_t = 5000, value_parser = value_parser!(u32).range(1..=20_000))]
    handshakes: u32,
    /// Clients that connect again and again
    #[arg(long, default_value_t = 16, value_parser = value_parser!(u32).range(1..=1000))]
    clients: u32,
    /// One round with few connections, as a smoke test
    #[arg(long, conflicts_with_all = ["rounds", "seconds", "handshakes", "clients"])]
    quick: bool,
    /// The skewbridge to run [default: build it]
    #[arg(long, value_name = "PATH")]
    pub(crate) bridge: Option<PathBuf>,
    /// How to print the result
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
}

/// How much `storm` measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct StormSizes {
    pub(crate) rounds: u32,
    pub(crate) seconds: u32,
    pub(crate) handshakes: u32,
    pub(crate) clients: u32,
}

impl Storm {
    pub(crate) fn sizes(&self) -> StormSizes {
        if self.quick {
            return StormSizes {
                rounds: 1,
                seconds: 1,
                handshakes: 100,
                clients: 4,
            };
        }
        StormSizes {
            rounds: self.rounds,
            seconds: self.seconds,
            handshakes: self.handshakes,
            clients: self.clients,
        }
    }
}
