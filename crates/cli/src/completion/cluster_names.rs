//! Names from the kubeconfig and from the cluster. Rules and order are kubectl's where it completes
//! the same; it does not know ephemeral containers, the second word of `cp` and `attach TYPE NAME`.

use std::time::Duration;

use clap::{CommandFactory as _, Parser};
use skewbridge_client::copy::CopySpec;
use skewbridge_client::{Endpoint, Kubeconfig};

use super::candidates::Candidate;
use super::names::Names;
use super::partial_line::PartialLine;
use crate::cluster_flags::ClusterFlags;
use crate::pods::{FoundPod, Kind, Pod, Pods, Reference, list_names, list_namespaces};

/// Owners of pods that are offered as `TYPE/`, in kubectl's order.
const OWNERS: [&str; 8] = [
    "daemonsets",
    "deployments",
    "pods",
    "jobs",
    "replicasets",
    "replicationcontrollers",
    "services",
    "statefulsets",
];

/// The names, not yet filtered by what is typed.
pub(super) async fn find(names: Names, line: &PartialLine) -> Result<Vec<Candidate>, String> {
    let typed = line.typed.as_str();
    // A local file, or a file in a container.
    let is_path = typed.starts_with(['/', '.', '~']) || typed.contains(':');
    if names == Names::CopySpecs && is_path {
        return Ok(Vec::new());
    }
    let flags = cluster_flags(line)?;
    let config = || Kubeconfig::load(flags.kubeconfig()).map_err(|error| error.to_string());
    let words = match names {
        Names::Contexts => config()?.contexts.into_keys().collect(),
        Names::Clusters => config()?.clusters.into_keys().collect(),
        Names::Users => config()?.users.into_keys().collect(),
        _ => {
            let access = flags.access().await?;
            let cluster = Cluster {
                endpoint: access.endpoint,
                namespace: access.namespace,
            };
            cluster.names(names, line).await?
        }
    };
    Ok(words.into_iter().map(Candidate::new).collect())
}

/// The cluster flags on the line. Others are left out.
fn cluster_flags(line: &PartialLine) -> Result<ClusterFlags, String> {
    #[derive(Parser)]
    #[command(args_override_self = true)]
    struct Line {
        #[command(flatten)]
        cluster: ClusterFlags,
    }
    let command = Line::command();
    let is_known = |name: &str| {
        command
            .get_arguments()
            .any(|it| it.get_long() == Some(name))
    };
    let flags = line.flags.iter().filter(|(name, _)| is_known(name));
    let words = flags.map(|(name, value)| match value {
        Some(value) if name == "kubeconfig" => format!("--{name}={}", in_home(value)),
        Some(value) => format!("--{name}={value}"),
        None => format!("--{name}"),
    });
    let words = std::iter::once("skewbridge".to_owned()).chain(words);
    match Line::try_parse_from(words) {
        Ok(line) => Ok(line.cluster),
        // Its message would repeat the line, which may contain a token.
        Err(_) => Err("the flags of the cluster are not valid".to_owned()),
    }
}

/// `~/FILE`: the shell has not expanded the words yet.
fn in_home(file: &str) -> String {
    match (file.strip_prefix("~/"), std::env::var("HOME")) {
        (Some(rest), Ok(home)) => format!("{home}/{rest}"),
        _ => file.to_owned(),
    }
}

struct Cluster {
    endpoint: Endpoint,
    namespace: String,
}

impl Cluster {
    async fn names(&self, names: Names, line: &PartialLine) -> Result<Vec<String>, String> {
        let typed = line.typed.as_str();
        match names {
            Names::Contexts | Names::Clusters | Names::Users => Ok(Vec::new()),
            Names::Namespaces => list_namespaces(&self.endpoint).await,
            Names::PodReferences => self.pod_references(&line.words, typed).await,
            Names::Containers => self.containers(&line.words).await,
            Names::Ports => self.ports(&line.words, typed).await,
            Names::CopySpecs => self.copy_specs(typed).await,
        }
    }

    fn pods_in(&self, namespace: &str) -> Pods {
        Pods {
            endpoint: self.endpoint.clone(),
            namespace: namespace.to_owned(),
        }
    }

