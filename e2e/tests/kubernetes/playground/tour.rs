//! The commands that the playground suggests when it has started, as far as a single real
//! server supports them; the others are in the pod scenarios.

use serde_json::json;
use skewbridge_e2e::{User, is_since, versions};

use super::fixture::{Entry, Target, TargetKind};
use super::{PlaygroundAndReal, RELEASES, compare, kubelet, minor};

/// The commands to which a bridge responds for all servers: the newest of the playground's
/// servers has all APIs.
const CLUSTER_WIDE_COMMANDS: [&str; 2] = ["get mutatingadmissionpolicies", "api-resources"];

/// Creates the policy of the playground at a real server of 1.36.
pub(super) async fn create_policy(both: &PlaygroundAndReal) {
    let mut numbers = 0..both.plane.servers.len();
    let Some(newest) = numbers.find(|it| is_newest(both, *it)) else {
        return;
    };
    let real = both.target(newest, TargetKind::Real);
    let server = both.target(newest, TargetKind::Server);
    let mut policy = kubelet::object(&server, "default", "mutatingadmissionpolicy/hello").await;
    policy["metadata"] = json!({"name": "hello"});
    let policy = policy.to_string();
    let made = real.output("default", "create -f -", &policy).await;
    assert_eq!(made.code, Some(0), "{made:?}");
}

fn is_newest(both: &PlaygroundAndReal, number: usize) -> bool {
    minor(&both.plane.servers[number].version) == RELEASES[RELEASES.len() - 1]
}

/// Every kubectl at every bridge, compared with a real server of 1.36.
pub(super) async fn differences(both: &PlaygroundAndReal, number: usize) -> Vec<String> {
    let mut found = Vec::new();
    if !is_newest(both, number) {
        return found;
    }
    let address = both.plane.servers[number].address;
    for version in &versions() {
        let real = |user| {
            Target::new(TargetKind::Real, minor(version), move || {
                both.plane.kubectl_at(version, address, user)
            })
        };
        let playground = |context: &str| {
            let context = context.to_owned();
            Target::new(TargetKind::Bridge, minor(version), move || {
                both.playground.kubectl(version, &context)
            })
        };
        let of_all = async |target: &Target<'_>| {
            let mut entries = Vec::new();
            for words in CLUSTER_WIDE_COMMANDS {
                entries.push(run_command(target, words).await);
            }
            entries
        };
        found.extend(third_step(both, version).await);
        let expected = of_all(&real(User::Admin)).await;
        for release in RELEASES {
            let context = format!("bridge-{release}");
            let got = of_all(&playground(&context)).await;
            found.extend(compare(&expected, &format!("{version} at {context}"), &got));
        }
        let words = "delete pod web";
        let expected = [run_command(&real(User::AdminAs("visitor")), words).await];
        let got = [run_command(&playground("visitor"), words).await];
        found.extend(compare(&expected, &format!("{version} as a visitor"), &got));
    }
    found
}

/// The part of the guide about the tour; a test of the playground compares it with the tour.
const GUIDE: &str = include_str!("../../../../docs/playground.md");

/// The minor version of the first kubectl that uses WebSocket for exec.
const FIRST_WEBSOCKET_MINOR: u16 = 31;

/// The commands of the tour's third step, as printed: the old server rejects a WebSocket,
/// and its bridge accepts it.
async fn third_step(both: &PlaygroundAndReal, version: &str) -> Vec<String> {
    let mut found = Vec::new();
    let (_, step) = GUIDE.split_once("\n3. exec by WebSocket").unwrap();
    let (step, _) = step.split_once("\n\n").unwrap();
    let commands: Vec<_> = step
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("$ kubectl "))
        .collect();
    assert_eq!(commands.len(), 2, "{step}");
    for (context, command) in ["server-1.28", "bridge-1.28"].iter().zip(commands) {
        let words = command.strip_prefix(&format!("--context={context} "));
        let words = words.unwrap_or_else(|| panic!("{command} is not of {context}"));
        let kubectl = both.playground.kubectl(version, context);
        let mut shell = tokio::process::Command::new("sh");
        // The arguments are for a shell: they have quotes.
        shell
            .args(["-c", &format!("\"$@\" {words}"), "sh"])
            .arg(kubectl.as_std().get_program())
            .args(kubectl.as_std().get_args())
            .env("HOME", both.playground.scratch().path())
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true);
        let ran = tokio::time::timeout(super::COMMAND_TIMEOUT, shell.output()).await;
        let ran = ran.expect("an end in time").unwrap();
        let [out, log] = [ran.stdout, ran.stderr].map(|it| String::from_utf8(it).unwrap());
        let fell_back = log.contains("fallback") && log.contains("(403 Forbidden)");
        let expected = *context == "server-1.28" && is_since(version, FIRST_WEBSOCKET_MINOR);
        let as_shown = out == "hello from web\n" && ran.status.code() == Some(3);
        if !as_shown || fell_back != expected {
            found.push(format!(
                "{version}: {command}: {:?}\n{out}{log}",
                ran.status
            ));
        }
    }
    found
}

async fn run_command(target: &Target<'_>, words: &str) -> Entry {
    target.step("default", words, "").await
}
