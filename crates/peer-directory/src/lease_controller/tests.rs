use proptest::prelude::*;
use serde_json::json;

use super::*;

const HOST: &str = "master-0";

fn identity() -> Identity {
    Identity::of_hostname(HOST)
}

fn start() -> ClockReading {
    ClockReading {
        monotonic: Instant::now(),
        wall: SystemTime::from("2026-11-15T12:00:00Z".parse::<MicroTime>().unwrap()),
    }
}

/// The stored Lease, as written by the controller or by a server.
struct Api {
    controller: LeaseController,
    start: ClockReading,
    stored: Option<IdentityLease>,
    version: u64,
}

/// The change since the last observation.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// No change.
    Same,
    /// The server creates or renews it with its own holder.
    Server,
    /// The server renews it with the holder that it finds, as before 1.35.
    ServerKeepsHolder,
    /// It was abandoned more than an hour ago.
    Expired,
    /// Another client annotates it.
    Annotated,
    Deleted,
}
use Step::*;

/// The expected action. Writes succeed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Expected {
    /// Until this second.
    Wait(u64),
    LeaveAlone(u64),
    Create,
    Renew,
    TakeOver,
    /// A create that fails.
    CreateFails,
    TakeOverFails,
}
use Expected::*;

impl Api {
    fn new() -> Self {
        Self {
            controller: LeaseController::new(identity(), HOST, "our-uuid"),
            start: start(),
            stored: None,
            version: 0,
        }
    }

    fn store(&mut self, lease: &IdentityLease) {
        self.version += 1;
        let mut object: serde_json::Value = serde_json::from_str(&lease.to_json()).unwrap();
        object["metadata"]["uid"] = json!("the-uid");
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.stored = Some(object.try_into().unwrap());
    }

    fn apply_step(&mut self, step: Step, now: ClockReading) {
        // No two renewals are in the same microsecond.
        let wall = now.wall + Duration::from_micros(7 + self.version);
        let lease = match step {
            Same => return,
            Deleted => {
                self.stored = None;
                return;
            }
            Server => IdentityLease::new(&identity(), HOST, "server", wall),
            ServerKeepsHolder => self.stored.as_ref().unwrap().renewed(wall),
            Expired => {
                let long_ago = wall - Duration::from_secs(3700);
                IdentityLease::new(&identity(), HOST, "old", long_ago)
            }
            Annotated => self.stored.clone().unwrap(),
        };
        self.store(&lease);
    }

    fn observe(&mut self, second: u64, upstream: Upstream) -> Expected {
        let now = self.start + Duration::from_secs(second);
        let action = self.controller.observe(self.stored.as_ref(), upstream, now);
        let seconds = |until: Instant| (until - self.start.monotonic).as_secs();
        match action {
            LeaseAction::Wait { until } => Wait(seconds(until)),
            LeaseAction::LeaveAlone { until } => LeaveAlone(seconds(until)),
            LeaseAction::Create(lease) => {
                assert!(self.stored.is_none());
                assert_eq!(lease.holder(), Some(self.controller.holder()));
                self.store(&lease);
                Create
            }
            LeaseAction::Renew(lease) => {
                self.update(&lease);
                Renew
            }
            LeaseAction::TakeOver(lease) => {
                self.update(&lease);
                TakeOver
            }
        }
    }

    /// An update must have the resource version of the stored Lease.
    fn update(&mut self, lease: &IdentityLease) {
        let stored = self.stored.as_ref().unwrap();
        assert_eq!(lease.resource_version(), stored.resource_version());
        assert_eq!(lease.uid(), stored.uid());
        assert_eq!(lease.holder(), Some(self.controller.holder()));
        self.store(lease);
    }
}

/// Second, change, whether upstream is ready, expected action.
type Row = (u64, Step, Upstream, Expected);

const READY: Upstream = Upstream::Ready;
const AWAY: Upstream = Upstream::NotReady;

fn run(name: &str, rows: &[Row]) -> Api {
    let mut api = Api::new();
    for row in rows {
        let (second, step, upstream, expected) = *row;
        let before = api.stored.clone();
        let now = api.start + Duration::from_secs(second);
        api.apply_step(step, now);
        let done = api.observe(second, upstream);
        let expected = match expected {
            CreateFails => Create,
            TakeOverFails => TakeOver,
            other => other,
        };
        assert_eq!(done, expected, "{name}: {row:?}");
        if matches!(row.3, CreateFails | TakeOverFails) {
            api.stored = before;
        }
    }
    api
}

