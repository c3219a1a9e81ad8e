//! All servers and bridges are started at the same time, repeatedly: no start order loses a
//! peer.

use std::time::{Duration, Instant, SystemTime};

use skewbridge_e2e::{ControlPlane, ServerSpec, VersionSpecificApi, Via, old_and_new_versions};
use skewbridge_testkit::eventually;

const ROUNDS: u32 = 10;

/// The seed of a run to repeat.
const SEED: &str = "SKEWBRIDGE_E2E_SEED";

/// From the last readiness to the time when all servers know each other.
const PEER_DISCOVERY_TIMEOUT: Duration = Duration::from_secs(30);

const APIS: [VersionSpecificApi; 3] = [
    VersionSpecificApi::POLICIES,
    VersionSpecificApi::TAINT_RULES,
    VersionSpecificApi::ATTRIBUTES_CLASSES,
];

#[tokio::test]
async fn no_start_order_loses_a_peer() {
    let Some(versions) = old_and_new_versions() else {
        return;
    };
    let mut chance = Random::new();
    println!("{SEED}={}", chance.0);
    for round in 1..=ROUNDS {
        let began = Instant::now();
        let servers = versions.each_ref().map(|it| ServerSpec::of(it).peer());
        let mut plane = ControlPlane::prepare(&servers);
        let mut order = [
            StartStep::Server(0),
            StartStep::Bridge(0),
            StartStep::Server(1),
            StartStep::Bridge(1),
        ];
        chance.shuffle(&mut order);
        for start in order {
            match start {
                StartStep::Server(number) => plane.start_server(number),
                StartStep::Bridge(number) => plane.start_bridge(number),
            }
        }
        plane.wait_until_ready().await;
        let ready = Instant::now();
        let found = eventually(
            "every bridge reaches every API",
            PEER_DISCOVERY_TIMEOUT,
            async || all_apis_are_served(&plane).await,
        );
        found.await;
        println!(
            "round {round}: {order:?}: ready after {:.1?}, found {:.1?} later",
            ready - began,
            ready.elapsed()
        );
    }
}

async fn all_apis_are_served(plane: &ControlPlane) -> bool {
    for server in 0..plane.servers.len() {
        for special in APIS {
            if plane.status(server, Via::Bridge, special.path).await != 200 {
                return false;
            }
        }
    }
    true
}

#[derive(Debug, Clone, Copy)]
enum StartStep {
    Server(usize),
    Bridge(usize),
}

/// A generator that is good enough to shuffle (`SplitMix64`).
struct Random(u64);

impl Random {
    /// From the variable, or else from the clock.
    fn new() -> Self {
        if let Ok(seed) = std::env::var(SEED) {
            return Self(seed.parse().expect("SKEWBRIDGE_E2E_SEED is a number"));
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self(u64::from(now.unwrap().subsec_nanos()))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let below = u64::try_from(last + 1).unwrap();
            let pick = usize::try_from(self.next() % below).unwrap();
            items.swap(last, pick);
        }
    }
}
