use super::*;

const FULL_CONFIG: &str = r#"
apiVersion: v1
kind: Config
preferences: {}
current-context: dev
clusters:
- name: here
  cluster:
    server: https://10.0.0.1:6443
    certificate-authority: pki/ca.crt
    tls-server-name: kubernetes
    proxy-url: http://me:hunter2@proxy:3128
    extensions:
    - name: client.authentication.k8s.io/exec
      extension: {audience: x}
- name: there
  note: what is unknown
  user: is passed over
  cluster:
    server: https://it:secret@there
    insecure-skip-tls-verify: true
    certificate-authority-data: |
      aGVs
      bG8=
    certificate-authority: /ignored
contexts:
- name: dev
  context: {cluster: here, user: me, namespace: shop}
- name: nobody
  context: {cluster: there}
- name: lost
  context: {cluster: nowhere, user: me}
- name: stranger
  context: {cluster: here, user: who}
users:
- name: me
  user:
    client-certificate: ../me.crt
    client-key-data: c2VjcmV0LWtleQ==
    token: secret-token
    tokenFile: /run/token
    username: me
    password: secret-password
    as: you
    as-uid: "7"
    as-groups: [a, b]
    as-user-extra: {scopes: [x, y]}
    exec:
      apiVersion: client.authentication.k8s.io/v1
      command: bin/login
      args: [--for, shop=secret]
      env:
      - name: PIN
        value: secret-pin
      interactiveMode: IfAvailable
      provideClusterInfo: true
      installHint: ask the platform team
"#;

fn parse(text: &str) -> Result<Kubeconfig, Error> {
    Kubeconfig::parse(text, Path::new("/home/me/.kube/config"))
}

#[test]
fn all_fields_are_read_and_paths_are_relative_to_the_file() {
    let target = parse(FULL_CONFIG).unwrap().target(None).unwrap();
    assert_eq!(target.context, "dev");
    assert_eq!(target.namespace.as_deref(), Some("shop"));
    let ca = PemSource::File("/home/me/.kube/pki/ca.crt".into());
    assert_eq!(target.cluster.certificate_authority, Some(ca));
    assert_eq!(
        target.cluster.tls_server_name.as_deref(),
        Some("kubernetes")
    );
    assert_eq!(
        target.cluster.exec_config,
        Some(serde_json::json!({"audience": "x"}))
    );
    let user = target.user;
    let certificate = PemSource::File("/home/me/.kube/../me.crt".into());
    assert_eq!(user.client_certificate, Some(certificate));
    assert_eq!(
        user.client_key,
        Some(PemSource::Data(Secret::new("secret-key")))
    );
    assert_eq!(user.token_file, Some("/run/token".into()));
    assert_eq!(user.impersonate.user.as_deref(), Some("you"));
    assert_eq!(user.impersonate.groups, ["a", "b"]);
    assert_eq!(user.impersonate.extra["scopes"], ["x", "y"]);
    let exec = user.exec.unwrap();
    assert_eq!(exec.command, Path::new("/home/me/.kube/bin/login"));
    let args: Vec<_> = exec.args.iter().map(Secret::expose).collect();
    assert_eq!(args, [&b"--for"[..], b"shop=secret"]);
    assert_eq!(exec.api_version, ExecVersion::V1);
    assert_eq!(exec.interactive_mode, InteractiveMode::IfAvailable);
    assert!(exec.provide_cluster_info);
}

#[test]
fn inline_data_takes_precedence_and_a_context_needs_no_user() {
    let target = parse(FULL_CONFIG).unwrap().target(Some("nobody")).unwrap();
    let ca = PemSource::Data(Secret::new("hello"));
    assert_eq!(target.cluster.certificate_authority, Some(ca));
    assert!(target.cluster.insecure_skip_tls_verify);
    assert_eq!(target.server(), "https://there");
    assert_eq!(target.user, User::default());
}

