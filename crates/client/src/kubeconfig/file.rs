//! Parsing of one kubeconfig file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer};
use zeroize::Zeroizing;

use super::{
    Cluster, Context, Exec, ExecVersion, Impersonation, InteractiveMode, Kubeconfig, PemSource,
    User,
};
use crate::Secret;
use crate::error::{Entry, Error};

impl Kubeconfig {
    /// Parses the text of a file. Paths in it are relative to the file. Unknown fields are
    /// ignored, and `null` means absent.
    pub fn parse(text: &str, path: &Path) -> Result<Self, Error> {
        let raw: RawConfig = if text.trim().is_empty() {
            RawConfig::default()
        } else {
            serde_saphyr::from_str(text).map_err(|error| parse_error(&error, path))?
        };
        let base_dir = path.parent().unwrap_or(Path::new(""));
        let contexts = raw.contexts.into_iter().map(|it| (it.name, it.context));
        let clusters = raw.clusters.into_iter().map(|it| (it.name, it.cluster));
        let users = raw.users.into_iter().map(|it| (it.name, it.user));
        Ok(Self {
            current_context: non_empty(raw.current_context),
            contexts: by_name(path, "contexts", contexts, |_, raw| Ok(raw.resolve()))?,
            clusters: by_name(path, "clusters", clusters, |name, raw| {
                raw.resolve(name, base_dir)
            })?,
            users: by_name(path, "users", users, |name, raw| {
                raw.resolve(name, base_dir)
            })?,
            files: vec![path.to_owned()],
        })
    }
}

/// Reports the position but not the text there, which may be a token.
fn parse_error(error: &serde_saphyr::Error, path: &Path) -> Error {
    let cause = match error.location() {
        Some(with_server) => format!(
            "is not a kubeconfig: line {}, column {} cannot be parsed",
            with_server.line(),
            with_server.column()
        ),
        None => "is not a kubeconfig".to_owned(),
    };
    Error::File {
        path: path.to_owned(),
        cause,
    }
}

