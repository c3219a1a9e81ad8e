//! Lists of groups and resources, for clients that do not accept aggregated discovery.

use http::StatusCode;
use serde_json::json;
use skewbridge_discovery::accept::LEGACY;
use skewbridge_k8s_api::cbor;

use super::{get, local_response, mixed, response};

#[tokio::test]
async fn the_list_has_exactly_the_groups_that_a_server_serves() {
    let view = mixed();
    let local = json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [
        {"name": "b.example.com", "versions": [
            {"groupVersion": "b.example.com/v1", "version": "v1"},
            {"groupVersion": "b.example.com/v0", "version": "v0"}],
         "preferredVersion": {"groupVersion": "b.example.com/v1", "version": "v1"}},
        {"name": "dead.example.com", "versions": [
            {"groupVersion": "dead.example.com/v1", "version": "v1"}]}]});
    let local = || local_response(200, "application/json", local.to_string());
    let list = response(&view, get("/apis", LEGACY), local()).await;
    assert_eq!(
        list.names("groups", "name"),
        ["a.example.com", "b.example.com", "d.example.com"]
    );
    let versions = &list.json()["groups"][1]["versions"];
    assert_eq!(versions.as_array().unwrap().len(), 2);
    assert_eq!(list.content_type(), "application/json");

    let protobuf = "application/vnd.kubernetes.protobuf";
    let list = response(&view, get("/apis", protobuf), local()).await;
    assert_eq!(list.content_type(), protobuf);
    assert!(list.body.starts_with(b"k8s\0"));

    let pretty = response(&view, get("/apis?pretty=true", LEGACY), local()).await;
    assert!(pretty.body.starts_with(b"{\n  \"kind\""));
}

#[tokio::test]
async fn a_group_that_only_a_peer_serves_is_listed() {
    let view = mixed();
    let local = local_response(404, "text/plain", "404 page not found\n");
    let group = response(&view, get("/apis/a.example.com", LEGACY), local).await;
    assert_eq!(group.status, StatusCode::OK);
    assert_eq!(group.json()["name"], "a.example.com");
    assert_eq!(group.names("versions", "version"), ["v1"]);
}

#[tokio::test]
async fn resources_of_a_version_are_merged() {
    let view = mixed();
    let local = json!({"kind": "APIResourceList", "apiVersion": "v1",
        "groupVersion": "b.example.com/v1", "resources": [{"name": "things", "singularName": "",
        "namespaced": false, "kind": "Thing", "verbs": ["list"], "storageVersionHash": "x="}]});
    let path = "/apis/b.example.com/v1";
    let list = response(
        &view,
        get(path, LEGACY),
        local_response(200, "application/json", local.to_string()),
    )
    .await;
    assert_eq!(list.names("resources", "name"), ["things", "others"]);
    assert_eq!(list.json()["resources"][0]["storageVersionHash"], "x=");

    // The response is CBOR if the local server offers it, otherwise JSON.
    let list = response(
        &view,
        get(path, "application/cbor,application/json;q=0.8"),
        local_response(200, "application/cbor", cbor::write(&local)),
    )
    .await;
    assert_eq!(list.content_type(), "application/cbor");
    let value = cbor::read(&list.body).unwrap();
    assert_eq!(value["resources"].as_array().unwrap().len(), 2);
    let list = response(
        &view,
        get(path, "application/cbor,application/json;q=0.8"),
        local_response(200, "application/json", local.to_string()),
    )
    .await;
    assert_eq!(list.content_type(), "application/json");

    // A version that only a peer has.
    let local = local_response(404, "text/plain", "404 page not found\n");
    let list = response(&view, get("/apis/b.example.com/v2", LEGACY), local).await;
    assert_eq!(list.status, StatusCode::OK);
    assert_eq!(list.json()["groupVersion"], "b.example.com/v2");
    assert_eq!(list.names("resources", "name"), ["things"]);
}

#[tokio::test]
async fn a_list_that_cannot_be_parsed_is_forwarded_unmodified() {
    let view = mixed();
    for (path, accept) in [("/apis", LEGACY), ("/apis/b.example.com/v1", LEGACY)] {
        let local = local_response(200, "application/json", "nonsense");
        let response = response(&view, get(path, accept), local).await;
        assert_eq!(&*response.body, b"nonsense");
    }
}
