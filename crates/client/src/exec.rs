//! Credential plugins: programs that print an `ExecCredential`
//! (`client.authentication.k8s.io`).

use std::io::IsTerminal as _;
use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use tokio::sync::Mutex;

use crate::credential::{self, Certificate};
use crate::error::Error;
use crate::kubeconfig::{Cluster, Exec, ExecVersion, InteractiveMode};
use crate::secret::Secret;

/// More than any credential; a plugin that prints more is not one.
const MAX_OUTPUT: u64 = 1024 * 1024;

/// How long a plugin may take: some have the user log in with a browser.
const PATIENCE: Duration = Duration::from_mins(5);

/// One at a time: they may all want the same terminal.
static TURN: Mutex<()> = Mutex::const_new(());

/// What a plugin gives.
#[derive(Debug)]
pub(crate) struct Given {
    pub(crate) token: Option<Secret>,
    pub(crate) certificate: Option<Certificate>,
}

/// Runs a plugin. What it writes to stderr is for the user to see.
pub(crate) async fn run(plugin: &Exec, cluster: &Cluster) -> Result<Given, Error> {
    let failed = |cause: String| Error::Exec {
        command: plugin.command.display().to_string(),
        cause,
        hint: None,
    };
    let interactive = match plugin.interactive_mode {
        InteractiveMode::Never => false,
        InteractiveMode::IfAvailable => std::io::stdin().is_terminal(),
        InteractiveMode::Always if std::io::stdin().is_terminal() => true,
        InteractiveMode::Always => {
            return Err(failed(
                "interactiveMode is Always, but standard input is not a terminal".to_owned(),
            ));
        }
    };
    let info = info(plugin, cluster, interactive)?;
    let _turn = TURN.lock().await;
    let mut command = Command::new(&plugin.command);
    command
        .args(plugin.args.iter().map(text))
        .env("KUBERNETES_EXEC_INFO", info)
        .stdin(if interactive {
            Stdio::inherit()
        } else {
            Stdio::null()
        })
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    for (name, value) in &plugin.env {
        command.env(name, text(value));
    }
    let mut child = command.spawn().map_err(|error| Error::Exec {
        command: plugin.command.display().to_string(),
        cause: match error.kind() {
            std::io::ErrorKind::NotFound => "executable not found".to_owned(),
            _ => error.to_string(),
        },
        hint: plugin.install_hint.clone(),
    })?;
    let mut printed = Vec::new();
    let Some(stdout) = child.stdout.take() else {
        return Err(failed("has no output".to_owned()));
    };
    let running = async {
        stdout
            .take(MAX_OUTPUT + 1)
            .read_to_end(&mut printed)
            .await?;
        child.wait().await
    };
    let ended = match tokio::time::timeout(PATIENCE, running).await {
        Err(_) => {
            let seconds = PATIENCE.as_secs();
            return Err(failed(format!("did not end within {seconds} s")));
        }
        Ok(Err(error)) => return Err(failed(error.to_string())),
        Ok(Ok(ended)) => ended,
    };
    if printed.len() as u64 > MAX_OUTPUT {
        return Err(failed("prints more than a credential".to_owned()));
    }
    if !ended.success() {
        return Err(Error::Exec {
            command: plugin.command.display().to_string(),
            cause: format!("failed with {ended}"),
            hint: plugin.install_hint.clone(),
        });
    }
    understand(&printed, plugin.api_version).map_err(failed)
}

/// Of a secret that was text when it was read.
fn text(secret: &Secret) -> String {
    String::from_utf8_lossy(secret.expose()).into_owned()
}

/// What a plugin is told.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Info<'a> {
    kind: &'static str,
    api_version: &'static str,
    spec: Spec<'a>,
}

#[derive(Serialize)]
struct Spec<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<ClusterInfo<'a>>,
    interactive: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct ClusterInfo<'a> {
    server: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_server_name: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    insecure_skip_tls_verify: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate_authority_data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    proxy_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<&'a serde_json::Value>,
}

fn info(plugin: &Exec, cluster: &Cluster, interactive: bool) -> Result<String, Error> {
    let cluster = if plugin.provide_cluster_info {
        let authority = match &cluster.certificate_authority {
            Some(material) => Some(STANDARD.encode(credential::read(material)?.expose())),
            None => None,
        };
        let proxy = cluster.proxy_url.as_ref();
        Some(ClusterInfo {
            server: &cluster.server,
            tls_server_name: cluster.tls_server_name.as_deref(),
            insecure_skip_tls_verify: cluster.insecure_skip_tls_verify,
            certificate_authority_data: authority,
            proxy_url: proxy.map(text),
            config: cluster.exec_config.as_ref(),
        })
    } else {
        None
    };
    let info = Info {
        kind: "ExecCredential",
        api_version: plugin.api_version.as_str(),
        spec: Spec {
            cluster,
            interactive,
        },
    };
    serde_json::to_string(&info).map_err(|error| Error::Exec {
        command: plugin.command.display().to_string(),
        cause: error.to_string(),
        hint: None,
    })
}

