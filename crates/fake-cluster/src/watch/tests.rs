use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::resource_strategy::Part;
use crate::store::{History, Preconditions};
use crate::test_fixtures::{config_maps, now, object};

fn write(store: &mut Store, name: &str, app: &str) {
    let labelled = || object(name, json!({"metadata": {"labels": {"app": app}}}));
    if now(|it| store.create(&config_maps(), "shop", labelled(), it)).is_err() {
        now(|it| store.update(&config_maps(), "shop", name, labelled(), Part::Main, it)).unwrap();
    }
}

fn delete(store: &mut Store, name: &str) {
    let none = Preconditions::default();
    let _ = now(|it| store.delete(&config_maps(), "shop", name, &none, it));
}

fn watch(
    store: &Store,
    labels: &str,
    version: &str,
    beginning: WatchStart,
) -> Result<(Watcher, Vec<Change>), Status> {
    let selection = Selection::parse(labels, "", "", "ConfigMap").unwrap();
    Watcher::start(
        store,
        &config_maps().resource,
        "shop",
        selection,
        version,
        beginning,
    )
}

fn words(changes: &[Change]) -> Vec<String> {
    let word = |change: &Change| {
        let json = change.to_json("v1", "ConfigMap");
        let name = json["object"]["metadata"]["name"].as_str().unwrap_or("-");
        format!("{} {name}", json["type"].as_str().unwrap())
    };
    changes.iter().map(word).collect()
}

#[test]
fn a_watch_starts_as_requested() {
    let mut store = Store::new(History::of(2));
    for name in ["a", "b", "c"] {
        write(&mut store, name, "x");
    }
    let begin = |version: &str, beginning| {
        watch(&store, "", version, beginning)
            .map(|it| words(&it.1))
            .map_err(|it| it.message)
    };
    let existing = ["ADDED a", "ADDED b", "ADDED c"];
    assert_eq!(begin("", WatchStart::Default).unwrap(), existing);
    assert_eq!(begin("0", WatchStart::Default).unwrap(), existing);
    assert_eq!(begin("3", WatchStart::Default).unwrap(), [""; 0]);
    assert_eq!(begin("", WatchStart::ChangesOnly).unwrap(), [""; 0]);
    assert_eq!(
        begin("", WatchStart::Initial).unwrap(),
        ["ADDED a", "ADDED b", "ADDED c", "BOOKMARK -"]
    );
    assert_eq!(
        begin("1", WatchStart::Default).unwrap_err(),
        "too old resource version: 1 (2)"
    );
    assert_eq!(
        begin("9", WatchStart::Initial).unwrap_err(),
        "Too large resource version: 9, current: 4"
    );
}

#[test]
fn an_object_is_added_and_deleted_as_its_selection_changes() {
    let mut store = Store::default();
    let (mut watcher, _) = watch(&store, "app=x", "", WatchStart::Default).unwrap();
    write(&mut store, "a", "y");
    write(&mut store, "a", "x");
    write(&mut store, "b", "x");
    write(&mut store, "a", "y");
    delete(&mut store, "a");
    delete(&mut store, "b");
    let news = watcher.poll_changes(&store).unwrap();
    assert_eq!(
        words(&news),
        ["ADDED a", "ADDED b", "DELETED a", "DELETED b"]
    );
    let Change::Deleted(gone) = &news[2] else {
        panic!("{news:?}");
    };
    // Its last matching state.
    assert_eq!(
        (gone.label("app"), gone.resource_version()),
        (Some("x"), "5")
    );
    assert_eq!(watcher.poll_changes(&store), Ok(Vec::new()));
    assert_eq!(watcher.bookmark().version(), store.version());
}

#[test]
fn a_slow_watcher_gets_410() {
    let mut store = Store::new(History::of(2));
    let (mut watcher, _) = watch(&store, "", "", WatchStart::Default).unwrap();
    for name in ["a", "b", "c"] {
        write(&mut store, name, "x");
    }
    assert_eq!(watcher.poll_changes(&store).unwrap_err().code, 410);
}

#[test]
fn events_are_sent_in_the_version_that_is_watched() {
    let mut store = Store::default();
    write(&mut store, "a", "x");
    let (_, begun) = watch(&store, "", "", WatchStart::Initial).unwrap();
    let json = begun[0].to_json("v1", "ConfigMap");
    assert_eq!(
        (&json["object"]["apiVersion"], &json["object"]["kind"]),
        (&json!("v1"), &json!("ConfigMap"))
    );
    assert_eq!(
        begun[1].to_json("v1", "ConfigMap"),
        json!({"type": "BOOKMARK", "object": {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "resourceVersion": "2",
                "annotations": {"k8s.io/initial-events-end": "true"},
            },
        }})
    );
}

