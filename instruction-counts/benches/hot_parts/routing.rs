//! The routing decision.

use std::hint::black_box;
use std::time::Instant;

use anyhow::Result;
use gungraun::prelude::*;
use http::Method;
use skewbridge_gateway::authn::Caller;
use skewbridge_gateway::cluster_state::Cluster;
use skewbridge_gateway::routing::{RouteInput, route};
use skewbridge_k8s_api::request_info::{DecodedPath, RequestInfo};

use crate::ROUNDS;
use crate::scenario::{Case, cluster};

/// The servers of a cluster, including the local one.
const SERVERS: usize = 5;

/// A cluster and a request.
struct Decision {
    cluster: Cluster,
    path: DecodedPath<'static>,
    method: Method,
    input: RouteInput,
    now: Instant,
}

impl Decision {
    fn new(case: Case) -> Result<Self> {
        let decision = Self {
            cluster: cluster(SERVERS, case)?,
            path: DecodedPath::new(case.path())?,
            method: case.method(),
            input: case.input(),
            now: Instant::now(),
        };
        decision.make();
        Ok(decision)
    }

    fn make(&self) {
        let request = RequestInfo::parse(&self.method, &self.path, None);
        let cluster = Some((&self.cluster, self.now));
        black_box(route(&request, &Caller::Bearer, self.input, cluster));
    }
}

fn decisions(is_measured: impl Fn(Case) -> bool) -> Vec<Decision> {
    let cases = Case::ALL.into_iter().filter(|case| is_measured(*case));
    let decisions: Result<_> = cases.map(Decision::new).collect();
    decisions.expect("the clusters of the scenarios are valid")
}

// `local`: the local server satisfies every rule. `rules`: it violates one, a different one in each
// cluster.
#[library_benchmark]
#[bench::local(decisions(|case| matches!(case, Case::Local)))]
#[bench::rules(decisions(|case| !matches!(case, Case::Local)))]
fn routing_decision(decisions: Vec<Decision>) -> Vec<Decision> {
    for _ in 0..ROUNDS {
        black_box(&decisions).iter().for_each(Decision::make);
    }
    decisions
}

library_benchmark_group!(name = routing_parts, benchmarks = routing_decision);
