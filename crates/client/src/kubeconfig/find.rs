//! Finding the kubeconfig.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use super::{Cluster, Context, Kubeconfig, PemSource, User};
use crate::error::Error;

/// The largest file that is read: enough for thousands of clusters, too small for a wrong path
/// (a device, a log).
const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;

/// Where a pod's service account is mounted.
const SERVICE_ACCOUNT_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The name of the in-cluster context.
const IN_CLUSTER_NAME: &str = "in-cluster";

impl Kubeconfig {
    /// Loads the given file; otherwise the files of `$KUBECONFIG`, else `~/.kube/config`, else
    /// the service account of this pod.
    pub fn load(explicit: Option<&Path>) -> Result<Self, Error> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        if let Some(path) = explicit {
            return match read(path)? {
                Some(text) => Self::parse(&text, path),
                None => Err(Error::File {
                    path: path.to_owned(),
                    cause: "no such file or directory; correct --kubeconfig".to_owned(),
                }),
            };
        }
        let paths: Vec<PathBuf> = match (variable("KUBECONFIG"), variable("HOME")) {
            (Some(list), _) => std::env::split_paths(&list).collect(),
            (None, Some(home)) => vec![Path::new(&home).join(".kube/config")],
            (None, None) => Vec::new(),
        };
        let config = Self::read_all(&paths)?;
        if !config.is_empty() {
            return Ok(config);
        }
        let host = variable("KUBERNETES_SERVICE_HOST");
        let port = variable("KUBERNETES_SERVICE_PORT");
        if let (Some(host), Some(port)) = (host, port) {
            let (host, port) = (host.to_string_lossy(), port.to_string_lossy());
            if let Some(config) = Self::in_cluster(&host, &port, Path::new(SERVICE_ACCOUNT_DIR)) {
                return Ok(config);
            }
        }
        let searched: Vec<_> = paths.iter().map(|it| it.display().to_string()).collect();
        Err(Error::NoConfiguration {
            searched: if searched.is_empty() {
                "$KUBECONFIG or $HOME".to_owned()
            } else {
                searched.join(", ")
            },
        })
    }

    /// Merges several files; earlier files take precedence. Missing files are skipped.
    pub fn read_all(paths: &[PathBuf]) -> Result<Self, Error> {
        let mut config = Self::default();
        for path in paths.iter().filter(|path| !path.as_os_str().is_empty()) {
            if let Some(text) = read(path)? {
                config = config.merge(Self::parse(&text, path)?);
            }
        }
        Ok(config)
    }

    /// The configuration of a pod with a service account.
    fn in_cluster(host: &str, port: &str, account: &Path) -> Option<Self> {
        let token = account.join("token");
        if !token.exists() {
            return None;
        }
        let host = if host.contains(':') {
            format!("[{host}]")
        } else {
            host.to_owned()
        };
        let cluster = Cluster {
            server: format!("https://{host}:{port}"),
            certificate_authority: Some(PemSource::File(account.join("ca.crt"))),
            ..Cluster::default()
        };
        let user = User {
            token_file: Some(token),
            ..User::default()
        };
        let context = Context {
            cluster: IN_CLUSTER_NAME.to_owned(),
            user: IN_CLUSTER_NAME.to_owned(),
            namespace: read(&account.join("namespace"))
                .ok()
                .flatten()
                .map(|text| text.trim().to_owned())
                .filter(|name| !name.is_empty()),
        };
        let name = || IN_CLUSTER_NAME.to_owned();
        Some(Self {
            current_context: Some(name()),
            contexts: BTreeMap::from([(name(), context)]),
            clusters: BTreeMap::from([(name(), cluster)]),
            users: BTreeMap::from([(name(), user)]),
            files: vec![account.to_owned()],
        })
    }

    fn is_empty(&self) -> bool {
        self.contexts.is_empty()
            && self.clusters.is_empty()
            && self.users.is_empty()
            && self.current_context.is_none()
    }
}

