//! Plugins without a proxy.

use serde_json::{Value, json};
use skewbridge_client::exec_plugin::{CallStatus, ExecCallLabels, proxy_call_counter};
use skewbridge_client::{Endpoint, Request};
use skewbridge_k8s_api::content_negotiation::Format;
use skewbridge_k8s_api::status::Status;
use skewbridge_testkit::{ApiServer, Ca, Options, Reply};

use crate::fixture::{Fixture, KEY_OWNER, PluginKind, TIMEOUTS, get};

#[tokio::test]
async fn a_plugin_gets_the_cluster_info_and_returns_a_token() {
    let ca = Ca::new("cluster");
    let options = Options::new(ca.server(&["127.0.0.1"]));
    let server = ApiServer::start(options, |seen| {
        Reply::json(seen.header("authorization").unwrap_or("none").to_owned())
    })
    .await;
    let fixture = Fixture::new(PluginKind::Itself).await;
    let recorded = fixture.dir.path().join("recorded");
    let good = r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":"secret-token"}}"#;
    let script = format!(
        "echo \"$PIN $KUBERNETES_EXEC_INFO\" > {}; echo '{good}'",
        recorded.display()
    );
    let mut plugin = Fixture::script(&script);
    plugin["env"] = json!([{"name": "PIN", "value": "secret-pin"}]);
    plugin["provideClusterInfo"] = json!(true);
    let mut target = fixture.target_of("u", &plugin);
    target.cluster.server = format!("https://{}", server.addr());
    target.cluster.proxy_url = None;
    target.cluster.certificate_authority = Some(skewbridge_client::kubeconfig::PemSource::Data(
        skewbridge_client::Secret::new(ca.pem()),
    ));
    target.cluster.exec_config = Some(json!({"audience": "x"}));
    let endpoint = Endpoint::prepare_with_timeouts(&target, TIMEOUTS)
        .await
        .unwrap();
    assert!(!format!("{endpoint:?}").contains("secret"));
    assert_eq!(get(&endpoint, "/").await.unwrap(), "Bearer secret-token");
    let recorded = std::fs::read_to_string(recorded).unwrap();
    let info = recorded.trim_end().strip_prefix("secret-pin ").unwrap();
    let info: Value = serde_json::from_str(info).unwrap();
    assert_eq!(info["spec"]["cluster"]["config"], json!({"audience": "x"}));
    assert_eq!(info["spec"]["cluster"]["server"], *target.cluster.server);
}

#[tokio::test]
async fn without_a_proxy_the_certificate_chain_is_sent_to_the_cluster() {
    let fixture = Fixture::new(PluginKind::Itself).await;
    let pair = fixture.cluster_ca.intermediate("below").client("jane", &[]);
    assert_eq!(pair.chain_der.len(), 2);
    let document = json!({
        "kind": "ExecCredential",
        "apiVersion": "client.authentication.k8s.io/v1",
        "status": {"clientCertificateData": pair.cert_pem, "clientKeyData": pair.key_pem},
    });
    let file = fixture.dir.write("document", document.to_string());
    let script = format!("cat {}", file.display());
    let mut target = fixture.target_of("u", &Fixture::script(&script));
    target.cluster.proxy_url = None;
    let endpoint = Endpoint::prepare_with_timeouts(&target, TIMEOUTS)
        .await
        .unwrap();
    assert_eq!(get(&endpoint, "/x").await.unwrap(), "jane /x");
}

#[tokio::test]
async fn without_provide_cluster_info_the_plugin_gets_no_cluster() {
    let fixture = Fixture::new(PluginKind::Itself).await;
    let good = r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":"t"}}"#;
    let recorded = fixture.dir.path().join("recorded");
    let script = format!(
        "echo \"$KUBERNETES_EXEC_INFO\" > {}; echo '{good}'",
        recorded.display()
    );
    let target = fixture.target_of("u", &Fixture::script(&script));
    Endpoint::prepare_with_timeouts(&target, TIMEOUTS)
        .await
        .unwrap();
    let recorded = std::fs::read_to_string(recorded).unwrap();
    let info: Value = serde_json::from_str(&recorded).unwrap();
    assert_eq!(info["spec"]["interactive"], false);
    assert_eq!(info["spec"].get("cluster"), None);
}

#[tokio::test]
async fn calls_that_may_return_a_proxy_are_counted() {
    let call = |code, call_status| {
        let calls = proxy_call_counter();
        calls
            .get_or_create(&ExecCallLabels { code, call_status })
            .get()
    };
    let fixture = Fixture::new(PluginKind::Itself).await;
    let before = call(0, CallStatus::NoError);
    let _endpoint = fixture.endpoint().await;
    // Other tests count, too.
    assert!(call(0, CallStatus::NoError) > before);
    let target = fixture.target_of("u", &Fixture::script("exit 77"));
    Endpoint::prepare_with_timeouts(&target, TIMEOUTS)
        .await
        .unwrap_err();
    assert_eq!(call(77, CallStatus::PluginExecutionError), 1);
    let mut absent = Fixture::script("");
    absent["command"] = json!("/nonexistent/login");
    for (plugin, status) in [
        (absent, CallStatus::PluginNotFoundError),
        (
            Fixture::script("echo nonsense"),
            CallStatus::ClientInternalError,
        ),
    ] {
        let before = call(1, status);
        let target = fixture.target_of("u", &plugin);
        Endpoint::prepare_with_timeouts(&target, TIMEOUTS)
            .await
            .unwrap_err();
        assert!(call(1, status) > before, "{status:?}");
    }
}

