//! A cluster that kubeadm has made: control plane nodes with stacked etcd, and a load balancer
//! from kubeadm's guide for highly available clusters.

pub(crate) mod client;
pub(crate) mod kubelets;
pub(crate) mod load;
pub(crate) mod watch;

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use skewbridge_e2e::{
    Machine, MachineAgent, bridge_program, create_network_of_machines, of_control_plane,
};
use skewbridge_testkit::{ScratchDir, eventually};

/// From the start of a node to its readiness, on two busy cores.
pub(crate) const READY_TIMEOUT: Duration = Duration::from_mins(4);

/// The address of the load balancer: `controlPlaneEndpoint`.
pub(crate) const ENDPOINT: &str = "10.0.0.10:6443";

/// kubeadm's configuration on each machine.
pub(crate) const CONFIG: &str = "/etc/kubeadm/config.yaml";

/// Where each kube-apiserver writes its audit log.
const AUDIT_LOG: &str = "/var/lib/kube-audit/audit.log";

/// The files that nodes share, as in kubeadm's guide.
const SHARED: [&str; 8] = [
    "ca.crt",
    "ca.key",
    "sa.key",
    "sa.pub",
    "front-proxy-ca.crt",
    "front-proxy-ca.key",
    "etcd/ca.crt",
    "etcd/ca.key",
];

/// The old servers do not serve these APIs, which no server needs for itself.
const WITHOUT_AUTOSCALERS: &str = "autoscaling/v1=false,autoscaling/v2=false";

pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    load_balancer: Option<LoadBalancer>,
    /// Last: the machines use it.
    files: ScratchDir,
}

struct LoadBalancer {
    program: Child,
    machine: Machine,
}

pub(crate) struct Node {
    /// How many nodes the cluster has.
    cluster_size: u8,
    pub(crate) agent: MachineAgent,
    pub(crate) machine: Arc<Machine>,
}

impl Cluster {
    /// Starts this many nodes and waits until they are ready. All have this version.
    pub(crate) async fn start(version: &str, size: u8) -> Self {
        Self::start_prepared(version, size, |_, _| ()).await
    }

    /// The same, with something to do on each node after kubeadm, and before the first program
    /// starts. It gets the directory that all machines see.
    pub(crate) async fn start_prepared(
        version: &str,
        size: u8,
        prepare: impl Fn(&Machine, &Path),
    ) -> Self {
        create_network_of_machines(Ipv4Addr::new(10, 0, 0, 254));
        let files = ScratchDir::new();
        let mut cluster = Self {
            nodes: Vec::new(),
            load_balancer: None,
            files,
        };
        for number in 1..=size {
            let name = format!("cp-{number}");
            let address = Ipv4Addr::new(10, 0, 0, 10 + number);
            let machine = Arc::new(Machine::create(&name, address, cluster.files.path()));
            cluster.install(&machine, version, size);
            prepare(&machine, cluster.files.path());
            let agent = MachineAgent::start(&machine, cluster.files.path());
            cluster.nodes.push(Node {
                cluster_size: size,
                agent,
                machine,
            });
        }
        cluster.start_load_balancer();
        for node in &cluster.nodes {
            node.wait_until_ready().await;
        }
        // `kubeadm init` does this after its last phase that is used here.
        cluster.nodes[0].machine.shell(
            "kubectl --kubeconfig=/etc/kubernetes/super-admin.conf \
             --server=https://10.0.0.11:6443 create clusterrolebinding \
             kubeadm:cluster-admins --clusterrole=cluster-admin --group=kubeadm:cluster-admins",
        );
        cluster
    }

    /// A directory that all machines see.
    pub(crate) fn directory(&self) -> &Path {
        self.files.path()
    }

    fn install(&self, machine: &Machine, version: &str, size: u8) {
        let programs = self.directory().join(format!("programs-{version}"));
        fs::create_dir_all(&programs).unwrap();
        for program in ["kubeadm", "kubectl"] {
            let _ = std::os::unix::fs::symlink(
                of_control_plane(program, version),
                programs.join(program),
            );
        }
        let _ = std::os::unix::fs::symlink(bridge_program(), self.directory().join("skewbridge"));
        machine.shell(&format!(
            "mkdir -p /etc/kubeadm /etc/kubernetes/pki/etcd /var/lib/kube-audit\n\
             ln -s {}/* /usr/local/bin/",
            programs.display()
        ));
        fs::write(machine.path("/etc/kubeadm/audit-policy.yaml"), AUDIT_POLICY).unwrap();
        write_config(CONFIG, machine, version, size, None);
        if let Some(first) = self.nodes.first() {
            for file in SHARED {
                let path = format!("/etc/kubernetes/pki/{file}");
                fs::copy(first.machine.path(&path), machine.path(&path)).unwrap();
            }
        }
        for phase in ["certs", "kubeconfig", "control-plane", "etcd"] {
            let part = if phase == "etcd" { "local" } else { "all" };
            machine.shell(&format!(
                "kubeadm init phase {phase} {part} --config={CONFIG}"
            ));
        }
    }

    fn start_load_balancer(&mut self) {
        let machine = Machine::create("lb", Ipv4Addr::new(10, 0, 0, 10), self.files.path());
        let program = self.balance(&machine, 6443);
        self.load_balancer = Some(LoadBalancer { program, machine });
    }

    /// Restarts the load balancer, which then connects to this port of all nodes.
    pub(crate) fn point_load_balancer_at(&mut self, port: u16) {
        let LoadBalancer {
            mut program,
            machine,
        } = self.load_balancer.take().unwrap();
        program.kill().unwrap();
        program.wait().unwrap();
        let program = self.balance(&machine, port);
        self.load_balancer = Some(LoadBalancer { program, machine });
    }

