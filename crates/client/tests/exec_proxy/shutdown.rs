//! KEP-2718, "Proxy Shutdown": the lock, and who goes when.

use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use skewbridge_testkit::{PATIENCE, Stopwatch, eventually, second_user};

use crate::client_process;
use crate::stage::{Kind, NAME, Stage, ask, is_gone};

/// Within so much of its client's death a proxy is gone.
const LIMIT: Duration = Duration::from_secs(2);

#[tokio::test]
async fn the_client_takes_the_lock_before_exec_and_tells_its_path() {
    for kind in [Kind::Itself, Kind::Starter] {
        let stage = Stage::new(kind).await;
        let _endpoint = stage.endpoint().await;
        assert_eq!(stage.told("lock-was-held").trim(), "true", "{kind:?}");
        let lock = stage.lock();
        let mode =
            |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&lock), 0o600);
        assert_eq!(mode(lock.parent().unwrap()), 0o700);
        assert!(File::open(&lock).unwrap().try_lock().is_err());
    }
}

#[tokio::test]
async fn a_client_that_is_killed_takes_its_proxy_along_and_leaves_nothing() {
    for kind in [Kind::Itself, Kind::Starter] {
        let stage = Stage::new(kind).await;
        let mut client = client_process::start(&stage, &[]);
        eventually("an answer", PATIENCE * 2, async || {
            stage.told("client-said").ends_with('\n')
        })
        .await;
        assert_eq!(
            stage.told("client-said"),
            format!("{NAME} /from-the-client\n")
        );
        let (proxy, lock) = (stage.proxy(), stage.lock());
        assert!(!is_gone(proxy) && lock.exists() && stage.socket_path().exists());
        let watch = Stopwatch::start();
        client.kill().unwrap();
        client.wait().unwrap();
        let gone = async || is_gone(proxy) && !lock.parent().unwrap().exists();
        watch.within(LIMIT, "the end of the proxy", gone).await;
        assert!(!stage.socket_path().exists());
    }
}

#[tokio::test]
async fn a_client_that_needs_its_proxy_no_more_lets_it_go() {
    for kind in [Kind::Itself, Kind::Starter] {
        let stage = Stage::new(kind).await;
        let endpoint = stage.endpoint().await;
        let mut connection = endpoint.connect().await.unwrap();
        drop(endpoint);
        let request = skewbridge_client::Request::get("/still");
        let answer = connection.send(&request).await.unwrap();
        assert_eq!(answer.body, format!("{NAME} /still"));
        let (proxy, lock) = (stage.proxy(), stage.lock());
        assert!(lock.exists());
        drop(connection);
        eventually("the end of the proxy", PATIENCE, async || is_gone(proxy)).await;
        assert!(!lock.exists());
    }
}

#[tokio::test]
async fn another_user_can_neither_take_the_lock_nor_connect() {
    let stage = Stage::new(Kind::Itself).await;
    let endpoint = stage.endpoint().await;
    ask(&endpoint, "/").await.unwrap();
    let Some(other) = second_user() else { return };
    // All the world may come as far as the directories that matter.
    let scratch = std::fs::Permissions::from_mode(0o711);
    std::fs::set_permissions(stage.dir.path(), scratch).unwrap();
    let shell = |user: Option<u32>, script: &str, path: &std::path::Path| {
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh"]).arg(path);
        shell.stdout(Stdio::null()).stderr(Stdio::null());
        if let Some(user) = user {
            shell.uid(user).gid(user);
        }
        shell.status().unwrap().success()
    };
    let lock = stage.lock();
    assert!(shell(None, "exec 3<\"$1\"", &lock));
    assert!(!shell(Some(other), "exec 3<\"$1\"", &lock));
    assert!(shell(None, "test -S \"$1\"", &stage.socket_path()));
    assert!(!shell(Some(other), "test -S \"$1\"", &stage.socket_path()));
}
