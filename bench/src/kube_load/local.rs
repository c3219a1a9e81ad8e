//! `local`: a list of the local server through its bridge, next to the direct one and next to nginx
//! with the same bytes in a file, which is the limit of the machine.

use std::path::Path;

use anyhow::{Result, ensure};
use bytes::Bytes;
use serde_json::json;
use skewbridge_e2e::{ControlPlane, Protocol as Http, Request, ServerSpec, Via, newest};

use super::candidate::{Candidate, CountedProcess};
use super::result::{KubeLoadResult, RatioGoal};
use super::{compare, load_of, start_plane};
use crate::args::KubeLoad;
use crate::pki::Pki;
use crate::proxies::{backend, free_ports};
use crate::ratio::Goal;
use crate::scratch_dir::ScratchDir;

const COLLECTION: &str = "/api/v1/namespaces/default/configmaps";
const DIRECT: &str = "direct";
const BRIDGE: &str = "bridge";
const NGINX: &str = "nginx, a file";

/// Objects in the list, and bytes of data in each: about 20 KiB.
const OBJECTS: usize = 20;
const OBJECT_BYTES: usize = 800;

pub(super) async fn measure(args: &KubeLoad, program: &Path) -> Result<KubeLoadResult> {
    let versions = skewbridge_e2e::versions();
    let new = newest(&versions);
    // Declared before the children, so dropped after them.
    let scratch = ScratchDir::create()?;
    let server = ServerSpec::of(new).peer().bridge_program(program);
    let plane = start_plane(&[server]).await;
    let list = create_list(&plane, 0, COLLECTION, |name| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
            "data": {"text": "x".repeat(OBJECT_BYTES)}})
    })
    .await?;
    let size = u32::try_from(list.len())?;
    let pki = Pki::issued_by(plane.ca(), &scratch)?;
    let [port] = free_ports()?;
    let file = backend::start_file(&scratch, &pki, port, COLLECTION, list)?;
    file.process().until_listening(file.address()).await?;
    let load = || load_of(COLLECTION, size);
    let candidates = [
        Candidate::of(DIRECT, &plane, 0, Via::Server, load()?),
        Candidate::of(BRIDGE, &plane, 0, Via::Bridge, load()?),
        Candidate {
            name: NGINX,
            port,
            processes: vec![CountedProcess::Group(file.process().pid())],
            load: load()?,
        },
    ];
    let goals = [
        (BRIDGE, DIRECT, Goal::AtLeast(0.93)),
        (BRIDGE, NGINX, Goal::None),
        (DIRECT, NGINX, Goal::None),
    ]
    .map(|(of, to, goal)| RatioGoal { of, to, goal });
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

/// Creates objects, and returns their list.
pub(super) async fn create_list(
    plane: &ControlPlane,
    server: usize,
    collection: &str,
    object: impl Fn(&str) -> serde_json::Value,
) -> Result<Bytes> {
    let mut client = plane.http_client(server, Via::Server, Http::H2);
    for number in 0..OBJECTS {
        let body = object(&format!("bench-{number}")).to_string();
        let request = Request::new("POST", collection).body("application/json", &body);
        let answer = client.send(&request).await?;
        ensure!(answer.status == 201, "{}", answer.text());
    }
    let list = client.send(&Request::get(collection)).await?;
    ensure!(list.status == 200, "{}", list.text());
    Ok(list.body)
}
