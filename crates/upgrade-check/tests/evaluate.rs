//! Findings and verdicts on clusters of released versions.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::time::Duration;

use skewbridge_released_apis::{ApiName, Minor, Release, known_minors};
use skewbridge_upgrade_check::facts::{
    Bridge, Component, DeprecatedCalls, FieldsInUse, Migration, ObjectCount, Server, StoredVersions,
};
use skewbridge_upgrade_check::fields::lost_fields;
use skewbridge_upgrade_check::{
    Direction, Facts, Report, Severity, Topic, Verdict, apis, evaluate, storage,
};
use support::{clean, discovery, release, releases};

/// `SUBJECT: MESSAGE` of the findings of a severity.
fn texts(report: &Report, severity: Severity) -> Vec<String> {
    let findings = report.findings.iter();
    findings
        .filter(|it| it.severity == severity)
        .map(|it| format!("{}: {}", it.subject, it.message))
        .collect()
}

/// The findings of an upgrade from 1.35 to 1.36, after a change of a clean cluster.
fn upgrade_with(change: impl FnOnce(&mut Facts)) -> Report {
    let (current, target) = (release("1.35"), release("1.36"));
    let mut facts = clean(&current, &target);
    change(&mut facts);
    evaluate(&facts, Direction::Upgrade, releases(), &target)
}

#[test]
fn a_clean_cluster_may_go_to_the_next_and_to_the_previous_version() {
    let minors: Vec<_> = known_minors().collect();
    let mut pairs = 0;
    for pair in minors.windows(2) {
        let [one, other] = [pair[0], pair[1]].map(|minor: Minor| release(&minor.to_string()));
        if pair[1].ahead_of(pair[0]) != 1 {
            continue;
        }
        pairs += 1;
        for (direction, current, target) in [
            (Direction::Upgrade, &one, &other),
            (Direction::Rollback, &other, &one),
        ] {
            let report = evaluate(&clean(current, target), direction, releases(), target);
            assert_eq!(
                report.verdict,
                Verdict::Go,
                "{report}: {:#?}",
                report.findings
            );
            assert!(report.to_string().ends_with(": go"), "{report}");
        }
    }
    assert!(pairs >= 11, "{pairs}");
}

#[test]
fn an_api_that_goes_with_its_objects_is_a_finding() {
    let (current, target) = (release("1.34"), release("1.35"));
    let name = ApiName {
        group: "storage.k8s.io".to_owned(),
        version: "v1alpha1".to_owned(),
        resource: "volumeattributesclasses".to_owned(),
    };
    assert!(current.api(&name).is_some());
    let target = match target.api(&name) {
        None => target,
        Some(_) => release("1.36"),
    };
    let mut facts = clean(&current, &target);
    facts.servers[0].discovery = Ok(discovery(&current, |it, by_default| {
        by_default || *it == name
    }));
    let counted = apis::to_count(&facts.servers, releases(), &target);
    let listed: Vec<_> = counted[&name].iter().map(ApiName::qualified).collect();
    assert_eq!(listed, ["volumeattributesclasses.v1.storage.k8s.io"]);
    let report = |objects| {
        let mut facts = facts.clone();
        facts.objects.insert(name.clone(), objects);
        let mut report = evaluate(&facts, Direction::Upgrade, releases(), &target);
        report.findings.retain(|it| it.subject == name.qualified());
        report
    };
    let minor = Minor::from(target.version);
    let gone = format!(
        "volumeattributesclasses.v1alpha1.storage.k8s.io: {minor} does not serve storage.k8s.io/v1alpha1; "
    );
    let count = |objects, manager: Option<&str>| {
        Ok(ObjectCount {
            objects,
            written_in_version: manager
                .map(|it| (it.to_owned(), objects))
                .into_iter()
                .collect(),
            at_least: false,
        })
    };
    let none = report(count(0, None));
    assert_eq!(
        texts(&none, Severity::Note),
        [format!("{gone}it has no objects")]
    );
    let readable = report(count(2, None));
    assert_eq!(
        texts(&readable, Severity::Note),
        [format!("{gone}its 2 objects can be read as v1")]
    );
    let written = report(count(1, Some("kubectl-create")));
    assert_eq!(
        texts(&written, Severity::Finding),
        [format!(
            "{gone}its 1 object can be read as v1, but these write in v1alpha1: kubectl-create (1)"
        )]
    );
    // A write in another version leaves the entry of the old one.
    let command = written.findings[0].commands.last().unwrap();
    assert_eq!(
        command,
        concat!(
            "kubectl get volumeattributesclasses.v1.storage.k8s.io -A -o go-template='",
            "{{range $it := .items}}{{range .metadata.managedFields}}",
            r#"{{if eq .apiVersion "storage.k8s.io/v1alpha1"}}{{$it.metadata.name}}"#,
            r#"{{with $it.metadata.namespace}} -n {{.}}{{end}}{{"\n"}}{{end}}{{end}}{{end}}'"#,
            " | sort -u | xargs -r -L 1 kubectl patch volumeattributesclasses.v1.storage.k8s.io",
            " --type=json",
            r#" -p='[{"op":"replace","path":"/metadata/managedFields","value":[{}]}]'"#,
        )
    );
    let unknown = report(Err("forbidden".to_owned()));
    assert_eq!(
        texts(&unknown, Severity::NotKnown),
        [format!("{gone}its objects could not be counted: forbidden")]
    );
}

