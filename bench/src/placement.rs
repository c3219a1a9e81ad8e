//! `placement`: the cost of a routing decision, by the number of servers and by the rule that
//! applies.

mod scenario;

use std::fmt;
use std::hint::black_box;
use std::time::Instant;

use anyhow::{Context, Result};
use serde::Serialize;
use skewbridge_gateway::authn::Caller;
use skewbridge_gateway::cluster_state::Cluster;
use skewbridge_gateway::routing::route;
use skewbridge_k8s_api::request_info::{DecodedPath, RequestInfo};

use self::scenario::{Case, cluster};
use crate::args::Placement;
use crate::report::{self, Spread, Table};

/// The servers of a cluster, including the local one.
const SERVER_COUNTS: [usize; 3] = [1, 5, 50];

#[derive(Debug, Serialize)]
struct Measurement {
    case: Case,
    servers: usize,
    nanoseconds: Spread,
}

#[derive(Debug, Serialize)]
struct PlacementResult {
    decisions: u32,
    measurements: Vec<Measurement>,
}

impl fmt::Display for PlacementResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "Cost of a routing decision in nanoseconds ({} each round)",
            self.decisions
        )?;
        let mut table = Table::new(["", "servers", "median", "range"]);
        for it in &self.measurements {
            let [median, range] = it.nanoseconds.cells(0);
            let description = description(it.case).to_owned();
            table.row([description, it.servers.to_string(), median, range]);
        }
        write!(f, "{table}")
    }
}

pub(crate) fn run(args: &Placement) -> Result<()> {
    let mut measurements = Vec::new();
    for case in Case::ALL {
        for servers in SERVER_COUNTS {
            let cluster = cluster(servers, case)?;
            let rounds = (0..args.rounds).map(|_| measure(case, &cluster, args.decisions));
            let rounds: Result<Vec<f64>> = rounds.collect();
            let nanoseconds = Spread::of(rounds?).context("at least one round")?;
            measurements.push(Measurement {
                case,
                servers,
                nanoseconds,
            });
        }
    }
    let result = PlacementResult {
        decisions: args.decisions,
        measurements,
    };
    report::print(&result, args.output)
}

fn description(case: Case) -> &'static str {
    match case {
        Case::Local => "the local server satisfies every rule",
        Case::Version => "rule version: the component is newer",
        Case::Fields => "rule fields: the local server lacks fields",
        Case::Serves => "rule serves: only peers serve the resource",
        Case::Admission => "rule admission: only peers enforce a policy",
        Case::Available => "rule available: the local server is down",
    }
}

/// Nanoseconds of one decision.
fn measure(case: Case, cluster: &Cluster, decisions: u32) -> Result<f64> {
    let decoded = DecodedPath::new(case.path())?;
    let request = RequestInfo::parse(&case.method(), &decoded, None);
    let input = case.input();
    let now = Instant::now();
    let begun = Instant::now();
    for _ in 0..decisions {
        black_box(route(
            black_box(&request),
            &Caller::Bearer,
            input,
            Some((cluster, now)),
        ));
    }
    Ok(begun.elapsed().as_secs_f64() * 1e9 / f64::from(decisions))
}