#[test]
fn missing_entries_are_named() {
    let config = parse(FULL_CONFIG).unwrap();
    let rows = [
        (
            "prod",
            "context \"prod\" does not exist in /home/me/.kube/config; available: dev, lost, nobody, stranger",
        ),
        (
            "lost",
            "cluster \"nowhere\" does not exist in /home/me/.kube/config; available: here, there",
        ),
        (
            "stranger",
            "user \"who\" does not exist in /home/me/.kube/config; available: me",
        ),
    ];
    for (context, expected) in rows {
        let error = config.target(Some(context)).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
    let null_as_default = parse("contexts: [{name: a}]").unwrap();
    assert_eq!(
        null_as_default.target(None).unwrap_err().to_string(),
        "current-context is not set in /home/me/.kube/config; give --context; available: a"
    );
}

#[test]
fn no_secret_is_shown() {
    let config = parse(FULL_CONFIG).unwrap();
    let debug_text = format!("{config:?} {:#?}", config.target(None).unwrap());
    let base64 = ["c2VjcmV0LWtleQ", "aGVs"];
    for secret in ["secret", "hunter2"].into_iter().chain(base64) {
        assert!(!debug_text.contains(secret), "{secret} in {debug_text}");
    }
    // Not as a list of bytes either.
    assert!(!debug_text.contains("115, 101, 99"), "{debug_text}");
    assert!(debug_text.contains("[redacted]"));
}

#[test]
fn empty_and_null_fields_are_absent() {
    for text in [
        "",
        "\n",
        "{}",
        "apiVersion: v1\nclusters: null\ncontexts: null\nusers: null\ncurrent-context: \"\"\n",
    ] {
        let config = parse(text).unwrap();
        assert!(config.contexts.is_empty(), "{text}");
        assert_eq!(config.current_context, None, "{text}");
    }
    // Values that look like numbers are names or tokens all the same.
    let numbers = "users: [{name: 1, user: {token: 0123, as-uid: 7, username: true}}]";
    let user = &parse(numbers).unwrap().users["1"];
    assert_eq!(user.token, Some(Secret::new("0123")));
    assert_eq!(user.impersonate.uid.as_deref(), Some("7"));
    assert_eq!(user.username.as_deref(), Some("true"));
    let sparse = "{\"clusters\":[{\"name\":\"c\",\"cluster\":null}],\"users\":[{\"name\":\"u\"}]}";
    let config = parse(sparse).unwrap();
    assert_eq!(config.clusters["c"], Cluster::default());
    assert_eq!(config.users["u"], User::default());
}

#[test]
fn parse_errors_give_the_position_and_not_the_text() {
    let rows = [
        "users: [{name: u, user: {token: [hunter2]}}]",
        "users: {hunter2: 1}",
        "hunter2",
        "users: [{name: u, user: {token: \"hunter2}}]",
        "users: [{name: u, user: {client-key-data: hunter2!}}]",
    ];
    for text in rows {
        let error = parse(text).unwrap_err();
        let message = format!("{error} {error:?}");
        assert!(!message.contains("hunter2"), "{message}");
    }
    let error = parse("users: [{name: u}, {name: u}]").unwrap_err();
    assert_eq!(
        error.to_string(),
        "/home/me/.kube/config: duplicate name \"u\" in the list of users"
    );
}

#[test]
fn plugins_are_validated_as_kubectl_does() {
    let rows = [
        ("{command: x}", "exec has no apiVersion"),
        (
            "{apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never}",
            "exec has no command",
        ),
        (
            "{apiVersion: client.authentication.k8s.io/v1alpha1, command: x}",
            "exec has apiVersion \"client.authentication.k8s.io/v1alpha1\"",
        ),
        (
            "{apiVersion: client.authentication.k8s.io/v1, command: x}",
            "interactiveMode must be specified",
        ),
        (
            "{apiVersion: client.authentication.k8s.io/v1, command: x, interactiveMode: Maybe}",
            "invalid interactiveMode \"Maybe\"",
        ),
    ];
    for (exec, expected) in rows {
        let text = format!(
            "users: [{{name: u, user: {{exec: {exec}}}}}]\nclusters: [{{name: c}}]\n\
             contexts: [{{name: a, context: {{cluster: c, user: u}}}}, {{name: b, context: {{cluster: c}}}}]"
        );
        let config = parse(&text).unwrap();
        // Other users are not affected.
        assert!(config.target(Some("b")).is_ok());
        let error = config.target(Some("a")).unwrap_err().to_string();
        assert!(error.starts_with("user \"u\": "), "{error}");
        assert!(error.contains(expected), "{error}");
    }
    let provider = "users: [{name: u, user: {auth-provider: {name: gcp}}}]";
    let problem = parse(provider).unwrap().users["u"].problem.clone();
    assert!(problem.unwrap().contains("auth-provider \"gcp\""));
    let beta = "users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: x}}}]";
    let exec = parse(beta).unwrap().users["u"].exec.clone().unwrap();
    assert_eq!(exec.command, Path::new("x"));
    assert_eq!(exec.interactive_mode, InteractiveMode::IfAvailable);
}

proptest::proptest! {
    #[test]
    fn no_text_causes_a_panic(text in ".{0,200}") {
        let _ = parse(&text);
    }

    #[test]
    fn merging_keeps_existing_entries(one in "[a-c]{1,3}", two in "[a-c]{1,3}") {
        let config = |names: &str, server: &str| {
            let mut config = Kubeconfig::default();
            for name in names.chars() {
                let cluster = Cluster { server: server.to_owned(), ..Cluster::default() };
                config.clusters.insert(name.to_string(), cluster);
            }
            config
        };
        let merged = config(&one, "one").merge(config(&two, "two"));
        for (name, cluster) in &merged.clusters {
            let first = one.contains(name.as_str());
            assert_eq!(cluster.server, if first { "one" } else { "two" });
            assert!(first || two.contains(name.as_str()));
        }
    }
}