/// An API that 1.34 has, and 1.35 does not.
fn preview() -> ApiName {
    ApiName {
        group: "storage.k8s.io".to_owned(),
        version: "v1alpha1".to_owned(),
        resource: "volumeattributesclasses".to_owned(),
    }
}

#[test]
fn a_server_is_compared_as_the_release_that_it_emulates() {
    let emulated = release("1.34");
    let target = release("1.35");
    assert!(emulated.api(&preview()).is_some() && target.api(&preview()).is_none());
    let mut facts = clean(&emulated, &target);
    let server = &mut facts.servers[0];
    server.discovery = Ok(discovery(&emulated, |it, by_default| {
        by_default || *it == preview()
    }));
    server.version = Ok(target.version);
    server.emulated = Some("1.34".parse().unwrap());
    let counted = apis::to_count(&facts.servers, releases(), &target);
    assert!(counted.contains_key(&preview()), "{counted:?}");
    // To the version of the program itself.
    let mut objects = ObjectCount {
        objects: 1,
        ..ObjectCount::default()
    };
    objects
        .written_in_version
        .insert("kubectl-create".to_owned(), 1);
    facts.objects.insert(preview(), Ok(objects));
    let report = evaluate(&facts, Direction::Upgrade, releases(), &target);
    let found = texts(&report, Severity::Finding);
    let expected = format!("{}: 1.35 does not serve", preview().qualified());
    assert!(
        found.iter().any(|it| it.starts_with(&expected)),
        "{found:#?}"
    );
    // To the version that it emulates.
    let report = evaluate(&facts, Direction::Rollback, releases(), &emulated);
    assert!(report.findings.iter().all(|it| it.topic != Topic::Apis));
}

#[test]
fn each_server_of_a_mixed_cluster_is_compared_as_its_own_release() {
    // An API that is new in the second release, and gone in the third one.
    let found = releases().windows(3).find_map(|it| {
        let has = |release: &Release, name| release.api(name).is_some();
        let mut apis = it[1].apis().filter(|(_, api)| api.listable);
        let gone = apis.find(|(name, _)| !has(&it[0], name) && !has(&it[2], name))?;
        Some((gone.0, it))
    });
    let (name, [old, new, target]) = found.expect("an API of one release") else {
        panic!("three releases");
    };
    let mut facts = clean(old, target);
    let mut newer = facts.servers[0].clone();
    newer.name = "cp-2".to_owned();
    newer.version = Ok(new.version);
    newer.discovery = Ok(discovery(new, |_, _| true));
    for servers in [
        vec![facts.servers[0].clone(), newer.clone()],
        vec![newer.clone(), facts.servers[0].clone()],
    ] {
        facts.servers = servers;
        let counted = apis::to_count(&facts.servers, releases(), target);
        assert!(counted.contains_key(name), "{name:?}: {counted:?}");
    }
}

#[test]
fn apis_of_an_unknown_release_are_not_known() {
    let report = upgrade_with(|facts| {
        let mut newer = facts.servers[0].clone();
        newer.name = "cp-2".to_owned();
        newer.version = Ok("1.99.0".parse().unwrap());
        facts.servers.push(newer);
    });
    assert_eq!(
        texts(&report, Severity::NotKnown),
        [
            "cp-2: the APIs of 1.99 are not known to this version of skewbridge: which of them go is not \
             known"
        ]
    );
}

