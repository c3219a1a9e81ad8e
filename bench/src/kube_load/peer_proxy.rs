//! `peer-proxy`: a list that the server of the client does not serve, through two bridges and through
//! kube-apiserver's own peer proxy (KEP-4020), next to the direct one.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::json;
use skewbridge_e2e::{ControlPlane, ServerSpec, Via, newest};
use tokio::time::sleep;

use super::candidate::Candidate;
use super::local::create_list;
use super::result::{KubeLoadResult, RatioGoal};
use super::{compare, load_of, start_plane};
use crate::args::KubeLoad;
use crate::ratio::Goal;

const COLLECTION: &str = "/apis/resource.k8s.io/v1/deviceclasses";
const WITHOUT_IT: &str = "api/all=true,resource.k8s.io/v1=false,resource.k8s.io/v1beta1=false,\
                          resource.k8s.io/v1beta2=false";
const DIRECT: &str = "direct";
const BRIDGES: &str = "two bridges";
const PEER_PROXY: &str = "peer proxy";

/// Native peers read discovery of each other rarely.
const DISCOVERY_TIMEOUT: Duration = Duration::from_mins(3);
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The server that does not serve the list.
const ENTRY: usize = 0;
const SERVING: usize = 1;

pub(super) async fn measure(args: &KubeLoad, program: &Path) -> Result<KubeLoadResult> {
    let versions = skewbridge_e2e::versions();
    let new = newest(&versions);
    let server = || ServerSpec::of(new).peer().bridge_program(program);
    let native_server = || ServerSpec::of(new).native_peer();
    let bridges = start_plane(&[server().runtime_config(WITHOUT_IT), server()]).await;
    let natives = start_plane(&[native_server().runtime_config(WITHOUT_IT), native_server()]).await;
    let device_class = |name: &str| {
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
            "metadata": {"name": name, "annotations": {"text": "x".repeat(800)}}, "spec": {}})
    };
    let list = create_list(&bridges, SERVING, COLLECTION, device_class).await?;
    let native_list = create_list(&natives, SERVING, COLLECTION, device_class).await?;
    wait_until_served(&bridges, Via::Bridge).await?;
    wait_until_served(&natives, Via::Server).await?;
    let peer_bridge = bridges.servers[SERVING].bridge_process.as_ref();
    let size = u32::try_from(list.len())?;
    let native_size = u32::try_from(native_list.len())?;
    let load = |size| load_of(COLLECTION, size);
    let candidates = [
        Candidate::of(DIRECT, &bridges, SERVING, Via::Server, load(size)?),
        Candidate::of(BRIDGES, &bridges, ENTRY, Via::Bridge, load(size)?)
            .passing(peer_bridge)
            .passing(bridges.servers[SERVING].process.as_ref()),
        Candidate::of(PEER_PROXY, &natives, ENTRY, Via::Server, load(native_size)?)
            .passing(natives.servers[SERVING].process.as_ref()),
    ];
    let goals = [(DIRECT, 0.82), (PEER_PROXY, 2.0)].map(|(to, least)| RatioGoal {
        of: BRIDGES,
        to,
        goal: Goal::AtLeast(least),
    });
    let mut comparisons = Vec::new();
    for &protocol in args.proto.selected() {
        let title = format!("a list of {size} bytes");
        comparisons.push(compare(&title, &candidates, &goals, args, protocol).await?);
    }
    Ok(KubeLoadResult {
        kube_apiserver: new.to_owned(),
        rounds: args.rounds,
        seconds: args.seconds,
        comparisons,
    })
}

async fn wait_until_served(plane: &ControlPlane, via: Via) -> Result<()> {
    let deadline = Instant::now() + DISCOVERY_TIMEOUT;
    while plane.status(ENTRY, via, COLLECTION).await != 200 {
        ensure!(Instant::now() < deadline, "{COLLECTION} is not rerouted");
        sleep(RETRY_INTERVAL).await;
    }
    Ok(())
}
