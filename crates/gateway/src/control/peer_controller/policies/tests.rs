use std::time::Duration;

use serde_json::json;
use skewbridge_discovery::Document;
use skewbridge_peer_directory::registry::AddressOrigin;
use skewbridge_peer_directory::watch::WatchEvent;
use skewbridge_peer_directory::{Identity, PeerRecord};

use super::tracked_kind::MAX_POLICIES;
use super::*;
use crate::admission_guard::{PolicyMatches, PolicyObject};
use crate::control::peer_controller::informer::Change;

const KIND: &str = "mutatingadmissionpolicies";

/// A server that serves the kind in these versions.
fn served(versions: &[&str]) -> ServedApis {
    let versions: Vec<_> = (versions.iter())
        .map(|version| {
            json!({"version": version, "resources": [
                {"resource": KIND, "scope": "Cluster", "verbs": ["list", "watch"]}]})
        })
        .collect();
    let text = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2",
        "items": [{"metadata": {"name": ADMISSION_GROUP}, "versions": versions}]});
    let document = Arc::new(Document::parse(text.to_string().as_bytes()).unwrap());
    ServedApis {
        index: Arc::new(Index::new(&[&document])),
        documents: [Arc::default(), document],
        etags: [None, None],
        version: None,
        version_suffix: Arc::default(),
        by_bridge: true,
    }
}

/// A peer that runs and has a published address.
fn peer(versions: &[&str], now: Instant) -> Peer {
    Peer {
        identity: Identity::named("apiserver-b").unwrap(),
        host: None,
        address: Some(([127, 0, 0, 1], 6443).into()),
        published: true,
        alive_until: now + Duration::from_secs(40),
        awaited_until: now,
        served: Some(Arc::new(served(versions))),
        record: PeerRecord::default(),
        health: Arc::default(),
        last_success: None,
        problem: None,
    }
}

/// The same after its host has crashed: only the Lease is left.
fn crashed_peer(versions: &[&str], now: Instant) -> Peer {
    Peer {
        published: false,
        alive_until: now,
        ..peer(versions, now)
    }
}

fn peers(all: impl IntoIterator<Item = Peer>) -> Peers {
    Peers {
        leases_listed: true,
        peers: all.into_iter().map(Arc::new).collect(),
    }
}

fn policy(name: &str, resource: &str) -> PolicyObject {
    let rules = json!([{"operations": ["CREATE"], "resources": [resource]}]);
    let object = json!({"metadata": {"name": name},
        "spec": {"matchConstraints": {"resourceRules": rules}}});
    serde_json::from_value(object).unwrap()
}

/// A tracker of one kind, of which the watch is simulated.
struct Fixture {
    tracker: PolicyTracker,
    /// Keeps the queue of requests for a new list open.
    requested: Option<mpsc::Receiver<oneshot::Sender<()>>>,
}

impl Fixture {
    fn new() -> Self {
        Self::with_stored(BTreeMap::new())
    }

    fn with_stored(stored: BTreeMap<String, StoredKind>) -> Self {
        Self::with(stored, Liveness::Leases)
    }

    fn with(stored: BTreeMap<String, StoredKind>, liveness: Liveness) -> Self {
        let mut tracker = PolicyTracker::new(AdmissionGuard::On, liveness, None);
        tracker.stored = stored;
        Self {
            tracker,
            requested: None,
        }
    }

    fn update(
        &mut self,
        local: &[&str],
        others: impl IntoIterator<Item = Peer>,
        now: Instant,
    ) -> String {
        let others = peers(others);
        (self.tracker).update(Some(&served(local)), &others, now);
        self.state()
    }

    /// The policies for the cluster snapshot as text.
    fn state(&mut self) -> String {
        let policies = self.tracker.current();
        let kinds = policies.kinds.iter().map(|kind| {
            assert_eq!(kind.resource, KIND);
            let resources = match &kind.matches {
                PolicyMatches::AnyWrite => "any write".to_owned(),
                PolicyMatches::Rules(rules) => {
                    let resources: Vec<_> = rules.iter().flat_map(|it| &it.resources).collect();
                    format!("{resources:?}")
                }
            };
            let version = &kind.version;
            match kind.objects {
                Some(objects) => format!("{version}: {objects} match {resources}"),
                None => format!("{version}: {resources}"),
            }
        });
        kinds.collect::<Vec<_>>().join("; ")
    }

