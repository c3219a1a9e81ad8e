//! A real Chromium, driven by `chromedriver`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use skewbridge_testkit::{TEST_TIMEOUT, eventually};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use crate::binaries;
use crate::control_plane::ControlPlane;
use crate::ports::free_address;
use crate::process::Process;

/// Without a sandbox, which root cannot have, without a display, and without requests to any other
/// host.
const FLAGS: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
];

/// A process ID namespace, whose processes the kernel ends with its first one: chromedriver does not
/// always end its browser.
const NAMESPACE_ARGUMENTS: [&str; 4] = ["--pid", "--fork", "--kill-child", "--mount-proc"];

/// The height of a screenshot: the upper part of a long page.
const MAX_SCREENSHOT_HEIGHT: u64 = 2_000;

/// Whether pages run scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JavaScript {
    /// They do.
    On,
    /// They do not.
    Off,
}

/// A browser with one window. It stops when it is dropped.
#[derive(Debug)]
pub struct Browser {
    address: SocketAddr,
    session: String,
    _process: Process,
}

impl ControlPlane {
    /// Starts a browser with an empty profile in the directory of a control plane.
    pub async fn start_browser(&self, javascript: JavaScript) -> Browser {
        let address = free_address();
        let name = format!("chromedriver-{}", address.port());
        let arguments = NAMESPACE_ARGUMENTS.map(str::to_owned);
        let port = format!("--port={}", address.port());
        let arguments = [arguments.as_slice(), &["chromedriver".to_owned(), port]].concat();
        let directory = self.directory();
        let process = Process::start(&name, &name, Path::new("unshare"), &arguments, directory);
        eventually(&name, TEST_TIMEOUT, async || {
            request(address, "GET", "/status", &Value::Null)
                .await
                .is_some()
        })
        .await;
        let profile = directory.join(format!("profile-{}", address.port()));
        let profile = format!("--user-data-dir={}", profile.display());
        let arguments: Vec<_> = FLAGS.into_iter().chain([&*profile]).collect();
        let content = match javascript {
            JavaScript::On => 1,
            JavaScript::Off => 2,
        };
        let capabilities = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:loggingPrefs": {"browser": "ALL"},
            "goog:chromeOptions": {
                "args": arguments,
                "prefs": {"profile.managed_default_content_settings.javascript": content},
            },
        }}});
        let answer = request(address, "POST", "/session", &capabilities).await;
        let answer = answer.expect("an answer of chromedriver");
        let session = answer["sessionId"].as_str();
        let session = session
            .unwrap_or_else(|| panic!("no session: {answer}"))
            .to_owned();
        Browser {
            address,
            session,
            _process: process,
        }
    }
}

impl Browser {
    async fn command(&self, method: &str, command: &str, body: &Value) -> Value {
        let path = format!("/session/{}/{command}", self.session);
        let answer = request(self.address, method, &path, body).await;
        let answer = answer.unwrap_or_else(|| panic!("no answer to {command}"));
        assert!(answer["error"].is_null(), "{command}: {answer}");
        answer
    }

    /// Loads a page.
    pub async fn open(&self, url: &str) {
        self.command("POST", "url", &json!({"url": url})).await;
    }

    /// The value that a function body returns in the page.
    pub async fn run(&self, script: &str) -> Value {
        let body = json!({"script": script, "args": []});
        self.command("POST", "execute/sync", &body).await
    }

    /// The same for a promise.
    pub async fn run_async(&self, script: &str) -> Value {
        let script = format!(
            "const done = arguments[0]; (async () => {{ {script} }})().then(done, (error) => done(String(error)));"
        );
        let body = json!({"script": script, "args": []});
        self.command("POST", "execute/async", &body).await
    }

    /// The document as it is now, as HTML; also without JavaScript.
    pub async fn source(&self) -> String {
        let source = self.command("GET", "source", &Value::Null).await;
        source.as_str().unwrap_or_default().to_owned()
    }

    /// Messages of the console, with their level.
    pub async fn console(&self) -> Vec<String> {
        let log = self
            .command("POST", "se/log", &json!({"type": "browser"}))
            .await;
        let messages = log.as_array().into_iter().flatten();
        messages
            .map(|it| format!("{}: {}", it["level"], it["message"]))
            .collect()
    }

    /// What axe-core finds: impact, rule and elements.
    pub async fn accessibility_problems(&self) -> Vec<String> {
        let axe = std::fs::read_to_string(axe()).expect("axe-core");
        self.run(&axe).await;
        let found = self.run_async("return (await axe.run()).violations;").await;
        let found = found
            .as_array()
            .unwrap_or_else(|| panic!("axe-core: {found}"));
        let problems = found.iter().map(|it| {
            let nodes = it["nodes"].as_array().into_iter().flatten();
            let nodes: Vec<_> = nodes.map(|node| node["html"].to_string()).collect();
            format!("{} {}: {}", it["impact"], it["id"], nodes.join(", "))
        });
        problems.collect()
    }

    async fn devtools(&self, command: &str, parameters: &Value) -> Value {
        let body = json!({"cmd": command, "params": parameters});
        self.command("POST", "goog/cdp/execute", &body).await
    }

    /// The page as a PNG image of this width, with a light or a dark colour scheme.
    pub async fn screenshot(&self, width: u32, scheme: &str) -> Vec<u8> {
        let metrics = |height: u64| json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        let feature = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.devtools("Emulation.setEmulatedMedia", &feature).await;
        self.devtools("Emulation.setDeviceMetricsOverride", &metrics(800))
            .await;
        let height = self
            .run("return document.documentElement.scrollHeight;")
            .await;
        let height = height.as_u64().unwrap_or(800).min(MAX_SCREENSHOT_HEIGHT);
        self.devtools("Emulation.setDeviceMetricsOverride", &metrics(height))
            .await;
        let shot = self
            .devtools("Page.captureScreenshot", &json!({"format": "png"}))
            .await;
        let shot = shot["data"].as_str().expect("an image");
        STANDARD.decode(shot).expect("base64")
    }
}

fn axe() -> PathBuf {
    binaries::axe().join("node_modules/axe-core/axe.min.js")
}

/// The value of an answer of chromedriver, also that of an error.
async fn request(address: SocketAddr, method: &str, path: &str, body: &Value) -> Option<Value> {
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let stream = TcpStream::connect(address).await.ok()?;
    let mut stream = BufReader::new(stream);
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).await.ok()?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok()?;
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer).await.ok()?;
    let mut answer: Value = serde_json::from_slice(&answer).ok()?;
    Some(answer["value"].take())
}