/// An event, or a watcher that starts or polls.
#[derive(Debug, Clone)]
enum Step {
    Write(String, String),
    Delete(String),
    Watch(bool),
    ApiRequest(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => ("[a-e]", "[xy]").prop_map(|(name, app)| Step::Write(name, app)),
        2 => "[a-e]".prop_map(Step::Delete),
        1 => any::<bool>().prop_map(Step::Watch),
        3 => (0_usize..8).prop_map(Step::ApiRequest),
    ]
}

/// The cache of a client, built from changes.
struct Client {
    watcher: Watcher,
    selects: bool,
    seen: Vec<u64>,
    objects: BTreeMap<String, Arc<Object>>,
}

impl Client {
    fn poll(&mut self, store: &Store) {
        let news = self.watcher.poll_changes(store).unwrap();
        self.take(news);
    }

    fn take(&mut self, changes: Vec<Change>) {
        for change in changes {
            match &change {
                Change::Added(object) => {
                    let before = self
                        .objects
                        .insert(object.name().to_owned(), Arc::clone(object));
                    assert!(before.is_none(), "added twice: {change:?}");
                }
                Change::Modified(object) => {
                    let before = self
                        .objects
                        .insert(object.name().to_owned(), Arc::clone(object));
                    assert!(before.is_some(), "modified before added: {change:?}");
                }
                Change::Deleted(object) => {
                    assert!(self.objects.remove(object.name()).is_some(), "{change:?}");
                }
                Change::Bookmark { .. } => {}
            }
            self.seen.push(change.version());
        }
    }

    fn selection(&self) -> Selection {
        let labels = if self.selects { "app=x" } else { "" };
        Selection::parse(labels, "", "", "ConfigMap").unwrap()
    }
}

#[test]
fn twenty_watchers_receive_a_thousand_objects_once_and_in_order() {
    let mut store = Store::default();
    let mut clients: Vec<Client> = Vec::new();
    for _ in 0..20 {
        let (watcher, begun) = watch(&store, "", "", WatchStart::Default).unwrap();
        assert_eq!(begun, []);
        clients.push(Client {
            watcher,
            selects: false,
            seen: Vec::new(),
            objects: BTreeMap::new(),
        });
    }
    for round in 0..2000 {
        let name = format!("o{}", round % 1000);
        if round < 1000 {
            write(&mut store, &name, "x");
        } else {
            delete(&mut store, &name);
        }
        for (rhythm, client) in clients.iter_mut().enumerate() {
            if round % (1 + rhythm * rhythm) == 0 {
                client.poll(&store);
            }
        }
    }
    let events: Vec<_> = store
        .events_after(1)
        .unwrap()
        .map(|it| it.version)
        .collect();
    assert_eq!(events.len(), 2000);
    for mut client in clients {
        client.poll(&store);
        assert_eq!(client.seen, events);
        assert!(client.objects.is_empty());
    }
}

proptest! {
    #[test]
    fn every_watcher_receives_every_event_once_and_in_order(
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let mut store = Store::default();
        let mut clients: Vec<(Client, u64, usize)> = Vec::new();
        for step in steps {
            match step {
                Step::Write(name, app) => write(&mut store, &name, &app),
                Step::Delete(name) => delete(&mut store, &name),
                Step::Watch(selects) => {
                    let labels = if selects { "app=x" } else { "" };
                    let (watcher, begun) =
                        watch(&store, labels, "", WatchStart::Default).unwrap();
                    let mut client =
                        Client { watcher, selects, seen: Vec::new(), objects: BTreeMap::new() };
                    client.take(begun);
                    let initial = client.seen.len();
                    clients.push((client, store.version(), initial));
                }
                Step::ApiRequest(which) => {
                    if let Some((client, ..)) = clients.get_mut(which) {
                        client.poll(&store);
                    }
                }
            }
        }
        for (client, since, initial) in &mut clients {
            client.poll(&store);
            let resource = config_maps().resource;
            let listed = store.list(
                &resource, "shop", &client.selection(), &ListOptions::default(),
            ).unwrap();
            let objects: Vec<_> = client.objects.values().cloned().collect();
            prop_assert_eq!(objects, listed.items);
            let versions = &client.seen[*initial..];
            prop_assert!(versions.is_sorted_by(|one, next| one < next));
            if !client.selects {
                let events: Vec<_> =
                    store.events_after(*since).unwrap().map(|it| it.version).collect();
                prop_assert_eq!(versions, events);
            }
        }
    }
}