    fn balance(&self, machine: &Machine, port: u16) -> Child {
        let servers = self.nodes.iter().map(|node| {
            let Machine { name, address, .. } = &*node.machine;
            format!("    server {name} {address}:{port} check verify none")
        });
        let servers = servers.collect::<Vec<_>>().join("\n");
        let config = format!("{LOAD_BALANCER}{servers}\n");
        fs::write(machine.path("/etc/load-balancer.cfg"), config).unwrap();
        let mut command = machine.command(Path::new("haproxy"));
        let command = command.args(["-db", "-f", "/etc/load-balancer.cfg"]);
        command.spawn().unwrap()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(LoadBalancer { program, .. }) = &mut self.load_balancer {
            let _ = program.kill();
            let _ = program.wait();
        }
        if std::thread::panicking() {
            for node in &self.nodes {
                for program in ["kube-apiserver", "skewbridge.service", "skewbridge", "etcd"] {
                    let log = node.agent.log(program);
                    let from = log.len().saturating_sub(3000);
                    let tail = log.get(from..).unwrap_or_default();
                    eprintln!("--- {} {program}\n{tail}", node.machine.name);
                }
            }
        }
    }
}

impl Node {
    /// Runs kubectl as the admin, through the load balancer unless `arguments` say otherwise.
    pub(crate) fn kubectl(&self, arguments: &str) -> String {
        let kubectl = "kubectl --kubeconfig=/etc/kubernetes/admin.conf";
        self.machine.shell(&format!("{kubectl} {arguments}"))
    }

    /// The server of this node answers at the address of the node.
    pub(crate) async fn wait_until_ready(&self) {
        let what = format!("{} is ready", self.machine.name);
        let url = format!("https://{}:6443/readyz", self.machine.address);
        eventually(&what, READY_TIMEOUT, async || {
            let script = format!("curl -skf --max-time 5 {url}");
            self.machine
                .try_shell(Path::new("/"), &script)
                .status
                .success()
        })
        .await;
    }

    pub(crate) fn audit_log(&self) -> String {
        self.machine.read(AUDIT_LOG).unwrap_or_default()
    }

    /// The version of its kube-apiserver, through its bridge.
    pub(crate) fn version(&self) -> String {
        let url = format!("https://{}:6443/version", self.machine.address);
        let script = format!("curl -sk --max-time 5 {url} || true");
        self.machine.shell(&script)
    }

    /// All files of kubeadm: path, mode, owner and digest.
    pub(crate) fn kubeadm_files(&self) -> String {
        self.machine.shell(
            "cd /etc/kubernetes\n\
             find . | sort | while read -r file; do stat -c '%n %A %U:%G' \"$file\"; done\n\
             find . -type f | sort | xargs sha256sum",
        )
    }

    /// What kubeadm of another version writes for this node, with the directory of patches or
    /// without. `kubeadm upgrade` writes the same manifests, but needs kubelet.
    pub(crate) fn upgrade(&self, version: &str, patches: Option<&str>) {
        write_config(CONFIG, &self.machine, version, self.cluster_size, patches);
        let kubeadm = of_control_plane("kubeadm", version);
        self.machine.shell(&format!(
            "{} init phase control-plane all --config={CONFIG}",
            kubeadm.display()
        ));
    }

    /// Writes kubeadm's configuration of another version.
    pub(crate) fn write_config(&self, file: &str, version: &str) {
        write_config(file, &self.machine, version, self.cluster_size, None);
    }
}

fn write_config(file: &str, machine: &Machine, version: &str, size: u8, patches: Option<&str>) {
    let Machine { name, address, .. } = machine;
    // The newer version serves all of its APIs.
    let runtime_config = if version.starts_with("1.34.") {
        WITHOUT_AUTOSCALERS
    } else {
        "api/ga=true"
    };
    let patches = patches.map_or(String::new(), |it| {
        format!("patches: {{directory: {it}}}\n")
    });
    let members: Vec<_> = (1..=size)
        .map(|number| format!("cp-{number}=https://10.0.0.1{number}:2380"))
        .collect();
    let members = members.join(",");
    let text = format!(
        "apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
{patches}localAPIEndpoint: {{advertiseAddress: {address}, bindPort: 6443}}
nodeRegistration: {{name: {name}, criSocket: unix:///run/containerd/containerd.sock}}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v{version}
controlPlaneEndpoint: {ENDPOINT}
networking: {{serviceSubnet: 10.96.0.0/12}}
apiServer:
  extraArgs:
  - {{name: runtime-config, value: \"{runtime_config}\"}}
  - {{name: audit-log-path, value: {AUDIT_LOG}}}
  - {{name: audit-policy-file, value: /etc/kubeadm/audit-policy.yaml}}
  - {{name: shutdown-watch-termination-grace-period, value: 2s}}
etcd:
  local:
    dataDir: /var/lib/etcd
    extraArgs:
    - {{name: initial-cluster, value: \"{members}\"}}
    - {{name: unsafe-no-fsync, value: \"true\"}}
"
    );
    fs::write(machine.path(file), text).unwrap();
}

const AUDIT_POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
";

/// kubeadm's guide, except that `/readyz` is checked, and often.
const LOAD_BALANCER: &str = "\
global
    maxconn 1000
defaults
    mode tcp
    option redispatch
    retries 2
    timeout connect 5s
    timeout client 35s
    timeout server 35s
    timeout check 5s
listen apiserver
    bind 10.0.0.10:6443
    option httpchk
    http-check connect ssl
    http-check send meth GET uri /readyz
    http-check expect status 200
    balance roundrobin
    default-server inter 2s downinter 2s rise 1 fall 1
";