#[tokio::test]
async fn a_v1beta1_plugin_works_with_and_without_a_proxy() {
    const V1BETA1: &str = "client.authentication.k8s.io/v1beta1";
    let fixture = Fixture::new(PluginKind::Itself).await;
    let mut plugin = fixture.plugin();
    plugin["apiVersion"] = json!(V1BETA1);
    // Optional in this version.
    plugin.as_object_mut().unwrap().remove("interactiveMode");
    let target = fixture.target_of("u", &plugin);
    let endpoint = Endpoint::prepare_with_timeouts(&target, TIMEOUTS)
        .await
        .unwrap();
    assert_eq!(
        get(&endpoint, "/x").await.unwrap(),
        format!("{KEY_OWNER} /x")
    );
    let exec_info: Value = serde_json::from_str(&fixture.recorded("exec-info")).unwrap();
    assert_eq!(exec_info["apiVersion"], V1BETA1);
    assert!(exec_info["spec"]["lockFilePath"].is_string(), "{exec_info}");
    let pair = fixture.cluster_ca.client("jane", &[]);
    let document = json!({
        "kind": "ExecCredential",
        "apiVersion": V1BETA1,
        "status": {"clientCertificateData": pair.cert_pem, "clientKeyData": pair.key_pem},
    });
    let file = fixture.dir.write("document", document.to_string());
    let mut plugin = Fixture::script(&format!("cat {}", file.display()));
    plugin["apiVersion"] = json!(V1BETA1);
    let mut target = fixture.target_of("u", &plugin);
    target.cluster.proxy_url = None;
    let endpoint = Endpoint::prepare_with_timeouts(&target, TIMEOUTS)
        .await
        .unwrap();
    assert_eq!(get(&endpoint, "/y").await.unwrap(), "jane /y");
    // Another version than configured.
    plugin["apiVersion"] = json!("client.authentication.k8s.io/v1");
    let target = fixture.target_of("u", &plugin);
    let error = Endpoint::prepare_with_timeouts(&target, TIMEOUTS)
        .await
        .unwrap_err();
    assert!(error.to_string().contains(V1BETA1), "{error}");
}

/// The 401 body of kube-apiserver.
const UNAUTHORIZED: &str = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}"#;

/// A cluster that accepts all tokens but one, and a plugin that returns `token-1`, `token-2`
/// and so on, unless it has to fail.
struct Tokens {
    fixture: Fixture,
    _server: ApiServer,
    endpoint: Endpoint,
}

impl Tokens {
    async fn new(refused: &'static str, status: &str) -> Self {
        let ca = Ca::new("cluster");
        let options = Options::new(ca.server(&["127.0.0.1"]));
        let server = ApiServer::start(options, move |seen| {
            let token = seen.header("authorization").unwrap_or("none").to_owned();
            if seen.path().ends_with("/proxy/login") {
                return Reply::new(401).body("who are you?");
            }
            if token == format!("Bearer {refused}") && seen.path().ends_with("/protobuf") {
                let status = Status::unauthorized().encode(Format::Protobuf);
                return Reply::new(401).body(status);
            }
            if token == format!("Bearer {refused}") {
                return Reply::new(401).body(UNAUTHORIZED);
            }
            Reply::json(token)
        })
        .await;
        let fixture = Fixture::new(PluginKind::Itself).await;
        let script = format!(
            "cd {}; test -e fail && {{ echo no card >&2; exit 1; }}; echo x >> count; \
             n=$(wc -l < count | tr -d ' '); \
             echo '{{\"kind\":\"ExecCredential\",\"apiVersion\":\"client.authentication.k8s.io/v1\",\
             \"status\":{{{status}\"token\":\"token-'$n'\"}}}}'",
            fixture.dir.path().display()
        );
        let mut target = fixture.target_of("u", &Fixture::script(&script));
        target.cluster.server = format!("https://{}", server.addr());
        target.cluster.proxy_url = None;
        target.cluster.certificate_authority =
            Some(skewbridge_client::kubeconfig::PemSource::Data(
                skewbridge_client::Secret::new(ca.pem()),
            ));
        let endpoint = Endpoint::prepare_with_timeouts(&target, TIMEOUTS)
            .await
            .unwrap();
        Self {
            fixture,
            _server: server,
            endpoint,
        }
    }

    /// A request on the last connection, if that may be reused.
    async fn get(&self) -> (u16, String) {
        self.get_path("/").await
    }

