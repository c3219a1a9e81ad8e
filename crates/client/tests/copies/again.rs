//! What a lost connection must not do: keep wrong contents, or lose count.

use std::fs::File;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use skewbridge_client::copy::{
    CopyEvent, Error, Options, ResumePoint, copy_between, copy_from, copy_to,
};
use skewbridge_testkit::{PATIENCE, ScratchDir, eventually};

use crate::machine::{Loss, Machine, is_busybox};
use crate::tree::{Shape, listing, noise, plant};
use crate::{download, no_leftovers, options, progress, upload};

/// Programs of a container without tar.
const WITHOUT_TAR: [&str; 6] = ["cat", "wc", "sh", "mv", "chmod", "rm"];

fn set_time(path: &Path, seconds: u64) {
    let file = File::options().write(true).open(path).unwrap();
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    file.set_modified(then).unwrap();
}

/// From where it went on each time.
fn restarts(on_event: &[CopyEvent]) -> Vec<ResumePoint> {
    let again = on_event.iter().filter_map(|notice| match notice {
        CopyEvent::Retrying { from, .. } => Some(*from),
        _ => None,
    });
    again.collect()
}

#[tokio::test]
async fn a_stale_file_of_the_same_size_and_time_is_not_kept() {
    let (machine, scratch) = (Machine::new(), ScratchDir::new());
    let from = scratch.path().join("from");
    let there = machine.root().join("there");
    for (root, contents) in [(&from, "right"), (&there, "wrong")] {
        std::fs::create_dir(root).unwrap();
        std::fs::write(root.join("z"), contents).unwrap();
        set_time(&root.join("z"), 1_234_567_890);
    }
    // It is cut before it comes to the stale one.
    std::fs::write(from.join("a"), noise(200_000)).unwrap();
    machine.lose(&[None, Some(Loss::Input(60_000))]);
    upload(&machine, &from.join("."), "there", 1).await.unwrap();
    assert_eq!(listing(&there), listing(&from));
}

#[tokio::test]
async fn what_is_there_with_its_contents_is_not_sent_again() {
    let (machine, scratch) = (Machine::new(), ScratchDir::new());
    let from = scratch.path().join("from");
    std::fs::create_dir(&from).unwrap();
    for name in ["a", "b", "c"] {
        std::fs::write(from.join(name), noise(100_000)).unwrap();
    }
    std::fs::create_dir(machine.root().join("there")).unwrap();
    machine.lose(&[None, Some(Loss::Input(250_000))]);
    let (options, on_event) = options(1);
    let progress = progress();
    let contents = from.join(".");
    copy_to(&machine, &contents, "there", &options, &progress)
        .await
        .unwrap();
    assert_eq!(listing(&machine.root().join("there")), listing(&from));
    assert_eq!((progress.bytes(), progress.entries()), (300_000, 3));
    if is_busybox() {
        return;
    }
    let on_event = on_event.lock().unwrap();
    let from = ResumePoint::SkippingFiles(3);
    // Two are whole, and the third is there in part.
    assert!(
        matches!(&on_event[..], [CopyEvent::Retrying { from: again, .. }] if *again == from),
        "{on_event:?}"
    );
}

/// A container whose user has this number, and whose tar leaves `b` as GNU tar leaves what it
/// was at when it was killed: with its contents and its time. It does so once.
fn undressing(user: u32, place: &str) -> Machine {
    let machine = Machine::new();
    let (tar, root) = (machine.tar(), machine.root());
    let (tar, once) = (tar.display(), root.join("../once"));
    let once = once.display();
    let undress = format!("chmod 700 {place}/b; rm -f {place}/c; : >{once}");
    machine.pretend(
        "tar",
        &format!("{tar} \"$@\" && exit\n[ -e {once} ] || {{ {undress}; }}\nexit 2"),
    );
    machine.pretend("id", &format!("echo {user}"));
    machine
}

fn plant_dressed(from: &Path) {
    std::fs::create_dir(from).unwrap();
    for name in ["a", "b", "c"] {
        let path = from.join(name);
        std::fs::write(&path, noise(100_000)).unwrap();
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o754)).unwrap();
    }
}

