//! Discovery of the servers.

use http::Method;
use serde_json::Value;
use skewbridge_discovery::Document;
use skewbridge_discovery::accept::{V2, V2_BETA1};
use skewbridge_fake_cluster::catalogue::Release;

use crate::cluster_fixture::{Client, Cluster};

async fn get_response(
    client: &Client,
    path: &str,
    accept: &str,
) -> (u16, String, Option<String>, String) {
    let request = http::Request::get(format!("https://localhost{path}"))
        .header("accept", accept)
        .body(())
        .unwrap();
    let response = client.0.request(request, "").await.unwrap();
    (
        response.status,
        response
            .header("content-type")
            .unwrap_or_default()
            .to_owned(),
        response.header("etag").map(str::to_owned),
        response.text(),
    )
}

#[tokio::test]
async fn each_release_serves_its_discovery() {
    let cluster = Cluster::start().await;
    let mut counts = Vec::new();
    for server in cluster.servers() {
        let client = cluster.admin(server).await;
        let either = format!("{V2},{V2_BETA1},application/json");
        let (code, media, etag, text) = get_response(&client, "/apis", &either).await;
        assert_eq!(code, 200);
        let expected = if server.release().to_string() == "1.28" {
            V2_BETA1
        } else {
            V2
        };
        assert_eq!(media, expected);
        let document = Document::parse(text.as_bytes()).unwrap();
        counts.push(
            document
                .versions()
                .map(|(_, it)| it.resources.len())
                .sum::<usize>(),
        );
        let request = http::Request::get("https://localhost/apis")
            .header("accept", expected)
            .header("if-none-match", etag.unwrap())
            .body(())
            .unwrap();
        assert_eq!(client.0.request(request, "").await.unwrap().status, 304);
        // And as lists.
        let groups = client.get("/apis").await.body;
        assert_eq!(groups["kind"], "APIGroupList");
        assert_eq!(
            groups["groups"].as_array().unwrap().len(),
            document.items.len()
        );
        assert_eq!(client.get("/api").await.body["versions"][0], "v1");
        let listed = client.get("/api/v1").await.body;
        let names = listed["resources"].as_array().unwrap().iter();
        let mut names = names.filter_map(|it| it["name"].as_str());
        assert!(names.any(|name| name == "pods/exec"));
        assert_eq!(
            client.get("/apis/apps").await.body["preferredVersion"]["version"],
            "v1"
        );
        assert_eq!(
            client.get("/apis/apps/v1").await.body["kind"],
            "APIResourceList"
        );
        assert_eq!(client.get("/apis/apps/v9").await.code, 404);
        assert_eq!(client.get("/nothing").await.code, 404);
    }
    assert!(
        counts[0] != counts[1] && counts[1] != counts[2],
        "{counts:?}"
    );
}

#[tokio::test]
async fn unknown_paths_and_media_types_have_kube_apiservers_errors() {
    let cluster = Cluster::start().await;
    for server in cluster.servers() {
        let client = cluster.admin(server).await;
        let strange = match server.release() {
            Release::V1_28 => V2,
            _ => V2_BETA1,
        };
        for path in ["/api", "/apis"] {
            let (code, media, _, text) = get_response(&client, path, strange).await;
            assert_eq!((code, media.as_str()), (406, "application/json"), "{path}");
            // Plain text, because no accepted format is known.
            assert!(text.starts_with("{\n  \"kind\": \"Status\",\n"), "{text}");
            let status: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(status["reason"], "NotAcceptable");
        }
        let version = client.get("/api/v2").await;
        assert_eq!(
            (version.code, &version.body["kind"]),
            (404, &"Status".into())
        );
        let group = client.get("/apis/nope").await;
        assert_eq!(
            (group.code, group.body),
            (404, "404 page not found\n".into())
        );
        let endpoints = "/api/v1/namespaces/default/endpoints";
        let request = http::Request::get(format!("https://localhost{endpoints}"));
        let request = request.body(()).unwrap();
        let response = client.0.request(request, "").await.unwrap();
        let is_old = server.release() == Release::V1_28;
        assert_eq!(response.header("warning").is_none(), is_old);
    }
}

#[tokio::test]
async fn openapi_has_descriptions() {
    let cluster = Cluster::start().await;
    for server in cluster.servers() {
        let client = cluster.admin(server).await;
        let index = client.get("/openapi/v3").await.body;
        let apps = index["paths"]["apis/apps/v1"]["serverRelativeURL"]
            .as_str()
            .unwrap();
        assert!(apps.starts_with("/openapi/v3/apis/apps/v1?hash="));
        let groups = client.get("/apis").await.body;
        for version in groups["groups"].as_array().unwrap() {
            let version = version["preferredVersion"]["groupVersion"]
                .as_str()
                .unwrap();
            assert!(
                index["paths"][format!("apis/{version}")].is_object(),
                "{version}"
            );
        }
        let document = client.get(apps).await.body;
        let one = "/apis/apps/v1/namespaces/{namespace}/deployments/{name}";
        let patch = &document["paths"][one]["patch"];
        assert_eq!(
            patch["x-kubernetes-group-version-kind"]["kind"],
            "Deployment"
        );
        let parameters = patch["parameters"].as_array().unwrap();
        assert!(parameters.iter().any(|it| it["name"] == "fieldValidation"));
        let schemas = &document["components"]["schemas"];
        let replicas = &schemas["io.k8s.api.apps.v1.DeploymentSpec"]["properties"]["replicas"];
        assert_eq!(replicas["type"], "integer");
        assert!(schemas["io.k8s.api.core.v1.Container"].is_object());
        let v2 = client.get("/openapi/v2").await.body;
        assert_eq!(v2["swagger"], "2.0");
        assert!(v2["definitions"]["io.k8s.api.core.v1.Pod"].is_object());
        let media = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
        let (code, media, ..) = get_response(&client, "/openapi/v2", media).await;
        assert_eq!(code, 200);
        assert!(media.ends_with("spec.v2.v1.0+protobuf"));
    }
}

#[tokio::test]
async fn http_1_1_and_http_2_are_supported() {
    let cluster = Cluster::start().await;
    let mut client = cluster
        .pki
        .admin()
        .http1(cluster.old.address())
        .await
        .unwrap();
    for _ in 0..2 {
        let request = "GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n";
        client.send(request).await.unwrap();
        let response = client.read_response().await.unwrap();
        assert_eq!(response.status, 200);
        let version: Value = serde_json::from_str(&response.text()).unwrap();
        assert_eq!(version["gitVersion"], "v1.28.15");
        assert!(response.header("audit-id").is_some());
    }
    let client = cluster.admin(&cluster.old).await;
    let response = client.send_request(Method::HEAD, "/version", &[], "").await;
    assert_eq!((response.code, response.body), (200, "".into()));
    let metrics = client.get("/metrics").await.body;
    assert!(
        metrics
            .as_str()
            .unwrap()
            .contains("git_version=\"v1.28.15\"")
    );
    let root = client.get("/").await.body;
    assert!(
        root["paths"]
            .as_array()
            .unwrap()
            .contains(&"/apis/apps/v1".into())
    );
    assert_eq!(
        client
            .send_request(Method::POST, "/version", &[], "")
            .await
            .code,
        405
    );
}
