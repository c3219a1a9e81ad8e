//! All kinds, on the manifests that kubeadm of two versions writes, and the files in `deploy/`.

use std::path::Path;

use clap::{Args as _, FromArgMatches as _};

use super::*;
use crate::local_addresses::InterfaceAddress;

const OLD: &str = include_str!("testdata/kube-apiserver-1.34.4.yaml");
const NEW: &str = include_str!("testdata/kube-apiserver-1.36.4.yaml");

/// The files in `deploy/`, by folder: the command that prints them. `MANIFEST` is a file of
/// kubeadm.
const DEPLOY: [(&str, &[&str]); 7] = [
    ("kubeadm", &["kubeadm", "--from=MANIFEST"]),
    (
        "kubeadm-other-port",
        &[
            "kubeadm",
            "--from=MANIFEST",
            "--secure-port=7443",
            "--run-with=static-pod",
        ],
    ),
    ("kubeadm-patches", &["kubeadm-patches"]),
    ("systemd", &["systemd"]),
    ("static-pod", &["static-pod"]),
    (
        "balancer",
        &[
            "balancer",
            "--upstream=https://10.0.0.11:6443",
            "--upstream=https://10.0.0.12:6443",
            "--upstream=https://10.0.0.13:6443",
        ],
    ),
    ("rbac", &["rbac"]),
];

/// Set to write `deploy/` instead of comparing it.
const UPDATE: &str = "SKEWBRIDGE_WRITE_DOCS";

fn kind(words: &[&str]) -> Kind {
    let command = Flags::augment_args(clap::Command::new("manifest").no_binary_name(true));
    let matches = command.try_get_matches_from(words).expect("a command line");
    Flags::from_arg_matches(&matches).expect("flags").kind
}

/// The files of a command line. Those of `kubeadm` are for this manifest.
fn generated(words: &[&str], manifest: &str) -> Result<Vec<GeneratedFile>, String> {
    match kind(words) {
        Kind::Kubeadm(flags) => Ok(flags.generate(manifest, &[])?.0),
        kind => generate(&kind).map_err(|failure| failure.to_string()),
    }
}

fn text<'f>(files: &'f [GeneratedFile], name: &str) -> &'f str {
    let file = files.iter().find(|file| file.name == name);
    &file.unwrap_or_else(|| panic!("no {name}")).text
}

#[test]
fn the_files_in_deploy_are_what_the_generator_prints() {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    for (folder, words) in DEPLOY {
        let folder = deploy.join(folder);
        for file in generated(words, NEW).unwrap() {
            let path = folder.join(file.name);
            if std::env::var_os(UPDATE).is_some() {
                fs::create_dir_all(&folder).unwrap();
                fs::write(&path, &file.text).unwrap();
            }
            let committed = fs::read_to_string(&path).unwrap_or_default();
            let advice = format!(
                "{}: run {UPDATE}=1 cargo test -p skewbridge manifest, and commit the difference",
                path.display()
            );
            assert_eq!(committed, file.text, "{advice}");
        }
    }
}

#[test]
fn every_file_says_what_changes_and_how_to_undo_it() {
    for (folder, words) in DEPLOY {
        for file in generated(words, NEW).unwrap() {
            let comment: Vec<_> = file
                .text
                .lines()
                .take_while(|it| it.starts_with('#'))
                .collect();
            for mark in ["# What changes: ", "# Undo: "] {
                let found = comment.iter().any(|line| line.starts_with(mark));
                assert!(found, "{folder}/{}: {mark}", file.name);
            }
            // Comments and help share a width.
            let longest = file.text.lines().map(|line| line.chars().count()).max();
            assert!(longest <= Some(120), "{folder}/{}: {longest:?}", file.name);
            assert!(
                !file.text.contains('@') || file.text.contains("SystemCallFilter"),
                "{}",
                file.text
            );
        }
    }
}

#[test]
fn every_configuration_is_one_of_serve() {
    for manifest in [OLD, NEW] {
        for (folder, words) in DEPLOY {
            let files = generated(words, manifest).unwrap();
            for file in files.iter().filter(|file| file.name == "config.yaml") {
                assert_eq!(
                    crate::serve::configuration_problems(&file.text),
                    Vec::<String>::new(),
                    "{folder}"
                );
            }
        }
    }
}

