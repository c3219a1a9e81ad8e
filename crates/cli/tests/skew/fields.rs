//! `skewbridge skew --fields`.

use serde_json::json;
use skewbridge_testkit::Reply;

use crate::skew_fixture::{
    SkewFixture, bridge_before, old, openapi, openapi_index, plain, server_entry, with_fields,
};
use crate::{FAILED, OK, SKEW};

#[tokio::test]
async fn fields_of_servers_are_compared() {
    let fixture = SkewFixture::new();
    let first = fixture.serve(with_fields("v1.34.4", &["a"])).await;
    let second = fixture.serve(with_fields("v1.36.4", &["a", "b"])).await;
    let third = fixture.serve(plain("v1.22.0", &old())).await;
    let config = fixture.kubeconfig(&[
        ("old", first.addr()),
        ("new", second.addr()),
        ("same", second.addr()),
        ("oldest", third.addr()),
    ]);
    let config = format!("--kubeconfig={}", config.display());
    let base = ["--fields", &*config, "--context=new"];
    let ran = fixture
        .skew(&[&base[..], &["--context=old"]].concat())
        .await;
    assert_eq!(ran.code, SKEW, "{ran:?}");
    let expected = "\
SERVER   VERSION   KINDS
new      v1.36.4   1
old      v1.34.4   1

FIELD      KNOWN BY
sets.apps (Set)
  spec.b   only new

A write through new erases no field.

A write through old can erase fields of 1 kind: sets.apps
";
    assert_eq!(ran.stdout, expected);
    let ran = fixture
        .skew(&[&base[..], &["--context=same"]].concat())
        .await;
    assert_eq!(ran.code, OK, "{ran:?}");
    let ran = fixture
        .skew(&[&base[..], &["--context=oldest", "-o=json"]].concat())
        .await;
    assert_eq!(ran.code, FAILED, "{ran:?}");
    assert!(
        ran.stderr.contains("oldest: the server has no OpenAPI v3"),
        "{ran:?}"
    );
    assert_eq!(ran.json()["complete"], false);
}

const OPENAPI_OF_A: &str =
    "application/json;g=skewbridge.io;v=v1alpha1;as=ServerOpenAPI;server=apiserver-a";
const OPENAPI_OF_B: &str =
    "application/json;g=skewbridge.io;v=v1alpha1;as=ServerOpenAPI;server=apiserver-b";

#[tokio::test]
async fn a_bridge_answers_with_the_openapi_of_the_server_that_is_named() {
    let fixture = SkewFixture::new();
    let sets = json!([{"metadata": {"name": "apps"}, "versions": [{"version": "v1", "resources": [
        {"resource": "sets", "responseKind": {"kind": "Set"}}]}]}]);
    let mut local = server_entry("apiserver-a", &sets);
    local["local"] = json!(true);
    let list = json!({"servers": [local, server_entry("apiserver-b", &sets)]});
    for (media_type, code) in [
        (OPENAPI_OF_B, SKEW),
        // A bridge that ignores the media type has sent its local server's document.
        ("application/json", FAILED),
    ] {
        let own = bridge_before("v1.34.4", &sets, list.clone());
        let server = fixture
            .serve(move |seen| {
                if seen.path() == "/apis" {
                    return own(seen);
                }
                let fields: &[&str] = match seen.header("accept") {
                    Some(OPENAPI_OF_A) => &["a"],
                    Some(OPENAPI_OF_B) => &["a", "b"],
                    accept => panic!("{accept:?}"),
                };
                let document = match seen.path() {
                    "/openapi/v3" => openapi_index(),
                    "/openapi/v3/apis/apps/v1" => openapi(fields),
                    path => panic!("{path}"),
                };
                let reply = Reply::new(200).header("Content-Type", media_type);
                reply.body(document.to_string())
            })
            .await;
        let config = fixture.kubeconfig(&[("prod", server.addr())]);
        let config = format!("--kubeconfig={}", config.display());
        let ran = fixture.skew(&["--fields", &config]).await;
        assert_eq!(ran.code, code, "{ran:?}");
        let expected = match code {
            SKEW => "  spec.b   only apiserver-b\n",
            _ => "Nothing to compare: 0 of 2 is known.\n",
        };
        assert!(ran.stdout.contains(expected), "{ran:?}");
    }
}
