use proptest::prelude::*;

use super::super::{padding, write_end, write_entry};
use super::*;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Parsed {
    Entry(Entry, Vec<u8>),
    End,
    Error(Violation),
}

/// Parses an archive in chunks of these lengths, repeated cyclically.
fn read(archive: &[u8], cuts: &[usize]) -> Vec<Parsed> {
    let (mut reader, mut parsed) = (Reader::new(), Vec::new());
    let mut rest = archive;
    let mut cuts = cuts.iter().cycle();
    while !rest.is_empty() {
        let cut = (*cuts.next().unwrap()).clamp(1, rest.len());
        let (mut piece, after) = rest.split_at(cut);
        rest = after;
        loop {
            match reader.next(&mut piece) {
                Ok(None) => break,
                Ok(Some(Event::Entry(entry))) => parsed.push(Parsed::Entry(entry, Vec::new())),
                Ok(Some(Event::End)) => parsed.push(Parsed::End),
                Ok(Some(Event::Data(data))) => {
                    let Some(Parsed::Entry(_, contents)) = parsed.last_mut() else {
                        panic!("contents of nothing");
                    };
                    contents.extend_from_slice(data);
                }
                Err(violation) => {
                    parsed.push(Parsed::Error(violation));
                    return parsed;
                }
            }
        }
        assert!(piece.is_empty());
    }
    assert_eq!(reader.is_complete(), parsed.last() == Some(&Parsed::End));
    parsed
}

fn archive(entries: &[(Entry, Vec<u8>)]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (entry, contents) in entries {
        write_entry(entry, &mut archive);
        archive.extend_from_slice(contents);
        archive.extend_from_slice(padding(contents.len() as u64));
    }
    write_end(&mut archive);
    archive
}

fn any_entry() -> impl Strategy<Value = (Entry, Vec<u8>)> {
    let kind = prop_oneof![
        4 => Just(Kind::File),
        1 => Just(Kind::Directory),
        1 => Just(Kind::Symlink),
        1 => Just(Kind::HardLink),
        1 => Just(Kind::Fifo),
    ];
    let name = prop::collection::vec(1_u8..=255, 1..300);
    let numbers = (0_u32..0o10000, 0_u64..1 << 32, any::<i32>());
    let contents = prop::collection::vec(any::<u8>(), 0..1500);
    (kind, name.clone(), name, numbers, contents).prop_map(
        |(kind, mut name, link, (mode, owner, mtime), contents)| {
            let contents = if kind == Kind::File {
                contents
            } else {
                Vec::new()
            };
            // A trailing slash would make a file a directory.
            name.push(b'n');
            let is_link = matches!(kind, Kind::Symlink | Kind::HardLink);
            let entry = Entry {
                name,
                kind,
                mode,
                uid: owner,
                gid: owner / 2,
                size: contents.len() as u64,
                mtime: i64::from(mtime) * 1000,
                mtime_nanos: 0,
                link: if is_link { link } else { Vec::new() },
            };
            (entry, contents)
        },
    )
}