/// After a restart while a newer server is down, guards depend on what was stored.
#[test]
fn every_configuration_stores_state_where_unit_and_pod_can_write() {
    for (folder, words) in DEPLOY {
        let files = generated(words, NEW).unwrap();
        let Some(config) = files.iter().find(|file| file.name == "config.yaml") else {
            continue;
        };
        assert!(
            config.text.contains("\nstateDir: /var/lib/skewbridge\n"),
            "{folder}"
        );
        let writable = files.iter().any(|file| match file.name {
            "skewbridge.service" => file.text.contains("\nStateDirectory=skewbridge\n"),
            "skewbridge.yaml" => file.text.contains("mountPath: /var/lib/skewbridge\n"),
            _ => false,
        });
        assert!(writable, "{folder}");
    }
}

#[test]
fn a_manifest_of_kubeadm_is_edited_and_restored_to_the_last_byte() {
    for manifest in [OLD, NEW] {
        let files = generated(&["kubeadm"], manifest).unwrap();
        let edited = text(&files, "kube-apiserver.yaml");
        let added: Vec<_> = edited
            .lines()
            .filter(|line| !manifest.contains(line))
            .collect();
        let is_change = |line: &&&str| !line.starts_with('#');
        let added: Vec<_> = added
            .iter()
            .filter(is_change)
            .map(|line| line.trim())
            .collect();
        let host = "host: 127.0.0.1";
        assert_eq!(added, ["- --bind-address=127.0.0.1", host, host, host]);
        // Applying the edit twice changes nothing.
        assert_eq!(generated(&["kubeadm"], edited).unwrap(), files);
        let undo = ["kubeadm", "--undo"];
        for before in [edited, manifest] {
            let undone = generated(&undo, before).unwrap();
            assert_eq!(text(&undone, "kube-apiserver.yaml"), manifest);
            assert_eq!(undone.len(), 1);
        }
        // As kubeadm with the patches: without the comment.
        let comment = edited
            .lines()
            .take_while(|line| line.starts_with('#'))
            .count();
        let patched: String = edited.split_inclusive('\n').skip(comment).collect();
        let undone = generated(&undo, &patched).unwrap();
        assert_eq!(text(&undone, "kube-apiserver.yaml"), manifest);
    }
}

/// A second patch of kubeadm, or an administrator, may have added a flag after that of the layout.
#[test]
fn an_undo_finds_the_change_wherever_it_is() {
    let flag = "    - --bind-address=127.0.0.1\n";
    let after = "    - --v=4\n";
    for manifest in [OLD, NEW] {
        let files = generated(&["kubeadm"], manifest).unwrap();
        let edited = text(&files, "kube-apiserver.yaml");
        let original = manifest.replacen("    image: ", &format!("{after}    image: "), 1);
        let comment = "# of the administrator\n#\n# More.\n";
        let rows = [
            (edited.replace(flag, &format!("{flag}{after}")), &*original),
            // Two patches of the layout.
            (edited.replace(flag, &flag.repeat(2)), manifest),
            (
                edited.replace(flag, &format!("{flag}{after}{flag}")),
                &original,
            ),
            (edited.replace("=127.0.0.1", "=127.0.0.9"), manifest),
            (
                edited.replace(flag, "    - \"--bind-address=127.0.0.1\"\n"),
                manifest,
            ),
            // The flag was removed by hand, and the probes were not.
            (edited.replace(flag, ""), manifest),
            (
                format!("{edited}\n# trailing"),
                &format!("{manifest}\n# trailing"),
            ),
            (
                text(
                    &generated(&["kubeadm"], &format!("{comment}{manifest}")).unwrap(),
                    "kube-apiserver.yaml",
                )
                .to_owned(),
                &format!("{comment}{manifest}"),
            ),
        ];
        for (changed, expected) in rows {
            let undone = generated(&["kubeadm", "--undo"], &changed).unwrap();
            assert_eq!(text(&undone, "kube-apiserver.yaml"), expected, "{changed}");
        }
        // Applied to a manifest with a later flag, the change is the last one again.
        let changed = edited.replace(flag, &format!("{flag}{after}"));
        let files = generated(&["kubeadm"], &changed).unwrap();
        let again = text(&files, "kube-apiserver.yaml");
        assert!(again.contains(&format!("{after}{flag}")), "{again}");
        assert_eq!(again.matches(flag).count(), 1);
    }
}

