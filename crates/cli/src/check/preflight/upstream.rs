//! Whether the kube-apiserver is reachable with a valid certificate, and whether it accepts
//! the bridge.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls_pki_types::ServerName;
use skewbridge_gateway::config::{Config, UpstreamServer};
use skewbridge_gateway::self_test::evaluate::{
    self, AUTHENTICATION_CONFIG_MAP_PATH, AuthenticatedAs, FORBIDDEN_PATH, GROUP, PublishedCas,
    REVIEW, REVIEWS_PATH, TestResult, USER,
};
use skewbridge_gateway::tls::client_config;
use skewbridge_gateway::tls::files::load_ca;
use skewbridge_gateway::tls::own_certificates::CaFile;
use skewbridge_k8s_api::identity::User;

use super::certificates::Loaded;
use super::clocks::ServerClock;
use super::permissions;
use super::upstream_request::{access, own_user, send_as};
use crate::check::finding::{Finding, Remedy, Section};
use crate::check::handshake::{ConnectProblem, handshake};
use crate::check::http;
use crate::check::parallel;

const SECTION: Section = Section::Upstream;

/// Names that certificates of kube-apiservers have.
const USUAL_NAMES: [&str; 3] = ["kubernetes.default.svc", "kubernetes", "localhost"];

/// Files with the CA of kube-apiservers that kubeadm installs.
const USUAL_CA: &str = "/etc/kubernetes/pki/ca.crt";

/// What was found, and the clocks of the servers.
#[derive(Debug, Default)]
pub(super) struct UpstreamChecks {
    pub(super) findings: Vec<Finding>,
    pub(super) clocks: Vec<ServerClock>,
}

/// Values that would work instead.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Alternatives {
    ca: Option<PathBuf>,
    name: Option<String>,
}

pub(super) async fn check(config: &Config, loaded: &Loaded) -> UpstreamChecks {
    let servers = config.upstream.servers();
    let probes = servers
        .iter()
        .map(|server| -> parallel::Probe<'_, UpstreamChecks> {
            Box::pin(of_server(config, loaded, server))
        });
    let all = parallel::all(probes.collect()).await;
    all.into_iter()
        .fold(UpstreamChecks::default(), |mut all, one| {
            all.findings.extend(one.findings);
            all.clocks.extend(one.clocks);
            all
        })
}

async fn of_server(config: &Config, loaded: &Loaded, server: &UpstreamServer) -> UpstreamChecks {
    let url = format!("https://{}", server.authority());
    let ca = &config.upstream.ca;
    let name = format!("{url} is reached, and its certificate is trusted");
    let connected = connect(server, &server.server_name, ca).await;
    let version = match &connected {
        Err(_) => Err(String::new()),
        Ok(()) => version(config, server).await,
    };
    let mut checked = UpstreamChecks::default();
    let version = match (connected, version) {
        (Err(problem), _) => {
            let alternatives = alternatives(loaded, server, &problem).await;
            checked
                .findings
                .push(not_reached(config, name, &url, &problem, &alternatives));
            return checked;
        }
        (Ok(()), Err(why)) => {
            let remedy = Remedy::flag(
                "--upstream",
                "set it to the --secure-port of a kube-apiserver",
            );
            checked
                .findings
                .push(Finding::failure(SECTION, name, why, remedy));
            return checked;
        }
        (Ok(()), Ok(version)) => version,
    };
    checked
        .findings
        .push(Finding::ok(SECTION, name).message(version.text));
    checked.clocks.extend(version.clock);
    let (ready, tests) = tokio::join!(ready(config, server), tests(config, loaded, server));
    checked.findings.push(ready);
    checked.findings.extend(tests);
    let permissions = permissions::check(config, server, &url).await;
    checked.findings.extend(permissions);
    checked
}

async fn connect(
    server: &UpstreamServer,
    name: &ServerName<'static>,
    ca: &Path,
) -> Result<(), ConnectProblem> {
    let other = |error: String| ConnectProblem::Other(error);
    let bundle = load_ca(ca).map_err(|error| other(error.to_string()))?;
    let tls = client_config(&bundle, None).map_err(|error| other(error.to_string()))?;
    let connected = handshake(&server.host, server.port, name, Arc::new(tls)).await;
    connected.map(|_| ())
}