#[test]
fn calls_of_deprecated_apis_are_findings_if_the_target_does_not_serve_them() {
    let call = |removed: Option<&str>| DeprecatedCalls {
        api: ApiName {
            group: String::new(),
            version: "v1".to_owned(),
            resource: "endpoints".to_owned(),
        },
        subresource: String::new(),
        removed_release: removed.map(|it| it.parse().unwrap()),
    };
    let gone = "and 1.36 does not serve it";
    for (removed, severity, fate) in [
        (None, Severity::Note, "and it is deprecated; 1.36 serves it"),
        (
            Some("1.37"),
            Severity::Note,
            "and it is deprecated; 1.36 serves it, 1.37 will not",
        ),
        (Some("1.36"), Severity::Finding, gone),
        (Some("1.35"), Severity::Finding, gone),
    ] {
        let report = upgrade_with(|facts| {
            facts.servers[0].deprecated_calls = Ok(vec![call(removed)]);
        });
        let found: Vec<_> = [Severity::Finding, Severity::NotKnown, Severity::Note]
            .into_iter()
            .flat_map(|it| texts(&report, it).into_iter().map(move |text| (it, text)))
            .filter(|(_, text)| text.starts_with("endpoints: "))
            .collect();
        let text = format!("endpoints: cp-1 has answered requests for it since it started, {fate}");
        assert_eq!(found, [(severity, text)], "{removed:?}");
    }
}

#[test]
fn versions_are_compared_with_the_skew_policy() {
    let component = |name: &str, version: &str| Component {
        name: name.to_owned(),
        instance: "node-1".to_owned(),
        version: Ok(version.parse().unwrap()),
    };
    let report = upgrade_with(|facts| {
        facts.kubelets = Ok(vec![
            component("kubelet", "1.32.1"),
            component("kubelet", "1.33.1"),
        ]);
        facts.components.found = vec![
            component("kube-scheduler", "1.37.0"),
            component("kube-controller-manager", "1.35.0"),
        ];
    });
    assert_eq!(
        texts(&report, Severity::Finding),
        [
            "kube-scheduler on node-1: it is 1.37.0; it must not be newer than kube-apiserver, which \
             becomes 1.36",
            "kubelet on node-1: it is 1.32.1; with kube-apiserver 1.36 it may be 3 minor versions \
             older at most",
        ]
    );
    let (current, target) = (release("1.34"), release("1.37"));
    let report = evaluate(
        &clean(&current, &target),
        Direction::Upgrade,
        releases(),
        &target,
    );
    let versions: Vec<_> = report
        .findings
        .iter()
        .filter(|it| it.topic == Topic::Versions)
        .collect();
    assert_eq!(versions.len(), 1);
    assert_eq!(
        versions[0].commands,
        ["# upgrade to each minor version in between first: 1.35, 1.36"]
    );
    let report = evaluate(
        &clean(&target, &current),
        Direction::Upgrade,
        releases(),
        &current,
    );
    assert!(
        texts(&report, Severity::Finding)
            .contains(&"cp-1: it is 1.37.1, newer than the target 1.34".to_owned())
    );
}

/// Counts the objects that are to be counted because of their stored version.
fn count_stored(facts: &mut Facts, target: &str, objects: &Result<u64, String>) {
    let names = storage::to_count(&facts.servers, &release(target));
    assert!(!names.is_empty());
    for name in names {
        let count = objects.clone().map(|objects| ObjectCount {
            objects,
            ..ObjectCount::default()
        });
        facts.objects.insert(name, count);
    }
}

#[test]
fn objects_in_stored_versions_that_the_target_lacks_are_counted() {
    // The server lists it in another version than the stored one.
    let stored = |from: &str, target: &str, direction, objects: Result<u64, &str>| {
        let (current, target_release) = (release(from), release(target));
        let mut facts = clean(&current, &target_release);
        let deployments = ("apps".to_owned(), "deployments".to_owned());
        let stored = [(deployments, "v1beta1".to_owned())];
        facts.servers[0].storage_versions = Ok(stored.into_iter().collect());
        count_stored(&mut facts, target, &objects.map_err(str::to_owned));
        let report = evaluate(&facts, direction, releases(), &target_release);
        let finding = report
            .findings
            .into_iter()
            .find(|it| it.topic == Topic::Storage);
        let finding = finding.unwrap();
        (
            finding.severity,
            finding.message,
            finding.commands.join("\n"),
        )
    };
    let (severity, message, commands) = stored("1.35", "1.36", Direction::Upgrade, Ok(0));
    assert_eq!((severity, commands.as_str()), (Severity::Note, ""));
    assert_eq!(
        message,
        "it is stored as v1beta1, which 1.36 does not have; it has no objects"
    );
    let (severity, message, _) = stored("1.35", "1.36", Direction::Upgrade, Err("forbidden"));
    assert_eq!(severity, Severity::NotKnown);
    assert!(
        message.ends_with("could not be counted: forbidden"),
        "{message}"
    );

    // The servers of now write the same version again: there is nothing to write before the upgrade.
    for (from, target, direction) in [
        ("1.35", "1.36", Direction::Upgrade),
        ("1.36", "1.35", Direction::Rollback),
    ] {
        let (severity, message, commands) = stored(from, target, direction, Ok(1));
        assert_eq!(severity, Severity::Finding);
        assert!(message.starts_with("its 1 object may be stored as v1beta1"));
        assert!(!commands.contains("replace"), "{commands}");
        for command in [
            "kubectl get deployments.v1.apps -A -o yaml > deployments.yaml",
            "kubectl delete deployments.v1.apps -A --all",
            "# afterwards: kubectl create -f deployments.yaml",
        ] {
            assert!(commands.contains(command), "{commands}");
        }
    }
    // Those of a minor version in between may write another one.
    let (_, _, commands) = stored("1.35", "1.37", Direction::Upgrade, Ok(1));
    assert!(commands.starts_with("# upgrade to 1.36 first, and write all objects again after"));
    assert!(
        commands.contains("\nkubectl get deployments.v1.apps -A -o json | kubectl replace -f -\n")
    );
    let (_, _, commands) = stored("1.36", "1.33", Direction::Rollback, Ok(1));
    assert!(commands.starts_with("# return to 1.35 and 1.34 first"));
}

