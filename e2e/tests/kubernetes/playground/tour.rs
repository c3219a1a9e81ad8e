//! The commands that the playground proposes when it has started, as far as a single real
//! server can answer them; the others are in the stories of pods.

use serde_json::json;
use skewbridge_e2e::{User, is_since, versions};

use super::fixture::{Entry, Place, Site};
use super::{Beside, RELEASES, compare, kubelet, minor};

/// What a bridge answers for all servers: of the playground's, the newest has all that
/// any has.
const OF_ALL: [&str; 2] = ["get mutatingadmissionpolicies", "api-resources"];

/// Shows a real server of 1.36 the policy that the playground has.
pub(super) async fn show_policy(beside: &Beside) {
    let mut numbers = 0..beside.plane.servers.len();
    let Some(newest) = numbers.find(|it| is_newest(beside, *it)) else {
        return;
    };
    let real = beside.site(newest, Place::Real);
    let server = beside.site(newest, Place::Server);
    let mut policy = kubelet::object(&server, "default", "mutatingadmissionpolicy/hello").await;
    policy["metadata"] = json!({"name": "hello"});
    let policy = policy.to_string();
    let made = real.output("default", "create -f -", &policy).await;
    assert_eq!(made.code, Some(0), "{made:?}");
}

fn is_newest(beside: &Beside, number: usize) -> bool {
    minor(&beside.plane.servers[number].version) == RELEASES[RELEASES.len() - 1]
}

/// Every kubectl at every bridge, beside a real server of 1.36.
pub(super) async fn differences(beside: &Beside, number: usize) -> Vec<String> {
    let mut found = Vec::new();
    if !is_newest(beside, number) {
        return found;
    }
    let address = beside.plane.servers[number].address;
    for version in &versions() {
        let real = |user| {
            Site::new(Place::Real, minor(version), move || {
                beside.plane.kubectl_at(version, address, user)
            })
        };
        let playground = |context: &str| {
            let context = context.to_owned();
            Site::new(Place::Bridge, minor(version), move || {
                beside.playground.kubectl(version, &context)
            })
        };
        let of_all = async |site: &Site<'_>| {
            let mut told = Vec::new();
            for words in OF_ALL {
                told.push(asked(site, words).await);
            }
            told
        };
        found.extend(third_step(beside, version).await);
        let expected = of_all(&real(User::Admin)).await;
        for release in RELEASES {
            let context = format!("bridge-{release}");
            let got = of_all(&playground(&context)).await;
            found.extend(compare(&expected, &format!("{version} at {context}"), &got));
        }
        let words = "delete pod web";
        let expected = [asked(&real(User::AdminAs("visitor")), words).await];
        let got = [asked(&playground("visitor"), words).await];
        found.extend(compare(&expected, &format!("{version} as a visitor"), &got));
    }
    found
}

/// What the guide shows of the tour; a test of the playground compares it with the tour.
const GUIDE: &str = include_str!("../../../../docs/playground.md");

/// The minor version of the first kubectl that execs by WebSocket.
const FIRST_BY_WEBSOCKET: u16 = 31;

/// The commands of the tour's third step, as they are printed: the old server refuses a
/// WebSocket, and its bridge does not.
async fn third_step(beside: &Beside, version: &str) -> Vec<String> {
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
        let kubectl = beside.playground.kubectl(version, context);
        let mut shell = tokio::process::Command::new("sh");
        // The words are for a shell: they have quotes.
        shell
            .args(["-c", &format!("\"$@\" {words}"), "sh"])
            .arg(kubectl.as_std().get_program())
            .args(kubectl.as_std().get_args())
            .env("HOME", beside.playground.scratch().path())
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true);
        let ran = tokio::time::timeout(super::COMMAND_TIMEOUT, shell.output()).await;
        let ran = ran.expect("an end in time").unwrap();
        let [out, log] = [ran.stdout, ran.stderr].map(|it| String::from_utf8(it).unwrap());
        let fell_back = log.contains("fallback") && log.contains("(403 Forbidden)");
        let expected = *context == "server-1.28" && is_since(version, FIRST_BY_WEBSOCKET);
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

async fn asked(site: &Site<'_>, words: &str) -> Entry {
    site.step("default", words, "").await
}
