//! What a request or a frame costs, in instructions that valgrind counts. `cargo xtask
//! instructions` runs it and compares the counts with those that are recorded.
//!
//! Each function runs once, after a first run that is not counted: it fills the caches of the
//! allocator and of libraries that look at the CPU. Inputs are made before, and results are
//! dropped after the count.

#![allow(clippy::expect_used)] // a benchmark panics on failure

mod discovery;
mod http_messages;
mod requests;
mod routing;
#[path = "../../../bench/src/placement/scenario.rs"]
mod scenario;
mod streams;

use discovery::discovery_parts;
use gungraun::Callgrind;
use gungraun::prelude::*;
use http_messages::http_parts;
use requests::request_parts;
use routing::routing_parts;
use streams::stream_parts;

/// How many times a short part is repeated, so that what surrounds it does not count.
const ROUNDS: usize = 100;

/// Valgrind counts each byte that `rep movsb` copies and `rep stosb` fills. With these thresholds
/// glibc uses vectors for all sizes, as it does for small ones.
const GLIBC_TUNABLES: &str =
    "glibc.cpu.x86_rep_movsb_threshold=1073741824:glibc.cpu.x86_rep_stosb_threshold=1073741824";

main!(
    config = LibraryBenchmarkConfig::default()
        .env("GLIBC_TUNABLES", GLIBC_TUNABLES)
        .tool(Callgrind::with_args(["--cache-sim=no"])),
    library_benchmark_groups = [
        request_parts,
        routing_parts,
        http_parts,
        stream_parts,
        discovery_parts
    ]
);
