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

const OPENAPI_OF_B: &str =
    "application/json;g=skewbridge.io;v=v1alpha1;as=ServerOpenAPI;server=apiserver-b";

#[tokio::test]
async fn a_bridge_passes_the_openapi_of_other_servers() {
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
        let local = with_fields("v1.34.4", &["a"]);
        let server = fixture
            .serve(move |seen| {
                if seen.path() == "/apis" {
                    return own(seen);
                }
                if seen.header("accept") != Some(OPENAPI_OF_B) {
                    return local(seen);
                }
                let document = match seen.path() {
                    "/openapi/v3" => openapi_index(),
                    "/openapi/v3/apis/apps/v1" => openapi(&["a", "b"]),
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
            _ => "Nothing to compare: 1 of 2 is known.\n",
        };
        assert!(ran.stdout.contains(expected), "{ran:?}");
    }
}
