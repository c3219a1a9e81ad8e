//! Any bytes as an archive, in any chunks: the same events, no panic, no name outside of the
//! target; and entries that were read can be written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skewbridge_client::copy::path_containment::{self, RequestedRoot};
use skewbridge_client::copy::tar::{
    Entry, Event, MAX_NAME_BYTES, Reader, Violation, padding, write_end, write_entry,
};

#[derive(Debug, PartialEq)]
enum ParsedEvent {
    Entry(Entry, Vec<u8>),
    End,
}

fn read(bytes: &[u8], chunk_bytes: usize) -> (Vec<ParsedEvent>, Option<Violation>) {
    let (mut reader, mut events) = (Reader::new(), Vec::new());
    for mut chunk in bytes.chunks(chunk_bytes) {
        loop {
            match reader.next(&mut chunk) {
                Err(violation) => return (events, Some(violation)),
                Ok(None) => break,
                Ok(Some(Event::Entry(entry))) => events.push(ParsedEvent::Entry(entry, Vec::new())),
                Ok(Some(Event::End)) => events.push(ParsedEvent::End),
                Ok(Some(Event::Data(data))) => match events.last_mut() {
                    Some(ParsedEvent::Entry(_, contents)) => contents.extend_from_slice(data),
                    other => panic!("contents of {other:?}"),
                },
            }
        }
    }
    assert_eq!(reader.offset(), bytes.len() as u64);
    (events, None)
}

fuzz_target!(|input: &[u8]| {
    let Some((&chunk_bytes, bytes)) = input.split_first() else {
        return;
    };
    let (events, violation) = read(bytes, usize::MAX);
    let split = read(bytes, usize::from(chunk_bytes).max(1));
    assert_eq!((&events, &violation), (&split.0, &split.1));

    let mut archive = Vec::new();
    let mut whole = Vec::new();
    for event in events {
        let ParsedEvent::Entry(mut entry, contents) = event else {
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
        whole.push(ParsedEvent::Entry(entry, contents));
    }
    write_end(&mut archive);
    whole.push(ParsedEvent::End);
    assert_eq!(read(&archive, usize::MAX), (whole, None));
});
