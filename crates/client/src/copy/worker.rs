//! Who writes in a container. It may do so after its connection was lost, and who tries again
//! must not meet it there.

use std::sync::{Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// How long its word may be: two numbers.
const LONGEST: usize = 64;

/// A process of a container, by its number there and when it began: numbers are given again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Worker {
    number: String,
    born: String,
}

impl Worker {
    fn read(line: &str) -> Option<Self> {
        let (number, born) = line.split_once(' ')?;
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
        (is_number(number) && is_number(born)).then(|| Self {
            number: number.to_owned(),
            born: born.to_owned(),
        })
    }

    pub(super) fn number(&self) -> &str {
        &self.number
    }

    pub(super) fn born(&self) -> &str {
        &self.born
    }
}

/// The last one that was heard of.
#[derive(Debug, Default)]
pub(super) struct Last(Mutex<Option<Worker>>);

impl Last {
    /// Hears of it by the first line that it says. One that cannot say when it began, where
    /// there is no `/proc`, is not known.
    pub(super) async fn hear(&self, said: &mut (impl AsyncRead + Unpin)) {
        let mut line = Vec::new();
        let is_whole = loop {
            match said.read_u8().await {
                Ok(b'\n') => break true,
                Ok(byte) if line.len() < LONGEST => line.push(byte),
                _ => break false,
            }
        };
        let line = str::from_utf8(&line).ok().filter(|_| is_whole);
        let worker = line.and_then(Worker::read);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = worker;
    }

    pub(super) fn get(&self) -> Option<Worker> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_process_is_known_by_two_numbers() {
        let known = Worker {
            number: "17".to_owned(),
            born: "4711".to_owned(),
        };
        let long = format!("17 {}\n", "1".repeat(LONGEST));
        let rows = [
            ("17 4711\n", Some(known.clone())),
            ("17 4711\nmore", Some(known)),
            ("17 \n", None),
            (" 4711\n", None),
            ("17\n", None),
            ("1 7 4711\n", None),
            ("-1 4711\n", None),
            (&long, None),
            ("17 47", None),
            ("", None),
        ];
        for (said, expected) in rows {
            let last = Last::default();
            last.hear(&mut said.as_bytes()).await;
            assert_eq!(last.get(), expected, "{said:?}");
        }
    }
}
