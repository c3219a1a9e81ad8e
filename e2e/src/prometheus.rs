//! The real Prometheus, and promtool.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use skewbridge_testkit::{TEST_TIMEOUT, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::control_plane::ControlPlane;
use crate::kubectl::Output;
use crate::ports::free_address;
use crate::process::Process;

/// A Prometheus with its storage in the directory of a control plane. It stops when it is dropped.
pub struct Prometheus {
    address: SocketAddr,
    /// The process.
    pub process: Process,
}

impl ControlPlane {
    /// Starts a Prometheus with this configuration, and waits until it is ready.
    pub async fn start_prometheus(&self, config: &str) -> Prometheus {
        let address = free_address();
        let name = format!("prometheus-{}", address.port());
        let arguments = [
            format!(
                "--config.file={}",
                self.file(&format!("{name}.yml"), config)
            ),
            format!("--storage.tsdb.path={}", self.pki.file(&name).display()),
            format!("--web.listen-address={address}"),
        ];
        let program = Path::new("prometheus");
        let process = Process::start(&name, &name, program, &arguments, self.pki.path());
        let prometheus = Prometheus { address, process };
        eventually(&name, TEST_TIMEOUT, async || {
            prometheus.get("/-/ready").await.is_some()
        })
        .await;
        prometheus
    }

    /// Runs promtool in the directory of the files of this control plane.
    pub async fn promtool(&self, words: &[&str]) -> Output {
        let mut command = Command::new("promtool");
        command.args(words).current_dir(self.pki.path());
        let output = command.output().await.expect("promtool starts");
        Output::of(&output)
    }
}

impl Prometheus {
    /// The body of a page; `None` unless the status is 200.
    async fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.address).await.ok()?;
        // HTTP/1.0: the response has no chunks.
        let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let is_ok = head.split_whitespace().nth(1) == Some("200");
        is_ok.then(|| body.to_owned())
    }

    /// The field `data` of a response of the API.
    async fn data(&self, path: &str) -> Value {
        let body = self.get(path).await.unwrap_or_default();
        let mut answer: Value = serde_json::from_str(&body).unwrap_or_default();
        answer["data"].take()
    }

    /// The targets of a job.
    pub async fn targets(&self, pool: &str) -> Vec<Value> {
        let data = self.data("/api/v1/targets").await;
        let targets = data["activeTargets"].as_array().cloned();
        let mut targets = targets.unwrap_or_default();
        targets.retain(|it| it["scrapePool"] == pool);
        targets
    }

    /// The value of an expression that has one series.
    pub async fn value(&self, expression: &str) -> Option<f64> {
        let query = expression.bytes().map(|it| format!("%{it:02x}"));
        let query: Vec<_> = query.collect();
        let data = self
            .data(&format!("/api/v1/query?query={}", query.concat()))
            .await;
        let value = data["result"][0]["value"][1].as_str()?;
        value.parse().ok()
    }

    /// The labels of the alerts that fire.
    pub async fn firing_labels(&self) -> Vec<Value> {
        let data = self.data("/api/v1/alerts").await;
        let alerts = data["alerts"].as_array().cloned().unwrap_or_default();
        let firing = alerts.into_iter().filter(|it| it["state"] == "firing");
        firing.map(|mut it| it["labels"].take()).collect()
    }

    /// The names of the alerts that fire.
    pub async fn firing(&self) -> Vec<String> {
        let labels = self.firing_labels().await;
        let names = labels.iter().filter_map(|it| it["alertname"].as_str());
        names.map(ToOwned::to_owned).collect()
    }

    /// Waits until an alert fires.
    pub async fn wait_for_alert(&self, name: &str, within: Duration) {
        eventually(&format!("the alert {name}"), within, async || {
            self.firing().await.iter().any(|it| it == name)
        })
        .await;
    }
}