/// The text of a file; `None` if it does not exist.
fn read(path: &Path) -> Result<Option<Zeroizing<String>>, Error> {
    let invalid = |cause: String| {
        Err(Error::File {
            path: path.to_owned(),
            cause,
        })
    };
    let mut text = Zeroizing::new(String::new());
    let read = File::open(path).and_then(|file| {
        let length = file.metadata().map_or(0, |it| it.len()).min(MAX_FILE_BYTES);
        // Reserves the whole size: a buffer that grows leaves copies of secrets behind.
        text.reserve_exact(usize::try_from(length).unwrap_or_default() + 1);
        file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)
    });
    match read {
        Ok(_) if text.len() as u64 > MAX_FILE_BYTES => invalid(format!(
            "is larger than {} MiB; correct the path",
            MAX_FILE_BYTES >> 20
        )),
        Ok(_) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == ErrorKind::InvalidData => {
            invalid("is not a kubeconfig: it is not text".to_owned())
        }
        Err(error) => invalid(format!("cannot be read: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use skewbridge_testkit::{ApiServer, Ca, Options, Reply, ScratchDir, TEST_TIMEOUT};

    use super::*;
    use crate::{Endpoint, Request};

    fn config(server: &str, current: &str) -> String {
        format!(
            "current-context: {current}\n\
             clusters: [{{name: red, cluster: {{server: '{server}'}}}}, {{name: {current}, cluster: {{server: x}}}}]\n\
             contexts: [{{name: {current}, context: {{cluster: red}}}}]\n"
        )
    }

    #[test]
    fn the_first_file_with_an_entry_takes_precedence() {
        let dir = ScratchDir::new();
        let first = dir.write("first", config("https://first", "one"));
        let second = dir.write("second", config("https://second", "two"));
        let absent = dir.path().join("absent");
        let paths = [PathBuf::new(), absent, first, second];
        let merged = Kubeconfig::read_all(&paths).unwrap();
        assert_eq!(merged.current_context.as_deref(), Some("one"));
        assert_eq!(merged.clusters["red"].server, "https://first");
        let contexts: Vec<_> = merged.contexts.keys().collect();
        assert_eq!(contexts, ["one", "two"]);
        assert_eq!(
            merged.target(Some("two")).unwrap().cluster.server,
            "https://first"
        );
        let error = merged.target(Some("three")).unwrap_err().to_string();
        assert!(
            error.starts_with("context \"three\" does not exist in "),
            "{error}"
        );
        assert!(error.ends_with("second; available: one, two"), "{error}");
    }

    #[test]
    fn a_pod_uses_its_service_account() {
        let dir = ScratchDir::new();
        assert_eq!(Kubeconfig::in_cluster("10.0.0.1", "443", dir.path()), None);
        dir.write("token", "t");
        dir.write("namespace", "shop\n");
        let config = Kubeconfig::in_cluster("fd00::1", "443", dir.path()).unwrap();
        let target = config.target(None).unwrap();
        assert_eq!(target.cluster.server, "https://[fd00::1]:443");
        assert_eq!(target.user.token_file, Some(dir.path().join("token")));
        assert_eq!(target.namespace.as_deref(), Some("shop"));
    }

    #[tokio::test]
    async fn a_pod_authenticates_with_its_service_account() {
        let ca = Ca::new("cluster");
        let options = Options::new(ca.server(&["127.0.0.1"]));
        let server = ApiServer::start(options, |requests| Reply::json(requests.target)).await;
        let account = ScratchDir::new();
        account.write("token", "first\n");
        account.write("ca.crt", ca.pem());
        let (host, port) = (server.addr().ip(), server.addr().port());
        let config = Kubeconfig::in_cluster(&host.to_string(), &port.to_string(), account.path());
        let target = config.unwrap().target(None).unwrap();
        let endpoint = Endpoint::prepare(&target, Some(TEST_TIMEOUT))
            .await
            .unwrap();
        let answer = endpoint.send(&Request::get("/api")).await.unwrap();
        assert_eq!(answer.body, "/api");
        // Pod tokens are replaced while the pod runs.
        account.write("token", "second\n");
        let endpoint = Endpoint::prepare(&target, Some(TEST_TIMEOUT))
            .await
            .unwrap();
        endpoint.send(&Request::get("/api")).await.unwrap();
        let requests = server.requests();
        let debug_text: Vec<_> = requests
            .iter()
            .map(|it| it.header("authorization"))
            .collect();
        assert_eq!(debug_text, [Some("Bearer first"), Some("Bearer second")]);
        // A different CA is not trusted.
        account.write("ca.crt", Ca::new("other").pem());
        let endpoint = Endpoint::prepare(&target, Some(TEST_TIMEOUT))
            .await
            .unwrap();
        assert!(endpoint.send(&Request::get("/api")).await.is_err());
    }

    #[test]
    fn an_error_names_the_unreadable_file() {
        let dir = ScratchDir::new();
        let binary = dir.write("binary", [0xff, 0xfe]);
        for path in [dir.path().to_owned(), binary] {
            let error = Kubeconfig::load(Some(&path)).unwrap_err().to_string();
            assert!(error.starts_with(&path.display().to_string()), "{error}");
        }
        let absent = dir.path().join("absent");
        let error = Kubeconfig::load(Some(&absent)).unwrap_err().to_string();
        assert!(error.contains("no such file or directory"), "{error}");
    }
}