proptest! {
    #[test]
    fn written_entries_are_read_back_in_any_chunks(
        entries in prop::collection::vec(any_entry(), 0..6),
        cuts in prop::collection::vec(1_usize..2000, 1..8),
    ) {
        let archive = archive(&entries);
        let mut expected: Vec<_> = entries
            .into_iter()
            .map(|(entry, contents)| Parsed::Entry(entry, contents))
            .collect();
        expected.push(Parsed::End);
        prop_assert_eq!(read(&archive, &[usize::MAX]), expected.clone());
        prop_assert_eq!(read(&archive, &cuts), expected);
    }

    #[test]
    fn damaged_archives_are_parsed_the_same_in_any_chunks(
        entries in prop::collection::vec(any_entry(), 1..4),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cuts in prop::collection::vec(1_usize..700, 1..5),
    ) {
        let mut archive = archive(&entries);
        for (place, byte) in damage {
            let place = place.index(archive.len());
            archive[place] = byte;
        }
        prop_assert_eq!(read(&archive, &[usize::MAX]), read(&archive, &cuts));
    }

    /// Truncated anywhere, rewound and resumed at the checkpoint, an archive yields the same
    /// entries.
    #[test]
    fn a_truncated_archive_can_be_resumed(
        entries in prop::collection::vec(any_entry(), 1..5),
        cut in any::<prop::sample::Index>(),
    ) {
        let archive = archive(&entries);
        let cut = cut.index(archive.len());
        let mut reader = Reader::new();
        let (mut names, mut contents) = (Vec::new(), Vec::new());
        let mut feed = |reader: &mut Reader, mut piece: &[u8]| {
            while let Some(event) = reader.next(&mut piece).unwrap() {
                match event {
                    Event::Entry(entry) => names.push(entry.name),
                    Event::Data(data) => contents.extend_from_slice(data),
                    Event::End => {}
                }
            }
        };
        feed(&mut reader, &archive[..cut]);
        let from = if reader.is_complete() {
            cut
        } else {
            match reader.rewind() {
                None => {
                    reader = Reader::new();
                    0
                }
                Some(checkpoint) => {
                    let header_at = usize::try_from(checkpoint.header_at).unwrap();
                    prop_assert!(archive[header_at..].starts_with(checkpoint.header));
                    usize::try_from(checkpoint.resume_at).unwrap()
                }
            }
        };
        prop_assert!(from <= cut);
        feed(&mut reader, &archive[from..]);
        prop_assert!(reader.is_complete());
        prop_assert_eq!(reader.offset(), archive.len() as u64);
        let expected: Vec<_> = entries.iter().map(|(entry, _)| entry.name.clone()).collect();
        prop_assert_eq!(names, expected);
        prop_assert_eq!(contents, entries.into_iter().flat_map(|it| it.1).collect::<Vec<_>>());
    }
}

/// A hand-made header.
fn header(name: &[u8], kind: u8, size: i64, change: impl FnOnce(&mut Bytes)) -> Vec<u8> {
    let mut block = [0; BLOCK_BYTES];
    block[..name.len()].copy_from_slice(name);
    block[block::TYPE_OFFSET] = kind;
    block::write_number(&mut block[block::SIZE], size);
    change(&mut block);
    block::seal(&mut block);
    block.to_vec()
}

fn plain(name: &[u8], kind: u8, size: i64) -> Vec<u8> {
    header(name, kind, size, |_| {})
}

fn padded(bytes: &[u8]) -> Vec<u8> {
    [bytes, padding(bytes.len() as u64)].concat()
}

fn entry(archive: &[u8]) -> Entry {
    match read(archive, &[usize::MAX]).remove(0) {
        Parsed::Entry(entry, _) => entry,
        other => panic!("{other:?}"),
    }
}

#[test]
fn posix_names_have_a_prefix_and_gnu_names_have_none() {
    let front = |magic: &'static [u8; 8]| {
        header(b"name", b'0', 0, |block| {
            block[block::MAGIC].copy_from_slice(magic);
            block[block::PREFIX.start..][..5].copy_from_slice(b"front");
        })
    };
    assert_eq!(entry(&front(b"ustar\x0000")).name, b"front/name");
    assert_eq!(entry(&front(b"ustar  \0")).name, b"name");
    assert_eq!(entry(&front(&[0; 8])).name, b"name");
}