    async fn pod_references(&self, words: &[String], typed: &str) -> Result<Vec<String>, String> {
        let list = |kind| list_names(&self.endpoint, kind, &self.namespace);
        match words {
            [] => {}
            // `attach TYPE NAME`
            [kind] => {
                return match Kind::parse(kind) {
                    Some(kind) => list(kind).await,
                    None => Ok(Vec::new()),
                };
            }
            _ => return Ok(Vec::new()),
        }
        if let Some((kind, _)) = typed.split_once('/') {
            let Some(known) = Kind::parse(kind) else {
                return Ok(Vec::new());
            };
            let names = list(known).await?;
            return Ok(names.iter().map(|name| format!("{kind}/{name}")).collect());
        }
        let mut all = list(Kind::Pod).await?;
        all.extend(OWNERS.map(|kind| format!("{kind}/")));
        Ok(all)
    }

    /// The pod of the line: its first word, or the pod of a copy.
    async fn pod(&self, words: &[String]) -> Result<Option<Pod>, String> {
        let specs = words.iter().map(|word| CopySpec::parse(word));
        let in_copy = specs.filter_map(Result::ok).find_map(|spec| match spec {
            CopySpec::Pod { namespace, pod, .. } => Some((namespace, pod)),
            CopySpec::Local(_) => None,
        });
        let (namespace, reference) = match (in_copy, words.first()) {
            (Some((namespace, pod)), _) => (namespace, Reference::parse(&pod)?),
            (None, Some(word)) => (None, Reference::parse(word)?),
            (None, None) => return Ok(None),
        };
        let pods = self.pods_in(namespace.as_deref().unwrap_or(&self.namespace));
        let found = pods.find(&reference, Duration::ZERO).await;
        let FoundPod { pod, .. } = found.map_err(|failure| failure.to_string())?;
        Ok(Some(pod))
    }

    async fn containers(&self, words: &[String]) -> Result<Vec<String>, String> {
        let Some(pod) = self.pod(words).await? else {
            return Ok(Vec::new());
        };
        let spec = pod.spec;
        let all = [
            spec.init_containers,
            spec.containers,
            spec.ephemeral_containers,
        ];
        Ok(all.into_iter().flatten().map(|it| it.name).collect())
    }

    async fn ports(&self, words: &[String], typed: &str) -> Result<Vec<String>, String> {
        let Some(reference) = words.first() else {
            return Ok(Vec::new());
        };
        let reference = Reference::parse(reference)?;
        let remote: Vec<u16> = if reference.kind == Kind::Service {
            let pods = self.pods_in(&self.namespace);
            let service = pods.service(&reference.name).await;
            let service = service.map_err(|failure| failure.to_string())?;
            service.spec.ports.iter().map(|it| it.port).collect()
        } else {
            let pod = self.pod(&words[..1]).await?;
            let containers = pod.into_iter().flat_map(|pod| pod.spec.containers);
            containers
                .flat_map(|it| it.ports)
                .map(|it| it.number)
                .collect()
        };
        // The local port may be typed already.
        let local = typed.split(':').next().unwrap_or_default();
        let word = |remote: u16| match local {
            "" => format!("{remote}:{remote}"),
            local => format!("{local}:{remote}"),
        };
        Ok(remote.into_iter().map(word).collect())
    }

    async fn copy_specs(&self, typed: &str) -> Result<Vec<String>, String> {
        if let Some((namespace, _)) = typed.split_once('/') {
            let names = list_names(&self.endpoint, Kind::Pod, namespace).await?;
            return Ok(names
                .iter()
                .map(|name| format!("{namespace}/{name}:"))
                .collect());
        }
        // The right to list namespaces is rarer than that to list pods.
        let namespaces = list_namespaces(&self.endpoint).await.unwrap_or_default();
        let pods = list_names(&self.endpoint, Kind::Pod, &self.namespace).await?;
        let namespaces = namespaces.iter().map(|name| format!("{name}/"));
        let mut all: Vec<_> = namespaces
            .chain(pods.iter().map(|name| format!("{name}:")))
            .collect();
        if typed.is_empty() {
            all.extend(["./", "/"].map(str::to_owned));
        } else {
            all.extend(local_files(typed));
        }
        Ok(all)
    }
}

/// Files of the current directory, as a part of the candidates: a shell offers files only if there
/// is no other candidate.
fn local_files(typed: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(".") else {
        return Vec::new();
    };
    let entries = entries.filter_map(Result::ok).filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let is_directory = entry.file_type().is_ok_and(|it| it.is_dir());
        let name = if is_directory { name + "/" } else { name };
        name.starts_with(typed).then_some(name)
    });
    entries.collect()
}
