//! The commands that the playground proposes when it has started, as far as a single real
//! server can answer them; the others are in the stories of pods.

use serde_json::json;
use skewbridge_e2e::{User, versions};

use super::site::{Entry, Place, Site};
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

async fn asked(site: &Site<'_>, words: &str) -> Entry {
    site.step("default", words, "").await
}