    fn start_watch(&mut self) {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let task = runtime.unwrap().spawn(std::future::pending::<()>());
        let (refreshes, requested) = mpsc::channel(REFRESH_QUEUE_LEN);
        let kind = self.tracker.kinds.get_mut(KIND).unwrap();
        kind.watch = Some(Watch {
            id: 1,
            task: task.abort_handle(),
            refreshes,
        });
        self.requested = Some(requested);
    }

    fn change(&mut self, change: Change<PolicyObject>, refreshes_seen: u64) -> String {
        self.change_at(change, refreshes_seen, Instant::now())
    }

    fn change_at(
        &mut self,
        change: Change<PolicyObject>,
        refreshes_seen: u64,
        now: Instant,
    ) -> String {
        let kind = WatchedKind {
            resource: KIND.to_owned(),
            version: "v1".to_owned(),
            watch_id: 1,
        };
        let event = PolicyEvent {
            kind,
            change,
            refreshes_seen,
            waiters: Vec::new(),
        };
        self.tracker.on_event(event, now);
        self.state()
    }

    fn write(&mut self, stage: PolicyWriteStage) -> (String, oneshot::Receiver<()>) {
        let (reply, is_known) = oneshot::channel();
        let resource = KIND.to_owned();
        self.tracker.on_write(PolicyWrite {
            resource,
            stage,
            reply,
        });
        (self.state(), is_known)
    }
}

/// Versions of the local server and of peers, expected.
type Row<'a> = (&'a [&'a str], &'a [&'a [&'a str]], &'a str);

#[test]
fn a_kind_is_tracked_while_a_server_does_not_serve_its_newest_version() {
    let now = Instant::now();
    let unknown = "v1: any write";
    let rows: [Row<'_>; 9] = [
        (&[], &[], ""),
        (&["v1"], &[], ""),
        (&["v1"], &[&["v1"], &["v1", "v1beta1"]], ""),
        (&["v1beta1"], &[&["v1beta1"]], ""),
        (&[], &[&["v1"]], unknown),
        (&["v1"], &[&[]], unknown),
        (&["v1"], &[&["v1beta1"]], unknown),
        (&["v1beta1", "v1alpha1"], &[&["v1"], &["v1beta1"]], unknown),
        (
            &["v1alpha1"],
            &[&["v1alpha1", "v1beta1"]],
            "v1beta1: any write",
        ),
    ];
    for (local, others, expected) in rows {
        let mut fixture = Fixture::new();
        let peers = others.iter().map(|versions| peer(versions, now));
        let got = fixture.update(local, peers, now);
        assert_eq!(got, expected, "{local:?} {others:?}");
        assert_eq!(fixture.tracker.is_tracking(), !expected.is_empty());
    }
    let mut off = PolicyTracker::new(AdmissionGuard::Off, Liveness::Leases, None);
    let others = peers([peer(&["v1"], now)]);
    off.update(Some(&served(&[])), &others, now);
    assert!(!off.is_tracking());
}

#[test]
fn listed_policies_and_their_changes_are_in_force() {
    let now = Instant::now();
    let mut fixture = Fixture::new();
    fixture.update(&[], [peer(&["v1"], now)], now);
    fixture.start_watch();
    assert_eq!(
        fixture.change(Change::Failed("403".to_owned()), 0),
        "v1: any write"
    );
    assert_eq!(fixture.change(Change::Listed(Vec::new()), 0), "");
    let added = Change::Event(WatchEvent::Added(policy("a", "pods")));
    assert_eq!(fixture.change(added, 0), "v1: 1 match [\"pods\"]");
    let added = Change::Event(WatchEvent::Added(policy("b", "nodes")));
    assert_eq!(
        fixture.change(added, 0),
        "v1: 2 match [\"nodes\", \"pods\"]"
    );
    let modified = Change::Event(WatchEvent::Modified(policy("a", "nodes")));
    assert_eq!(fixture.change(modified, 0), "v1: 2 match [\"nodes\"]");
    // The peer does not answer: the last known policies stay in force.
    let failed = Change::Failed("connection refused".to_owned());
    assert_eq!(fixture.change(failed, 0), "v1: 2 match [\"nodes\"]");
    for name in ["a", "b"] {
        let deleted = Change::Event(WatchEvent::Deleted(policy(name, "nodes")));
        fixture.change(deleted, 0);
    }
    assert_eq!(fixture.state(), "");
    // The event of an earlier watch is ignored.
    fixture
        .tracker
        .kinds
        .get_mut(KIND)
        .unwrap()
        .watch
        .as_mut()
        .unwrap()
        .id = 2;
    let late = Change::Listed(vec![policy("a", "pods")]);
    assert_eq!(fixture.change(late, 0), "");
    // All servers serve the kind now.
    fixture.update(&["v1"], [peer(&["v1"], now)], now);
    assert!(!fixture.tracker.is_tracking());
}