/// Tries other CAs and names, and returns those with which the certificate is valid.
async fn alternatives(
    loaded: &Loaded,
    server: &UpstreamServer,
    problem: &ConnectProblem,
) -> Alternatives {
    let mut found = Alternatives::default();
    match problem {
        ConnectProblem::UnknownIssuer => {
            for ca in loaded.ca_files().chain([USUAL_CA.into()]) {
                let connected = connect(server, &server.server_name, &ca).await;
                if matches!(connected, Ok(()) | Err(ConnectProblem::WrongName(_))) {
                    found.ca = Some(ca);
                    break;
                }
            }
        }
        ConnectProblem::WrongName(_) => {
            let Some((ca, _)) = loaded.bundle("--upstream-ca-file") else {
                return found;
            };
            for text in USUAL_NAMES {
                let Ok(name) = ServerName::try_from(text) else {
                    continue;
                };
                if connect(server, &name, ca).await.is_ok() {
                    found.name = Some(text.to_owned());
                    break;
                }
            }
        }
        _ => {}
    }
    found
}

fn not_reached(
    config: &Config,
    name: String,
    url: &str,
    problem: &ConnectProblem,
    alternatives: &Alternatives,
) -> Finding {
    let ca = &config.upstream.ca;
    let remedy = match problem {
        ConnectProblem::UnknownIssuer => match &alternatives.ca {
            Some(right) => Remedy::set("--upstream-ca-file", right.display()),
            None => Remedy::flag(
                "--upstream-ca-file",
                format!(
                    "set it to the CA that has issued the serving certificate of the \
                     kube-apiserver (kubeadm: {USUAL_CA})"
                ),
            ),
        }
        .of_file(ca),
        ConnectProblem::WrongName(_) => match &alternatives.name {
            Some(name) => Remedy::set("--upstream-server-name", name),
            None => Remedy::flag(
                "--upstream-server-name",
                "set it to one of the names of the certificate",
            ),
        },
        ConnectProblem::Expired => Remedy::command(
            "kubeadm certs renew apiserver",
            "renew the serving certificate of the kube-apiserver, and restart it",
        ),
        ConnectProblem::NotYetValid => Remedy::command(
            "timedatectl set-ntp true",
            "correct the clock of this machine",
        ),
        ConnectProblem::NotTls => Remedy::flag(
            "--upstream",
            "set it to the --secure-port of the kube-apiserver",
        ),
        ConnectProblem::Refused
        | ConnectProblem::Unreachable(_)
        | ConnectProblem::Timeout
        | ConnectProblem::NoAnswer(_)
        | ConnectProblem::RejectsClient(_)
        | ConnectProblem::Other(_) => Remedy {
            command: Some("ss -ltnp".to_owned()),
            ..Remedy::flag(
                "--upstream",
                format!(
                    "start the kube-apiserver at {url}, or correct --upstream; the command lists \
                     what listens on this machine"
                ),
            )
        },
    };
    Finding::failure(SECTION, name, problem.to_string(), remedy)
}

struct Version {
    text: String,
    clock: Option<ServerClock>,
}

async fn version(config: &Config, server: &UpstreamServer) -> Result<Version, String> {
    let name = server.server_name.to_str();
    let authority = server.authority();
    let endpoint = http::endpoint(&authority, access(config, &name)).await?;
    let answer = http::send(&endpoint, http::get("/version"), None).await?;
    let version = match answer.response.status.as_u16() {
        // Without anonymous authentication.
        401 | 403 => "its version is not readable without credentials".to_owned(),
        _ => match answer.json("/version")?["gitVersion"].as_str() {
            Some(version) => version.to_owned(),
            None => return Err("it does not answer as a kube-apiserver".to_owned()),
        },
    };
    Ok(Version {
        text: version,
        clock: answer.clock.map(|reading| ServerClock {
            server: authority,
            reading,
        }),
    })
}

async fn ready(config: &Config, server: &UpstreamServer) -> Finding {
    let name = format!("https://{} is ready", server.authority());
    let server_name = server.server_name.to_str();
    let answer = async {
        let endpoint = http::endpoint(&server.authority(), access(config, &server_name)).await?;
        http::send(&endpoint, http::get("/readyz"), None).await
    };
    match answer.await {
        Err(why) => Finding::not_known(SECTION, name, why),
        Ok(answer) => match answer.response.status.as_u16() {
            200 => Finding::ok(SECTION, name),
            401 | 403 => Finding::not_known(SECTION, name, "/readyz needs credentials"),
            status => Finding::failure(
                SECTION,
                name,
                format!("/readyz answers {status}"),
                Remedy::command(
                    "kubectl get --raw '/readyz?verbose'",
                    "the command, sent to this server, shows the check that fails",
                ),
            ),
        },
    }
}

