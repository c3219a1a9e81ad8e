use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::selectors::Selection;
use crate::test_fixtures::{config_maps, definition, now, object, with};

fn create(store: &mut Store, name: &str) -> Arc<Object> {
    let object = object(name, json!({"data": {"x": "1"}}));
    now(|it| store.create(&config_maps(), "shop", object, it)).unwrap()
}

fn update(store: &mut Store, object: Object) -> Result<Arc<Object>, Status> {
    let name = object.name().to_owned();
    now(|it| store.update(&config_maps(), "shop", &name, object, Part::Main, it))
}

fn all(store: &Store) -> ListPage {
    let options = ListOptions::default();
    let everything = Selection::default();
    store
        .list(&config_maps().resource, "", &everything, &options)
        .unwrap()
}

#[test]
fn a_new_object_gets_server_set_metadata() {
    let mut store = Store::default();
    let requested = object(
        "web",
        json!({"metadata": {"uid": "mine", "generation": 9, "deletionTimestamp": "x"}}),
    );
    let made = now(|it| store.create(&config_maps(), "shop", requested, it)).unwrap();
    assert_eq!((made.name(), made.namespace()), ("web", "shop"));
    assert_eq!(made.uid().len(), 36);
    assert_eq!(made.resource_version(), "2");
    assert_eq!(
        made.text(&["metadata", "creationTimestamp"]),
        "2026-11-15T20:59:59Z"
    );
    assert_eq!(
        (
            made.generation(),
            made.text(&["metadata", "deletionTimestamp"])
        ),
        (None, "")
    );
    assert_eq!(store.get(&config_maps(), "shop", "web"), Ok(made));
    let missing = store.get(&config_maps(), "other", "web").unwrap_err();
    assert_eq!(missing.message, r#"configmaps "web" not found"#);
}

#[test]
fn invalid_objects_are_refused() {
    let mut store = Store::default();
    create(&mut store, "web");
    let rows = [
        (
            json!({"name": "web"}),
            409,
            "configmaps \"web\" already exists",
        ),
        (
            json!({}),
            422,
            "ConfigMap \"\" is invalid: metadata.name: Required value: name or generateName is \
             required",
        ),
        (
            json!({"name": "a", "namespace": "other"}),
            400,
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        (
            json!({"name": "a", "resourceVersion": "7"}),
            500,
            "resourceVersion should not be set on objects to be created",
        ),
    ];
    for (metadata, code, message) in rows {
        let object = Object::new(json!({"metadata": metadata})).unwrap();
        let refusal = now(|it| store.create(&config_maps(), "shop", object, it)).unwrap_err();
        assert_eq!((refusal.code, &*refusal.message), (code, message));
    }
    let refusal = now(|it| store.create(&config_maps(), "shop", object("A", json!({})), it));
    assert_eq!(refusal.unwrap_err().code, 422);
    assert_eq!(store.version(), 2);
}

#[test]
fn names_are_generated_until_one_is_free() {
    let mut store = Store::default();
    let requested = || Object::new(json!({"metadata": {"generateName": "web-"}})).unwrap();
    let mut create = |mut entropy: Vec<u64>| {
        // The last number is for the uid.
        let mut entropy = || {
            if entropy.len() > 1 {
                entropy.remove(0)
            } else {
                entropy[0]
            }
        };
        let mut context = WriteContext {
            now: Time::from_unix(0),
            entropy: &mut entropy,
            dry_run: DryRun::Off,
        };
        store.create(&config_maps(), "shop", requested(), &mut context)
    };
    assert_eq!(create(vec![0, 7]).unwrap().name(), "web-bbbbb");
    assert_eq!(create(vec![0, 0, 1, 7]).unwrap().name(), "web-cbbbb");
    let refusal = create(vec![0]).unwrap_err();
    assert_eq!(
        refusal.message,
        "configmaps \"web-bbbbb\" already exists, the server was not able to generate a unique \
         name for the object"
    );
}

#[test]
fn an_update_needs_the_current_version() {
    let mut store = Store::default();
    let first = create(&mut store, "web");
    let mut next = Object::clone(&first);
    next.set(&["data", "x"], "2");
    let second = update(&mut store, next.clone()).unwrap();
    assert_eq!(
        (second.resource_version(), second.uid()),
        ("3", first.uid())
    );
    next.set(&["data", "x"], "3");
    assert_eq!(
        update(&mut store, next.clone()).unwrap_err().reason,
        "Conflict"
    );
    // Without a version there is no conflict, and server-set fields stay.
    next.remove(&["metadata", "resourceVersion"]);
    next.remove(&["metadata", "uid"]);
    next.remove(&["metadata", "creationTimestamp"]);
    let third = update(&mut store, next.clone()).unwrap();
    assert_eq!((third.resource_version(), third.uid()), ("4", first.uid()));
    assert_eq!(third.creation_timestamp(), first.creation_timestamp());
    // Without changes there is no event.
    assert_eq!(update(&mut store, next.clone()), Ok(third));
    assert_eq!(store.version(), 4);
    next.set(&["metadata", "uid"], "other");
    let refusal = update(&mut store, next.clone()).unwrap_err();
    let expected = format!(
        "Operation cannot be fulfilled on configmaps \"web\": Precondition failed: UID in \
         precondition: other, UID in object meta: {}",
        first.uid()
    );
    assert_eq!(refusal.message, expected);
    let refusal = now(|it| store.update(&config_maps(), "shop", "b", next, Part::Main, it));
    assert_eq!(
        refusal.unwrap_err().message,
        "the name of the object (web) does not match the name on the URL (b)"
    );
    assert_eq!(
        update(&mut store, object("none", json!({})))
            .unwrap_err()
            .code,
        404
    );
}

#[test]
fn spec_and_status_are_written_separately_and_only_the_spec_changes_the_generation() {
    let deployments = definition("apps", "v1", "deployments");
    let mut store = Store::default();
    let requested = object(
        "web",
        json!({"spec": {"replicas": 1}, "status": {"replicas": 9}}),
    );
    let made = now(|it| store.create(&deployments, "shop", requested, it)).unwrap();
    assert_eq!(
        (made.generation(), made.at(&["status"])),
        (Some(1), Some(&json!({})))
    );
    let mut write = |part, spec: i64, status: i64| {
        let next = object(
            "web",
            json!({"spec": {"replicas": spec}, "status": {"replicas": status}}),
        );
        let next = now(|it| store.update(&deployments, "shop", "web", next, part, it)).unwrap();
        let number = |path: &[&str]| next.at(path).and_then(Value::as_i64);
        (
            number(&["spec", "replicas"]),
            number(&["status", "replicas"]),
            next.generation(),
        )
    };
    assert_eq!(write(Part::Status, 5, 1), (Some(1), Some(1), Some(1)));
    assert_eq!(write(Part::Main, 5, 7), (Some(5), Some(1), Some(2)));
    assert_eq!(write(Part::Main, 5, 8), (Some(5), Some(1), Some(2)));
}

#[test]
fn an_object_waits_for_its_finalizers() {
    let mut store = Store::default();
    let requested = object("web", json!({"metadata": {"finalizers": ["a", "b"]}}));
    now(|it| store.create(&config_maps(), "shop", requested, it)).unwrap();
    let none = Preconditions::default();
    let delete = |store: &mut Store| {
        now(|it| store.delete(&config_maps(), "shop", "web", &none, it)).unwrap()
    };
    let Deletion::Pending(waiting) = delete(&mut store) else {
        panic!("gone");
    };
    assert!(waiting.deletion_timestamp().is_some());
    // A second deletion changes nothing.
    assert_eq!(delete(&mut store), Deletion::Pending(Arc::clone(&waiting)));
    assert_eq!(store.version(), 3);
    let again = now(|it| store.create(&config_maps(), "shop", object("web", json!({})), it));
    assert_eq!(
        again.unwrap_err().message,
        "object is being deleted: configmaps \"web\" already exists"
    );
    let mut next = Object::clone(&waiting);
    next.set(&["metadata", "finalizers"], json!(["b", "c"]));
    assert_eq!(
        update(&mut store, next.clone()).unwrap_err().message,
        "ConfigMap \"web\" is invalid: metadata.finalizers: Forbidden: no new finalizers can be \
         added if the object is being deleted, found new finalizers []string{\"c\"}"
    );
    next.set(&["metadata", "finalizers"], json!(["b"]));
    let mut next = Object::clone(&update(&mut store, next).unwrap());
    next.remove(&["metadata", "finalizers"]);
    update(&mut store, next).unwrap();
    assert_eq!(
        store.get(&config_maps(), "shop", "web").unwrap_err().code,
        404
    );
    let last = store.events_after(4).unwrap().last().unwrap().kind;
    assert_eq!(last, EventKind::Deleted);
}

#[test]
fn preconditions_guard_deletion() {
    let mut store = Store::default();
    let made = create(&mut store, "web");
    let mut delete = |uid: Option<&str>, version: Option<&str>| {
        let preconditions = Preconditions {
            uid: uid.map(str::to_owned),
            resource_version: version.map(str::to_owned),
        };
        now(|it| store.delete(&config_maps(), "shop", "web", &preconditions, it))
    };
    let expected = format!(
        "Operation cannot be fulfilled on ConfigMap \"web\": the UID in the precondition (x) does \
         not match the UID in record ({}). The object might have been deleted and then recreated",
        made.uid()
    );
    assert_eq!(delete(Some("x"), None).unwrap_err().message, expected);
    assert_eq!(
        delete(None, Some("9")).unwrap_err().message,
        "Operation cannot be fulfilled on ConfigMap \"web\": the ResourceVersion in the \
         precondition (9) does not match the ResourceVersion in record (2). The object might have \
         been modified"
    );
    let Ok(Deletion::Removed(gone)) = delete(Some(made.uid()), Some("2")) else {
        panic!("not gone");
    };
    assert_eq!(gone.resource_version(), "3");
    assert_eq!(delete(None, None).unwrap_err().code, 404);
}

#[test]
fn a_dry_run_changes_nothing() {
    let mut store = Store::default();
    let made = create(&mut store, "web");
    let none = Preconditions::default();
    with(DryRun::On, |it| {
        let requested = object("new", json!({}));
        let answer = store.create(&config_maps(), "shop", requested, it).unwrap();
        assert_eq!((answer.uid().len(), answer.resource_version()), (36, ""));
        let again = object("web", json!({}));
        assert_eq!(
            store
                .create(&config_maps(), "shop", again, it)
                .unwrap_err()
                .code,
            409
        );
        let mut next = Object::clone(&made);
        next.set(&["data", "x"], "2");
        let answer = store
            .update(&config_maps(), "shop", "web", next, Part::Main, it)
            .unwrap();
        assert_eq!(
            (answer.text(&["data", "x"]), answer.resource_version()),
            ("2", "2")
        );
        let answer = store.delete(&config_maps(), "shop", "web", &none, it);
        assert!(matches!(answer, Ok(Deletion::Removed(_))));
    });
    assert_eq!(store.get(&config_maps(), "shop", "web"), Ok(made));
    assert_eq!(store.version(), 2);
}

#[test]
fn pages_have_one_version_until_the_history_drops_it() {
    let mut store = Store::new(History::of(3));
    for name in ["a", "b", "c"] {
        create(&mut store, name);
    }
    let everything = Selection::default();
    let resource = config_maps().resource;
    let page = |store: &Store, token: &str| {
        let options = ListOptions {
            limit: 2,
            continue_token: token.to_owned(),
            ..ListOptions::default()
        };
        store.list(&resource, "shop", &everything, &options)
    };
    let names = |listed: &ListPage| -> Vec<String> {
        listed.items.iter().map(|it| it.name().to_owned()).collect()
    };
    let first = page(&store, "").unwrap();
    assert_eq!(
        (names(&first), first.remaining),
        (vec!["a".into(), "b".into()], Some(1))
    );
    // Objects that are created or deleted meanwhile do not affect the next page.
    create(&mut store, "bb");
    let none = Preconditions::default();
    now(|it| store.delete(&config_maps(), "shop", "c", &none, it)).unwrap();
    let second = page(&store, &first.continue_token).unwrap();
    assert_eq!(
        (names(&second), &*second.continue_token),
        (vec!["c".into()], "")
    );
    assert_eq!(second.version, first.version);
    create(&mut store, "d");
    create(&mut store, "e");
    let refusal = page(&store, &first.continue_token).unwrap_err();
    assert_eq!((refusal.code, refusal.reason), (410, "Expired"));
    assert!(
        refusal
            .message
            .starts_with("The provided continue parameter is too old")
    );
    for token in ["x", "e30", "!"] {
        assert_eq!(page(&store, token).unwrap_err().code, 400, "{token}");
    }
}

#[test]
fn a_list_has_the_requested_version() {
    let mut store = Store::default();
    create(&mut store, "a");
    create(&mut store, "b");
    let list = |version: &str, version_match| {
        let options = ListOptions {
            resource_version: version.to_owned(),
            version_match,
            ..ListOptions::default()
        };
        let listed = store.list(&config_maps().resource, "", &Selection::default(), &options);
        listed
            .map(|it| (it.items.len(), it.version))
            .map_err(|it| it.code)
    };
    assert_eq!(list("2", VersionMatch::Exact), Ok((1, 2)));
    assert_eq!(list("2", VersionMatch::NotOlderThan), Ok((2, 3)));
    assert_eq!(list("0", VersionMatch::NotOlderThan), Ok((2, 3)));
    assert_eq!(list("9", VersionMatch::NotOlderThan), Err(504));
    assert_eq!(list("x", VersionMatch::NotOlderThan), Err(400));
}

proptest! {
    /// Pages together are the list of the first one, whatever is written in between.
    #[test]
    fn pages_together_are_the_list_of_one_version(
        names in proptest::collection::btree_set("[a-f]{1,2}", 0..12),
        limit in 1_usize..5,
        writes in proptest::collection::vec("[a-f]{1,2}", 12),
    ) {
        let mut store = Store::default();
        for name in &names {
            create(&mut store, name);
        }
        let whole = all(&store);
        let mut options = ListOptions { limit, ..ListOptions::default() };
        let mut pages = Vec::new();
        let mut writes = writes.iter();
        loop {
            let page =
                store.list(&config_maps().resource, "shop", &Selection::default(), &options);
            let page = page.unwrap();
            prop_assert!(page.items.len() <= limit);
            pages.extend(page.items);
            if page.continue_token.is_empty() {
                break;
            }
            prop_assert_eq!(page.remaining, Some(names.len() - pages.len()));
            options.continue_token = page.continue_token;
            if let Some(name) = writes.next() {
                let none = Preconditions::default();
                if now(|it| store.delete(&config_maps(), "shop", name, &none, it)).is_err() {
                    create(&mut store, name);
                }
            }
        }
        prop_assert_eq!(pages, whole.items);
    }
}

#[test]
fn an_object_has_etcds_maximum_size() {
    let mut store = Store::default();
    let large = |bytes| object("large", json!({"data": {"a": "x".repeat(bytes)}}));
    let refused = now(|it| store.create(&config_maps(), "shop", large(1_572_865), it));
    let refused = refused.unwrap_err();
    assert_eq!(
        (refused.code, &*refused.message),
        (500, "etcdserver: request is too large")
    );
    now(|it| store.create(&config_maps(), "shop", large(1_570_000), it)).unwrap();
    let update = |store: &mut Store, bytes, dry_run| {
        with(dry_run, |it| {
            store.update(
                &config_maps(),
                "shop",
                "large",
                large(bytes),
                Part::Main,
                it,
            )
        })
    };
    for dry_run in [DryRun::Off, DryRun::On] {
        assert_eq!(
            update(&mut store, 1_572_865, dry_run).unwrap_err().code,
            500
        );
        update(&mut store, 10, dry_run).unwrap();
    }
}

#[test]
fn a_full_store_accepts_writes_after_a_deletion() {
    let mut store = Store::new(History::of(1));
    let large = |name: &str| object(name, json!({"data": {"a": "x".repeat(1_500_000)}}));
    let mut names = (0..).map(|number| format!("large-{number}"));
    let refused = names
        .find_map(|name| now(|it| store.create(&config_maps(), "shop", large(&name), it)).err());
    let refused = refused.unwrap();
    assert_eq!(
        (refused.code, &*refused.message),
        (500, "etcdserver: mvcc: database space exceeded")
    );
    let any = Preconditions::default();
    now(|it| store.delete(&config_maps(), "shop", "large-0", &any, it)).unwrap();
    now(|it| store.create(&config_maps(), "shop", large("again"), it)).unwrap();
}

#[test]
fn a_full_store_can_be_emptied_of_terminating_objects() {
    let mut store = Store::new(History::of(1));
    let held = |name: &str, bytes| {
        let fields = json!({
            "metadata": {"finalizers": ["example.com/held"]},
            "data": {"a": "x".repeat(bytes)},
        });
        object(name, fields)
    };
    // Nearly full.
    for bytes in [1_500_000, 10_000, 100, 1] {
        let mut names = (0..).map(|number| format!("held-{bytes}-{number}"));
        names
            .find(|name| {
                let held = held(name, bytes);
                now(|it| store.create(&config_maps(), "shop", held, it)).is_err()
            })
            .unwrap();
    }
    let (name, any) = ("held-1500000-0", Preconditions::default());
    let update = |store: &mut Store, held| {
        now(|it| store.update(&config_maps(), "shop", name, held, Part::Main, it))
    };
    let longer = || held(name, 1_501_000);
    assert_eq!(update(&mut store, longer()).unwrap_err().code, 500);
    let deleted = now(|it| store.delete(&config_maps(), "shop", name, &any, it)).unwrap();
    assert!(matches!(deleted, Deletion::Pending(_)));
    // A controller can still write its progress.
    update(&mut store, longer()).unwrap();
    let free = object(name, json!({"metadata": {"finalizers": []}}));
    update(&mut store, free).unwrap();
    assert!(store.get(&config_maps(), "shop", name).is_err());
    now(|it| store.create(&config_maps(), "shop", held("again", 1_000_000), it)).unwrap();
}

#[test]
fn the_history_has_a_maximum_size() {
    let history = History {
        events: 100,
        bytes: 10_000,
    };
    let mut store = Store::new(history);
    let named = |number: usize, bytes| {
        object(
            &format!("a-{number}"),
            json!({"data": {"a": "x".repeat(bytes)}}),
        )
    };
    for number in 0..50 {
        now(|it| store.create(&config_maps(), "shop", named(number, 1_000), it)).unwrap();
    }
    let version = store.version();
    let remembered = |store: &Store, back| store.events_after(version - back).is_ok();
    assert!(remembered(&store, 5) && !remembered(&store, 20));
    // An event that is larger than the limit is still delivered.
    now(|it| store.create(&config_maps(), "shop", named(50, 20_000), it)).unwrap();
    assert_eq!(store.events_after(version).unwrap().count(), 1);
    assert!(!remembered(&store, 1));
}