#[test]
fn a_write_is_known_after_a_later_list_and_matches_every_write_while_the_list_is_overdue() {
    let now = Instant::now();
    let mut fixture = Fixture::new();
    // All servers enforce the kind: nothing is awaited.
    let (_, mut is_known) = fixture.write(PolicyWriteStage::Held);
    assert_eq!(is_known.try_recv(), Ok(()));
    fixture.update(&[], [peer(&["v1"], now)], now);
    fixture.start_watch();
    fixture.change(Change::Listed(Vec::new()), 0);
    // The response is held, so nothing relies on the policy yet.
    let (state, mut is_known) = fixture.write(PolicyWriteStage::Held);
    assert_eq!(state, "");
    let (state, _) = fixture.write(PolicyWriteStage::Overdue);
    assert_eq!(state, "v1: any write");
    let listed = || Change::Listed(vec![policy("a", "pods")]);
    // A list that began before the write.
    assert_eq!(fixture.change(listed(), 0), "v1: any write");
    assert!(is_known.try_recv().is_err());
    assert_eq!(fixture.change(listed(), 1), "v1: 1 match [\"pods\"]");
    // The server ends before it has listed the write: the last known policies are in force.
    fixture.write(PolicyWriteStage::Held);
    fixture.write(PolicyWriteStage::Overdue);
    let later = now + Duration::from_mins(1);
    let state = fixture.update(&[], [crashed_peer(&["v1"], later)], later);
    assert_eq!(state, "v1: 1 match [\"pods\"]");
}

#[test]
fn policies_of_a_server_that_ended_stay_in_force_until_it_has_departed() {
    let now = Instant::now();
    let at = |seconds| now + Duration::from_secs(seconds);
    let mut fixture = Fixture::new();
    fixture.update(&[], [peer(&["v1"], now)], now);
    fixture.start_watch();
    let known = fixture.change(Change::Listed(vec![policy("a", "pods")]), 0);
    let crashed = |seconds| [crashed_peer(&["v1"], at(seconds))];
    // Its Lease is there for an hour.
    assert_eq!(fixture.update(&[], crashed(3_000), at(3_000)), known);
    // The server returns, and then its Lease is deleted.
    assert_eq!(fixture.update(&[], [peer(&["v1"], now)], at(3_100)), known);
    assert_eq!(fixture.update(&[], [], at(3_101)), known);
    assert_eq!(fixture.update(&[], [], at(3_100 + 299)), known);
    assert_eq!(fixture.update(&[], [], at(3_100 + 300)), "");
    assert_eq!(fixture.tracker.take_dropped(), 1);
    assert!(!fixture.tracker.is_tracking());
}

#[test]
fn the_retention_of_policies_can_be_set() {
    let now = Instant::now();
    let at = |seconds| now + Duration::from_secs(seconds);
    let known = "v1: 1 match [\"pods\"]";
    for (retention, seconds, expected) in [
        (None, 299, known),
        (None, 300, ""),
        (Some(3_600), 3_599, known),
        (Some(3_600), 3_600, ""),
        (Some(0), 1, ""),
    ] {
        let mut fixture = Fixture::new();
        fixture.tracker = (fixture.tracker).retained_for(retention.map(Duration::from_secs));
        fixture.update(&[], [peer(&["v1"], now)], now);
        fixture.start_watch();
        fixture.change(Change::Listed(vec![policy("a", "pods")]), 0);
        let state = fixture.update(&[], [], at(seconds));
        assert_eq!(state, expected, "{retention:?} {seconds}");
    }
}