const RULES: &[(&str, &[Row])] = &[
    (
        "an absent Lease is created when upstream has been ready for 10 s, and renewed",
        &[
            (0, Same, AWAY, Wait(10)),
            (60, Same, READY, Wait(70)),
            (69, Same, READY, Wait(70)),
            (70, Same, READY, Create),
            (71, Same, READY, Wait(80)),
            (80, Same, READY, Renew),
            (95, Same, READY, Renew),
            (96, Same, READY, Wait(105)),
        ],
    ),
    (
        "upstream has to be ready for 10 s without interruption",
        &[
            (0, Same, READY, Wait(10)),
            (9, Same, AWAY, Wait(19)),
            (10, Same, READY, Wait(20)),
            (20, Same, READY, Create),
        ],
    ),
    (
        "a failed create is retried after 10 s",
        &[
            (0, Same, READY, Wait(10)),
            (10, Same, READY, CreateFails),
            (11, Same, READY, Wait(20)),
            (20, Same, READY, Create),
        ],
    ),
    (
        "the bridge's Lease is renewed even while upstream is not ready",
        &[
            (0, Same, READY, Wait(10)),
            (10, Same, READY, Create),
            (20, Same, AWAY, Renew),
        ],
    ),
    (
        "a Lease that its server renews is left alone",
        &[
            (0, Server, READY, Wait(40)),
            (10, Server, READY, LeaveAlone(50)),
            (20, Server, READY, LeaveAlone(60)),
            (59, Same, READY, LeaveAlone(60)),
            (59, Server, READY, LeaveAlone(99)),
        ],
    ),
    (
        "a Lease whose creation by a server is observed is left alone at once",
        &[
            (0, Same, READY, Wait(10)),
            (5, Server, READY, LeaveAlone(45)),
            (44, Same, READY, LeaveAlone(45)),
        ],
    ),
    (
        "a Lease that is not renewed for 40 s is taken over, and renewed",
        &[
            (0, Server, READY, Wait(40)),
            (39, Same, READY, Wait(40)),
            (40, Same, READY, TakeOver),
            (41, Same, READY, Wait(50)),
            (50, Same, READY, Renew),
        ],
    ),
    (
        "also after a renewal was observed",
        &[
            (0, Server, READY, Wait(40)),
            (10, Server, READY, LeaveAlone(50)),
            (50, Same, READY, TakeOver),
        ],
    ),
    (
        "a server that has just become ready has 40 s to renew it",
        &[
            (0, Server, AWAY, Wait(10)),
            (100, Same, AWAY, Wait(110)),
            (110, Same, READY, Wait(150)),
            (150, Same, READY, TakeOver),
        ],
    ),
    (
        "a starting server deletes its Lease and then creates another",
        &[
            (0, Server, READY, Wait(40)),
            (10, Server, READY, LeaveAlone(50)),
            (20, Deleted, AWAY, Wait(30)),
            (30, Same, READY, Wait(40)),
            (33, Server, READY, LeaveAlone(73)),
        ],
    ),
    (
        "an expired Lease is treated as absent",
        &[
            (0, Expired, AWAY, Wait(10)),
            (1, Same, READY, Wait(11)),
            (11, Same, READY, TakeOver),
            (21, Same, READY, Renew),
        ],
    ),
    (
        "unless it is renewed by a clock that is an hour slow",
        &[
            (0, Expired, READY, Wait(10)),
            (9, Expired, READY, LeaveAlone(49)),
            (19, Expired, READY, LeaveAlone(59)),
        ],
    ),
    (
        "a failed takeover is retried after 10 s",
        &[
            (0, Server, READY, Wait(40)),
            (40, Same, READY, TakeOverFails),
            (41, Same, READY, Wait(50)),
            (50, Same, READY, TakeOver),
        ],
    ),
    (
        "a server that was faster keeps it",
        &[
            (0, Server, READY, Wait(40)),
            (40, Same, READY, TakeOverFails),
            (41, Server, READY, LeaveAlone(81)),
        ],
    ),
    (
        "a server that starts to renew the bridge's Lease keeps it",
        &[
            (0, Same, READY, Wait(10)),
            (10, Same, READY, Create),
            (15, Server, READY, LeaveAlone(55)),
            (25, Server, READY, LeaveAlone(65)),
        ],
    ),
    (
        "also if the server keeps the bridge's holder",
        &[
            (0, Same, READY, Wait(10)),
            (10, Same, READY, Create),
            (20, Same, READY, Renew),
            (25, ServerKeepsHolder, READY, LeaveAlone(65)),
            (35, ServerKeepsHolder, READY, LeaveAlone(75)),
            (75, Same, READY, TakeOver),
            (85, Same, READY, Renew),
        ],
    ),
    (
        "an annotation by another client does not change the ownership",
        &[
            (0, Same, READY, Wait(10)),
            (10, Same, READY, Create),
            (15, Annotated, READY, Wait(20)),
            (20, Same, READY, Renew),
        ],
    ),
    (
        "the bridge's Lease is created again after a deletion",
        &[
            (0, Same, READY, Wait(10)),
            (10, Same, READY, Create),
            (12, Same, READY, Wait(20)),
            (15, Deleted, READY, Wait(25)),
            (25, Same, READY, Create),
        ],
    ),
];

