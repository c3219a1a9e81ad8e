use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::sync::Mutex;

use skewbridge_testkit::ScratchDir;

use super::super::tar::{padding, write_end, write_entry};
use super::*;

/// A hand-made archive.
#[derive(Default)]
struct Archive(Vec<u8>);

impl Archive {
    /// An archive that begins with the directory `top`.
    fn of_top() -> Self {
        Self::default().add(&Entry::new("top/", Kind::Directory))
    }

    fn add(mut self, entry: &Entry) -> Self {
        write_entry(entry, &mut self.0);
        self
    }

    fn file(mut self, name: &str, contents: &[u8]) -> Self {
        let entry = Entry {
            size: contents.len() as u64,
            ..Entry::new(name, Kind::File)
        };
        write_entry(&entry, &mut self.0);
        self.0.extend_from_slice(contents);
        self.0.extend_from_slice(padding(entry.size));
        self
    }

    fn link(self, kind: Kind, name: &str, target: &str) -> Self {
        self.add(&Entry {
            link: target.into(),
            ..Entry::new(name, kind)
        })
    }

    fn end(mut self) -> Vec<u8> {
        write_end(&mut self.0);
        self.0
    }
}

struct Outcome {
    result: Result<(), Error>,
    events: Vec<CopyEvent>,
}

fn extract(target: &Path, archive: &[u8], options: &Options) -> Outcome {
    let events = Arc::new(Mutex::new(Vec::new()));
    let kept = events.clone();
    let options = Options {
        on_event: Some(Arc::new(move |event| kept.lock().unwrap().push(event))),
        ..options.clone()
    };
    let top = RequestedRoot::Named(b"top".to_vec());
    let progress = Arc::new(Progress::default());
    let mut extractor = Extractor::new(top, Destination::new(target), options, progress);
    let mut reader = Reader::new();
    let taken = extractor.push(&mut reader, archive);
    let result = taken.and_then(|whole| {
        assert!(whole);
        extractor.finish()
    });
    let events = events.lock().unwrap().clone();
    Outcome { result, events }
}

/// Everything below a directory: names, and contents or link targets.
fn listing(directory: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut waiting = vec![directory.to_path_buf()];
    while let Some(next) = waiting.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            let kind = path.symlink_metadata().unwrap().file_type();
            let name = path.strip_prefix(directory).unwrap().display().to_string();
            let what = if kind.is_dir() {
                waiting.push(path);
                "/".to_owned()
            } else if kind.is_symlink() {
                format!("-> {}", path.read_link().unwrap().display())
            } else {
                std::fs::read_to_string(path).unwrap()
            };
            found.push((name, what));
        }
    }
    found.sort();
    found
}

