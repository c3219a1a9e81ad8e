//! Authentication and authorization.

use http::Method;
use serde_json::json;
use skewbridge_testkit::TlsClient;

use crate::cluster_fixture::{Client, Cluster, TestResponse, VISITOR_TOKEN};

const PODS: &str = "/api/v1/namespaces/default/pods";
const SELF_SUBJECT_REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

async fn send_request(
    client: &TlsClient,
    cluster: &Cluster,
    path: &str,
    headers: &[(&str, &str)],
) -> TestResponse {
    let client = Client(client.http2(cluster.new.address()).await.unwrap());
    client.send_request(Method::GET, path, headers, "").await
}

async fn current_user(
    client: &TlsClient,
    cluster: &Cluster,
    headers: &[(&str, &str)],
) -> TestResponse {
    let client = Client(client.http2(cluster.new.address()).await.unwrap());
    client
        .send_request(Method::POST, SELF_SUBJECT_REVIEWS, headers, "{}")
        .await
}

#[tokio::test]
async fn a_certificate_authenticates_a_user() {
    let cluster = Cluster::start().await;
    let response = current_user(&cluster.pki.admin(), &cluster, &[]).await;
    let user = &response.body["status"]["userInfo"];
    assert_eq!(user["username"], "admin", "{response:?}");
    assert_eq!(
        user["groups"],
        json!(["system:masters", "system:authenticated"])
    );
    let untrusted_ca = skewbridge_testkit::Ca::new("untrusted_ca");
    let without_certificate = cluster
        .pki
        .anonymous()
        .identity(&untrusted_ca.client("admin", &["system:masters"]));
    let refused = current_user(&without_certificate, &cluster, &[]).await;
    assert_eq!(
        (refused.code, &refused.body["message"]),
        (401, &json!("Unauthorized"))
    );
}

#[tokio::test]
async fn a_token_authenticates_a_user() {
    let cluster = Cluster::start().await;
    let bearer = format!("Bearer {VISITOR_TOKEN}");
    let headers = [("authorization", &*bearer)];
    let anonymous = cluster.pki.anonymous();
    let response = current_user(&anonymous, &cluster, &headers).await;
    assert_eq!(response.body["status"]["userInfo"]["username"], "visitor");
    assert_eq!(
        send_request(&anonymous, &cluster, PODS, &headers)
            .await
            .code,
        200
    );
    let refused = send_request(
        &anonymous,
        &cluster,
        "/api/v1/namespaces/kube-system/pods",
        &headers,
    )
    .await;
    assert_eq!(refused.code, 403);
    assert_eq!(
        refused.body["message"],
        "pods is forbidden: User \"visitor\" cannot list resource \"pods\" in API group \"\" in \
         the namespace \"kube-system\""
    );
    let wrong = [("authorization", "Bearer another")];
    assert_eq!(
        send_request(&anonymous, &cluster, PODS, &wrong).await.code,
        401
    );
}

#[tokio::test]
async fn anonymous_users_can_read_health_and_version() {
    let cluster = Cluster::start().await;
    let anonymous = cluster.pki.anonymous();
    for path in ["/healthz", "/livez", "/readyz", "/readyz/ping"] {
        let response = send_request(&anonymous, &cluster, path, &[]).await;
        let expected = if path == "/readyz/ping" { 403 } else { 200 };
        assert_eq!(response.code, expected, "{path}");
    }
    let version = send_request(&anonymous, &cluster, "/version", &[]).await;
    assert_eq!(version.body["gitVersion"], "v1.36.4");
    let refused = send_request(&anonymous, &cluster, "/api", &[]).await;
    assert_eq!(refused.code, 403);
    assert_eq!(
        refused.body["message"],
        "forbidden: User \"system:anonymous\" cannot get path \"/api\""
    );
}

#[tokio::test]
async fn a_front_proxy_asserts_users() {
    let cluster = Cluster::start().await;
    let headers = [
        ("x-remote-user", "jane"),
        ("x-remote-group", "system:masters"),
    ];
    let proxies = &cluster.pki.proxies;
    let proxy = cluster
        .pki
        .anonymous()
        .identity(&proxies.client("front-proxy", &[]));
    let response = current_user(&proxy, &cluster, &headers).await;
    assert_eq!(response.body["status"]["userInfo"]["username"], "jane");
    assert_eq!(
        send_request(&proxy, &cluster, PODS, &headers).await.code,
        200
    );
    // Without user headers, it is not anonymous.
    assert_eq!(
        send_request(&proxy, &cluster, "/healthz", &[]).await.code,
        401
    );
    let other = cluster
        .pki
        .anonymous()
        .identity(&proxies.client("somebody", &[]));
    assert_eq!(
        send_request(&other, &cluster, PODS, &headers).await.code,
        401
    );
    // Headers without the front-proxy certificate are ignored.
    let anonymous = cluster.pki.anonymous();
    assert_eq!(
        send_request(&anonymous, &cluster, PODS, &headers)
            .await
            .code,
        403
    );
}