#[test]
fn a_rollback_to_a_version_that_serves_an_older_kind_is_a_departure() {
    let now = Instant::now();
    let mut fixture = Fixture::new();
    fixture.update(&["v1beta1"], [peer(&["v1", "v1beta1"], now)], now);
    fixture.start_watch();
    let known = fixture.change(Change::Listed(vec![policy("a", "pods")]), 0);
    let rolled_back = || [peer(&["v1beta1"], now)];
    assert_eq!(
        fixture.update(&["v1beta1"], rolled_back(), now + ROLLOUT_GRACE / 2),
        known
    );
    assert_eq!(
        fixture.update(&["v1beta1"], rolled_back(), now + ROLLOUT_GRACE),
        ""
    );
    assert!(!fixture.tracker.is_tracking());
}

#[test]
fn unknown_policies_match_every_write_only_while_their_server_runs_or_is_published() {
    let now = Instant::now();
    let mut fixture = Fixture::new();
    let state = fixture.update(&[], [crashed_peer(&["v1"], now)], now);
    assert_eq!(state, "");
    let published = Peer {
        published: true,
        ..crashed_peer(&["v1"], now)
    };
    assert_eq!(fixture.update(&[], [published], now), "v1: any write");
    let renewed = Peer {
        published: false,
        ..peer(&["v1"], now)
    };
    assert_eq!(fixture.update(&[], [renewed], now), "v1: any write");
}

/// Configured servers have no Leases that end: their answers count.
#[test]
fn a_permanently_removed_configured_server_stops_blocking_writes() {
    let now = Instant::now();
    let at = |seconds| now + Duration::from_secs(seconds);
    let liveness = Liveness::Answers { since: now };
    // Polled last at this time; configured peers always count as published and alive.
    let polled = |second| {
        let peer = Peer {
            alive_until: at(1_000_000),
            ..peer(&["v1"], now)
        };
        peer.health.record_poll(at(second));
        [peer]
    };
    // Its policies were never read.
    let mut fixture = Fixture::with(BTreeMap::new(), liveness);
    let never_polled = [Peer {
        alive_until: at(1_000_000),
        ..peer(&["v1"], now)
    }];
    assert_eq!(fixture.update(&[], never_polled, at(59)), "v1: any write");
    assert_eq!(fixture.update(&[], polled(50), at(109)), "v1: any write");
    assert_eq!(fixture.update(&[], polled(50), at(111)), "");
    assert_eq!(fixture.update(&[], polled(200), at(201)), "v1: any write");
    // Known ones stay in force for an hour after the last answer.
    fixture.start_watch();
    let known = fixture.change(Change::Listed(vec![policy("a", "pods")]), 0);
    assert_eq!(fixture.update(&[], polled(200), at(3_700)), known);
    assert_eq!(fixture.update(&[], polled(200), at(3_801)), "");
    assert_eq!(fixture.tracker.take_dropped(), 1);
    // Known from `--state-dir`, and the server has never answered this process.
    let mut fixture = Fixture::with(stored(), liveness);
    let silent = || {
        [Peer {
            alive_until: at(1_000_000),
            ..peer(&["v1"], now)
        }]
    };
    assert_eq!(
        fixture.update(&[], silent(), at(61)),
        "v1: 2 match [\"pods\"]"
    );
    assert_eq!(
        fixture.update(&[], silent(), at(3_599)),
        "v1: 2 match [\"pods\"]"
    );
    assert_eq!(fixture.update(&[], silent(), at(3_601)), "");
}

fn stored() -> BTreeMap<String, StoredKind> {
    let stored = StoredKind {
        version: "v1".to_owned(),
        objects: 2,
        matches: policy("a", "pods").matches,
    };
    BTreeMap::from([(KIND.to_owned(), stored)])
}

#[test]
fn stored_policies_are_in_force_until_they_are_listed() {
    let now = Instant::now();
    let mut fixture = Fixture::with_stored(stored());
    let known = "v1: 2 match [\"pods\"]";
    // Other servers are not known yet.
    assert_eq!(fixture.update(&[], [], now), known);
    // The first attempt to list them is in progress.
    assert_eq!(
        fixture.update(&[], [peer(&["v1"], now)], now),
        "v1: any write"
    );
    fixture.start_watch();
    let refused = Change::Failed("connection refused".to_owned());
    assert_eq!(fixture.change(refused, 0), known);
    assert_eq!(fixture.change(Change::Listed(Vec::new()), 0), "");
}