#[test]
fn an_undo_that_would_leave_kube_apiserver_on_loopback_fails() {
    let files = generated(&["kubeadm"], NEW).unwrap();
    let edited = text(&files, "kube-apiserver.yaml");
    let flag = "    - --bind-address=127.0.0.1\n";
    let two_words = "    - --bind-address\n    - 127.0.0.1\n";
    let folded = "    - >-\n      --bind-address=127.0.0.1\n";
    let without_comment = edited.split_once("apiVersion").unwrap().1;
    let without_comment = format!("apiVersion{without_comment}");
    let indented = edited.replacen("# kube-apiserver behind", "  # kube-apiserver behind", 1);
    let rows = [
        (
            edited.replace(flag, two_words),
            "--bind-address with a loopback address",
        ),
        (
            without_comment.replace(flag, two_words),
            "--bind-address with a loopback address",
        ),
        (
            edited.replace(flag, folded),
            "in a form other than one flag a line",
        ),
        (indented, "the comment of the layout"),
    ];
    for (changed, expected) in rows {
        let why = generated(&["kubeadm", "--undo"], &changed).unwrap_err();
        assert!(why.contains(expected), "{why}");
        assert!(why.contains("by hand"), "{why}");
    }
}

#[test]
fn ipv6_nodes_use_the_loopback_address_of_ipv6() {
    let manifest = NEW.replace("10.0.0.11", "fd00::11");
    let files = generated(&["kubeadm"], &manifest).unwrap();
    let edited = text(&files, "kube-apiserver.yaml");
    assert!(edited.contains("    - --bind-address=::1\n"), "{edited}");
    assert_eq!(edited.matches("        host: ::1\n").count(), 3, "{edited}");
    let config = text(&files, "config.yaml");
    for line in [
        "bindAddress: fd00::11\n",
        "upstream: \"https://[::1]:6443\"\n",
    ] {
        assert!(config.contains(line), "{line}: {config}");
    }
    let undone = generated(&["kubeadm", "--undo"], edited).unwrap();
    assert_eq!(text(&undone, "kube-apiserver.yaml"), manifest);
    let patches = generated(&["kubeadm-patches", "--bind-address=::1"], "").unwrap();
    assert!(
        patches[0].text.contains("value: \"::1\"\n"),
        "{}",
        patches[0].text
    );
}

#[test]
fn the_configuration_protects_and_names_the_files_of_kube_apiserver() {
    let same_port = [
        "bindAddress: 10.0.0.11\n",
        "securePort: 6443\n",
        "upstream: https://127.0.0.1:6443\n",
        "upstreamServerName: kubernetes.default.svc\n",
        "peerCaFile: /etc/kubernetes/pki/ca.crt\n",
        "proxyClientCertFile: /etc/kubernetes/pki/front-proxy-client.crt\n",
        "peerRegistry:\n- etcd\n",
        "etcdServers:\n- https://127.0.0.1:2379\n",
        "etcdKeyfile: /etc/kubernetes/pki/apiserver-etcd-client.key\n",
        "requestheaderAllowedNames:\n- front-proxy-client\n",
    ];
    let rows: [(&[&str], &[&str], &[&str]); 4] = [
        (&["kubeadm"], &same_port, &[]),
        (
            &["kubeadm", "--secure-port=7443"],
            &[
                "bindAddress: 0.0.0.0\n",
                "securePort: 7443\n",
                "advertiseAddress: 10.0.0.11\n",
            ],
            &[],
        ),
        (
            &[
                "kubeadm",
                "--peer-registry=leases",
                "--peer-cidrs=10.0.0.0/24,10.1.0.0/24",
            ],
            &[
                "peerRegistry:\n- leases\n",
                "peerCidrs:\n- 10.0.0.0/24\n- 10.1.0.0/24\n",
            ],
            &["etcd"],
        ),
        (
            &["kubeadm", "--bridge-user=skewbridge"],
            &["bridgeUser: skewbridge\n"],
            &[],
        ),
    ];
    for (words, expected, absent) in rows {
        let files = generated(words, NEW).unwrap();
        let config = text(&files, "config.yaml");
        for line in expected {
            assert!(config.contains(line), "{words:?}: {line}: {config}");
        }
        for word in absent {
            assert!(!config.contains(word), "{words:?}: {word}: {config}");
        }
        let moves_server = files.iter().any(|file| file.name == "kube-apiserver.yaml");
        assert_eq!(
            moves_server,
            !words.contains(&"--secure-port=7443"),
            "{words:?}"
        );
    }
}

