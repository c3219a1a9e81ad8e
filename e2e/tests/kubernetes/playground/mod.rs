//! The playground compared with real kube-apiservers: the same steps with the same kubectl,
//! and its output. The scenarios are in the modules below; the suites that run them are
//! `playground_parity_oldest_server` and `playground_parity_newer_servers`.

mod discovery;
mod fixture;
mod kubectl_version_skew;
mod kubelet;
mod namespaces;
mod objects;
mod pods;
mod tables;
mod tour;
mod watches;

use skewbridge_e2e::{
    ControlPlane, Node, Playground, Process, ServerSpec, User, Via, has_custom_control_planes,
    versions,
};
use tokio::join;

pub(crate) use self::fixture::{COMMAND_TIMEOUT, run};
use self::fixture::{Entry, Target, TargetKind};
use self::kubelet::Kubelet;

/// The releases of the playground's servers.
pub(crate) const RELEASES: [&str; 3] = ["1.28", "1.34", "1.36"];

/// `1.34` of `1.34.4`.
fn minor(version: &str) -> &str {
    version.rsplit_once('.').unwrap().0
}

/// The available versions of these releases.
fn available_versions(releases: &[&str]) -> Vec<String> {
    let of_these = |version: &String| releases.contains(&minor(version));
    let found: Vec<_> = versions().into_iter().filter(of_these).collect();
    assert!(
        has_custom_control_planes() || found.len() == releases.len(),
        "only {found:?} of {releases:?} are available for the comparison"
    );
    if found.is_empty() {
        println!("skipped: it needs a server of one of {releases:?}");
    }
    found
}

/// Real servers over one etcd with the other components of a cluster, and a playground.
struct PlaygroundAndReal {
    plane: ControlPlane,
    playground: Playground,
    kubelet: Node,
    _controllers: Process,
}

impl PlaygroundAndReal {
    /// Starts servers of these versions with their default settings.
    async fn start(versions: &[String]) -> Self {
        let servers: Vec<_> = versions
            .iter()
            .map(|it| {
                ServerSpec::of(it)
                    .runtime_config("api/ga=true")
                    .without_bridge()
            })
            .collect();
        let (plane, playground) = join!(ControlPlane::start(&servers), Playground::start());
        let controllers = plane.start_controller_manager(0, Via::Server, &["namespace-controller"]);
        let kubelet = plane.start_kubelet().await;
        Self {
            plane,
            playground,
            kubelet,
            _controllers: controllers,
        }
    }

    /// Runs all scenarios with servers of all versions, and returns all differences.
    async fn differences(&self) -> Vec<String> {
        kubelet::register_node(self).await;
        tour::create_policy(self).await;
        let mut found = Vec::new();
        for number in 0..self.plane.servers.len() {
            found.extend(Box::pin(self.differences_of(number)).await);
        }
        found
    }

    async fn differences_of(&self, number: usize) -> Vec<String> {
        let sites = [TargetKind::Real, TargetKind::Server, TargetKind::Bridge]
            .map(|it| self.target(number, it));
        let [real, server, bridge] = &sites;
        let kubelet = Kubelet::new(self, real, server);
        // The pod scenarios use the same pod through server and bridge.
        let others = self.others(number);
        let (expected, direct, bridged, of_pods, by_others, documents, proposed) = join!(
            run_scenarios(real, Some(&kubelet)),
            run_scenarios(server, None),
            run_scenarios(bridge, None),
            pods::differences(&kubelet, &sites, &others),
            kubectl_version_skew::differences(&others),
            discovery::differences(self, number),
            tour::differences(self, number),
        );
        let mut found = compare(&expected, &server.name, &direct);
        found.extend(compare(&expected, &bridge.name, &bridged));
        found.extend(of_pods);
        found.extend(by_others);
        found.extend(documents);
        found.extend(proposed);
        found
    }

    /// The target with kubectl of this server's version.
    fn target(&self, number: usize, kind: TargetKind) -> Target<'_> {
        self.target_with_kubectl(&self.plane.servers[number].version, number, kind)
    }

    /// The target with kubectl of a version.
    fn target_with_kubectl(&self, kubectl: &str, number: usize, kind: TargetKind) -> Target<'_> {
        let server = &self.plane.servers[number];
        let (kubectl, address) = (kubectl.to_owned(), server.address);
        let release = minor(&server.version).to_owned();
        match kind {
            TargetKind::Real => Target::new(kind, &release, move || {
                self.plane.kubectl_at(&kubectl, address, User::Admin)
            }),
            kind => {
                let context = format!("{kind}-{release}");
                Target::new(kind, &release, move || {
                    self.playground.kubectl(&kubectl, &context)
                })
            }
        }
    }

    /// The same targets with kubectls of other versions than the server's.
    fn others(&self, number: usize) -> Vec<OtherKubectl<'_>> {
        let own = &self.plane.servers[number].version;
        let others = versions().into_iter().filter(|it| it != own);
        let others = others.map(|kubectl| OtherKubectl {
            sites: [TargetKind::Real, TargetKind::Server, TargetKind::Bridge]
                .map(|it| self.target_with_kubectl(&kubectl, number, it)),
            kubectl,
        });
        others.collect()
    }
}

/// A real server, that of the playground and its bridge, for a kubectl of another version.
struct OtherKubectl<'a> {
    kubectl: String,
    sites: [Target<'a>; 3],
}

impl OtherKubectl<'_> {
    /// Its own prefix for namespaces and files.
    fn word(&self, word: &str) -> String {
        format!("{word}-{}", self.kubectl.replace('.', "-"))
    }

    /// The differences between the results of the playground and of the real server with
    /// this kubectl, in the order of the targets.
    fn compare(&self, [expected, direct, bridged]: [&[Entry]; 3]) -> Vec<String> {
        let [_, server, bridge] = &self.sites;
        let by = |target: &Target<'_>| format!("{} by kubectl {}", target.name, self.kubectl);
        let mut found = compare(expected, &by(server), direct);
        found.extend(compare(expected, &by(bridge), bridged));
        found
    }
}

/// Runs all scenarios that need a single target.
async fn run_scenarios(target: &Target<'_>, kubelet: Option<&Kubelet<'_>>) -> Vec<Entry> {
    let (mut entries, of_namespaces) = join!(
        async {
            let mut entries = objects::run_scenario(target).await;
            entries.extend(tables::run_scenario(target).await);
            entries.extend(watches::run_scenario(target).await);
            entries
        },
        namespaces::run_scenario(target, kubelet),
    );
    entries.extend(of_namespaces);
    entries
}

/// The differences, except for steps that one of them did not run.
fn compare(expected: &[Entry], name: &str, got: &[Entry]) -> Vec<String> {
    assert_eq!(expected.len(), got.len(), "{name} ran another scenario");
    let mut found = Vec::new();
    for (expected, got) in expected.iter().zip(got) {
        if let (Some(real), Some(output)) = (&expected.output, &got.output)
            && real != output
        {
            found.push(format!(
                "{name}: {}\n--- real\n{real}\n--- playground\n{output}",
                got.title
            ));
        }
    }
    found
}

/// Runs the scenarios with real servers of these releases, and fails with all differences.
pub(crate) async fn kubectl_prints_the_same(releases: &[&str]) {
    let versions = available_versions(releases);
    if versions.is_empty() {
        return;
    }
    let both = Box::pin(PlaygroundAndReal::start(&versions)).await;
    let found = both.differences().await;
    assert!(found.is_empty(), "{}", found.join("\n\n"));
}