#[test]
fn the_controller_follows_the_rule_table() {
    for (name, rows) in RULES {
        run(name, rows);
    }
}

#[test]
fn a_lease_of_another_identity_is_ignored() {
    let mut controller = LeaseController::new(identity(), HOST, "our-uuid");
    let now = start();
    let other = Identity::named("apiserver-other").unwrap();
    let other = IdentityLease::new(&other, HOST, "server", now.wall);
    controller.observe(Some(&other), READY, now);
    let action = controller.observe(Some(&other), READY, now + CREATION_DELAY);
    assert!(matches!(action, LeaseAction::Create(_)));
}

#[test]
fn written_leases_contain_the_peer_address() {
    let address = "10.0.0.1:6443".parse().unwrap();
    let mut controller =
        LeaseController::new(identity(), HOST, "our-uuid").with_peer_address(address);
    let now = start();
    controller.observe(None, READY, now);
    let LeaseAction::Create(lease) = controller.observe(None, READY, now + CREATION_DELAY) else {
        panic!("ten seconds are enough");
    };
    assert_eq!(lease.peer_address(), Some(address));
    assert_eq!(lease.holder(), Some(&*format!("{}_our-uuid", identity())));
}

#[test]
fn only_a_lease_that_the_bridge_wrote_is_deleted_at_shutdown() {
    let created: &[Row] = &[(0, Same, READY, Wait(10)), (10, Same, READY, Create)];
    for (step, is_ours) in [
        (Same, true),
        (Annotated, true),
        (Server, false),
        (ServerKeepsHolder, false),
        (Deleted, false),
    ] {
        let mut api = run("created", created);
        api.apply_step(step, api.start + Duration::from_secs(12));
        let deletion = api.controller.on_shutdown(api.stored.as_ref());
        assert_eq!(deletion.is_some(), is_ours, "{step:?}");
        if let Some(deletion) = deletion {
            assert_eq!(deletion.identity, identity());
            assert_eq!(deletion.uid, "the-uid");
            assert_eq!(deletion.resource_version, api.version.to_string());
        }
    }
}

#[test]
fn leases_of_ended_servers_of_this_host_are_stale() {
    let now = start().wall;
    let (fresh, old) = (now, now - Duration::from_secs(3601));
    let lease = |name: &str, host: &str, renewed| {
        let identity = Identity::named(name).unwrap();
        IdentityLease::new(&identity, host, "x", renewed)
    };
    let own = identity();
    let mut controller: serde_json::Value =
        serde_json::from_str(&lease("controller", HOST, old).to_json()).unwrap();
    controller["metadata"]["labels"]["apiserver.kubernetes.io/identity"] = json!("other");
    let all = [
        lease(own.as_str(), HOST, old),
        lease("apiserver-before", HOST, old),
        lease("apiserver-before", HOST, fresh),
        lease("apiserver-b", "master-1", old),
        controller.try_into().unwrap(),
    ];
    let stale = stale_leases(&all, &own, HOST, now);
    assert_eq!(stale, [&all[0], &all[1]]);
    // Not renewed for minutes: the host has another server now, whose Lease is kept.
    let last_renewal = now - Duration::from_secs(301);
    let minutes = [
        lease("apiserver-before", HOST, last_renewal),
        lease("apiserver-before", "master-1", last_renewal),
        lease("apiserver-before", HOST, now - Duration::from_secs(299)),
        lease(own.as_str(), HOST, last_renewal),
    ];
    assert_eq!(stale_leases(&minutes, &own, HOST, now), [&minutes[0]]);
    let renewed = [lease(own.as_str(), HOST, fresh)];
    assert!(stale_leases(&renewed, &own, HOST, now).is_empty());
    let renamed = [lease(own.as_str(), "old-name", old)];
    assert_eq!(stale_leases(&renamed, &own, HOST, now), [&renamed[0]]);
}

proptest! {
    /// The Lease of a server that renews it every 10 s is never written by the bridge.
    #[test]
    fn the_lease_of_a_renewing_server_is_never_written(
        looks in prop::collection::vec((0..10_u64, any::<bool>(), any::<bool>()), 1..60),
    ) {
        let mut api = Api::new();
        for (round, (offset, ready, keeps_holder)) in (0_u64..).zip(looks) {
            let second = round * 10;
            let step = if keeps_holder && round > 0 {
                ServerKeepsHolder
            } else {
                Server
            };
            api.apply_step(step, api.start + Duration::from_secs(second));
            let upstream = if ready { READY } else { AWAY };
            let done = api.observe(second + offset, upstream);
            prop_assert!(matches!(done, Wait(_) | LeaveAlone(_)), "{:?}", done);
        }
    }
}