#[test]
fn stored_versions_that_the_target_cannot_read_are_findings() {
    let report = upgrade_with(|facts| {
        let deployments = ("apps".to_owned(), "deployments".to_owned());
        let stored = [(deployments, "v1beta1".to_owned())];
        facts.servers[0].storage_versions = Ok(stored.into_iter().collect());
        count_stored(facts, "1.36", &Ok(3));
        let versions = |words: &str| words.split(' ').map(str::to_owned).collect();
        facts.stored_versions = Ok(vec![
            Ok(StoredVersions {
                definition: "old.example.com".to_owned(),
                stored: versions("v1 v2"),
                storage: "v2".to_owned(),
                served: versions("v2"),
            }),
            Ok(StoredVersions {
                definition: "both.example.com".to_owned(),
                stored: versions("v1 v2"),
                storage: "v2".to_owned(),
                served: versions("v1 v2"),
            }),
            Err("broken.example.com: spec.versions: null".to_owned()),
        ]);
        facts.migrations = Ok(vec![Migration {
            name: "m".to_owned(),
            resource: "deployments.apps".to_owned(),
            failed: true,
        }]);
    });
    assert_eq!(
        texts(&report, Severity::Finding),
        [
            "StorageVersionMigration m: the migration of deployments.apps has failed",
            "deployments.apps: its 3 objects may be stored as v1beta1, which 1.36 does not have",
            "old.example.com: objects may be stored as v1, which is not served",
        ]
    );
    assert_eq!(
        texts(&report, Severity::NotKnown),
        [
            "custom resources: stored versions could not be read: broken.example.com: spec.versions: null"
        ]
    );
    assert_eq!(report.verdict.exit_code(), 2);
}

#[test]
fn fields_that_a_rollback_erases_are_findings() {
    let (current, target) = (release("1.36"), release("1.34"));
    let groups = discovery(&current, |_, by_default| by_default);
    let lost = lost_fields(&groups, &current, &target).unwrap();
    let drivers = lost
        .iter()
        .find(|it| it.api.resource == "csidrivers")
        .unwrap();
    let field = drivers
        .fields
        .iter()
        .find(|it| it.to_string() == "spec.serviceAccountTokenInSecrets");
    let mut facts = clean(&current, &target);
    facts.fields_in_use = Ok(vec![FieldsInUse {
        group: "storage.k8s.io".to_owned(),
        resource: "csidrivers".to_owned(),
        fields: vec![(field.expect("the field").clone(), 1)],
        examples: vec!["hostpath".to_owned()],
        at_least: false,
    }]);
    let report = evaluate(&facts, Direction::Rollback, releases(), &target);
    assert!(texts(&report, Severity::Finding).contains(
        &"csidrivers.storage.k8s.io: spec.serviceAccountTokenInSecrets is set in 1 object, such as \
          hostpath; 1.34 erases it"
            .to_owned()
    ));
    // An upgrade erases nothing.
    let report = evaluate(&facts, Direction::Upgrade, releases(), &current);
    assert!(report.findings.iter().all(|it| it.topic != Topic::Fields));
}

