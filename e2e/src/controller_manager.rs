//! The real kube-controller-manager, with the controllers that a test needs.

use std::net::SocketAddr;

use crate::binaries;
use crate::control_plane::ControlPlane;
use crate::endpoint::Via;
use crate::kubectl::User;
use crate::process::Process;
use crate::versions::{newest, versions};

impl ControlPlane {
    /// Starts a kube-controller-manager as the admin, against a server or its bridge.
    pub fn start_controller_manager(
        &self,
        server: usize,
        via: Via,
        controllers: &[&str],
    ) -> Process {
        self.start_controller_manager_at(self.servers[server].at(via), controllers)
    }

    /// Starts a kube-controller-manager as the admin, against any address.
    pub fn start_controller_manager_at(
        &self,
        address: SocketAddr,
        controllers: &[&str],
    ) -> Process {
        let config = self.kubeconfig(address, User::Admin);
        let arguments = [
            format!("--kubeconfig={}", config.display()),
            format!("--controllers={}", controllers.join(",")),
            "--leader-elect=false".to_owned(),
            "--use-service-account-credentials=false".to_owned(),
            // No test uses its own port.
            "--secure-port=0".to_owned(),
            // The log shows what the garbage collector decides about an object.
            "--v=5".to_owned(),
        ];
        let name = format!("kube-controller-manager-{}", address.port());
        let program = binaries::kube_controller_manager(newest(&versions()));
        Process::start(
            &name,
            "controller-manager",
            &program,
            &arguments,
            self.pki.path(),
        )
    }
}
