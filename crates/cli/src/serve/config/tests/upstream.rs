//! `--upstream` and the bridge user.

use super::*;

#[test]
fn another_bridge_user_has_only_the_given_groups() {
    let files = Files::new();
    let rows: [(&[&str], &str, &[&str]); 5] = [
        (&[], "system:apiserver", &["system:masters"]),
        (&["--bridge-user=skewbridge"], "skewbridge", &[]),
        (
            &["--bridge-user=skewbridge", "--bridge-groups=a,b"],
            "skewbridge",
            &["a", "b"],
        ),
        (&["--bridge-groups=a"], "system:apiserver", &["a"]),
        (&["--bridge-groups="], "system:apiserver", &[]),
    ];
    for (flags, name, groups) in rows {
        let flags: Vec<_> = flags.iter().map(|&flag| flag.to_owned()).collect();
        let user = files.parse(&flags).unwrap().0.upstream.bridge_user;
        assert_eq!(user.name, name, "{flags:?}");
        assert_eq!(user.groups, groups, "{flags:?}");
    }
}

#[test]
fn requests_are_spread_over_all_values_of_upstream() {
    let files = Files::new();
    let flags = [
        "--upstream=https://a.example".into(),
        "--upstream=https://b.example:7443,https://[fd00::1]".into(),
    ];
    let (config, warnings) = files.parse(&flags).unwrap();
    let servers = config.upstream.servers();
    let servers: Vec<_> = (servers.iter())
        .map(|it| (it.authority(), it.server_name.to_str().into_owned()))
        .collect();
    let expected = [
        ("a.example:6443", "a.example"),
        ("b.example:7443", "b.example"),
        ("[fd00::1]:6443", "fd00::1"),
    ];
    assert_eq!(servers, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
    assert_eq!(
        messages(&warnings),
        [
            "--upstream: has several values without --proxy-client-cert-file, \
          --requestheader-client-ca-file: requests are spread without regard to what each \
          kube-apiserver serves; set --proxy-client-cert-file, --requestheader-client-ca-file"
        ]
    );
    let named = [&flags[..], &["--upstream-server-name=kubernetes".into()]].concat();
    let servers = files.parse(&named).unwrap().0.upstream.servers();
    assert!(
        servers
            .iter()
            .all(|it| it.server_name.to_str() == "kubernetes")
    );
}

#[test]
fn several_upstreams_need_no_registry_and_differ() {
    let files = Files::new();
    let many = |last: &str, flag: &str| {
        let flags = ["--upstream=https://a", last, flag].map(str::to_owned);
        messages(&files.parse(&flags).unwrap_err().0)
    };
    for flag in [
        "--peer-registry=endpoints-unknown",
        "--peer-registry=etcd",
        "--peer-cidrs=10.0.0.0/8",
        "--peer-advertise-ip=10.0.0.1",
        "--peer-advertise-port=7443",
        "--apiserver-identity=apiserver-a",
        "--etcd-servers=http://127.0.0.1:2379",
    ] {
        let name = flag.split('=').next().unwrap();
        let problems = many("--upstream=https://b", flag);
        assert!(
            problems.iter().all(|it| it.starts_with(name)),
            "{problems:?}"
        );
        assert!(!problems.is_empty(), "{flag}");
    }
    let twice = many("--upstream=https://a:6443", "--v=0");
    assert_eq!(twice, ["--upstream: a:6443 is given twice"]);
    let insecure = many("--upstream=http://b", "--v=0");
    assert!(
        insecure[0].starts_with("--upstream: \"http://b\" is not https"),
        "{insecure:?}"
    );
    let all: Vec<_> = (0..40)
        .map(|it| format!("--upstream=https://h{it}"))
        .collect();
    let problems = files.parse(&all).unwrap_err();
    assert_eq!(
        messages(&problems.0),
        ["--upstream: has 40 values; 32 are supported"]
    );
}

#[test]
fn upstream_endpoints_alone_begins_with_the_service_in_a_pod() {
    let files = Files::new();
    let flag = |text: &str| text.to_owned();
    let front_proxy = [
        format!("--proxy-client-cert-file={}", files.path("tls.crt")),
        format!("--proxy-client-key-file={}", files.path("tls.key")),
    ];
    let in_pod = |host, port| {
        [
            ("KUBERNETES_SERVICE_HOST", host),
            ("KUBERNETES_SERVICE_PORT", port),
        ]
    };
    for (variables, expected) in [
        (in_pod("10.96.0.1", "443"), Some(("10.96.0.1", 443))),
        (in_pod("fd00::1", "6443"), Some(("fd00::1", 6443))),
        (in_pod("", "443"), None),
        (in_pod("10.96.0.1", ""), None),
        (in_pod("10.96.0.1", "none"), None),
    ] {
        let flags = [&[flag("--upstream=endpoints")], &front_proxy[..]].concat();
        match (files.parse_in(&variables, &flags), expected) {
            (Ok((config, _)), Some((host, port))) => {
                let upstream = config.upstream;
                assert_eq!((&*upstream.host, upstream.port), (host, port));
                assert!(upstream.others.is_empty());
                assert_eq!(upstream.server_name.to_str(), "kubernetes.default.svc");
                assert!(upstream.endpoints.is_some());
            }
            (Err(problems), None) => {
                let all = messages(&problems.0);
                assert!(all[0].contains("also needs the URL"), "{all:?}");
            }
            (parsed, _) => panic!("{variables:?} {parsed:?}"),
        }
    }
    // The environment does not change what a URL means.
    let variables = in_pod("10.96.0.1", "443");
    for value in ["https://a", "https://a,endpoints"] {
        let flags = [&[format!("--upstream={value}")], &front_proxy[..]].concat();
        let upstream = files.parse_in(&variables, &flags).unwrap().0.upstream;
        assert_eq!(upstream.host, "a");
        assert!(upstream.others.is_empty());
    }
    assert!(files.parse_in(&variables, &[flag("--upstream=")]).is_err());
}

#[test]
fn upstream_endpoints_needs_a_url_to_begin_with() {
    let files = Files::new();
    let parse = |flags: &[String]| files.parse(flags);
    let front_proxy = [
        format!("--proxy-client-cert-file={}", files.path("tls.crt")),
        format!("--proxy-client-key-file={}", files.path("tls.key")),
    ];
    for (flag, count) in [
        ("--upstream=https://a,endpoints", 1),
        ("--upstream=endpoints,https://a,https://b", 2),
    ] {
        let flags = [&[flag.to_owned()], &front_proxy[..]].concat();
        let upstream = parse(&flags).unwrap().0.upstream;
        assert_eq!(upstream.servers().len(), count);
        assert!(upstream.is_balanced());
        let name = upstream.endpoints.unwrap();
        assert_eq!(name.to_str(), "kubernetes.default.svc");
        let named = [&flags[..], &["--upstream-server-name=k".to_owned()]].concat();
        let upstream = parse(&named).unwrap().0.upstream;
        assert_eq!(upstream.endpoints.unwrap().to_str(), "k");
    }
    let rows = [
        (
            "--upstream=endpoints",
            "--upstream: endpoints also needs the URL of a kube-apiserver through which the \
             EndpointSlices are read first: --upstream=https://HOST[:PORT],endpoints; in a pod \
             the Service of KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT is used, which are \
             not set",
        ),
        (
            "--upstream=https://a,endpoints",
            "--upstream: endpoints needs --proxy-client-cert-file and --proxy-client-key-file: the \
             bridge reads the EndpointSlices as --bridge-user",
        ),
    ];
    for (flag, expected) in rows {
        let problems = parse(&[flag.to_owned()]).unwrap_err();
        assert_eq!(messages(&problems.0), [expected]);
    }
}

#[test]
fn the_admin_address_is_not_the_upstream() {
    let files = Files::new();
    for host in ["127.0.0.1", "localhost"] {
        let flags = [format!("--upstream=https://{host}:10270")];
        let problems = files.parse(&flags).unwrap_err();
        assert_eq!(
            messages(&problems.0),
            [format!(
                "--upstream: {host}:10270 is this bridge's --admin-address; set the address of \
                 kube-apiserver"
            )]
        );
        let separate = [flags[0].clone(), "--admin-address=127.0.0.1:10271".into()];
        assert!(files.parse(&separate).is_ok());
    }
}