/// What was printed must not be repeated.
fn understand(printed: &[u8], version: ExecVersion) -> Result<Given, String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Printed {
        #[serde(default)]
        kind: String,
        #[serde(default)]
        api_version: String,
        #[serde(default)]
        status: Option<Status>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Status {
        #[serde(default)]
        token: Option<String>,
        #[serde(default)]
        client_certificate_data: Option<String>,
        #[serde(default)]
        client_key_data: Option<String>,
    }
    let Ok(printed) = serde_json::from_slice::<Printed>(printed) else {
        return Err("does not print an ExecCredential".to_owned());
    };
    if printed.kind != "ExecCredential" {
        return Err("does not print an ExecCredential".to_owned());
    }
    if printed.api_version != version.as_str() {
        return Err(format!(
            "plugin is configured to use API version {}, plugin returned version {:.80}",
            version.as_str(),
            printed.api_version.escape_debug()
        ));
    }
    let given = |text: Option<String>| text.filter(|text| !text.is_empty()).map(Secret::new);
    let Some(status) = printed.status else {
        return Err("plugin didn't return a status field".to_owned());
    };
    let token = given(status.token);
    let certificate = match (
        given(status.client_certificate_data),
        given(status.client_key_data),
    ) {
        (Some(chain), Some(key)) => Some(Certificate { chain, key }),
        (None, None) if token.is_none() => {
            return Err("plugin didn't return a token or cert/key pair".to_owned());
        }
        (None, None) => None,
        _ => return Err("plugin returned only one of certificate and key".to_owned()),
    };
    Ok(Given { token, certificate })
}

#[cfg(test)]
mod tests {
    use skewbridge_testkit::ScratchDir;

    use super::*;

    fn plugin(script: &str) -> Exec {
        Exec {
            command: "sh".into(),
            args: vec![Secret::new("-c"), Secret::new(script)],
            env: vec![("PIN".to_owned(), Secret::new("secret-pin"))],
            api_version: ExecVersion::V1,
            install_hint: Some("ask somebody\n".to_owned()),
            provide_cluster_info: true,
            interactive_mode: InteractiveMode::Never,
        }
    }

    const GOOD: &str = r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":"secret-token","expirationTimestamp":"2026-11-15T12:00:00Z"}}"#;

    #[tokio::test]
    async fn a_plugin_is_told_about_the_cluster_and_gives_a_token() {
        let dir = ScratchDir::new();
        let told = dir.path().join("told");
        let script = format!(
            "echo \"$PIN $KUBERNETES_EXEC_INFO\" > {}; echo '{GOOD}'",
            told.display()
        );
        let cluster = Cluster {
            server: "https://k".to_owned(),
            certificate_authority: Some(crate::kubeconfig::Material::Data(Secret::new("hello"))),
            exec_config: Some(serde_json::json!({"audience": "x"})),
            ..Cluster::default()
        };
        let given = run(&plugin(&script), &cluster).await.unwrap();
        assert_eq!(given.token.as_ref().unwrap().expose(), b"secret-token");
        assert!(given.certificate.is_none());
        assert!(!format!("{given:?}").contains("secret"));
        let told = std::fs::read_to_string(told).unwrap();
        assert_eq!(
            told.trim_end(),
            concat!(
                r#"secret-pin {"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","#,
                r#""spec":{"cluster":{"server":"https://k","certificate-authority-data":"aGVsbG8=","#,
                r#""config":{"audience":"x"}},"interactive":false}}"#
            )
        );
    }

    #[tokio::test]
    async fn a_plugin_that_fails_is_named_with_its_hint() {
        let error = run(&plugin("exit 3"), &Cluster::default())
            .await
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "getting credentials: exec: sh: failed with exit status: 3\nask somebody"
        );
        let mut absent = plugin("");
        absent.command = "/nonexistent/login".into();
        let error = run(&absent, &Cluster::default()).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "getting credentials: exec: /nonexistent/login: executable not found\nask somebody"
        );
        let endless = run(&plugin("yes"), &Cluster::default()).await.unwrap_err();
        assert!(endless.to_string().contains("more than a credential"));
        let mut always = plugin("");
        always.interactive_mode = InteractiveMode::Always;
        if !std::io::stdin().is_terminal() {
            let error = run(&always, &Cluster::default()).await.unwrap_err();
            assert!(error.to_string().contains("not a terminal"), "{error}");
        }
    }

    #[test]
    fn what_is_no_credential_is_refused_and_not_repeated() {
        let with = |status: &str| {
            format!(
                r#"{{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{status}}}"#
            )
        };
        let rows = [
            ("secret".to_owned(), "does not print"),
            (
                r#"{"kind":"Secret","apiVersion":"v1"}"#.to_owned(),
                "does not print",
            ),
            (
                GOOD.replace("/v1\"", "/v1beta1\""),
                "plugin returned version client",
            ),
            (with("null"), "status"),
            (with("{}"), "a token or cert/key pair"),
            (with(r#"{"token":""}"#), "a token or cert/key pair"),
            (with(r#"{"clientKeyData":"secret"}"#), "only one of"),
            (with(r#"{"token":["secret"]}"#), "does not print"),
        ];
        for (printed, expected) in rows {
            let error = understand(printed.as_bytes(), ExecVersion::V1).unwrap_err();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
        let pair = with(r#"{"clientCertificateData":"cert","clientKeyData":"secret"}"#);
        let given = understand(pair.as_bytes(), ExecVersion::V1).unwrap();
        assert_eq!(given.certificate.unwrap().chain.expose(), b"cert");
    }
}
