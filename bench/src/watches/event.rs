//! The events of a watch, numbered from 1, and the check that a watch received
//! exactly these.

use anyhow::{Result, ensure};
use bytes::Bytes;

/// The length of every event, including its newline: a small object's change.
pub(crate) const EVENT_BYTES: usize = 300;

/// The line that the fake API server sends as event `number`.
pub(crate) fn line(number: u32) -> Bytes {
    const END: &str = "\"}}}\n";
    let mut line = format!(
        "{{\"type\":\"MODIFIED\",\"object\":{{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\
         \"metadata\":{{\"name\":\"watched\",\"namespace\":\"bench\",\
         \"resourceVersion\":\"{number}\"}},\"data\":{{\"filler\":\""
    );
    while line.len() + END.len() < EVENT_BYTES {
        line.push('x');
    }
    line.push_str(END);
    line.into()
}

/// Follows the bytes of one watch, in any chunks.
#[derive(Debug)]
pub(crate) struct EventChecker {
    /// Complete events received so far.
    received: u32,
    /// The rest of the next event.
    rest: Bytes,
}

impl EventChecker {
    pub(crate) fn new() -> Self {
        Self {
            received: 0,
            rest: line(1),
        }
    }

    /// Processes the next bytes; returns how many complete events have been received.
    pub(crate) fn take(&mut self, mut bytes: &[u8]) -> Result<u32> {
        while !bytes.is_empty() {
            let length = bytes.len().min(self.rest.len());
            let (head, tail) = bytes.split_at(length);
            ensure!(
                head == self.rest.split_to(length),
                "event {} is not what was sent: {:?}",
                self.received + 1,
                String::from_utf8_lossy(head)
            );
            bytes = tail;
            if self.rest.is_empty() {
                self.received += 1;
                self.rest = line(self.received + 1);
            }
        }
        Ok(self.received)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_is_one_line_of_json_of_the_same_size() {
        for number in [1, 10, u32::MAX] {
            let line = line(number);
            assert_eq!(line.len(), EVENT_BYTES);
            let object: serde_json::Value = serde_json::from_slice(&line).unwrap();
            let version = &object["object"]["metadata"]["resourceVersion"];
            assert_eq!(version, &number.to_string());
        }
    }

    #[test]
    fn events_are_counted_in_any_chunks() {
        let bytes = [line(1), line(2), line(3)].concat();
        for cut in 0..bytes.len() {
            let mut follower = EventChecker::new();
            let first = follower.take(&bytes[..cut]).unwrap();
            assert_eq!(first as usize, cut / EVENT_BYTES);
            assert_eq!(follower.take(&bytes[cut..]).unwrap(), 3);
        }
    }

    #[test]
    fn a_lost_or_repeated_event_is_detected() {
        assert!(EventChecker::new().take(&line(2)).is_err());
        assert!(
            EventChecker::new()
                .take(&[line(1), line(1)].concat())
                .is_err()
        );
    }
}
