//! A client of the load balancer: curl, with a connection for each request.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::kubeadm_cluster::{ENDPOINT, Node};

/// How often a request is repeated that no server has processed, once a second.
const MAX_RETRIES: usize = 20;

/// curl's exit codes for a connection that was refused, or ended in its TLS handshake.
const NOT_SENT: [i32; 2] = [7, 35];

/// What curl prints after the body.
const WRITE_OUT: &str = "\n%{http_code} %header{retry-after}";

/// The administrator of the cluster.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    /// With the certificate and the key.
    directory: PathBuf,
}

#[derive(Debug, Clone)]
pub(crate) struct Request {
    method: &'static str,
    path: String,
    accept: Option<&'static str>,
    /// The media type, and the body.
    body: Option<(&'static str, String)>,
}

#[derive(Debug)]
pub(crate) struct Response {
    /// 0 if there was no response.
    pub(crate) status: u16,
    pub(crate) body: String,
    has_retry_after: bool,
    exit_code: Option<i32>,
    error: String,
}

impl Request {
    pub(crate) fn new(method: &'static str, path: impl Into<String>) -> Self {
        Self {
            method,
            path: path.into(),
            accept: None,
            body: None,
        }
    }

    pub(crate) fn get(path: impl Into<String>) -> Self {
        Self::new("GET", path)
    }

    pub(crate) fn post(path: impl Into<String>, object: &impl ToString) -> Self {
        Self::new("POST", path).body("application/json", object)
    }

    pub(crate) fn merge_patch(path: impl Into<String>, changes: &impl ToString) -> Self {
        Self::new("PATCH", path).body("application/merge-patch+json", changes)
    }

    pub(crate) fn accept(mut self, media_types: &'static str) -> Self {
        self.accept = Some(media_types);
        self
    }

    fn body(mut self, media_type: &'static str, body: &impl ToString) -> Self {
        self.body = Some((media_type, body.to_string()));
        self
    }
}

impl Client {
    /// Copies the certificate of a node's `admin.conf` to a directory.
    pub(crate) fn of_administrator(node: &Node, directory: &Path) -> Self {
        node.machine.shell(&format!(
            "cd {}\n\
             for part in certificate key; do\n\
             sed -n \"s/.*client-$part-data: //p\" /etc/kubernetes/admin.conf | base64 -d > admin.$part\n\
             done\n\
             cp /etc/kubernetes/pki/ca.crt .",
            directory.display()
        ));
        Self {
            directory: directory.to_owned(),
        }
    }

    /// curl for a path of the API, without options for the request.
    pub(crate) fn curl(&self, path: &str) -> Command {
        let options = "-sS --cacert ca.crt --cert admin.certificate --key admin.key";
        let mut command = Command::new("curl");
        command
            .args(options.split_whitespace())
            .arg(format!("https://{ENDPOINT}{path}"))
            .current_dir(&self.directory)
            .stdin(Stdio::null());
        command
    }

    /// Sends a request once.
    pub(crate) fn send(&self, request: &Request) -> Response {
        let mut curl = self.curl(&request.path);
        curl.args(["--max-time", "30", "-w", WRITE_OUT, "-X", request.method]);
        if let Some(media_types) = request.accept {
            curl.args(["-H", &format!("Accept: {media_types}")]);
        }
        if let Some((media_type, body)) = &request.body {
            curl.args(["-H", &format!("Content-Type: {media_type}"), "-d", body]);
        }
        let ended = curl.output().expect("curl");
        let printed = String::from_utf8_lossy(&ended.stdout);
        let (body, status) = printed.rsplit_once('\n').unwrap_or_default();
        let (status, retry_after) = status.split_once(' ').unwrap_or_default();
        Response {
            status: status.parse().unwrap_or_default(),
            body: body.to_owned(),
            has_retry_after: !retry_after.is_empty(),
            exit_code: ended.status.code(),
            error: String::from_utf8_lossy(&ended.stderr).into_owned(),
        }
    }

    /// Sends a request as client-go does: it repeats one that is answered with 503 or 429 and
    /// `Retry-After`, and one that has not been sent. Returns the body, or what the last response
    /// was.
    pub(crate) fn send_and_repeat(
        &self,
        request: &Request,
        repeated: &mut usize,
    ) -> Result<String, String> {
        let mut last = String::new();
        for _ in 0..MAX_RETRIES {
            let response = self.send(request);
            if response.is_success() {
                return Ok(response.body);
            }
            let may_repeat = response.may_repeat(request);
            last = format!(
                "{} {}: {:?} {} {}{}",
                request.method,
                request.path,
                response.exit_code,
                response.status,
                response.error,
                response.body
            );
            if !may_repeat {
                break;
            }
            *repeated += 1;
            thread::sleep(Duration::from_secs(1));
        }
        Err(last)
    }
}

impl Response {
    pub(crate) fn is_success(&self) -> bool {
        self.exit_code == Some(0) && [200, 201].contains(&self.status)
    }

    fn may_repeat(&self, request: &Request) -> bool {
        match self.exit_code {
            Some(0) => [503, 429].contains(&self.status) && self.has_retry_after,
            Some(code) => request.method == "GET" || NOT_SENT.contains(&code),
            None => false,
        }
    }
}