/// The self-test of the bridge.
async fn tests(config: &Config, loaded: &Loaded, server: &UpstreamServer) -> Vec<Finding> {
    let url = format!("https://{}", server.authority());
    let name = format!("{url} accepts users that the bridge asserts");
    let Some(front_proxy) = loaded.front_proxy() else {
        let why = "without --proxy-client-cert-file the bridge asserts no user: kube-apiserver \
                   verifies tokens, and rejects client certificates";
        let remedy = Remedy::flag(
            "--proxy-client-cert-file",
            "set it and --proxy-client-key-file (kubeadm: front-proxy-client.crt and .key)",
        );
        return vec![Finding::warning(SECTION, name, why, remedy)];
    };
    let (user, published) = tokio::join!(
        authenticated_user(config, server),
        published_cas(config, server)
    );
    let headers = &config.callers.headers;
    let result = evaluate::front_proxy(&user, &front_proxy, headers);
    let mut findings = vec![of_test(
        name,
        result,
        &front_proxy.path,
        "--proxy-client-cert-file",
    )];
    let published = match published {
        Ok(published) => published,
        Err(why) => {
            let name = format!("{url} trusts the same CAs");
            findings.push(Finding::not_known(SECTION, name, why));
            return findings;
        }
    };
    let file = |flag| {
        let (path, bundle) = loaded.bundle(flag)?;
        Some(CaFile {
            path: path.to_owned(),
            certificates: bundle.certificates.clone(),
        })
    };
    let flag = "--client-ca-file";
    if let Some(ca) = file(flag) {
        let name = format!("{flag} {} is that of {url}", ca.path.display());
        let result = evaluate::client_ca(&ca, published.client_ca.as_deref());
        findings.push(of_test(name, result, &ca.path, flag));
    }
    let flag = "--requestheader-client-ca-file";
    if let Some(ca) = file(flag) {
        let name = format!("{flag} {} is that of {url}", ca.path.display());
        let result = evaluate::request_header_ca(&ca, published.request_header_ca.as_deref());
        findings.push(of_test(name, result, &ca.path, flag));
    }
    findings
}

/// A result of the self-test. Its text starts with flag and file, and ends with the remedy.
fn of_test(name: String, result: TestResult, file: &Path, flag: &str) -> Finding {
    let parts = |why: String| {
        let prefix = format!("{flag} {}: ", file.display());
        let why = why.strip_prefix(&prefix).unwrap_or(&why);
        let (message, remedy) = why.rsplit_once("; ").unwrap_or((why, "replace the file"));
        let remedy = Remedy::file(file, remedy).of_flag(flag);
        (message.to_owned(), remedy)
    };
    match result {
        TestResult::Passed => Finding::ok(SECTION, name),
        TestResult::Unknown(why) => Finding::not_known(SECTION, name, why),
        TestResult::Warned(why) => {
            let (message, remedy) = parts(why);
            Finding::warning(SECTION, name, message, remedy)
        }
        TestResult::Failed(why) => {
            let (message, remedy) = parts(why);
            Finding::failure(SECTION, name, message, remedy)
        }
    }
}

async fn authenticated_user(config: &Config, server: &UpstreamServer) -> AuthenticatedAs {
    let user = User {
        name: USER.to_owned(),
        groups: vec![GROUP.to_owned()],
        ..User::default()
    };
    let requests = [http::post(REVIEWS_PATH, REVIEW), http::get(FORBIDDEN_PATH)];
    let mut found = AuthenticatedAs::NotOffered;
    for request in requests {
        found = match send_as(config, server, &user, request).await {
            Ok(answer) => evaluate::authenticated_as(answer.response.status, &answer.response.body),
            Err(why) => AuthenticatedAs::Unknown(why),
        };
        if found != AuthenticatedAs::NotOffered {
            break;
        }
    }
    found
}

async fn published_cas(config: &Config, server: &UpstreamServer) -> Result<PublishedCas, String> {
    let path = AUTHENTICATION_CONFIG_MAP_PATH;
    let answer = send_as(config, server, &own_user(config), http::get(path)).await?;
    answer.json(path)?;
    PublishedCas::parse(&answer.response.body).map_err(|why| format!("{path}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::finding::Outcome;

    #[test]
    fn results_of_the_self_test_name_flag_file_and_remedy() {
        let path = Path::new("/pki/front-proxy.crt");
        let flag = "--proxy-client-cert-file";
        let failed = TestResult::Failed(format!(
            "{flag} /pki/front-proxy.crt: it is not; use another"
        ));
        let found = of_test("a".to_owned(), failed, path, flag);
        assert_eq!(found.outcome, Outcome::Failure);
        assert_eq!(found.message, "it is not");
        let remedy = found.remedy.unwrap();
        assert_eq!(remedy.text, "use another");
        assert_eq!(remedy.file.as_deref(), Some(path));
        let passed = of_test("a".to_owned(), TestResult::Passed, path, flag);
        assert_eq!(passed.outcome, Outcome::Ok);
        let unknown = TestResult::Unknown("503".to_owned());
        assert_eq!(
            of_test("a".to_owned(), unknown, path, flag).outcome,
            Outcome::NotKnown
        );
    }
}
