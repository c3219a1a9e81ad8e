//! Cluster and user: kubectl's flags, for all commands that talk to a cluster.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use skewbridge_client::kubeconfig::{Cluster, Context, PemSource, User};
use skewbridge_client::{Endpoint, Error, Kubeconfig, Secret, Target};

use crate::flag_values;

/// The heading of these flags in `--help`.
const HEADING: &str = "Cluster options";

// Cluster and user. Names and meanings are kubectl's. (No doc comment: clap would use it as the
// description of the command.)
#[derive(Clone, Args)]
#[command(next_help_heading = HEADING)]
pub(crate) struct ClusterFlags {
    /// The kubeconfig [default: $KUBECONFIG, ~/.kube/config or that of the pod]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig to use
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// The cluster of the kubeconfig to use
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// The user of the kubeconfig to use
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// The namespace [default: that of the context]
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// The address of the API server [default: that of the cluster]
    #[arg(short, long, value_name = "URL")]
    server: Option<String>,
    /// Name to expect in the server's certificate, if not its host
    #[arg(long, value_name = "NAME")]
    tls_server_name: Option<String>,
    /// CAs that sign the server's certificate
    #[arg(long, value_name = "FILE")]
    certificate_authority: Option<PathBuf>,
    /// Do not verify the server's certificate (insecure)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_value_t = false, default_missing_value = "true", hide_default_value = true)]
    insecure_skip_tls_verify: bool,
    /// A client certificate
    #[arg(long, value_name = "FILE")]
    client_certificate: Option<PathBuf>,
    /// The key of the client certificate
    #[arg(long, value_name = "FILE")]
    client_key: Option<PathBuf>,
    /// A bearer token
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
    /// User name for basic authentication
    #[arg(long, value_name = "NAME")]
    username: Option<String>,
    /// Password for basic authentication
    #[arg(long, value_name = "PASSWORD")]
    password: Option<String>,
    /// User to impersonate
    #[arg(long = "as", value_name = "USER")]
    as_user: Option<String>,
    /// Group to impersonate; may be repeated
    #[arg(long, value_name = "GROUP")]
    as_group: Vec<String>,
    /// UID to impersonate
    #[arg(long, value_name = "UID")]
    as_uid: Option<String>,
    /// Extra field to impersonate, as KEY=VALUE; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    as_user_extra: Vec<String>,
    /// Time limit of a single request; 0 for no limit
    #[arg(long, value_name = "DURATION", default_value = "0")]
    request_timeout: String,
    /// Log verbosity: 1 and above shows the stream protocol and the reason for it
    #[arg(
        short,
        long = "v",
        value_name = "LEVEL",
        default_value_t = 0,
        hide_default_value = true
    )]
    verbosity: u8,
    /// Accepted for compatibility, and ignored
    #[arg(long, hide = true)]
    cache_dir: Option<PathBuf>,
    /// Accepted for compatibility, and ignored
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    disable_compression: Option<bool>,
    /// Accepted for compatibility, and ignored
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    match_server_version: Option<bool>,
    /// Accepted for compatibility, and ignored
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    warnings_as_errors: Option<bool>,
}

/// A cluster and the credentials for it.
#[derive(Debug, Clone)]
pub(crate) struct ClusterAccess {
    pub(crate) endpoint: Endpoint,
    /// The default namespace.
    pub(crate) namespace: String,
    pub(crate) verbosity: u8,
}

impl ClusterFlags {
    /// Loads the kubeconfig and applies the flags.
    pub(crate) async fn access(&self) -> Result<ClusterAccess, String> {
        let timeout = self.timeout()?;
        let target = self.target().map_err(|error| error.to_string())?;
        let namespace = self.namespace().map(str::to_owned);
        let namespace = namespace.or_else(|| target.namespace.clone());
        let endpoint = Endpoint::prepare(&target, timeout).await;
        Ok(ClusterAccess {
            endpoint: endpoint.map_err(|error| error.to_string())?,
            namespace: namespace.unwrap_or_else(|| "default".to_owned()),
            verbosity: self.verbosity,
        })
    }

