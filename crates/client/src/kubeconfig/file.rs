//! One kubeconfig file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer};
use zeroize::Zeroizing;

use super::{
    Cluster, Context, Exec, ExecVersion, Impersonation, InteractiveMode, Kubeconfig, Material, User,
};
use crate::error::{Entry, Error};
use crate::secret::Secret;

impl Kubeconfig {
    /// Reads the text of a file. Paths in it are relative to the file. Unknown
    /// fields are passed over, and `null` is nothing.
    pub fn parse(text: &str, path: &Path) -> Result<Self, Error> {
        let raw: RawConfig = if text.trim().is_empty() {
            RawConfig::default()
        } else {
            serde_saphyr::from_str(text).map_err(|error| not_a_kubeconfig(&error, path))?
        };
        let beside = path.parent().unwrap_or(Path::new(""));
        let contexts = raw.contexts.into_iter().map(|it| (it.name, it.context));
        let clusters = raw.clusters.into_iter().map(|it| (it.name, it.cluster));
        let users = raw.users.into_iter().map(|it| (it.name, it.user));
        Ok(Self {
            current_context: given(raw.current_context),
            contexts: by_name(path, "contexts", contexts, |_, raw| Ok(raw.understand()))?,
            clusters: by_name(path, "clusters", clusters, |name, raw| {
                raw.understand(name, beside)
            })?,
            users: by_name(path, "users", users, |name, raw| {
                raw.understand(name, beside)
            })?,
            files: vec![path.to_owned()],
        })
    }
}