#[test]
fn settings_of_kube_apiserver_that_the_bridge_shares_are_taken_over() {
    let more = "    - --tls-min-version=VersionTLS13\n    - --request-timeout=2m0s\n    \
        - --etcd-prefix=/other\n    - --egress-selector-config-file=/etc/egress/egress.yaml\n    \
        - --requestheader-uid-headers=X-Remote-Uid\n    image: ";
    let manifest = NEW.replacen("    image: ", more, 1);
    let files = generated(&["kubeadm", "--run-with=static-pod"], &manifest).unwrap();
    let config = text(&files, "config.yaml");
    for line in [
        "tlsMinVersion: VersionTLS13\n",
        "requestTimeout: 2m0s\n",
        "etcdPrefix: /other\n",
        "egressSelectorConfigFile: /etc/egress/egress.yaml\n",
        "requestheaderUidHeaders:\n- X-Remote-Uid\n",
    ] {
        assert!(config.contains(line), "{line}: {config}");
    }
    assert!(!config.contains("Not as kube-apiserver"), "{config}");
    let pod = text(&files, "skewbridge.yaml");
    let mounted: Vec<_> = pod
        .lines()
        .filter_map(|line| line.trim().strip_prefix("path: /"))
        .collect();
    assert_eq!(
        mounted,
        [
            "livez",
            "livez",
            "readyz",
            "etc/egress",
            "etc/kubernetes/pki",
            "etc/skewbridge",
            "var/lib/skewbridge"
        ]
    );
}

fn with_flag(flag: &str) -> String {
    NEW.replacen("    image: ", &format!("    - {flag}\n    image: "), 1)
}

#[test]
fn tls_settings_that_the_bridge_does_not_have_are_named() {
    let rows = [
        (
            "--tls-cipher-suites=TLS_RSA_WITH_AES_128_GCM_SHA256",
            "kube-apiserver, which has --tls-cipher-suites: the bridge has",
        ),
        (
            "--tls-min-version=VersionTLS10",
            "kube-apiserver, which has --tls-min-version=VersionTLS10: the bridge accepts TLS 1.2",
        ),
    ];
    for (flag, expected) in rows {
        let files = generated(&["kubeadm"], &with_flag(flag)).unwrap();
        let config = text(&files, "config.yaml");
        assert!(config.contains(expected), "{flag}: {config}");
        assert!(!config.contains("tlsMinVersion"), "{config}");
        let problems = crate::serve::configuration_problems(config);
        assert_eq!(problems, Vec::<String>::new());
    }
    let sni = with_flag("--tls-sni-cert-key=/pki/a.crt,/pki/a.key:api.example.com");
    let why = generated(&["kubeadm"], &sni).unwrap_err();
    assert!(why.contains("has --tls-sni-cert-key=/pki/a.crt"), "{why}");
    assert!(why.contains("issue --tls-cert-file for all names"), "{why}");
    // It does not prevent a rollback.
    let undone = generated(&["kubeadm", "--undo"], &sni).unwrap();
    assert_eq!(text(&undone, "kube-apiserver.yaml"), sni);
}