fn expect(directory: &Path, expected: &[(&str, &str)]) {
    let found = listing(directory);
    let found: Vec<_> = found
        .iter()
        .map(|(a, b)| (a.as_str(), b.as_str()))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn a_tree_is_extracted_with_permissions_times_and_links() {
    let scratch = ScratchDir::new();
    let target = scratch.path().join("new/target");
    let archive = Archive::default()
        .add(&Entry {
            mode: 0o750,
            mtime: 1_000_000_000,
            ..Entry::new("./top", Kind::Directory)
        })
        .add(&Entry {
            mode: 0o500,
            mtime: 1_100_000_000,
            ..Entry::new("top/closed/", Kind::Directory)
        })
        .file("top/closed/file", b"contents")
        .add(&Entry {
            mode: 0o6751,
            mtime: 1_200_000_000,
            ..Entry::new("top/program", Kind::File)
        })
        .file("top/missing/above", b"x")
        .link(Kind::Symlink, "top/closed/up", "../program")
        .link(Kind::HardLink, "top/same", "top/closed/file")
        .end();
    let outcome = extract(&target, &archive, &Options::default());
    outcome.result.unwrap();
    expect(
        &target,
        &[
            ("closed", "/"),
            ("closed/file", "contents"),
            ("closed/up", "-> ../program"),
            ("missing", "/"),
            ("missing/above", "x"),
            ("program", ""),
            ("same", "contents"),
        ],
    );
    let status = |name: &str| target.join(name).symlink_metadata().unwrap();
    assert_eq!(status("").mtime(), 1_000_000_000);
    assert_eq!(status("closed").mtime(), 1_100_000_000);
    assert_eq!(status("closed").permissions().mode() & 0o7777, 0o500);
    assert_eq!(status("program").mtime(), 1_200_000_000);
    // No setuid, no setgid.
    assert_eq!(status("program").permissions().mode() & 0o7700, 0o700);
    assert_eq!(status("same").ino(), status("closed/file").ino());
    // So that it can be removed.
    let open = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(target.join("closed"), open).unwrap();
}

#[test]
fn without_preserve_files_get_default_metadata() {
    let scratch = ScratchDir::new();
    let target = scratch.path().join("target");
    let archive = Archive::of_top()
        .add(&Entry {
            mode: 0o400,
            ..Entry::new("top/file", Kind::File)
        })
        .end();
    let options = Options {
        preserve: Preserve::No,
        ..Options::default()
    };
    extract(&target, &archive, &options).result.unwrap();
    let status = target.join("file").metadata().unwrap();
    assert_eq!(status.permissions().mode() & 0o700, 0o600);
    assert!(status.mtime() > 1_700_000_000);
}

#[test]
fn escaping_names_are_rejected_and_nothing_is_written_outside() {
    let rows: [(&str, Archive, &str); 14] = [
        (
            "parent",
            Archive::of_top().file("top/../../out", b"x"),
            "leads out",
        ),
        ("above", Archive::of_top().file("../out", b"x"), "leads out"),
        (
            "absolute",
            Archive::of_top().file("/out", b"x"),
            "is absolute",
        ),
        (
            "elsewhere",
            Archive::of_top().file("other", b"x"),
            "not below",
        ),
        ("case", Archive::of_top().file("TOP/x", b"x"), "not below"),
        (
            "through a symlink of the archive",
            Archive::of_top()
                .link(Kind::Symlink, "top/link", "inside")
                .file("top/link/file", b"x"),
            "not followed",
        ),
        (
            "through a symlink to itself",
            Archive::of_top()
                .link(Kind::Symlink, "top/link", ".")
                .file("top/link/file", b"x"),
            "not followed",
        ),
        (
            "a directory through a symlink",
            Archive::of_top()
                .link(Kind::Symlink, "top/link", "inside")
                .add(&Entry::new("top/link/", Kind::Directory)),
            "not followed",
        ),
        (
            "through an existing symlink",
            Archive::of_top().file("top/was/file", b"x"),
            "not followed",
        ),
        (
            "a hard link to the outside",
            Archive::of_top().link(Kind::HardLink, "top/link", "top/../../secret"),
            "leads out",
        ),
        (
            "a hard link through a symlink",
            Archive::of_top().link(Kind::HardLink, "top/link", "top/was/secret"),
            "not followed",
        ),
        (
            "a hard link to a symlink",
            Archive::of_top().link(Kind::HardLink, "top/link", "top/was"),
            "not a regular file",
        ),
        (
            "a directory that becomes a file",
            Archive::of_top()
                .file("top/dir/a", b"x")
                .file("top/dir", b"x"),
            "cannot write to",
        ),
        (
            "a file that becomes a directory",
            Archive::of_top().file("top/a", b"x").file("top/a/b", b"x"),
            "not followed",
        ),
    ];
    for (what, archive, expected) in rows {
        let scratch = ScratchDir::new();
        let target = scratch.path().join("area/target");
        std::fs::create_dir_all(&target).unwrap();
        std::fs::create_dir(scratch.path().join("outside")).unwrap();
        std::fs::write(scratch.path().join("outside/secret"), "secret").unwrap();
        symlink(scratch.path().join("outside"), target.join("was")).unwrap();
        let outcome = extract(&target, &archive.end(), &Options::default());
        let error = outcome.result.expect_err(what).to_string();
        assert!(error.contains(expected), "{what}: {error}");
        let around: Vec<_> = listing(scratch.path())
            .into_iter()
            .filter(|(name, _)| !name.starts_with("area/target/"))
            .map(|(name, _)| name)
            .collect();
        assert_eq!(
            around,
            ["area", "area/target", "outside", "outside/secret"],
            "{what}"
        );
        // No temporary file stays either.
        let inside = listing(&target);
        assert!(
            inside.iter().all(|it| !it.0.contains(".part")),
            "{what}: {inside:?}"
        );
    }
}

#[test]
fn escaping_symlinks_and_devices_are_skipped_and_reported() {
    let scratch = ScratchDir::new();
    let target = scratch.path().join("target");
    let archive = Archive::of_top()
        .link(Kind::Symlink, "top/absolute", "/etc/passwd")
        .link(Kind::Symlink, "top/up", "../x")
        .link(Kind::Symlink, "top/d/walk", "l/..")
        .add(&Entry::new("top/null", Kind::Character))
        .add(&Entry::new("top/disk", Kind::Block))
        .add(&Entry::new("top/pipe", Kind::Fifo))
        .link(Kind::HardLink, "top/other", "top/pipe")
        .file("top/rest", b"is there")
        .end();
    let outcome = extract(&target, &archive, &Options::default());
    let error = outcome.result.unwrap_err();
    assert!(matches!(error, Error::Skipped(Skipped(7))), "{error}");
    assert_eq!(outcome.events.len(), 7);
    let first = outcome.events[0].to_string();
    assert!(first.starts_with("warning: skipping symlink: "), "{first}");
    expect(&target, &[("rest", "is there")]);
}

#[test]
fn the_last_duplicate_counts_and_links_are_replaced_not_followed() {
    let scratch = ScratchDir::new();
    let target = scratch.path().join("target");
    std::fs::create_dir(&target).unwrap();
    let secret = scratch.path().join("secret");
    std::fs::write(&secret, "secret").unwrap();
    symlink(&secret, target.join("a")).unwrap();
    std::fs::hard_link(&secret, target.join("b")).unwrap();
    let archive = Archive::of_top()
        .file("top/a", b"first")
        .file("top/a", b"second")
        .file("top/b", b"new")
        .end();
    extract(&target, &archive, &Options::default())
        .result
        .unwrap();
    expect(&target, &[("a", "second"), ("b", "new")]);
    assert_eq!(std::fs::read_to_string(secret).unwrap(), "secret");
}

#[test]
fn a_file_goes_where_kubectl_puts_it() {
    let rows: [(&str, &str); 5] = [
        ("there", "there/top"),
        ("there/", "there/top"),
        ("there/.", "there/top"),
        ("new", "new"),
        ("a/b/new", "a/b/new"),
    ];
    for (target, expected) in rows {
        let scratch = ScratchDir::new();
        std::fs::create_dir(scratch.path().join("there")).unwrap();
        let archive = Archive::default().file("./top", b"contents").end();
        let outcome = extract(&scratch.path().join(target), &archive, &Options::default());
        outcome.result.unwrap();
        let found = std::fs::read_to_string(scratch.path().join(expected));
        assert_eq!(found.unwrap(), "contents", "{target}");
    }
}

#[test]
fn only_the_requested_path_is_accepted() {
    let rows: [(&str, Archive, &str); 5] = [
        (
            "a second file",
            Archive::default().file("top", b"x").file("top/b", b"y"),
            "was not requested",
        ),
        (
            "a symlink",
            Archive::default().link(Kind::Symlink, "top", "/etc"),
            "is a symlink to \"/etc\"",
        ),
        (
            "a device",
            Archive::default().add(&Entry::new("top", Kind::Character)),
            "is a character device",
        ),
        ("nothing", Archive::default(), "the archive is empty"),
        (
            "a file for a directory",
            Archive::of_top().file("top", b"x"),
            "is a directory and a file",
        ),
    ];
    for (what, archive, expected) in rows {
        let scratch = ScratchDir::new();
        let target = scratch.path().join("target");
        let outcome = extract(&target, &archive.end(), &Options::default());
        let error = outcome.result.expect_err(what).to_string();
        assert!(error.contains(expected), "{what}: {error}");
    }
}

#[test]
fn files_larger_than_the_limit_are_rejected_before_they_are_written() {
    let scratch = ScratchDir::new();
    let target = scratch.path().join("target");
    let mut zeros = Archive::of_top().file("top/small", b"fits").0;
    let entry = Entry {
        size: 10 << 30,
        ..Entry::new("top/zeros", Kind::File)
    };
    write_entry(&entry, &mut zeros);
    zeros.extend_from_slice(&[0; 4096]);
    let options = Options {
        max_bytes: Some(1 << 20),
        ..Options::default()
    };
    let error = extract(&target, &zeros, &options).result.unwrap_err();
    let Error::NoSpace { size, limit, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!((*size, *limit), (10 << 30, "--max-bytes"));
    expect(&target, &[("small", "fits")]);

    // And more than any disk has.
    let mut large = Archive::of_top().0;
    let entry = Entry {
        size: 1 << 60,
        ..Entry::new("top/large", Kind::File)
    };
    write_entry(&entry, &mut large);
    let error = extract(&target, &large, &Options::default())
        .result
        .unwrap_err();
    assert!(error.to_string().contains("the free space"), "{error}");
}

#[test]
fn an_existing_device_is_not_replaced() {
    let scratch = ScratchDir::new();
    let pipe = scratch.path().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let archive = Archive::default().file("top", b"x").end();
    let error = extract(&pipe, &archive, &Options::default())
        .result
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("the target is not a regular file"),
        "{error}"
    );
}