/// Says where, and not what stands there: that may be a token.
fn not_a_kubeconfig(error: &serde_saphyr::Error, path: &Path) -> Error {
    let cause = match error.location() {
        Some(at) => format!(
            "is not a kubeconfig: line {}, column {} cannot be understood",
            at.line(),
            at.column()
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
    understand: impl Fn(&str, R) -> Result<T, Error>,
) -> Result<BTreeMap<String, T>, Error> {
    let mut entries = BTreeMap::new();
    for (name, entry) in raw {
        let understood = understand(&name, entry)?;
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
    #[serde(default, deserialize_with = "nothing")]
    contexts: Vec<NamedContext>,
    #[serde(default, deserialize_with = "nothing")]
    clusters: Vec<NamedCluster>,
    #[serde(default, deserialize_with = "nothing")]
    users: Vec<NamedUser>,
}

#[derive(Deserialize)]
struct NamedContext {
    #[serde(default, deserialize_with = "nothing")]
    name: String,
    #[serde(default, deserialize_with = "nothing")]
    context: RawContext,
}

#[derive(Deserialize)]
struct NamedCluster {
    #[serde(default, deserialize_with = "nothing")]
    name: String,
    #[serde(default, deserialize_with = "nothing")]
    cluster: RawCluster,
}

#[derive(Deserialize)]
struct NamedUser {
    #[serde(default, deserialize_with = "nothing")]
    name: String,
    #[serde(default, deserialize_with = "nothing")]
    user: RawUser,
}

#[derive(Deserialize, Default)]
struct RawContext {
    #[serde(default, deserialize_with = "nothing")]
    cluster: String,
    #[serde(default, deserialize_with = "nothing")]
    user: String,
    #[serde(default)]
    namespace: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
struct RawCluster {
    #[serde(default, deserialize_with = "nothing")]
    server: String,
    #[serde(default)]
    tls_server_name: Option<String>,
    #[serde(default, deserialize_with = "nothing")]
    insecure_skip_tls_verify: bool,
    #[serde(default)]
    certificate_authority: Option<String>,
    #[serde(default)]
    certificate_authority_data: Option<String>,
    #[serde(default)]
    proxy_url: Option<String>,
    #[serde(default, deserialize_with = "nothing")]
    extensions: Vec<RawExtension>,
}

#[derive(Deserialize)]
struct RawExtension {
    #[serde(default, deserialize_with = "nothing")]
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
    #[serde(default, deserialize_with = "nothing")]
    as_groups: Vec<String>,
    #[serde(default, deserialize_with = "nothing")]
    as_user_extra: BTreeMap<String, Vec<String>>,
}

#[derive(Deserialize)]
struct RawProvider {
    #[serde(default, deserialize_with = "nothing")]
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawExec {
    #[serde(default, deserialize_with = "nothing")]
    command: String,
    #[serde(default, deserialize_with = "nothing")]
    args: Vec<String>,
    #[serde(default, deserialize_with = "nothing")]
    env: Vec<RawVariable>,
    #[serde(default, deserialize_with = "nothing")]
    api_version: String,
    #[serde(default)]
    install_hint: Option<String>,
    #[serde(default, deserialize_with = "nothing")]
    provide_cluster_info: bool,
    #[serde(default, deserialize_with = "nothing")]
    interactive_mode: String,
}

#[derive(Deserialize)]
struct RawVariable {
    name: String,
    #[serde(default, deserialize_with = "nothing")]
    value: String,
}

/// `null` is what is not there.
fn nothing<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl RawContext {
    fn understand(self) -> Context {
        Context {
            cluster: self.cluster,
            user: self.user,
            namespace: given(self.namespace),
        }
    }
}

impl RawCluster {
    fn understand(self, name: &str, beside: &Path) -> Result<Cluster, Error> {
        const EXEC: &str = "client.authentication.k8s.io/exec";
        let mut extensions = self.extensions.into_iter();
        Ok(Cluster {
            server: self.server,
            tls_server_name: given(self.tls_server_name),
            insecure_skip_tls_verify: self.insecure_skip_tls_verify,
            certificate_authority: material(
                (Entry::Cluster, name),
                "certificate-authority-data",
                self.certificate_authority_data,
                self.certificate_authority,
                beside,
            )?,
            proxy_url: given(self.proxy_url).map(Secret::new),
            exec_config: extensions
                .find(|extension| extension.name == EXEC)
                .and_then(|extension| extension.extension),
        })
    }
}

impl RawUser {
    fn understand(self, name: &str, beside: &Path) -> Result<User, Error> {
        let of = (Entry::User, name);
        let (exec, problem) = match self.exec.map(|exec| exec.understand(beside)) {
            None => (None, None),
            Some(Ok(exec)) => (Some(exec), None),
            Some(Err(problem)) => (None, Some(problem)),
        };
        let provider = self.auth_provider.map(|provider| {
            let name = provider.name;
            format!("auth-provider {name:?} is not known any more, to kubectl neither; use exec")
        });
        Ok(User {
            client_certificate: material(
                of,
                "client-certificate-data",
                self.client_certificate_data,
                self.client_certificate,
                beside,
            )?,
            client_key: material(
                of,
                "client-key-data",
                self.client_key_data,
                self.client_key,
                beside,
            )?,
            token: given(self.token).map(Secret::new),
            token_file: given(self.token_file).map(|path| beside.join(path)),
            username: given(self.username),
            password: given(self.password).map(Secret::new),
            exec,
            problem: problem.or(provider),
            impersonate: Impersonation {
                user: given(self.as_user),
                uid: given(self.as_uid),
                groups: self.as_groups,
                extra: self.as_user_extra,
            },
        })
    }
}

impl RawExec {
    fn understand(self, beside: &Path) -> Result<Exec, String> {
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
        // A name is looked for in $PATH, a path is relative to the file.
        let command = if self.command.contains('/') {
            beside.join(&self.command)
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
            install_hint: given(self.install_hint),
            provide_cluster_info: self.provide_cluster_info,
            interactive_mode,
        })
    }
}

/// What is empty is not given.
fn given(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

/// Data counts before a file, as with kubectl.
fn material(
    (entry, name): (Entry, &str),
    field: &str,
    data: Option<String>,
    file: Option<String>,
    beside: &Path,
) -> Result<Option<Material>, Error> {
    if let Some(mut data) = given(data).map(Zeroizing::new) {
        data.retain(|letter| !letter.is_ascii_whitespace());
        return match STANDARD.decode(&*data) {
            Ok(bytes) => Ok(Some(Material::Data(Secret::new(bytes)))),
            Err(_) => Err(Error::Invalid {
                entry,
                name: name.to_owned(),
                cause: format!("{field} is not base64; copy it again"),
            }),
        };
    }
    Ok(given(file).map(|path| Material::File(beside.join(path))))
}

#[cfg(test)]
mod tests;