#[test]
fn addresses_that_are_no_longer_served_are_named() {
    let addresses = [
        ("eth0", "10.0.0.11"),
        ("eth0", "fd00::11"),
        ("eth0", "fe80::11"),
        ("lo", "127.0.0.1"),
        ("docker0", "172.17.0.1"),
        ("eth1", "192.168.0.11"),
    ];
    let addresses = addresses.map(|(interface, address)| InterfaceAddress {
        interface: interface.to_owned(),
        address: address.parse().unwrap(),
    });
    let warnings = |words: &[&str], addresses: &[InterfaceAddress]| match kind(words) {
        Kind::Kubeadm(flags) => flags.generate(NEW, addresses).unwrap().1,
        other => panic!("{other:?}"),
    };
    let found = warnings(&["kubeadm"], &addresses);
    assert_eq!(found.len(), 1);
    let expected = "this node also has fd00::11 (eth0), 192.168.0.11 (eth1). Port 6443 of other \
                    addresses than 10.0.0.11 is not served";
    assert!(found[0].starts_with(expected), "{found:?}");
    assert!(found[0].contains("give another --secure-port"), "{found:?}");
    let none = Vec::<String>::new();
    assert_eq!(
        warnings(&["kubeadm", "--secure-port=7443"], &addresses),
        none
    );
    assert_eq!(warnings(&["kubeadm", "--undo"], &addresses), none);
    // Another machine, and a node with one address.
    assert_eq!(warnings(&["kubeadm"], &addresses[1..]), none);
    assert_eq!(warnings(&["kubeadm"], &addresses[..1]), none);
}

#[test]
fn flags_replace_edits_of_the_generated_files() {
    let flags = [
        "--admin-secure-address=0.0.0.0:10271",
        "--cluster-nodes=5000",
    ];
    for run_with in ["--run-with=systemd", "--run-with=static-pod"] {
        let words = [&["kubeadm", run_with], &flags[..]].concat();
        let files = generated(&words, NEW).unwrap();
        let config = text(&files, "config.yaml");
        for line in [
            "\nadminSecureAddress: 0.0.0.0:10271\n",
            "\nmaxConnections: 32768\n",
            "\nmaxBufferedBytes: 512Mi\n",
        ] {
            assert!(config.contains(line), "{line}: {config}");
        }
        let problems = crate::serve::configuration_problems(config);
        assert_eq!(problems, Vec::<String>::new());
        let started_by = &files[1].text;
        let limit = match run_with {
            "--run-with=systemd" => "\nLimitNOFILE=131072\nMemoryMax=2560M\n",
            _ => "      limits:\n        memory: 2560Mi\n",
        };
        assert!(started_by.contains(limit), "{started_by}");
    }
    let balancer = ["balancer", "--upstream=https://10.0.0.11:6443", flags[1]];
    let files = generated(&balancer, NEW).unwrap();
    assert!(text(&files, "config.yaml").contains("\nmaxConnections: 32768\n"));
}

#[test]
fn a_manifest_that_cannot_be_used_is_refused_with_what_to_do() {
    let without = |flag: &str| {
        let lines = NEW
            .split_inclusive('\n')
            .filter(|line| !line.contains(flag));
        lines.collect::<String>()
    };
    let other_host = NEW.replacen("host: 10.0.0.11", "host: 10.9.9.9", 1);
    let flow = NEW.replace(
        "    - --advertise-address=10.0.0.11\n",
        "    - >-\n      --advertise-address=10.0.0.11\n",
    );
    let rows: [(&[&str], String, &str); 8] = [
        (&["kubeadm"], "a: [".to_owned(), "line 1"),
        (
            &["kubeadm"],
            "kind: Pod".to_owned(),
            "is not the manifest of a kube-apiserver",
        ),
        (
            &["kubeadm"],
            without("--advertise-address"),
            "has no --advertise-address",
        ),
        (
            &["kubeadm"],
            without("--proxy-client-cert-file"),
            "has no --proxy-client-cert-file",
        ),
        (
            &["kubeadm"],
            without("--etcd-servers"),
            "give --peer-registry=leases and --peer-cidrs",
        ),
        (
            &["kubeadm", "--peer-registry=leases"],
            NEW.to_owned(),
            "needs --peer-cidrs",
        ),
        (&["kubeadm"], other_host, "probes whose `host` is neither"),
        (
            &["kubeadm", "--undo"],
            "kind: Pod\nspec: {}".to_owned(),
            "is not the manifest",
        ),
    ];
    for (words, manifest, expected) in rows {
        let why = generated(words, &manifest).unwrap_err();
        assert!(why.contains(expected), "{words:?}: {why}");
    }
    // What can be parsed is edited, in whatever form it is written.
    assert!(generated(&["kubeadm"], &flow).is_ok());
}
