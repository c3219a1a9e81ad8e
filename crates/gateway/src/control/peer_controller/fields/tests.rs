use std::path::Path;

use serde_json::json;
use skewbridge_discovery::{Document, Index};
use skewbridge_field_sets::ServerFieldsBuilder;
use skewbridge_peer_directory::PeerRecord;
use skewbridge_testkit::ScratchDir;

use super::load::{load_stored, note_use, read_stored, store};
use super::*;

/// The APIs of a server of a `gitVersion`.
fn served(git_version: &str) -> Arc<ServedApis> {
    served_with(git_version, &["deployments"])
}

/// The same with these resources.
fn served_with(git_version: &str, resources: &[&str]) -> Arc<ServedApis> {
    let resources: Vec<_> = (resources.iter())
        .map(|resource| {
            json!({"resource": resource, "scope": "Namespaced", "verbs": ["get"],
                "responseKind": {"group": "apps", "version": "v1", "kind": "Deployment"}})
        })
        .collect();
    let text = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2",
        "items": [{"metadata": {"name": "apps"}, "versions": [{"version": "v1", "resources": resources}]}]});
    let document = Arc::new(Document::parse(text.to_string().as_bytes()).unwrap());
    Arc::new(ServedApis {
        index: Arc::new(Index::new(&[&document])),
        documents: [Arc::default(), document],
        etags: [None, None],
        version: git_version.parse().ok(),
        version_suffix: skewbridge_k8s_api::version::suffix(git_version).into(),
        by_bridge: true,
    })
}

/// The fields of a server that has these fields of a Deployment.
fn fields(names: &[&str]) -> ServerFields {
    let properties: serde_json::Map<_, _> = (names.iter())
        .map(|name| ((*name).to_owned(), json!({"type": "string"})))
        .collect();
    let document = json!({"components": {"schemas": {"io.k8s.api.apps.v1.Deployment": {
        "properties": properties,
        "x-kubernetes-group-version-kind":
            [{"group": "apps", "version": "v1", "kind": "Deployment"}]}}}});
    let discovery = served("v1.34.4");
    let mut builder = ServerFieldsBuilder::new(&discovery.documents[1].items);
    let added = builder.add("apps", "v1", document.to_string().as_bytes());
    added.unwrap();
    builder.build().unwrap()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Available,
    Dead,
}
use State::{Available, Dead};

fn peer(name: &str, git_version: &str, state: State, now: Instant) -> Peer {
    Peer {
        identity: Identity::named(name).unwrap(),
        host: None,
        address: Some(([127, 0, 0, 1], 6443).into()),
        published: state == Available,
        alive_until: now + Duration::from_secs(40),
        awaited_until: now,
        served: Some(served(git_version)),
        record: PeerRecord::default(),
        health: Arc::default(),
        last_success: None,
        problem: None,
    }
}

/// A comparison in the controller of a local server of version 1.34.4.
struct Fixture {
    comparison: FieldComparison,
    local: Arc<ServedApis>,
    peers: Peers,
    now: Instant,
}

impl Fixture {
    fn new(state_dir: Option<&Path>, peers: &[(&str, &str, State)]) -> Self {
        let comparison = FieldComparison::of(FieldGuard::Writes, state_dir.map(Path::to_owned));
        let mut fixture = Self {
            comparison: comparison.unwrap(),
            local: served("v1.34.4"),
            peers: Peers::default(),
            now: Instant::now(),
        };
        fixture.set_peers(peers);
        fixture
    }

    fn set_peers(&mut self, peers: &[(&str, &str, State)]) {
        let now = self.now;
        let all = peers.iter();
        let all = all.map(|(name, version, state)| Arc::new(peer(name, version, *state, now)));
        self.peers.peers = all.collect();
    }

    /// Adds a peer that runs and of which nothing is known.
    fn add_unread(&mut self, name: &str) {
        let peer = Peer {
            served: None,
            awaited_until: self.now + Duration::from_mins(1),
            ..peer(name, "v1.34.4", Available, self.now)
        };
        self.peers.peers.push(Arc::new(peer));
    }

    fn differences(&mut self) -> Arc<FieldDifferences> {
        let shared = SharedGroupVersions::default();
        let now = self.now;
        (self.comparison).differences(&self.local, &self.peers, &shared, now)
    }

    fn needed(&mut self) -> Vec<NeededFields> {
        self.differences();
        (self.comparison).take_needed(&self.local, &self.peers, self.now)
    }

    /// The versions whose fields are needed, and where they can be fetched.
    fn needed_versions(&mut self) -> Vec<String> {
        self.needed().iter().map(describe).collect()
    }

