//! The playground beside real kube-apiservers: the same steps with the same kubectl, and
//! what it prints. What is told is in the modules below; the suites that tell it are
//! `playground_old` and `playground_new`.

mod discovery;
mod fixture;
mod kubelet;
mod namespaces;
mod objects;
mod others;
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
use self::fixture::{Entry, Place, Site};
use self::kubelet::Kubelet;

/// What the playground has servers of.
pub(crate) const RELEASES: [&str; 3] = ["1.28", "1.34", "1.36"];

/// `1.34` of `1.34.4`.
fn minor(version: &str) -> &str {
    version.rsplit_once('.').unwrap().0
}

/// The versions of these releases that there are to be compared with.
fn real(releases: &[&str]) -> Vec<String> {
    let of_these = |version: &String| releases.contains(&minor(version));
    let found: Vec<_> = versions().into_iter().filter(of_these).collect();
    assert!(
        has_custom_control_planes() || found.len() == releases.len(),
        "only {found:?} of {releases:?} are there to be compared with"
    );
    if found.is_empty() {
        println!("left out: it needs a server of one of {releases:?}");
    }
    found
}

/// Real servers over one store, with what their clusters have besides, and a playground.
struct Beside {
    plane: ControlPlane,
    playground: Playground,
    kubelet: Node,
    _controllers: Process,
}

impl Beside {
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

    /// All stories with servers of all versions of the plane, and all differences.
    async fn differences(&self) -> Vec<String> {
        kubelet::register_node(self).await;
        tour::show_policy(self).await;
        let mut found = Vec::new();
        for number in 0..self.plane.servers.len() {
            found.extend(Box::pin(self.differences_of(number)).await);
        }
        found
    }

    async fn differences_of(&self, number: usize) -> Vec<String> {
        let sites = [Place::Real, Place::Server, Place::Bridge].map(|it| self.site(number, it));
        let [real, server, bridge] = &sites;
        let kubelet = Kubelet::new(self, real, server);
        // What is told of pods is told of the same one through server and bridge.
        let others = self.others(number);
        let (expected, straight, bridged, of_pods, by_others, documents, proposed) = join!(
            tell(real, Some(&kubelet)),
            tell(server, None),
            tell(bridge, None),
            pods::differences(&kubelet, &sites, &others),
            others::differences(&others),
            discovery::differences(self, number),
            tour::differences(self, number),
        );
        let mut found = compare(&expected, &server.name, &straight);
        found.extend(compare(&expected, &bridge.name, &bridged));
        found.extend(of_pods);
        found.extend(by_others);
        found.extend(documents);
        found.extend(proposed);
        found
    }

    /// One who is asked by kubectl of this server's version.
    fn site(&self, number: usize, place: Place) -> Site<'_> {
        self.site_by(&self.plane.servers[number].version, number, place)
    }

    /// One who is asked by kubectl of a version.
    fn site_by(&self, kubectl: &str, number: usize, place: Place) -> Site<'_> {
        let server = &self.plane.servers[number];
        let (kubectl, address) = (kubectl.to_owned(), server.address);
        let release = minor(&server.version).to_owned();
        match place {
            Place::Real => Site::new(place, &release, move || {
                self.plane.kubectl_at(&kubectl, address, User::Admin)
            }),
            place => {
                let context = format!("{place}-{release}");
                Site::new(place, &release, move || {
                    self.playground.kubectl(&kubectl, &context)
                })
            }
        }
    }

    /// The same who are asked by kubectls of other versions than the server's.
    fn others(&self, number: usize) -> Vec<Other<'_>> {
        let own = &self.plane.servers[number].version;
        let others = versions().into_iter().filter(|it| it != own);
        let others = others.map(|kubectl| Other {
            sites: [Place::Real, Place::Server, Place::Bridge]
                .map(|it| self.site_by(&kubectl, number, it)),
            kubectl,
        });
        others.collect()
    }
}

/// A real server, that of the playground and its bridge, for a kubectl of another version.
struct Other<'a> {
    kubectl: String,
    sites: [Site<'a>; 3],
}

impl Other<'_> {
    /// A word of its own for namespaces and files.
    fn word(&self, word: &str) -> String {
        format!("{word}-{}", self.kubectl.replace('.', "-"))
    }

    /// What differs in a playground from what the real server has this kubectl print, told
    /// in the order of the sites.
    fn compare(&self, [expected, straight, bridged]: [&[Entry]; 3]) -> Vec<String> {
        let [_, server, bridge] = &self.sites;
        let by = |site: &Site<'_>| format!("{} by kubectl {}", site.name, self.kubectl);
        let mut found = compare(expected, &by(server), straight);
        found.extend(compare(expected, &by(bridge), bridged));
        found
    }
}

/// All that is told by anyone alone.
async fn tell(site: &Site<'_>, kubelet: Option<&Kubelet<'_>>) -> Vec<Entry> {
    let (mut told, of_namespaces) = join!(
        async {
            let mut told = objects::tell(site).await;
            told.extend(tables::tell(site).await);
            told.extend(watches::tell(site).await);
            told
        },
        namespaces::tell(site, kubelet),
    );
    told.extend(of_namespaces);
    told
}

/// Where they differ, but for what either was not asked.
fn compare(expected: &[Entry], name: &str, got: &[Entry]) -> Vec<String> {
    assert_eq!(expected.len(), got.len(), "{name} was told another story");
    let mut found = Vec::new();
    for (expected, got) in expected.iter().zip(got) {
        if let (Some(real), Some(said)) = (&expected.said, &got.said)
            && real != said
        {
            found.push(format!(
                "{name}: {}\n--- real\n{real}\n--- playground\n{said}",
                got.title
            ));
        }
    }
    found
}

/// Tells the stories with real servers of these releases, and fails with all differences.
pub(crate) async fn kubectl_prints_the_same(releases: &[&str]) {
    let versions = real(releases);
    if versions.is_empty() {
        return;
    }
    let beside = Box::pin(Beside::start(&versions)).await;
    let found = beside.differences().await;
    assert!(found.is_empty(), "{}", found.join("\n\n"));
}