#[tokio::test]
async fn an_administrator_can_impersonate_users() {
    let cluster = Cluster::start().await;
    let admin = cluster.pki.admin();
    let headers = [("impersonate-user", "visitor")];
    let response = current_user(&admin, &cluster, &headers).await;
    assert_eq!(response.body["status"]["userInfo"]["username"], "visitor");
    let nodes = send_request(&admin, &cluster, "/api/v1/nodes", &headers).await;
    assert_eq!(nodes.code, 403);
    let bearer = format!("Bearer {VISITOR_TOKEN}");
    let headers = [("authorization", &*bearer), ("impersonate-user", "admin")];
    let refused = send_request(&cluster.pki.anonymous(), &cluster, PODS, &headers).await;
    assert_eq!(refused.code, 403);
}

#[tokio::test]
async fn roles_apply_at_every_server() {
    let cluster = Cluster::start().await;
    let bearer = format!("Bearer {VISITOR_TOKEN}");
    let headers = [("authorization", &*bearer)];
    let anonymous = cluster.pki.anonymous();
    let nodes = "/api/v1/nodes";
    assert_eq!(
        send_request(&anonymous, &cluster, nodes, &headers)
            .await
            .code,
        403
    );
    let admin = cluster.admin(&cluster.old).await;
    let group = "/apis/rbac.authorization.k8s.io/v1";
    let role = json!({"metadata": {"name": "nodes"}, "rules": [
        {"verbs": ["list"], "apiGroups": [""], "resources": ["nodes"]},
    ]});
    assert_eq!(
        admin
            .post(&format!("{group}/clusterroles"), &role)
            .await
            .code,
        201
    );
    let binding = json!({
        "metadata": {"name": "nodes"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "nodes"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "visitor"}],
    });
    let bindings = format!("{group}/clusterrolebindings");
    assert_eq!(admin.post(&bindings, &binding).await.code, 201);
    assert_eq!(
        send_request(&anonymous, &cluster, nodes, &headers)
            .await
            .code,
        200
    );
    assert_eq!(admin.delete(&format!("{bindings}/nodes")).await.code, 200);
    assert_eq!(
        send_request(&anonymous, &cluster, nodes, &headers)
            .await
            .code,
        403
    );
}

#[tokio::test]
async fn access_reviews_are_answered() {
    let cluster = Cluster::start().await;
    let client = cluster.admin(&cluster.old).await;
    let group = "/apis/authorization.k8s.io/v1";
    let about = json!({"verb": "delete", "resource": "pods", "namespace": "default"});
    let mine = json!({"spec": {"resourceAttributes": about}});
    let response = client
        .post(&format!("{group}/selfsubjectaccessreviews"), &mine)
        .await;
    assert_eq!(
        (response.code, &response.body["status"]["allowed"]),
        (201, &json!(true))
    );
    let of_visitor = json!({"spec": {"user": "visitor", "resourceAttributes": about}});
    let response = client
        .post(&format!("{group}/subjectaccessreviews"), &of_visitor)
        .await;
    assert_eq!(response.body["status"]["allowed"], false);
    let path = json!({"spec": {"nonResourceAttributes": {"verb": "get", "path": "/metrics"}}});
    let response = client
        .post(&format!("{group}/selfsubjectaccessreviews"), &path)
        .await;
    assert_eq!(response.body["status"]["allowed"], true);
    let rules = json!({"spec": {"namespace": "default"}});
    let response = client
        .post(&format!("{group}/selfsubjectrulesreviews"), &rules)
        .await;
    assert_eq!(
        response.body["status"]["resourceRules"][0]["verbs"],
        json!(["*"])
    );
    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let response = client
        .post(reviews, &json!({"spec": {"token": VISITOR_TOKEN}}))
        .await;
    assert_eq!(response.body["status"]["user"]["username"], "visitor");
    let response = client
        .post(reviews, &json!({"spec": {"token": "wrong"}}))
        .await;
    assert_eq!(
        response.body["status"]["authenticated"],
        serde_json::Value::Null
    );
}
