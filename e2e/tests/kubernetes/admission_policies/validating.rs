//! A `ValidatingAdmissionPolicy`: 1.29 with the feature gate enforces it, 1.28 does not; 1.34 and 1.36 both do.

use super::*;

/// Creates a policy that rejects Deployments with the label `forbidden`, and its binding, through the bridge
/// of the old server.
async fn create_validating_policy(clients: &mut Clients, version: &str) {
    let api_version = format!("admissionregistration.k8s.io/{version}");
    let policy = json!({
        "apiVersion": api_version, "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "labels"},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{
                "apiGroups": ["apps"], "apiVersions": ["v1"],
                "operations": ["CREATE"], "resources": ["deployments"],
            }]},
            "validations": [{"expression": "!('forbidden' in object.metadata.labels)"}],
        },
    });
    let binding = json!({
        "apiVersion": api_version, "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "labels"},
        "spec": {"policyName": "labels", "validationActions": ["Deny"]},
    });
    for (resource, object) in [
        ("validatingadmissionpolicies", policy),
        ("validatingadmissionpolicybindings", binding),
    ] {
        let path = format!("/apis/{api_version}/{resource}");
        let (status, object) = send(&mut clients.old, "POST", &path, &object.to_string()).await;
        assert_eq!(status, 201, "{object}");
    }
}

/// A Deployment that the policy rejects.
fn forbidden(name: &str) -> String {
    let mut object: Value = serde_json::from_str(&deployment(name)).unwrap();
    object["metadata"]["labels"]["forbidden"] = json!("yes");
    object.to_string()
}

/// Waits until a server itself enforces the policy: its own informer has a delay.
async fn wait_until_rejected(client: &mut HttpClient) {
    let path = format!("{DEPLOYMENTS}?dryRun=All");
    eventually("the policy is active", TEST_TIMEOUT, async || {
        send(client, "POST", &path, &forbidden("probe")).await.0 == 422
    })
    .await;
}

/// Through the bridge of the old server, forbidden Deployments are rejected by the policy, and others are
/// created.
async fn assert_validated(clients: &mut Clients) {
    for _ in 0..REPETITIONS {
        let body = forbidden("forbidden");
        let (status, object) = send(&mut clients.old, "POST", DEPLOYMENTS, &body).await;
        assert_eq!(status, 422, "{object}");
        let message = object["message"].as_str().unwrap();
        assert!(message.contains("ValidatingAdmissionPolicy"), "{message}");
        let (status, object) = clients.deploy().await;
        assert_eq!(status, 201, "{object}");
    }
}

#[tokio::test]
async fn nothing_is_placed_by_a_validating_policy_that_both_servers_enforce() {
    let Some([old, new]) = old_and_new_versions() else {
        return;
    };
    let state = ScratchDir::new();
    let plane = start_control_plane(&old, &new, &state).await;
    let mut clients = Clients::new(&plane);
    create_validating_policy(&mut clients, "v1").await;
    for server in [OLD, NEW] {
        let mut direct = plane.http_client(server, Via::Server, Protocol::H2);
        wait_until_rejected(&mut direct).await;
    }
    // Dry runs before the policy was active.
    let before = create_count(&plane, OLD, "deployments");
    assert_validated(&mut clients).await;
    assert_eq!(placed(&plane).await, 0);
    assert_creates(&plane, OLD, "deployments", before + REPETITIONS).await;
}

/// The control plane of 1.28 and 1.29 (`--all`).
#[tokio::test]
async fn a_validating_policy_of_the_new_server_rejects_objects_of_the_old_bridge() {
    let Some([old, new]) = minors_of_one_plane([28, 29]) else {
        return;
    };
    let state = ScratchDir::new();
    let new = ServerSpec::of(&new).gate("ValidatingAdmissionPolicy", true);
    let mut plane = start_servers(ServerSpec::of(&old), new, &state).await;
    let mut clients = Clients::new(&plane);
    create_validating_policy(&mut clients, "v1beta1").await;
    wait_until_rejected(&mut clients.direct).await;
    assert_validated(&mut clients).await;
    let writes = 2 * REPETITIONS;
    assert_eq!(placed(&plane).await, u64::try_from(writes).unwrap());
    assert_eq!(create_count(&plane, OLD, "deployments"), 0);
    // The old server itself does not enforce it.
    let mut direct = plane.http_client(OLD, Via::Server, Protocol::H2);
    let (status, object) = send(&mut direct, "POST", DEPLOYMENTS, &forbidden("direct")).await;
    assert_eq!(status, 201, "{object}");

    plane.stop_server(NEW, "KILL");
    for _ in 0..REPETITIONS {
        let (status, object) = clients.deploy().await;
        assert_eq!(status, 503, "{object}");
        let message = object["message"].as_str().unwrap();
        assert!(message.contains("validatingadmissionpolicies"), "{message}");
        assert_eq!(clients.create_config_map().await.0, 201);
    }
}
