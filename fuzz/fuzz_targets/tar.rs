//! Any bytes as an archive, in any chunks: the same events, no panic, no name outside of the
//! target; and entries that were read can be written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skewbridge_client::copy::path_containment::{self, RequestedRoot};
use skewbridge_client::copy::tar::{
    Entry, Event, MAX_NAME_BYTES, Reader, Violation, padding, write_end, write_entry,
};

#[derive(Debug, PartialEq)]
enum Said {
    Entry(Entry, Vec<u8>),
    End,
}

fn read(bytes: &[u8], cut: usize) -> (Vec<Said>, Option<Violation>) {
    let (mut reader, mut said) = (Reader::new(), Vec::new());
    for mut chunk in bytes.chunks(cut) {
        loop {
            match reader.next(&mut chunk) {
                Err(violation) => return (said, Some(violation)),
                Ok(None) => break,
                Ok(Some(Event::Entry(entry))) => said.push(Said::Entry(entry, Vec::new())),
                Ok(Some(Event::End)) => said.push(Said::End),
                Ok(Some(Event::Data(data))) => match said.last_mut() {
                    Some(Said::Entry(_, contents)) => contents.extend_from_slice(data),
                    other => panic!("contents of {other:?}"),
                },
            }
        }
    }
    assert_eq!(reader.offset(), bytes.len() as u64);
    (said, None)
}

fuzz_target!(|input: &[u8]| {
    let Some((&cut, bytes)) = input.split_first() else {
        return;
    };
    let (said, violation) = read(bytes, usize::MAX);
    let split = read(bytes, usize::from(cut).max(1));
    assert_eq!((&said, &violation), (&split.0, &split.1));

    let mut archive = Vec::new();
    let mut whole = Vec::new();
    for event in said {
        let Said::Entry(mut entry, contents) = event else {
            continue;
        };
        assert!(entry.name.len() <= MAX_NAME_BYTES && contents.len() as u64 <= entry.size);
        if let Ok(parts) = path_containment::relative_parts(&RequestedRoot::Contents, &entry.name) {
            assert!(parts.iter().all(|part| !matches!(*part, b"" | b"." | b"..")));
        }
        // A truncated entry is written with its actual length; numbers out of range are not written
        // as they were read.
        if contents.len() as u64 != entry.size
            || entry.uid.max(entry.gid) > u32::MAX.into()
            || entry.mtime_nanos != 0
            || entry.name.len().max(entry.link.len()) == MAX_NAME_BYTES
            || entry.name.ends_with(b"/")
        {
            return;
        }
        entry.size = contents.len() as u64;
        write_entry(&entry, &mut archive);
        archive.extend_from_slice(&contents);
        archive.extend_from_slice(padding(entry.size));
        whole.push(Said::Entry(entry, contents));
    }
    write_end(&mut archive);
    whole.push(Said::End);
    assert_eq!(read(&archive, usize::MAX), (whole, None));
});
