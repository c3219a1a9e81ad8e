//! A reverse proxy that supports no upgrade other than WebSocket.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use skewbridge_testkit::{TEST_TIMEOUT, eventually};
use tokio::net::TcpStream;

use crate::control_plane::ControlPlane;
use crate::ports::free_address;
use crate::process::Process;

/// A real nginx in front of a server, which it contacts with the admin's client
/// certificate. It stops when it is dropped.
pub struct Nginx {
    /// A kubeconfig for it.
    pub kubeconfig: PathBuf,
    /// The process.
    pub process: Process,
}

impl ControlPlane {
    /// Starts an nginx in front of this address: plain HTTP, and no upgrade other than WebSocket.
    pub async fn start_nginx(&self, server: SocketAddr) -> Nginx {
        let address = free_address();
        let name = format!("nginx-{}", address.port());
        let file = |name: &str| self.pki.file(name).display().to_string();
        let directory = self.pki.path().display();
        let config = self.file(
            &format!("{name}.conf"),
            &format!(
                "\
daemon off;
master_process off;
pid {directory}/{name}.pid;
error_log stderr;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {directory}/{name}-body;
    proxy_temp_path {directory}/{name}-proxy;
    fastcgi_temp_path {directory}/{name}-fastcgi;
    uwsgi_temp_path {directory}/{name}-uwsgi;
    scgi_temp_path {directory}/{name}-scgi;
    map $http_upgrade $passed {{ websocket websocket; default ''; }}
    map $http_upgrade $connected {{ websocket upgrade; default ''; }}
    server {{
        listen {address};
        location / {{
            proxy_pass https://{server};
            proxy_http_version 1.1;
            proxy_set_header Upgrade $passed;
            proxy_set_header Connection $connected;
            proxy_ssl_certificate {};
            proxy_ssl_certificate_key {};
        }}
    }}
}}
",
                file("admin.crt"),
                file("admin.key"),
            ),
        );
        let arguments = [
            "-p".to_owned(),
            directory.to_string(),
            "-c".to_owned(),
            config,
        ];
        let program = Path::new("nginx");
        let process = Process::start(&name, &name, program, &arguments, self.pki.path());
        eventually(&name, TEST_TIMEOUT, async || {
            TcpStream::connect(address).await.is_ok()
        })
        .await;
        let kubeconfig = self.file(
            &format!("{name}.kubeconfig"),
            &format!(
                "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
                 clusters: [{{name: c, cluster: {{server: 'http://{address}'}}}}]\n\
                 contexts: [{{name: c, context: {{cluster: c}}}}]\n"
            ),
        );
        Nginx {
            kubeconfig: kubeconfig.into(),
            process,
        }
    }
}
