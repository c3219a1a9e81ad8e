//! `local`: a list of the local server through its bridge, next to the direct one.

use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::json;
use skewbridge_e2e::{ControlPlane, Protocol as Http, Request, ServerSpec, Via, newest};

use super::candidate::Candidate;
use super::result::{KubeLoadResult, RatioGoal};
use super::{compare, load_of, start_plane};
use crate::args::KubeLoad;
use crate::ratio::Goal;

const COLLECTION: &str = "/api/v1/namespaces/default/configmaps";
const DIRECT: &str = "direct";
const BRIDGE: &str = "bridge";

/// Objects in the list, and bytes of data in each: about 20 KiB.
const OBJECTS: usize = 20;
const OBJECT_BYTES: usize = 800;

pub(super) async fn measure(args: &KubeLoad, program: &Path) -> Result<KubeLoadResult> {
    let versions = skewbridge_e2e::versions();
    let new = newest(&versions);
    let server = ServerSpec::of(new).peer().bridge_program(program);
    let plane = start_plane(&[server]).await;
    let size = create_list(&plane, 0, COLLECTION, |name| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
            "data": {"text": "x".repeat(OBJECT_BYTES)}})
    })
    .await?;
    let candidates = [(DIRECT, Via::Server), (BRIDGE, Via::Bridge)].map(|(name, via)| {
        Ok(Candidate::of(
            name,
            &plane,
            0,
            via,
            load_of(COLLECTION, size)?,
        ))
    });
    let candidates = candidates.into_iter().collect::<Result<Vec<_>>>()?;
    let goal = RatioGoal {
        of: BRIDGE,
        to: DIRECT,
        goal: Goal::AtLeast(0.93),
    };
    let mut comparisons = Vec::new();
    for &protocol in args.proto.selected() {
        let title = format!("a list of {size} bytes");
        comparisons.push(compare(&title, &candidates, &[goal], args, protocol).await?);
    }
    Ok(KubeLoadResult {
        kube_apiserver: new.to_owned(),
        rounds: args.rounds,
        seconds: args.seconds,
        comparisons,
    })
}

/// Creates objects, and returns the size of their list.
pub(super) async fn create_list(
    plane: &ControlPlane,
    server: usize,
    collection: &str,
    object: impl Fn(&str) -> serde_json::Value,
) -> Result<u32> {
    let mut client = plane.http_client(server, Via::Server, Http::H2);
    for number in 0..OBJECTS {
        let body = object(&format!("bench-{number}")).to_string();
        let request = Request::new("POST", collection).body("application/json", &body);
        let answer = client.send(&request).await?;
        ensure!(answer.status == 201, "{}", answer.text());
    }
    let list = client.send(&Request::get(collection)).await?;
    ensure!(list.status == 200, "{}", list.text());
    Ok(u32::try_from(list.body.len())?)
}