fn by_name<R, T>(
    path: &Path,
    list: &str,
    raw: impl Iterator<Item = (String, R)>,
    resolve: impl Fn(&str, R) -> Result<T, Error>,
) -> Result<BTreeMap<String, T>, Error> {
    let mut entries = BTreeMap::new();
    for (name, entry) in raw {
        let understood = resolve(&name, entry)?;
        if entries.contains_key(&name) {
            return Err(Error::File {
                path: path.to_owned(),
                cause: format!("duplicate name {name:?} in the list of {list}"),
            });
        }
        entries.insert(name, understood);
    }
    Ok(entries)
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
struct RawConfig {
    #[serde(default)]
    current_context: Option<String>,
    #[serde(default, deserialize_with = "null_as_default")]
    contexts: Vec<NamedContext>,
    #[serde(default, deserialize_with = "null_as_default")]
    clusters: Vec<NamedCluster>,
    #[serde(default, deserialize_with = "null_as_default")]
    users: Vec<NamedUser>,
}

#[derive(Deserialize)]
struct NamedContext {
    #[serde(default, deserialize_with = "null_as_default")]
    name: String,
    #[serde(default, deserialize_with = "null_as_default")]
    context: RawContext,
}

#[derive(Deserialize)]
struct NamedCluster {
    #[serde(default, deserialize_with = "null_as_default")]
    name: String,
    #[serde(default, deserialize_with = "null_as_default")]
    cluster: RawCluster,
}

#[derive(Deserialize)]
struct NamedUser {
    #[serde(default, deserialize_with = "null_as_default")]
    name: String,
    #[serde(default, deserialize_with = "null_as_default")]
    user: RawUser,
}

#[derive(Deserialize, Default)]
struct RawContext {
    #[serde(default, deserialize_with = "null_as_default")]
    cluster: String,
    #[serde(default, deserialize_with = "null_as_default")]
    user: String,
    #[serde(default)]
    namespace: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
struct RawCluster {
    #[serde(default, deserialize_with = "null_as_default")]
    server: String,
    #[serde(default)]
    tls_server_name: Option<String>,
    #[serde(default, deserialize_with = "null_as_default")]
    insecure_skip_tls_verify: bool,
    #[serde(default)]
    certificate_authority: Option<String>,
    #[serde(default)]
    certificate_authority_data: Option<String>,
    #[serde(default)]
    proxy_url: Option<String>,
    #[serde(default, deserialize_with = "null_as_default")]
    extensions: Vec<RawExtension>,
}

#[derive(Deserialize)]
struct RawExtension {
    #[serde(default, deserialize_with = "null_as_default")]
    name: String,
    #[serde(default)]
    extension: Option<serde_json::Value>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
struct RawUser {
    #[serde(default)]
    client_certificate: Option<String>,
    #[serde(default)]
    client_certificate_data: Option<String>,
    #[serde(default)]
    client_key: Option<String>,
    #[serde(default)]
    client_key_data: Option<String>,
    #[serde(default)]
    token: Option<String>,
    #[serde(default, rename = "tokenFile")]
    token_file: Option<String>,
    #[serde(default)]
    username: Option<String>,
    #[serde(default)]
    password: Option<String>,
    #[serde(default)]
    exec: Option<RawExec>,
    #[serde(default)]
    auth_provider: Option<RawProvider>,
    #[serde(default, rename = "as")]
    as_user: Option<String>,
    #[serde(default)]
    as_uid: Option<String>,
    #[serde(default, deserialize_with = "null_as_default")]
    as_groups: Vec<String>,
    #[serde(default, deserialize_with = "null_as_default")]
    as_user_extra: BTreeMap<String, Vec<String>>,
}

#[derive(Deserialize)]
struct RawProvider {
    #[serde(default, deserialize_with = "null_as_default")]
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawExec {
    #[serde(default, deserialize_with = "null_as_default")]
    command: String,
    #[serde(default, deserialize_with = "null_as_default")]
    args: Vec<String>,
    #[serde(default, deserialize_with = "null_as_default")]
    env: Vec<RawVariable>,
    #[serde(default, deserialize_with = "null_as_default")]
    api_version: String,
    #[serde(default)]
    install_hint: Option<String>,
    #[serde(default, deserialize_with = "null_as_default")]
    provide_cluster_info: bool,
    #[serde(default, deserialize_with = "null_as_default")]
    interactive_mode: String,
}

#[derive(Deserialize)]
struct RawVariable {
    name: String,
    #[serde(default, deserialize_with = "null_as_default")]
    value: String,
}

/// Deserializes `null` as the default value.
fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl RawContext {
    fn resolve(self) -> Context {
        Context {
            cluster: self.cluster,
            user: self.user,
            namespace: non_empty(self.namespace),
        }
    }
}

impl RawCluster {
    fn resolve(self, name: &str, base_dir: &Path) -> Result<Cluster, Error> {
        const EXEC: &str = "client.authentication.k8s.io/exec";
        let mut extensions = self.extensions.into_iter();
        Ok(Cluster {
            server: self.server,
            tls_server_name: non_empty(self.tls_server_name),
            insecure_skip_tls_verify: self.insecure_skip_tls_verify,
            certificate_authority: pem_source(
                (Entry::Cluster, name),
                "certificate-authority-data",
                self.certificate_authority_data,
                self.certificate_authority,
                base_dir,
            )?,
            proxy_url: non_empty(self.proxy_url).map(Secret::new),
            exec_config: extensions
                .find(|extension| extension.name == EXEC)
                .and_then(|extension| extension.extension),
        })
    }
}

impl RawUser {
    fn resolve(self, name: &str, base_dir: &Path) -> Result<User, Error> {
        let of = (Entry::User, name);
        let (exec, problem) = match self.exec.map(|exec| exec.resolve(base_dir)) {
            None => (None, None),
            Some(Ok(exec)) => (Some(exec), None),
            Some(Err(problem)) => (None, Some(problem)),
        };
        let provider = self.auth_provider.map(|provider| {
            let name = provider.name;
            format!("auth-provider {name:?} is no longer supported, also not by kubectl; use exec")
        });
        Ok(User {
            client_certificate: pem_source(
                of,
                "client-certificate-data",
                self.client_certificate_data,
                self.client_certificate,
                base_dir,
            )?,
            client_key: pem_source(
                of,
                "client-key-data",
                self.client_key_data,
                self.client_key,
                base_dir,
            )?,
            token: non_empty(self.token).map(Secret::new),
            token_file: non_empty(self.token_file).map(|path| base_dir.join(path)),
            username: non_empty(self.username),
            password: non_empty(self.password).map(Secret::new),
            exec,
            problem: problem.or(provider),
            impersonate: Impersonation {
                user: non_empty(self.as_user),
                uid: non_empty(self.as_uid),
                groups: self.as_groups,
                extra: self.as_user_extra,
            },
        })
    }
}

impl RawExec {
    fn resolve(self, base_dir: &Path) -> Result<Exec, String> {
        if self.command.is_empty() {
            return Err("exec has no command".to_owned());
        }
        let api_version = match self.api_version.as_str() {
            "client.authentication.k8s.io/v1" => ExecVersion::V1,
            "client.authentication.k8s.io/v1beta1" => ExecVersion::V1Beta1,
            "" => return Err("exec has no apiVersion".to_owned()),
            other => {
                return Err(format!(
                    "exec has apiVersion {other:?}, which is neither {} nor {}; update the plugin",
                    ExecVersion::V1.as_str(),
                    ExecVersion::V1Beta1.as_str()
                ));
            }
        };
        let interactive_mode = match (self.interactive_mode.as_str(), api_version) {
            ("Never", _) => InteractiveMode::Never,
            ("IfAvailable", _) | ("", ExecVersion::V1Beta1) => InteractiveMode::IfAvailable,
            ("Always", _) => InteractiveMode::Always,
            ("", ExecVersion::V1) => {
                return Err(
                    "interactiveMode must be specified to use the exec authentication plugin"
                        .to_owned(),
                );
            }
            (other, _) => {
                return Err(format!(
                    "invalid interactiveMode {other:?}; it is Never, IfAvailable or Always"
                ));
            }
        };
        // A bare name is searched in $PATH, a path is relative to the file.
        let command = if self.command.contains('/') {
            base_dir.join(&self.command)
        } else {
            PathBuf::from(&self.command)
        };
        Ok(Exec {
            command,
            args: self.args.into_iter().map(Secret::new).collect(),
            env: self
                .env
                .into_iter()
                .map(|variable| (variable.name, Secret::new(variable.value)))
                .collect(),
            api_version,
            install_hint: non_empty(self.install_hint),
            provide_cluster_info: self.provide_cluster_info,
            interactive_mode,
        })
    }
}

/// Treats an empty text as absent.
fn non_empty(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

/// Inline data takes precedence over a file, as in kubectl.
fn pem_source(
    (entry, name): (Entry, &str),
    field: &str,
    data: Option<String>,
    file: Option<String>,
    base_dir: &Path,
) -> Result<Option<PemSource>, Error> {
    if let Some(mut data) = non_empty(data).map(Zeroizing::new) {
        data.retain(|letter| !letter.is_ascii_whitespace());
        return match STANDARD.decode(&*data) {
            Ok(bytes) => Ok(Some(PemSource::Data(Secret::new(bytes)))),
            Err(_) => Err(Error::Invalid {
                entry,
                name: name.to_owned(),
                cause: format!("{field} is not base64; copy it again"),
            }),
        };
    }
    Ok(non_empty(file).map(|path| PemSource::File(base_dir.join(path))))
}

#[cfg(test)]
mod tests;