#[test]
fn kinds_without_known_fields_lose_none() {
    // 1.26 publishes no fields of APIService.
    let (current, target) = (release("1.27"), release("1.26"));
    let groups = discovery(&current, |_, by_default| by_default);
    for (current, target) in [(&current, &target), (&target, &current)] {
        let lost = lost_fields(&groups, current, target).unwrap();
        assert!(lost.iter().all(|it| it.api.resource != "apiservices"));
    }
}

#[test]
fn servers_that_are_not_ready_are_findings_and_what_was_not_read_is_not_known() {
    let report = upgrade_with(|facts| {
        facts.servers[0].failing_checks = Ok(vec!["etcd".to_owned()]);
        facts.servers[0].certificate_expiry = Ok(facts.read_at + Duration::from_hours(30));
    });
    assert_eq!(
        texts(&report, Severity::Finding),
        [
            "cp-1: it is not ready: etcd",
            "cp-1: its serving certificate expires in 30 h",
        ]
    );
    let unknown = || "no answer".to_owned();
    let report = upgrade_with(|facts| {
        facts.servers[0] = Server {
            version: Err(unknown()),
            discovery: Err(unknown()),
            failing_checks: Err(unknown()),
            certificate_expiry: Err(unknown()),
            deprecated_calls: Err(unknown()),
            storage_versions: Err(unknown()),
            ..facts.servers[0].clone()
        };
        facts.kubelets = Err(unknown());
        facts.components.unread = vec![unknown()];
        facts.stored_versions = Err(unknown());
        facts.migrations = Err(unknown());
    });
    assert_eq!(
        texts(&report, Severity::NotKnown).len(),
        10,
        "{:#?}",
        report.findings
    );
    assert_eq!(report.verdict, Verdict::NotKnown);
    assert_eq!(report.verdict.exit_code(), 1);
    assert_eq!(
        report.to_string(),
        "upgrade to 1.36: not known, 10 checks could not be made"
    );
}

#[test]
fn components_that_have_to_exist_and_were_not_found_are_not_known() {
    let kubelet = || Component {
        name: "kubelet".to_owned(),
        instance: "node-1".to_owned(),
        version: Ok("1.35.0".parse().unwrap()),
    };
    let message = "no Pod, LeaseCandidate or Lease in kube-system names it: compare its version with the \
                   version skew policy yourself";
    let report = upgrade_with(|facts| facts.kubelets = Ok(vec![kubelet()]));
    assert_eq!(report.verdict, Verdict::NotKnown);
    assert_eq!(
        texts(&report, Severity::NotKnown),
        ["kube-controller-manager", "kube-scheduler"].map(|it| format!("{it}: {message}"))
    );
    // A Lease shows that it runs, and not its version.
    let report = upgrade_with(|facts| {
        facts.kubelets = Ok(vec![kubelet()]);
        let component = |name: &str, version| Component {
            name: name.to_owned(),
            instance: "cp-1".to_owned(),
            version,
        };
        facts.components.found = vec![
            component("kube-controller-manager", Ok("1.35.0".parse().unwrap())),
            component("kube-scheduler", Err("only a Lease".to_owned())),
        ];
    });
    assert_eq!(
        texts(&report, Severity::NotKnown),
        ["kube-scheduler on cp-1: its version could not be read: only a Lease"]
    );
    // Without Nodes, nothing has to run.
    assert_eq!(upgrade_with(|_| ()).verdict, Verdict::Go);
}

#[test]
fn servers_that_were_not_queried_are_not_known() {
    let report = upgrade_with(|facts| facts.unqueried = vec!["cp-2".to_owned()]);
    assert_eq!(
        texts(&report, Severity::NotKnown),
        ["cp-2: a bridge lists it, and it was not queried: name each server with --server"]
    );
    assert_eq!(report.verdict, Verdict::NotKnown);
}

#[test]
fn servers_that_could_not_be_listed_are_not_known() {
    let report = upgrade_with(|facts| facts.unlisted = Some("forbidden".to_owned()));
    assert_eq!(
        texts(&report, Severity::NotKnown),
        [
            "kube-apiservers: the addresses that they publish in the Service default/kubernetes could not \
             be read: forbidden; name each server with --server"
        ]
    );
    assert_eq!(report.verdict, Verdict::NotKnown);
}

#[test]
fn a_bridge_in_front_of_several_servers_is_not_a_server() {
    let report = upgrade_with(|facts| facts.servers[0].bridge = Some(Bridge::Balancer));
    assert_eq!(report.verdict, Verdict::NotKnown);
    let report = upgrade_with(|facts| facts.servers[0].bridge = Some(Bridge::Peer));
    assert_eq!(report.verdict, Verdict::Go);
}
