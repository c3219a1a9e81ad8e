//! KEP-2718, "Proxy Shutdown": the lock file, and when processes exit.

use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use skewbridge_testkit::{Stopwatch, TEST_TIMEOUT, eventually, unprivileged_user};

use crate::client_process;
use crate::fixture::{Fixture, KEY_OWNER, PluginKind, get, is_gone};

/// How soon a proxy must be gone after its client's death.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

#[tokio::test]
async fn the_client_takes_the_lock_before_exec_and_passes_its_path() {
    for kind in [PluginKind::Itself, PluginKind::Starter] {
        let fixture = Fixture::new(kind).await;
        let _endpoint = fixture.endpoint().await;
        assert_eq!(fixture.recorded("lock-was-held").trim(), "true", "{kind:?}");
        let lock = fixture.lock();
        let mode =
            |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&lock), 0o600);
        assert_eq!(mode(lock.parent().unwrap()), 0o700);
        assert!(File::open(&lock).unwrap().try_lock().is_err());
    }
}

#[tokio::test]
async fn a_killed_client_ends_its_proxy_and_leaves_no_files() {
    for kind in [PluginKind::Itself, PluginKind::Starter] {
        let fixture = Fixture::new(kind).await;
        let mut client = client_process::start(&fixture, &[]);
        eventually("an answer", TEST_TIMEOUT * 2, async || {
            fixture.recorded("client-output").ends_with('\n')
        })
        .await;
        assert_eq!(
            fixture.recorded("client-output"),
            format!("{KEY_OWNER} /from-the-client\n")
        );
        let (proxy, lock) = (fixture.proxy(), fixture.lock());
        assert!(!is_gone(proxy) && lock.exists() && fixture.socket_path().exists());
        let watch = Stopwatch::start();
        client.kill().unwrap();
        client.wait().unwrap();
        let gone = async || is_gone(proxy) && !lock.parent().unwrap().exists();
        watch
            .within(EXIT_TIMEOUT, "the end of the proxy", gone)
            .await;
        assert!(!fixture.socket_path().exists());
    }
}

#[tokio::test]
async fn a_client_that_drops_its_plugin_ends_the_proxy() {
    for kind in [PluginKind::Itself, PluginKind::Starter] {
        let fixture = Fixture::new(kind).await;
        let endpoint = fixture.endpoint().await;
        let mut connection = endpoint.connect().await.unwrap();
        drop(endpoint);
        let request = skewbridge_client::Request::get("/still");
        let answer = connection.send(&request).await.unwrap();
        assert_eq!(answer.body, format!("{KEY_OWNER} /still"));
        let (proxy, lock) = (fixture.proxy(), fixture.lock());
        assert!(lock.exists());
        drop(connection);
        eventually("the end of the proxy", TEST_TIMEOUT, async || {
            is_gone(proxy)
        })
        .await;
        assert!(!lock.exists());
    }
}

#[tokio::test]
async fn another_user_can_neither_take_the_lock_nor_connect() {
    let fixture = Fixture::new(PluginKind::Itself).await;
    let endpoint = fixture.endpoint().await;
    get(&endpoint, "/").await.unwrap();
    let Some(other) = unprivileged_user() else {
        return;
    };
    // Other users can reach the directories under test.
    let scratch = std::fs::Permissions::from_mode(0o711);
    std::fs::set_permissions(fixture.dir.path(), scratch).unwrap();
    let shell = |user: Option<u32>, script: &str, path: &std::path::Path| {
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh"]).arg(path);
        shell.stdout(Stdio::null()).stderr(Stdio::null());
        if let Some(user) = user {
            shell.uid(user).gid(user);
        }
        shell.status().unwrap().success()
    };
    let lock = fixture.lock();
    assert!(shell(None, "exec 3<\"$1\"", &lock));
    assert!(!shell(Some(other), "exec 3<\"$1\"", &lock));
    assert!(shell(None, "test -S \"$1\"", &fixture.socket_path()));
    assert!(!shell(
        Some(other),
        "test -S \"$1\"",
        &fixture.socket_path()
    ));
}