    fn record(&mut self, key: FieldKey, names: &[&str]) {
        self.comparison.record(key, Ok(fields(names)), self.now);
    }

    /// Takes over what an earlier process has stored, this time ago.
    async fn read_stored(&mut self, since: Duration) {
        let stored = load_stored(self.comparison.cache().unwrap()).await;
        let wall = SystemTime::now() + since;
        self.comparison.set_stored(stored, self.now, wall);
    }

    /// Loads all fields that are needed: stored ones, or the fields of the server of a version.
    async fn load(&mut self, of: impl Fn(Version) -> &'static [&'static str]) -> usize {
        let mut fetched = 0;
        for needed in self.needed() {
            let result = match read_stored(&needed).await {
                Some(stored) => Ok(stored),
                None if matches!(needed.source, FieldSource::Nowhere) => {
                    Err(FieldLoadError::NotStored)
                }
                None => {
                    fetched += 1;
                    let fields = fields(of(needed.key.version));
                    store(&needed, Arc::new(fields.clone())).await;
                    Ok(fields)
                }
            };
            self.comparison.record(needed.key, result, self.now);
        }
        fetched
    }

    /// The complete servers of Deployments, the fields that not all have, and whether the fields of
    /// all servers are known.
    fn state(&mut self) -> String {
        let differences = self.differences();
        let Some(difference) = differences.difference("apps", "deployments") else {
            return format!("no difference, known {}", differences.are_known());
        };
        let names = ["local", "b", "c"].into_iter().filter(|name| {
            let identity = Identity::named(name).unwrap();
            let identity = (*name != "local").then_some(&identity);
            difference.complete.contains(identity)
        });
        let names = names.collect::<Vec<_>>().join("+");
        let fields: Vec<_> = difference.fields.iter().map(ToString::to_string).collect();
        let known = differences.are_known();
        format!("{names} has {}, known {known}", fields.join("+"))
    }
}

fn describe(needed: &NeededFields) -> String {
    let source = match &needed.source {
        FieldSource::Local => "local".to_owned(),
        FieldSource::Peer(peer) => peer.identity.to_string(),
        FieldSource::Nowhere => "nowhere".to_owned(),
    };
    format!("{} {source}", needed.key.version)
}

fn by_version(version: Version) -> &'static [&'static str] {
    match version.minor {
        34 => &["old"],
        35 => &["old", "mid"],
        _ => &["old", "mid", "new"],
    }
}

#[test]
fn a_version_is_fetched_once_and_only_if_versions_differ() {
    let mut fixture = Fixture::new(None, &[("b", "v1.34.4", Available)]);
    assert_eq!(fixture.needed_versions(), [""; 0]);
    fixture.set_peers(&[("b", "v1.36.4", Available), ("c", "v1.36.4", Available)]);
    let needed = fixture.needed();
    let described: Vec<_> = needed.iter().map(describe).collect();
    assert_eq!(described, ["1.34.4 local", "1.36.4 b"]);
    // Fetching is in progress.
    assert_eq!(fixture.needed_versions(), [""; 0]);
    assert_eq!(fixture.state(), "b+c has , known false");
    fixture.record(needed[0].key, &["old"]);
    let failed = Err(FieldLoadError::Failed("timeout".to_owned()));
    fixture
        .comparison
        .record(needed[1].key, failed, fixture.now);
    assert_eq!(fixture.needed_versions(), [""; 0]);
    fixture.now += RETRY_INTERVAL;
    fixture.set_peers(&[("b", "v1.36.4", Available), ("c", "v1.36.4", Available)]);
    assert_eq!(fixture.needed_versions(), ["1.36.4 b"]);
    fixture.record(needed[1].key, &["old", "new"]);
    assert_eq!(fixture.state(), "b+c has new, known true");
    assert_eq!(fixture.needed_versions(), [""; 0]);
}

#[tokio::test]
async fn while_nothing_is_known_of_a_server_the_newest_ones_count_as_complete() {
    let rows = [
        (None, "local has , known false"),
        (Some("v1.34.4"), "local+b has , known false"),
        (Some("v1.36.4"), "b has mid+new, known false"),
    ];
    for (version, expected) in rows {
        let peers: Vec<_> = version.iter().map(|it| ("b", *it, Available)).collect();
        let mut fixture = Fixture::new(None, &peers);
        fixture.load(by_version).await;
        assert!(fixture.differences().are_known(), "{expected}");
        fixture.add_unread("c");
        fixture.load(by_version).await;
        assert_eq!(fixture.state(), expected);
    }
}