    /// The namespace of the flag.
    pub(crate) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref().filter(|name| !name.is_empty())
    }

    /// The kubeconfig of the flag.
    pub(crate) fn kubeconfig(&self) -> Option<&Path> {
        self.kubeconfig.as_deref()
    }

    /// In kubectl's syntax: `30s`, or a bare number of seconds.
    fn timeout(&self) -> Result<Option<Duration>, String> {
        let text = &self.request_timeout;
        let timeout = match text.parse() {
            Ok(seconds) => Duration::from_secs(seconds),
            Err(_) => flag_values::duration(text)
                .map_err(|wrong| format!("--request-timeout: {wrong}"))?,
        };
        Ok(Some(timeout).filter(|timeout| !timeout.is_zero()))
    }

    fn target(&self) -> Result<Target, Error> {
        let mut config = match Kubeconfig::load(self.kubeconfig.as_deref()) {
            // `--server` alone is enough.
            Err(Error::NoConfiguration { .. }) if self.server.is_some() => Kubeconfig::default(),
            loaded => loaded?,
        };
        let chosen = self
            .context
            .clone()
            .or_else(|| config.current_context.clone());
        let context = match chosen.filter(|name| !name.is_empty()) {
            Some(name) => {
                let by_itself = self.server.is_some() && self.context.is_none();
                if by_itself && !config.contexts.contains_key(&name) {
                    config.contexts.insert(name.clone(), Context::default());
                }
                name
            }
            None if self.server.is_some() || self.cluster.is_some() => {
                config.contexts.insert(String::new(), Context::default());
                String::new()
            }
            // The error names what is missing.
            None => return config.target(None),
        };
        if let Some(entry) = config.contexts.get_mut(&context) {
            if let Some(cluster) = &self.cluster {
                entry.cluster.clone_from(cluster);
            }
            if let Some(user) = &self.user {
                entry.user.clone_from(user);
            }
            if self.server.is_some() && entry.cluster.is_empty() {
                config.clusters.entry(String::new()).or_default();
            }
        }
        let mut target = config.target(Some(&context))?;
        self.override_cluster(&mut target.cluster);
        self.override_user(&mut target.user);
        Ok(target)
    }

    fn override_cluster(&self, cluster: &mut Cluster) {
        if let Some(server) = &self.server {
            cluster.server.clone_from(server);
            // The TLS server name was for another server.
            cluster.tls_server_name = None;
        }
        if let Some(name) = &self.tls_server_name {
            cluster.tls_server_name = Some(name.clone());
        }
        if let Some(file) = &self.certificate_authority {
            cluster.certificate_authority = Some(PemSource::File(file.clone()));
            cluster.insecure_skip_tls_verify = false;
        }
        if self.insecure_skip_tls_verify {
            cluster.insecure_skip_tls_verify = true;
            cluster.certificate_authority = None;
        }
    }

    fn override_user(&self, user: &mut User) {
        if let Some(file) = &self.client_certificate {
            user.client_certificate = Some(PemSource::File(file.clone()));
        }
        if let Some(file) = &self.client_key {
            user.client_key = Some(PemSource::File(file.clone()));
        }
        if let Some(token) = &self.token {
            user.token = Some(Secret::new(token.as_str()));
            (user.token_file, user.username, user.password) = (None, None, None);
        }
        if let Some(name) = &self.username {
            user.username = Some(name.clone());
            user.password = self.password.as_deref().map(Secret::new);
            (user.token, user.token_file) = (None, None);
        }
        if let Some(name) = &self.as_user {
            user.impersonate.user = Some(name.clone());
        }
        if let Some(uid) = &self.as_uid {
            user.impersonate.uid = Some(uid.clone());
        }
        if !self.as_group.is_empty() {
            user.impersonate.groups.clone_from(&self.as_group);
        }
        if !self.as_user_extra.is_empty() {
            let mut extra = BTreeMap::<_, Vec<_>>::new();
            // Entries without `=` are ignored, as by kubectl.
            for (key, value) in self
                .as_user_extra
                .iter()
                .filter_map(|it| it.split_once('='))
            {
                let values = extra.entry(key.to_owned()).or_default();
                values.push(value.to_owned());
            }
            user.impersonate.extra = extra;
        }
    }
}

/// Tokens and passwords are not shown.
impl std::fmt::Debug for ClusterFlags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterFlags")
            .field("kubeconfig", &self.kubeconfig)
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use skewbridge_testkit::ScratchDir;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: ClusterFlags,
    }

    const CONFIG: &str = "current-context: a\n\
        contexts: [{name: a, context: {cluster: red, user: me, namespace: shop}}, {name: b, context: {cluster: blue}}]\n\
        clusters: [{name: red, cluster: {server: 'https://red', tls-server-name: r, insecure-skip-tls-verify: true}}, {name: blue, cluster: {server: 'https://blue'}}]\n\
        users: [{name: me, user: {tokenFile: /nonexistent/token}}, {name: you, user: {username: you, password: p}}]\n";

    fn target(words: &[&str]) -> Result<Target, String> {
        let dir = ScratchDir::new();
        let file = dir.write("config", CONFIG);
        let file = format!("--kubeconfig={}", file.display());
        let words = ["x", file.as_str()]
            .into_iter()
            .chain(words.iter().copied());
        let line = Line::try_parse_from(words).unwrap();
        line.flags.target().map_err(|error| error.to_string())
    }

    #[test]
    fn flags_override_the_kubeconfig() {
        let plain = target(&[]).unwrap();
        assert_eq!(plain.cluster.server, "https://red");
        assert_eq!(plain.namespace.as_deref(), Some("shop"));
        assert_eq!(
            target(&["--context=b"]).unwrap().cluster.server,
            "https://blue"
        );
        assert_eq!(
            target(&["--cluster=blue"]).unwrap().cluster.server,
            "https://blue"
        );
        let you = target(&["--user=you"]).unwrap();
        assert_eq!(you.user.username.as_deref(), Some("you"));
        let moved = target(&[
            "-s",
            "https://green",
            "--as=z",
            "--as-group=g",
            "--as-group=h",
            "--as-user-extra=team=a=b",
            "--as-user-extra=team=c",
            "--as-user-extra=nothing",
        ])
        .unwrap();
        assert_eq!(moved.cluster.server, "https://green");
        assert_eq!(moved.cluster.tls_server_name, None);
        assert_eq!(moved.user.impersonate.user.as_deref(), Some("z"));
        assert_eq!(moved.user.impersonate.groups, ["g", "h"]);
        let extra = [("team".to_owned(), vec!["a=b".to_owned(), "c".to_owned()])];
        assert_eq!(moved.user.impersonate.extra, BTreeMap::from(extra));
        let token = target(&["--token=secret"]).unwrap();
        assert_eq!(token.user.token, Some(Secret::new("secret")));
        assert_eq!(token.user.token_file, None);
        let trusted = target(&["--certificate-authority=/ca"]).unwrap();
        assert!(!trusted.cluster.insecure_skip_tls_verify);
        assert!(
            target(&["--context=c"])
                .unwrap_err()
                .contains("does not exist")
        );
    }

    #[test]
    fn debug_output_has_no_secrets() {
        let words = ["x", "--token=secret", "--password=secret", "--username=me"];
        let line = Line::try_parse_from(words).unwrap();
        assert!(!format!("{:?}", line.flags).contains("secret"));
    }
}