#[tokio::test]
async fn what_has_not_got_its_permissions_yet_is_sent_again() {
    // Whether it is staged, or goes into a directory that is there.
    for (to, place, whole) in [
        ("new", ".skewbridge-*/it", "new"),
        ("there", "there/./from", "there/from"),
    ] {
        let (machine, scratch) = (undressing(0, place), ScratchDir::new());
        let from = scratch.path().join("from");
        plant_dressed(&from);
        std::fs::create_dir_all(machine.root().join("there/from")).unwrap();
        machine.lose(&[None, Some(Loss::Input(250_000))]);
        upload(&machine, &from, to, 1).await.unwrap();
        assert_eq!(listing(&machine.root().join(whole)), listing(&from));
    }
}

#[tokio::test]
async fn nothing_that_changes_later_hides_what_has_no_permissions() {
    if is_busybox() {
        return;
    }
    // A log grows here, and is gone on with there.
    let (machine, scratch) = (undressing(0, ".skewbridge-*/it"), ScratchDir::new());
    let from = scratch.path().join("from");
    plant_dressed(&from);
    let log = scratch.write("from/a.log", noise(5 << 20));
    machine.lose(&[None, Some(Loss::Input((5 << 20) + 250_000))]);
    let (mut options, _) = options(1);
    let grows = log.clone();
    options.on_event = Some(Arc::new(move |_| {
        std::fs::write(&grows, noise((5 << 20) + 10)).unwrap();
    }));
    copy_to(&machine, &from, "new", &options, &progress())
        .await
        .unwrap();
    assert_eq!(listing(&machine.root().join("new")), listing(&from));

    // A file changes here, and the next try is cut when it comes to it.
    let (machine, scratch) = (undressing(0, ".skewbridge-*/it"), ScratchDir::new());
    let from = scratch.path().join("from");
    plant_dressed(&from);
    let attempts = Some(Loss::Input(60_000));
    machine.lose(&[None, Some(Loss::Input(250_000))]);
    machine.lose(&[None, None, None, None, attempts]);
    let (mut options, on_event) = crate::options(2);
    let (changes, kept) = (from.join("a"), on_event.clone());
    options.on_event = Some(Arc::new(move |notice| {
        std::fs::write(&changes, noise(100_001)).unwrap();
        kept.lock().unwrap().push(notice);
    }));
    copy_to(&machine, &from, "new", &options, &progress())
        .await
        .unwrap();
    assert_eq!(restarts(&on_event.lock().unwrap()).len(), 2);
    let listed = listing(&machine.root().join("new"));
    assert_eq!(listed[1..], listing(&from)[1..]);
}

/// Files that were there have the permissions of those here, however often it is cut.
#[tokio::test]
async fn what_was_there_with_other_permissions_does_not_keep_them() {
    for losses in [&[][..], &[None, Some(Loss::Input(60_000))]] {
        let (machine, scratch) = (Machine::new(), ScratchDir::new());
        machine.pretend("id", "echo 0");
        let from = scratch.path().join("from");
        let there = machine.root().join("there");
        for (root, mode) in [(&from, 0o755), (&there, 0o600)] {
            std::fs::create_dir(root).unwrap();
            for name in ["w", "x", "y", "z"] {
                let path = root.join(name);
                std::fs::write(&path, "same").unwrap();
                set_time(&path, 1_234_567_890);
                std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
            }
        }
        std::fs::write(from.join("a"), noise(200_000)).unwrap();
        machine.lose(losses);
        upload(&machine, &from.join("."), "there", 1).await.unwrap();
        assert_eq!(listing(&there), listing(&from), "{losses:?}");
    }
}