#[tokio::test]
async fn a_server_that_does_not_tell_its_version_may_be_an_older_one() {
    let mut fixture = Fixture::new(None, &[("b", "v1.34.4", Available)]);
    fixture.local = served("");
    fixture.load(by_version).await;
    assert_eq!(fixture.state(), "b has , known false");
    fixture.set_peers(&[("b", "v1.34.4", Available), ("c", "v1.36.4", Available)]);
    fixture.load(by_version).await;
    assert_eq!(fixture.state(), "c has mid+new, known false");
    fixture.set_peers(&[]);
    assert_eq!(fixture.state(), " has mid+new, known false");
}

#[test]
fn pre_releases_and_builds_of_one_version_are_different() {
    let now = Instant::now();
    let shared = SharedGroupVersions::default();
    let key = |version: &str| FieldKey::of(&served(version), &shared, now).unwrap();
    let versions = [
        "v1.36.0-alpha.1",
        "v1.36.0-beta.0",
        "v1.36.0",
        "v1.36.0+k3s1",
    ];
    for (index, version) in versions.iter().enumerate() {
        assert_eq!(key(version), key(version));
        for other in &versions[index + 1..] {
            assert_ne!(key(version), key(other), "{version} {other}");
            assert_ne!(key(version).file_name(), key(other).file_name());
        }
    }
}

/// A later release, and one that another compiler has built, finds the files.
#[test]
fn the_names_of_stored_files_are_fixed() {
    let shared = SharedGroupVersions::default();
    let name = |version: &str| {
        let key = FieldKey::of(&served(version), &shared, Instant::now());
        key.unwrap().file_name()
    };
    assert_eq!(name("v1.36.4"), "1.36.4-0bb27d6f4a43710e.json");
    assert_eq!(name("v1.36.4+k3s1"), "1.36.4-a9ae7412a9bc7ab5.json");
}

#[tokio::test]
async fn after_a_restart_stored_fields_are_used_also_of_a_dead_server() {
    let dir = ScratchDir::new();
    let mut first = Fixture::new(Some(dir.path()), &[("b", "v1.36.4", Available)]);
    assert_eq!(first.load(by_version).await, 2);
    assert_eq!(first.state(), "b has mid+new, known true");
    let mut second = Fixture::new(Some(dir.path()), &[("b", "v1.36.4", Dead)]);
    second.read_stored(Duration::ZERO).await;
    // With the first comparison, before any write.
    assert_eq!(second.state(), "b has mid+new, known true");
    assert_eq!(second.load(by_version).await, 0, "nothing is fetched");
    assert_eq!(second.state(), "b has mid+new, known true");
}

#[tokio::test]
async fn a_dead_server_of_unknown_fields_does_not_hide_what_the_others_lack() {
    let rows = [
        // An older server is not expected to have fields that newer ones lack.
        ("v1.33.9", "b has mid, known true"),
        // A newer one may have more; until it is back, b is the best one.
        ("v1.36.4", "b has mid, known false"),
    ];
    for (version, expected) in rows {
        let peers = [("b", "v1.35.1", Available), ("c", version, Dead)];
        let mut fixture = Fixture::new(None, &peers);
        assert_eq!(fixture.load(by_version).await, 2);
        assert_eq!(fixture.state(), expected, "{version}");
        assert_eq!(
            fixture.needed_versions(),
            [""; 0],
            "fields are requested once"
        );
        // The server is available again: its fields are fetched; until then the newest server
        // counts as complete.
        fixture.set_peers(&[("b", "v1.35.1", Available), ("c", version, Available)]);
        let newest = if version == "v1.36.4" { "c" } else { "b" };
        assert_eq!(fixture.state(), format!("{newest} has mid, known false"));
        assert_eq!(fixture.load(by_version).await, 1);
        assert!(fixture.state().ends_with("known true"));
    }
}

/// A server that starts lists its APIs one after the other.
#[tokio::test]
async fn a_server_that_lists_more_apis_than_before_stays_complete() {
    let mut fixture = Fixture::new(None, &[("b", "v1.36.4", Available)]);
    fixture.load(by_version).await;
    assert_eq!(fixture.state(), "b has mid+new, known true");
    let with_more = Peer {
        served: Some(served_with("v1.36.4", &["deployments", "others"])),
        ..peer("b", "v1.36.4", Available, fixture.now)
    };
    fixture.peers.peers = vec![Arc::new(with_more)];
    assert_eq!(fixture.state(), "b has mid+new, known false");
    fixture.load(by_version).await;
    assert_eq!(fixture.state(), "b has mid+new, known true");
}