    async fn get_path(&self, path: &str) -> (u16, String) {
        let answer = self.endpoint.send(&Request::get(path)).await.unwrap();
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        (answer.status.as_u16(), text)
    }

    fn execs(&self) -> usize {
        self.fixture.recorded("count").lines().count()
    }
}

#[tokio::test]
async fn an_expired_credential_is_not_used_on_an_open_connection() {
    let past = r#""expirationTimestamp":"2001-01-01T00:00:00Z","#;
    let tokens = Tokens::new("none", past).await;
    let (first, second) = (tokens.get().await.1, tokens.get().await.1);
    assert_eq!((&*first, &*second), ("Bearer token-1", "Bearer token-2"));
    assert_eq!(tokens.execs(), 2);
    let tokens = Tokens::new("none", "").await;
    for _ in 0..2 {
        assert_eq!(tokens.get().await.1, "Bearer token-1");
    }
    assert_eq!(tokens.execs(), 1);
}

#[tokio::test]
async fn after_401_the_next_request_uses_a_new_credential() {
    let tokens = Tokens::new("token-1", "").await;
    assert_eq!(tokens.get().await.0, 401);
    assert_eq!(tokens.execs(), 1, "not before it is needed");
    assert_eq!(tokens.get().await, (200, "Bearer token-2".to_owned()));
    assert_eq!(tokens.get().await.1, "Bearer token-2");
    assert_eq!(tokens.execs(), 2);
}

#[tokio::test]
async fn renewing_runs_the_plugin_once_and_only_if_needed() {
    let tokens = Tokens::new("token-1", "").await;
    let kept = tokens.endpoint.renewed().await.unwrap();
    assert_eq!(tokens.execs(), 1, "it is good");
    assert_eq!(kept.send(&Request::get("/")).await.unwrap().status, 401);
    for _ in 0..2 {
        tokens.endpoint.renewed().await.unwrap();
        assert_eq!(tokens.execs(), 2, "it was refused");
    }
    let past = r#""expirationTimestamp":"2001-01-01T00:00:00Z","#;
    let tokens = Tokens::new("none", past).await;
    tokens.endpoint.renewed().await.unwrap();
    assert_eq!(
        tokens.execs(),
        1,
        "it had expired, and has not been used yet"
    );
    tokens.get().await;
    tokens.endpoint.renewed().await.unwrap();
    assert_eq!(tokens.execs(), 2, "it has expired");
}

#[tokio::test]
async fn a_401_of_a_workload_does_not_run_the_plugin_again() {
    const SERVICE: &str = "/api/v1/namespaces/shop/services/web/proxy";
    let tokens = Tokens::new("none", "").await;
    for path in [
        &*format!("{SERVICE}/login"),
        "/api/v1/nodes/n/proxy/login?next=/api/v1/pods",
        "/api/v1/namespaces/shop/pods/web/proxy/login",
    ] {
        assert_eq!(
            tokens.get_path(path).await,
            (401, "who are you?".to_owned())
        );
        assert_eq!(tokens.get().await.1, "Bearer token-1", "{path}");
    }
    assert_eq!(tokens.execs(), 1);
    // From the cluster itself.
    let tokens = Tokens::new("token-1", "").await;
    let path = format!("{SERVICE}/page");
    assert_eq!(tokens.get_path(&path).await, (401, UNAUTHORIZED.to_owned()));
    assert_eq!(
        tokens.get_path(&path).await,
        (200, "Bearer token-2".to_owned())
    );
    let tokens = Tokens::new("token-1", "").await;
    assert_eq!(tokens.get_path(&format!("{SERVICE}/protobuf")).await.0, 401);
    assert_eq!(
        tokens.get_path(&path).await,
        (200, "Bearer token-2".to_owned())
    );
    // A namespace may have this name.
    let tokens = Tokens::new("token-1", "").await;
    assert_eq!(
        tokens.get_path("/api/v1/namespaces/proxy/pods").await.0,
        401
    );
    assert_eq!(tokens.get().await.1, "Bearer token-2");
}

/// As in client-go: a 401 may have had another reason.
#[tokio::test]
async fn after_401_a_failing_plugin_keeps_the_old_credential() {
    let tokens = Tokens::new("token-1", "").await;
    assert_eq!(tokens.get().await.0, 401);
    tokens.fixture.dir.write("fail", "");
    assert_eq!(tokens.get().await.0, 401);
    std::fs::remove_file(tokens.fixture.dir.path().join("fail")).unwrap();
    assert_eq!(tokens.get().await, (200, "Bearer token-2".to_owned()));
}

#[tokio::test]
async fn after_401_a_failing_plugin_keeps_the_old_credential_for_all_callers() {
    let tokens = Tokens::new("token-1", "").await;
    assert_eq!(tokens.get().await.0, 401);
    tokens.fixture.dir.write("fail", "");
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let endpoint = tokens.endpoint.clone();
        all.spawn(async move { endpoint.connect().await.map(drop) });
    }
    for connected in all.join_all().await {
        connected.unwrap();
    }
}