#[tokio::test]
async fn permissions_that_nobody_keeps_hold_up_nothing() {
    if is_busybox() {
        return;
    }
    // Who is not root, and a volume that has one owner and one mode for all.
    for user in [1000, 0] {
        let (machine, scratch) = (Machine::new(), ScratchDir::new());
        let from = scratch.path().join("from");
        std::fs::create_dir(&from).unwrap();
        for name in 0..20 {
            let path = from.join(format!("{name:02}"));
            std::fs::write(&path, noise(100_000)).unwrap();
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o754)).unwrap();
        }
        let tar = machine.tar();
        let tar = tar.display();
        let other = "find .skewbridge-* -type f -exec chmod 600 {} +";
        machine.pretend("tar", &format!("{tar} \"$@\"; c=$?; {other}; exit $c"));
        machine.pretend("id", &format!("echo {user}"));
        let (options, on_event) = options(6);
        let mut losses = vec![None];
        for _ in 0..3 {
            losses.extend([Some(Loss::Input(510_000)), None, None, None, None]);
        }
        machine.lose(&losses);
        copy_to(&machine, &from, "new", &options, &progress())
            .await
            .unwrap();
        // Of each the last one is there in part.
        let further = restarts(&on_event.lock().unwrap());
        let expected = [6, 11, 16].map(ResumePoint::SkippingFiles);
        assert_eq!(further, expected, "{user}");
    }
}

#[tokio::test]
async fn what_becomes_whole_while_it_is_asked_for_is_not_sent_again() {
    let (machine, scratch) = (Machine::new(), ScratchDir::new());
    let from = scratch.path().join("from");
    plant(&from, Shape::Small);
    let (tar, test) = (machine.tar(), "/usr/bin/test");
    let tar = tar.display();
    machine.pretend("tar", &format!("{tar} \"$@\"; c=$?; sleep 0.3; exit $c"));
    // The answer takes its time.
    machine.pretend("test", &format!("{test} \"$@\"; c=$?; sleep 0.6; exit $c"));
    machine.lose(&[None, Some(Loss::Sent)]);
    upload(&machine, &from, "new", 2).await.unwrap();
    assert_eq!(listing(&machine.root().join("new")), listing(&from));
    no_leftovers(&machine);
}

#[tokio::test]
async fn what_takes_its_time_to_end_is_waited_for() {
    let (machine, scratch) = (Machine::new(), ScratchDir::new());
    let from = scratch.path().join("from");
    plant(&from, Shape::Small);
    machine.pretend("mv", "sleep 4; exec /bin/mv \"$@\"");
    machine.lose(&[None, Some(Loss::Sent)]);
    upload(&machine, &from, "new", 20).await.unwrap();
    assert_eq!(listing(&machine.root().join("new")), listing(&from));
    no_leftovers(&machine);
}

#[tokio::test]
async fn it_does_without_knowing_who_writes() {
    for to in ["new", "there"] {
        let (machine, scratch) = (Machine::new(), ScratchDir::new());
        let from = scratch.path().join("from");
        plant(&from, Shape::Small);
        std::fs::create_dir(machine.root().join("there")).unwrap();
        // Scripts find no /proc.
        let without = "s=$(echo \"$2\" | /bin/sed 's,/proc/,/none/,g')";
        machine.replace(
            "sh",
            &format!("{without}; shift 2; exec /bin/sh -c \"$s\" \"$@\""),
        );
        machine.lose(&[None, Some(Loss::Input(100_000))]);
        let copying = upload(&machine, &from, to, 1);
        let copied = tokio::time::timeout(PATIENCE, copying).await;
        copied.expect("it hangs").unwrap();
    }
}

#[tokio::test]
async fn who_appends_is_ended_too() {
    let (machine, scratch) = (Machine::new(), ScratchDir::new());
    let contents = noise(6 << 20);
    let from = scratch.write("large", &contents);
    // It is slow the first time.
    let once = machine.root().join("../once");
    let once = once.display();
    machine.replace(
        "cat",
        &format!("[ -e {once} ] || {{ : >{once}; sleep 2; }}\nexec /bin/cat \"$@\""),
    );
    // A probe, tar, its end, whether all is done, sums, and the rest.
    machine.lose(&[None, Some(Loss::Input(5 << 20)), None, None, None]);
    machine.lose(&[Some(Loss::Unnoticed(30_000))]);
    upload(&machine, &from, "large", 5).await.unwrap();
    let there = machine.root().join("large");
    assert!(std::fs::read(&there).unwrap() == contents);
    assert_eq!(machine.unaware(), 0);
}