#[tokio::test]
async fn the_fields_of_a_version_count_for_a_while_after_its_last_server_has_gone() {
    let mut fixture = Fixture::new(None, &[("b", "v1.36.4", Available)]);
    fixture.load(by_version).await;
    fixture.set_peers(&[]);
    assert_eq!(fixture.state(), " has mid+new, known true");
    fixture.now += DEPARTED_RETENTION;
    assert_eq!(fixture.state(), "no difference, known true");
}

#[tokio::test]
async fn the_retention_can_be_set() {
    for (retention, seconds, expected) in [
        (None, 899, " has mid+new, known true"),
        (None, 900, "no difference, known true"),
        (Some(3_600), 3_599, " has mid+new, known true"),
        (Some(3_600), 3_600, "no difference, known true"),
        (Some(0), 0, "no difference, known true"),
    ] {
        let mut fixture = Fixture::new(None, &[("b", "v1.36.4", Available)]);
        fixture.comparison = (fixture.comparison).retained_for(retention.map(Duration::from_secs));
        fixture.load(by_version).await;
        fixture.set_peers(&[]);
        fixture.now += Duration::from_secs(seconds);
        assert_eq!(fixture.state(), expected, "{retention:?} {seconds}");
    }
}

/// A server deletes its Lease when it ends, so that after a restart of the bridge only the stored fields
/// show that it was there.
#[tokio::test]
async fn the_fields_of_a_version_count_for_a_while_also_if_the_bridge_restarts_meanwhile() {
    let minutes = |count| Duration::from_mins(count);
    let dir = ScratchDir::new();
    let mut first = Fixture::new(Some(dir.path()), &[("b", "v1.36.4", Available)]);
    first.load(by_version).await;
    // Restarted after these minutes, the state then, and after further minutes.
    let rows = [
        (
            0,
            " has mid+new, known true",
            14,
            " has mid+new, known true",
        ),
        (
            0,
            " has mid+new, known true",
            16,
            "no difference, known true",
        ),
        (
            14,
            " has mid+new, known true",
            2,
            "no difference, known true",
        ),
        (
            16,
            "no difference, known true",
            0,
            "no difference, known true",
        ),
    ];
    for (restarted, expected, later, then) in rows {
        let mut second = Fixture::new(Some(dir.path()), &[]);
        second.read_stored(minutes(restarted)).await;
        assert_eq!(second.state(), expected, "{restarted}");
        second.now += minutes(later);
        assert_eq!(second.state(), then, "{restarted} {later}");
    }
}

#[tokio::test]
async fn the_use_of_fields_is_stored_while_a_server_has_them() {
    let dir = ScratchDir::new();
    let mut fixture = Fixture::new(Some(dir.path()), &[("b", "v1.36.4", Available)]);
    let long_ago = SystemTime::now() - Duration::from_hours(1);
    let used = |fixture: &mut Fixture| {
        fixture.differences();
        fixture.comparison.take_used(fixture.now)
    };
    assert!(used(&mut fixture).is_none(), "nothing is known");
    fixture.load(by_version).await;
    let files = || std::fs::read_dir(dir.path().join("fields")).unwrap();
    for file in files() {
        let file = std::fs::File::open(file.unwrap().path()).unwrap();
        file.set_modified(long_ago).unwrap();
    }
    let both = used(&mut fixture).unwrap();
    assert_eq!(both.keys.len(), 2);
    note_use(both).await;
    assert_eq!(files().count(), 2);
    for file in files() {
        let modified = file.unwrap().metadata().unwrap().modified().unwrap();
        assert!(modified > long_ago);
    }
    assert!(used(&mut fixture).is_none(), "it has just been stored");
    fixture.now += LAST_USE_INTERVAL;
    assert!(used(&mut fixture).is_some());
    // The server ends.
    fixture.set_peers(&[]);
    fixture.now += LAST_USE_INTERVAL;
    assert_eq!(used(&mut fixture).unwrap().keys.len(), 1);
}

#[test]
fn a_key_is_found_by_the_name_of_its_file() {
    let shared = SharedGroupVersions::default();
    let key = FieldKey::of(&served("v1.36.4+k3s1"), &shared, Instant::now()).unwrap();
    assert_eq!(FieldKey::from_file_name(&key.file_name()), Some(key));
    for name in [
        "",
        "a.json",
        "1.36.4.json",
        "1.36.4-1.json",
        "v1.36.4-0000000000000001.json",
    ] {
        assert_eq!(FieldKey::from_file_name(name), None, "{name}");
    }
}