#[test]
fn stored_policies_of_a_kind_that_no_server_serves_any_more_are_dropped_after_the_grace() {
    let now = Instant::now();
    let mut fixture = Fixture::with_stored(stored());
    fixture.update(&["v1beta1"], [], now);
    let later = now + ROLLOUT_GRACE;
    assert_eq!(fixture.update(&["v1beta1"], [], later), "");
    assert_eq!(fixture.tracker.take_dropped(), 2);
    // All servers enforce them.
    let mut fixture = Fixture::with_stored(stored());
    assert_eq!(fixture.update(&["v1"], [peer(&["v1"], now)], now), "");
    assert!(!fixture.tracker.is_tracking());
}

#[test]
fn more_policies_than_the_limit_match_every_write() {
    let now = Instant::now();
    let mut fixture = Fixture::new();
    fixture.update(&[], [peer(&["v1"], now)], now);
    fixture.start_watch();
    let many = |count| (0..count).map(|number| policy(&format!("policy-{number}"), "pods"));
    let state = fixture.change(Change::Listed(many(MAX_POLICIES + 1).collect()), 0);
    assert_eq!(state, "v1: 1000 match any write");
    // After a deletion a new list is requested.
    let deleted = Change::Event(WatchEvent::Deleted(policy("policy-0", "pods")));
    fixture.change(deleted, 0);
    assert!(fixture.requested.as_mut().unwrap().try_recv().is_ok());
    let state = fixture.change(Change::Listed(many(MAX_POLICIES).collect()), 1);
    assert_eq!(state, "v1: 1000 match [\"pods\"]");
}

/// A partition between the bridge and a server that runs is not the crash of that server.
#[test]
fn policies_that_may_have_changed_during_a_failed_watch_match_every_write() {
    #[derive(Debug, Clone, Copy)]
    enum Sign {
        /// Its Lease was renewed, in this second.
        Renewed(u64),
        /// A poll succeeded, in this second.
        Polled(u64),
        /// Its address is in an `EndpointSlice`.
        Listed,
    }
    use Sign::{Listed, Polled, Renewed};
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let answers = Liveness::Answers { since: start };
    let known = "v1: 1 match [\"pods\"]";
    let unknown = "v1: any write";
    // The watch fails in second 100; the sign, when it is looked at, expected.
    let rows = [
        (Liveness::Leases, Renewed(99), 130, known),
        // Delayed events, and the last renewal of a server that ends.
        (Liveness::Leases, Renewed(115), 130, known),
        (Liveness::Leases, Renewed(116), 130, unknown),
        // It has crashed since.
        (Liveness::Leases, Renewed(116), 177, known),
        (Liveness::Leases, Polled(116), 130, unknown),
        (Liveness::Leases, Listed, 130, known),
        (Liveness::Leases, Listed, 136, unknown),
        (answers, Renewed(116), 130, known),
        (answers, Polled(99), 130, known),
        (answers, Polled(116), 130, unknown),
    ];
    for (liveness, sign, seconds, expected) in rows {
        let mut server = peer(&["v1"], at(seconds));
        match sign {
            Renewed(second) => server.record.renewed_at = Some(at(second)),
            Polled(second) => server.health.record_poll(at(second)),
            Listed => server.record.origin = Some(AddressOrigin::Endpoints),
        }
        for is_listed in [true, false] {
            let stored = if is_listed { BTreeMap::new() } else { stored() };
            let mut fixture = Fixture::with(stored, liveness);
            fixture.update(&[], [peer(&["v1"], start)], start);
            fixture.start_watch();
            let listed = || Change::Listed(vec![policy("a", "pods")]);
            if is_listed {
                fixture.change(listed(), 0);
            }
            let failed = || Change::Failed("timeout".to_owned());
            fixture.change_at(failed(), 0, at(100));
            // Only the first failure counts.
            fixture.change_at(failed(), 0, at(129));
            let server = Peer {
                served: server.served.clone(),
                record: server.record.clone(),
                health: server.health.clone(),
                ..peer(&[], at(seconds))
            };
            let state = fixture.update(&[], [server], at(seconds));
            let expected = match expected {
                known if known != unknown && !is_listed => "v1: 2 match [\"pods\"]",
                expected => expected,
            };
            assert_eq!(
                state, expected,
                "{liveness:?} {sign:?} {seconds} {is_listed}"
            );
            assert_eq!(fixture.change_at(listed(), 0, at(200)), known);
        }
    }
}