#[tokio::test]
async fn nobody_is_left_who_writes_when_another_one_does() {
    for to in ["new", "there"] {
        let (machine, scratch) = (Machine::new(), ScratchDir::new());
        let from = scratch.path().join("from");
        plant(&from, Shape::Small);
        std::fs::create_dir(machine.root().join("there")).unwrap();
        machine.lose(&[None, Some(Loss::Unnoticed(200_000))]);
        let mut seen = Vec::new();
        let copying = upload(&machine, &from, to, 1);
        tokio::pin!(copying);
        let copied = loop {
            tokio::select! {
                copied = &mut copying => break copied,
                () = tokio::time::sleep(Duration::from_millis(1)) => seen.push(machine.unaware()),
            }
        };
        copied.unwrap();
        assert!(seen.contains(&1), "it was not lost");
        assert_eq!(machine.unaware(), 0, "{to}");
        no_leftovers(&machine);
        // Between two pods it begins again.
        let source = Machine::new();
        plant(&source.root().join("tree"), Shape::Small);
        machine.lose(&[None, Some(Loss::Unnoticed(200_000))]);
        let (options, on_event) = options(1);
        let places = ((&source as _, "tree"), (&machine as _, "there"));
        copy_between(places.0, places.1, &options, &progress())
            .await
            .unwrap();
        assert_eq!(restarts(&on_event.lock().unwrap()), [ResumePoint::Start]);
        assert_eq!(machine.unaware(), 0, "{to}");
    }
}

#[tokio::test]
async fn a_large_file_gets_further_with_each_connection() {
    let (machine, scratch) = (Machine::new(), ScratchDir::new());
    let contents = noise(14 << 20);
    let from = scratch.write("large", &contents);
    // A probe; tar. Then each time: the end of the last one, whether all is done, sums, and
    // the rest.
    let mut losses = vec![None, Some(Loss::Input(5 << 20))];
    for _ in 0..2 {
        losses.extend([None, None, None, Some(Loss::Input(4 << 20))]);
    }
    machine.lose(&losses);
    upload(&machine, &from, "large", 5).await.unwrap();
    assert!(std::fs::read(machine.root().join("large")).unwrap() == contents);
    let commands = machine.commands();
    let appended = commands
        .iter()
        .filter(|it| it.get(2).is_some_and(|script| script.contains("cat >>")))
        .count();
    assert!(appended == 3 || is_busybox(), "{appended} of {commands:?}");
    no_leftovers(&machine);
}

