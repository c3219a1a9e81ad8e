//! The tar that writes in a container. It may do so after its connection was lost, and who
//! tries again must not meet it there.

use std::sync::{Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// How much is listened to before it has said who it is: a shell may say something first.
const LONGEST: usize = 4 << 10;

/// A tar and its shell, each by its number in the container and when it began: numbers are
/// given again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Worker {
    words: [String; 4],
    /// Whose they are, if that can be said there.
    user: Option<u32>,
}

impl Worker {
    fn read(line: &str) -> Option<Self> {
        let mut fields = line.split(' ');
        let mut word = || {
            let word = fields.next()?;
            let is_number = !word.is_empty() && word.bytes().all(|it| it.is_ascii_digit());
            is_number.then(|| word.to_owned())
        };
        let words = [word()?, word()?, word()?, word()?];
        let user = word().and_then(|user| user.parse().ok());
        Some(Self { words, user })
    }

    /// As [`super::commands::settle`] has them.
    pub(super) fn words(&self) -> [&str; 4] {
        self.words.each_ref().map(String::as_str)
    }

    /// Whether it may give files away: then it has been asked to, and does so after it has
    /// written them.
    pub(super) fn is_root(&self) -> bool {
        self.user.is_none_or(|user| user == 0)
    }
}

/// The last one that was heard of.
#[derive(Debug, Default)]
pub(super) struct Last(Mutex<Option<Worker>>);

impl Last {
    /// Hears of it by a line that it says. One that cannot say when it began, where there is
    /// no `/proc`, is not known.
    pub(super) async fn hear(&self, said: &mut (impl AsyncRead + Unpin)) {
        let mut line = Vec::new();
        let mut worker = None;
        for _ in 0..LONGEST {
            match said.read_u8().await {
                Ok(b'\n') => {
                    worker = str::from_utf8(&line).ok().and_then(Worker::read);
                    if worker.is_some() {
                        break;
                    }
                    line.clear();
                }
                Ok(byte) => line.push(byte),
                Err(_) => break,
            }
        }
        self.set(worker);
    }

    /// It has ended.
    pub(super) fn forget(&self) {
        self.set(None);
    }

    fn set(&self, worker: Option<Worker>) {
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
    async fn a_tar_is_known_by_four_numbers_and_its_user() {
        let known = |user| {
            let words = ["17", "4711", "16", "4710"].map(str::to_owned);
            Some(Worker { words, user })
        };
        let long = format!("{}17 4711 16 4710 0\n", " \n".repeat(LONGEST / 2));
        let rows = [
            ("17 4711 16 4710 0\n", known(Some(0))),
            ("17 4711 16 4710 1000\nmore", known(Some(1000))),
            ("17 4711 16 4710 \n", known(None)),
            ("17 4711 16 4710 99999999999\n", known(None)),
            (
                "Welcome to this machine!\n17 4711 16 4710 0\n",
                known(Some(0)),
            ),
            ("17 4711 16 4710", None),
            ("17  16 4710 0\n", None),
            ("17 4711 16  0\n", None),
            ("-17 4711 16 4710 0\n", None),
            (&long, None),
            ("", None),
        ];
        for (said, expected) in rows {
            let last = Last::default();
            last.hear(&mut said.as_bytes()).await;
            assert_eq!(last.get(), expected, "{said:?}");
        }
    }

    #[test]
    fn who_cannot_say_whose_it_is_may_be_root() {
        for (user, expected) in [("0", true), ("1000", false), ("", true)] {
            let worker = Worker::read(&format!("1 2 3 4 {user}")).unwrap();
            assert_eq!(worker.is_root(), expected, "{user}");
        }
    }
}