#[test]
fn pax_records_override_the_header() {
    let records = b"15 path=longer\n12 size=600\n22 mtime=1700000000.5\n";
    let archive = [
        plain(b"comment", b'g', 13),
        padded(b"13 comment=x\n"),
        plain(b"PaxHeaders", b'x', i64::try_from(records.len()).unwrap()),
        padded(records),
        plain(b"short", b'0', 1),
        padded(&[7; 600]),
        plain(b"next", b'0', 0),
    ]
    .concat();
    let parsed = read(&archive, &[usize::MAX]);
    let Parsed::Entry(first, contents) = &parsed[0] else {
        panic!("{parsed:?}");
    };
    assert_eq!((&first.name[..], first.size), (&b"longer"[..], 600));
    assert_eq!(
        (first.mtime, first.mtime_nanos),
        (1_700_000_000, 500_000_000)
    );
    assert_eq!(contents, &[7; 600]);
    // The records apply to one entry only.
    assert!(matches!(&parsed[1], Parsed::Entry(entry, _) if entry.name == b"next"));
}

#[test]
fn old_directories_are_files_with_a_trailing_slash() {
    assert_eq!(entry(&plain(b"old/", 0, 0)).kind, Kind::Directory);
    assert_eq!(entry(&plain(b"old", 0, 0)).kind, Kind::File);
    // The size on disk is not followed by content.
    assert_eq!(entry(&plain(b"old/", b'5', 4096)).size, 0);
}

#[test]
fn unreadable_archives_are_rejected_with_the_reason() {
    let long = i64::try_from(MAX_NAME_BYTES).unwrap() + 1;
    let records = i64::try_from(MAX_PAX_BYTES).unwrap() + 1;
    let mut broken = plain(b"a", b'0', 0);
    broken[0] = b'b';
    let rows: [(Vec<u8>, Violation); 13] = [
        (broken, Violation::Checksum { at: 0 }),
        (
            plain(b"a", b'S', 0),
            Violation::Unsupported("a sparse file"),
        ),
        (
            plain(b"a", b'M', 0),
            Violation::Unsupported("a file of several volumes"),
        ),
        (
            plain(b"a", b'D', 0),
            Violation::Unsupported("an incremental directory"),
        ),
        (plain(b"a", b'Z', 0), Violation::Type(b'Z')),
        (plain(b"", b'0', 0), Violation::Name),
        (plain(b"a", b'2', 0), Violation::Name),
        (plain(b"a", b'0', -1), Violation::Number { field: "size" }),
        (plain(b"a", b'3', 1), Violation::Contents(Kind::Character)),
        (
            plain(b"a", b'L', long),
            Violation::TooLong {
                what: "name",
                limit: MAX_NAME_BYTES,
            },
        ),
        (
            plain(b"a", b'x', records),
            Violation::TooLong {
                what: "pax header",
                limit: MAX_PAX_BYTES,
            },
        ),
        (
            [plain(b"a", b'x', 4), padded(b"nope")].concat(),
            Violation::Pax,
        ),
        // A single zero block is not the end.
        (
            [vec![0; BLOCK_BYTES], plain(b"a", b'0', 0)].concat(),
            Violation::Checksum { at: 512 },
        ),
    ];
    for (archive, violation) in rows {
        let parsed = read(&archive, &[usize::MAX]);
        assert_eq!(parsed, [Parsed::Error(violation)]);
    }
}

#[test]
fn an_endless_chain_of_extension_headers_is_rejected() {
    let one = [
        plain(b"a", b'V', 0),
        plain(b"a", b'L', 600),
        padded(&[b'n'; 600]),
    ]
    .concat();

    let archive = one.repeat(MAX_PAX_BYTES / one.len() + 2);
    assert_eq!(
        read(&archive, &[usize::MAX]),
        [Parsed::Error(Violation::TooLong {
            what: "header",
            limit: MAX_PAX_BYTES,
        })]
    );
}

#[test]
fn an_archive_without_its_end_marker_is_incomplete() {
    let whole = archive(&[(Entry::new("a", Kind::File), Vec::new())]);
    for cut in 0..whole.len() {
        let mut reader = Reader::new();
        let mut piece = &whole[..cut];
        while reader.next(&mut piece).unwrap().is_some() {}
        assert_eq!(reader.is_complete(), cut >= 3 * BLOCK_BYTES, "{cut}");
    }
}