#[tokio::test]
async fn entries_that_are_left_out_are_counted_once() {
    let scratch = ScratchDir::new();
    // It cannot go on, and begins again.
    let machine = Machine::with(&["tar"]);
    let tree = machine.root().join("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("file"), "contents").unwrap();
    symlink("/etc/passwd", tree.join("link")).unwrap();
    // All four headers and contents, and not the end.
    machine.lose(&[Some(Loss::Output(4 * 512))]);
    let (options, on_event) = options(3);
    let progress = progress();
    let to = scratch.path().join("to");
    let copied = copy_from(&machine, "tree", &to, &options, &progress).await;
    let error = copied.unwrap_err();
    assert_eq!(error.to_string(), "one entry was not copied");
    assert_eq!((progress.bytes(), progress.entries()), (8, 3));
    let on_event = on_event.lock().unwrap();
    assert_eq!(restarts(&on_event).pop(), Some(ResumePoint::Start));
}

/// A container in which a file is written anew before the given run of tar, with the time
/// that it had.
fn rewriting(before: u32, file: &str) -> Machine {
    let machine = Machine::with(&["cat", "cksum", "cp", "dd", "sh", "tail", "touch"]);
    let script = format!(
        "read -r n <runs
n=$((n + 1))
echo $n >runs
if [ $n = {before} ]; then cp new {file}; touch -d @1000000000 {file}; fi
exec {} \"$@\"",
        machine.tar().display()
    );
    std::fs::write(machine.root().join("runs"), "0\n").unwrap();
    machine.pretend("tar", &script);
    machine
}

#[tokio::test]
async fn no_file_is_put_together_from_two_versions() {
    let old = noise(300_000);
    let inverted: Vec<u8> = old.iter().map(|byte| !byte).collect();
    let longer = noise(300_512);
    // As large as before, or a block larger.
    let versions = [&inverted, &longer];
    for (new, before) in versions.into_iter().flat_map(|new| [(new, 2), (new, 3)]) {
        let scratch = ScratchDir::new();
        let machine = rewriting(before, "tree/file");
        std::fs::write(machine.root().join("new"), new).unwrap();
        let tree = machine.root().join("tree");
        std::fs::create_dir(&tree).unwrap();
        std::fs::write(tree.join("file"), &old).unwrap();
        set_time(&tree.join("file"), 1_000_000_000);
        machine.lose(&[Some(Loss::Output(100_000))]);
        let (mut options, _) = options(1);
        let to = scratch.path().join("to");
        let file = to.join("file");
        // Whatever has its name on the way is one of the two.
        let is_one = {
            let (file, old, new) = (file.clone(), old.clone(), new.clone());
            move || std::fs::read(&file).is_ok_and(|found| found == old || found == new)
        };
        let looked = is_one.clone();
        options.on_event = Some(Arc::new(move |_| {
            assert!(looked() || !file.exists());
        }));
        copy_from(&machine, "tree", &to, &options, &progress())
            .await
            .unwrap();
        assert!(is_one(), "{} bytes before run {before}", new.len());
        assert_eq!(listing(&to).len(), 1);
    }
}

#[tokio::test]
async fn without_tar_a_download_goes_on_where_it_was_cut() {
    if is_busybox() {
        return;
    }
    let scratch = ScratchDir::new();
    let programs = [&WITHOUT_TAR[..], &["tail", "cksum"]].concat();
    let machine = Machine::with(&programs);
    let contents = noise(300_000);
    std::fs::write(machine.root().join("file"), &contents).unwrap();
    // tar, wc, cat; then twice cksum and tail. The last one loses nothing but its end.
    let parts = [100_000, 50_000, 150_000].map(|bytes| Some(Loss::Output(bytes)));
    machine.lose(&[None, None, parts[0], None, parts[1], None, parts[2]]);
    let (options, on_event) = options(3);
    let (to, progress) = (scratch.path().join("to"), progress());
    copy_from(&machine, "file", &to, &options, &progress)
        .await
        .unwrap();
    assert!(std::fs::read(to).unwrap() == contents);
    assert_eq!((progress.bytes(), progress.retries()), (300_000, 3));
    let on_event = on_event.lock().unwrap();
    let expected = [100_000, 150_000, 300_000].map(ResumePoint::Byte);
    assert_eq!(restarts(&on_event), expected);
}

#[tokio::test]
async fn without_tar_no_file_is_put_together_from_two_versions() {
    if is_busybox() {
        return;
    }
    // With programs to go on with it, and without.
    for more in [&["tail", "cksum"][..], &["cksum"], &["tail"], &[]] {
        let scratch = ScratchDir::new();
        let machine = Machine::with(&[&WITHOUT_TAR[..], more].concat());
        let path = machine.root().join("file");
        let old = noise(300_000);
        let new: Vec<u8> = old.iter().map(|byte| !byte).collect();
        std::fs::write(&path, &old).unwrap();
        machine.lose(&[None, None, Some(Loss::Output(100_000))]);
        let (mut options, _) = options(1);
        let contents = new.clone();
        options.on_event = Some(Arc::new(move |notice| {
            if matches!(notice, CopyEvent::Retrying { .. }) {
                std::fs::write(&path, &contents).unwrap();
            }
        }));
        let to = scratch.path().join("to");
        copy_from(&machine, "file", &to, &options, &progress())
            .await
            .unwrap();
        assert!(std::fs::read(to).unwrap() == new, "{more:?}");
        assert_eq!(listing(scratch.path()).len(), 1, "{more:?}");
    }
}

#[tokio::test]
async fn without_tar_an_upload_begins_again_and_is_whole() {
    let scratch = ScratchDir::new();
    let machine = Machine::with(&WITHOUT_TAR);
    let contents = noise(300_000);
    let from = scratch.write("file", &contents);
    let loss = Some(Loss::Input(100_000));
    machine.lose(&[None, loss, loss]);
    let (options, on_event) = options(2);
    let progress = progress();
    copy_to(&machine, &from, "file", &options, &progress)
        .await
        .unwrap();
    assert!(std::fs::read(machine.root().join("file")).unwrap() == contents);
    assert_eq!((progress.bytes(), progress.retries()), (300_000, 2));
    assert_eq!(on_event.lock().unwrap().len(), 3);
    no_leftovers(&machine);
    // And without retries a cut is told as one.
    machine.lose(&[None, None, Some(Loss::Output(100_000))]);
    let to = scratch.path().join("to");
    let error = download(&machine, "file", &to, 0).await.unwrap_err();
    assert!(matches!(error, Error::Disconnected { .. }), "{error}");
    assert!(!to.exists());
}

#[tokio::test]
async fn what_a_server_refuses_is_no_missing_program() {
    let (machine, scratch) = (Machine::new(), ScratchDir::new());
    let from = scratch.write("file", "contents");
    machine.refuse("unable to upgrade connection: container not found (\"app\")");
    for error in [
        download(&machine, "file", &scratch.path().join("to"), 1).await,
        upload(&machine, &from, "file", 1).await,
    ] {
        let error = error.unwrap_err();
        assert!(matches!(error, Error::NotRun { .. }), "{error}");
        let told = error.to_string();
        assert!(told.ends_with("container not found (\"app\")"), "{told}");
    }
    // Nothing else was tried.
    let tried: Vec<_> = machine.commands().iter().map(|it| it[0].clone()).collect();
    assert_eq!(tried, ["tar", "sh"]);
}

#[tokio::test]
async fn stopped_it_leaves_nothing_in_the_container() {
    for retries in [0, 3] {
        let (machine, scratch) = (Arc::new(Machine::new()), ScratchDir::new());
        let from = scratch.path().join("tree");
        plant(&from, Shape::Small);
        machine.lose(&[None, Some(Loss::Stall(1 << 20))]);
        let (options, _) = options(retries);
        let (stop, progress) = (options.cancel.clone(), progress());
        let copying = tokio::spawn({
            let (machine, options) = (machine.clone(), Options::clone(&options));
            let (from, progress) = (from.clone(), progress.clone());
            async move { copy_to(&*machine, &from, "new", &options, &progress).await }
        });
        let is_begun = || {
            let names = listing(&machine.root());
            names.iter().any(|(name, _)| name.ends_with("/it/large"))
        };
        eventually("something in a stage", PATIENCE, async || is_begun()).await;
        stop.cancel();
        let error = copying.await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Cancelled), "{error}");
        // The tar that was left alone may take a moment to end.
        eventually("nothing there", PATIENCE, async || {
            listing(&machine.root()).is_empty()
        })
        .await;
    }
}

#[tokio::test]
async fn stopped_between_two_pods_it_leaves_nothing_in_the_second() {
    let (source, target) = (Machine::new(), Arc::new(Machine::new()));
    plant(&source.root().join("tree"), Shape::Small);
    target.lose(&[None, Some(Loss::Stall(1 << 20))]);
    let (options, _) = options(3);
    let stop = options.cancel.clone();
    let copying = tokio::spawn({
        let target = target.clone();
        async move {
            let places = ((&source as _, "tree"), (&*target as _, "new"));
            copy_between(places.0, places.1, &options, &progress()).await
        }
    });
    eventually("something in a stage", PATIENCE, async || {
        let names = listing(&target.root());
        names.iter().any(|(name, _)| name.ends_with("/it"))
    })
    .await;
    stop.cancel();
    let error = copying.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Cancelled), "{error}");
    eventually("nothing there", PATIENCE, async || {
        listing(&target.root()).is_empty()
    })
    .await;
}
