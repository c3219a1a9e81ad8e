//! Plugins that know of no proxy work as they always have.

use serde_json::{Value, json};
use skewbridge_client::Endpoint;
use skewbridge_client::exec::{CallStatus, ExecCall, calls_with_proxy};
use skewbridge_testkit::{ApiServer, Ca, Options, Reply};

use crate::stage::{Kind, LIMITS, Stage, ask};

#[tokio::test]
async fn a_plugin_is_told_about_the_cluster_and_gives_a_token() {
    let ca = Ca::new("cluster");
    let options = Options::new(ca.server(&["127.0.0.1"]));
    let server = ApiServer::start(options, |seen| {
        Reply::json(seen.header("authorization").unwrap_or("none").to_owned())
    })
    .await;
    let stage = Stage::new(Kind::Itself).await;
    let told = stage.dir.path().join("told");
    let good = r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":"secret-token"}}"#;
    let script = format!(
        "echo \"$PIN $KUBERNETES_EXEC_INFO\" > {}; echo '{good}'",
        told.display()
    );
    let mut plugin = Stage::script(&script);
    plugin["env"] = json!([{"name": "PIN", "value": "secret-pin"}]);
    plugin["provideClusterInfo"] = json!(true);
    let mut target = stage.target_of("u", &plugin);
    target.cluster.server = format!("https://{}", server.addr());
    target.cluster.proxy_url = None;
    target.cluster.certificate_authority = Some(skewbridge_client::kubeconfig::Material::Data(
        skewbridge_client::Secret::new(ca.pem()),
    ));
    target.cluster.exec_config = Some(json!({"audience": "x"}));
    let endpoint = Endpoint::prepare_within(&target, LIMITS).await.unwrap();
    assert!(!format!("{endpoint:?}").contains("secret"));
    assert_eq!(ask(&endpoint, "/").await.unwrap(), "Bearer secret-token");
    let told = std::fs::read_to_string(told).unwrap();
    let info = told.trim_end().strip_prefix("secret-pin ").unwrap();
    let info: Value = serde_json::from_str(info).unwrap();
    assert_eq!(info["spec"]["cluster"]["config"], json!({"audience": "x"}));
    assert_eq!(info["spec"]["cluster"]["server"], *target.cluster.server);
}

#[tokio::test]
async fn calls_are_counted_if_they_may_have_given_a_proxy() {
    let call = |code, call_status| {
        let calls = calls_with_proxy();
        calls.get_or_create(&ExecCall { code, call_status }).get()
    };
    let stage = Stage::new(Kind::Itself).await;
    let before = call(0, CallStatus::NoError);
    let _endpoint = stage.endpoint().await;
    // Other tests count, too.
    assert!(call(0, CallStatus::NoError) > before);
    let target = stage.target_of("u", &Stage::script("exit 77"));
    Endpoint::prepare_within(&target, LIMITS).await.unwrap_err();
    assert_eq!(call(77, CallStatus::PluginExecutionError), 1);
}
