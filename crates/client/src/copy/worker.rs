//! Who writes in a container: tar, or cat. It may do so after its connection was lost, and who
//! tries again must not meet it there.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::commands::INTRODUCTION;

/// How much is listened to before it has said who it is: a shell may say something first.
const LONGEST: usize = 4 << 10;

/// A writer and its shell, each by its number in the container and when it began: numbers are
/// given again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Worker {
    words: [String; 4],
}

impl Worker {
    /// As [`super::commands::settle`] has them.
    pub(super) fn words(&self) -> [&str; 4] {
        self.words.each_ref().map(String::as_str)
    }

    /// For people: its number.
    pub(super) fn number(&self) -> &str {
        &self.words[0]
    }
}

/// How somebody introduces itself. Where there is no `/proc`, nobody knows when it began.
#[derive(Debug, PartialEq, Eq)]
struct Introduction {
    worker: Option<Worker>,
    /// Whose it is, if that can be said there.
    user: Option<u32>,
}

impl Introduction {
    fn read(line: &str) -> Option<Self> {
        let mut fields = line.strip_prefix(INTRODUCTION)?.split(' ');
        let mut word = || {
            let word = fields.next()?;
            let is_number = !word.is_empty() && word.bytes().all(|it| it.is_ascii_digit());
            is_number.then(|| word.to_owned())
        };
        let words = [word(), word(), word(), word()];
        let user = word().and_then(|user| user.parse().ok());
        let worker = match words {
            [Some(a), Some(b), Some(c), Some(d)] => Some(Worker {
                words: [a, b, c, d],
            }),
            _ => None,
        };
        Some(Self { worker, user })
    }
}

/// The last one that was heard of.
#[derive(Debug, Default)]
pub(super) struct Last(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    worker: Option<Worker>,
    user: Option<u32>,
}

impl Last {
    /// Hears of it by a line that it says.
    pub(super) async fn hear(&self, said: &mut (impl AsyncRead + Unpin)) {
        let mut line = Vec::new();
        let mut introduction = None;
        for _ in 0..LONGEST {
            match said.read_u8().await {
                Ok(b'\n') => {
                    let text = str::from_utf8(&line).ok();
                    introduction = text.and_then(Introduction::read);
                    if introduction.is_some() {
                        break;
                    }
                    line.clear();
                }
                Ok(byte) => line.push(byte),
                Err(_) => break,
            }
        }
        let mut known = self.known();
        known.worker = None;
        if let Some(Introduction { worker, user }) = introduction {
            *known = Known { worker, user };
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It has ended.
    pub(super) fn forget(&self) {
        self.known().worker = None;
    }

    pub(super) fn get(&self) -> Option<Worker> {
        self.known().worker.clone()
    }

    /// Whether it may give files away: then a tar has been asked to, and does so after it has
    /// written them. So it may be where nobody knows.
    pub(super) fn is_root(&self) -> bool {
        self.known().user.is_none_or(|user| user == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn somebody_is_known_by_four_numbers_and_its_user() {
        let worker = Worker {
            words: ["17", "4711", "16", "4710"].map(str::to_owned),
        };
        let known = Some(worker);
        let late = format!(
            "{}skewbridge 17 4711 16 4710 0\n",
            " \n".repeat(LONGEST / 2)
        );
        // What is said, who it is, and whether it may be root.
        let rows = [
            ("skewbridge 17 4711 16 4710 0\n", known.clone(), true),
            ("skewbridge 17 4711 16 4710 1000\n", known.clone(), false),
            ("skewbridge 17 4711 16 4710 -\n", known.clone(), true),
            (
                "Welcome!\n\nskewbridge 17 4711 16 4710 1000\n",
                known,
                false,
            ),
            ("skewbridge 17 - 16 - 1000\n", None, false),
            ("skewbridge 17  16 4710 1000\n", None, false),
            ("skewbridge -17 4711 16 4710 1000\n", None, false),
            ("skewbridge\n", None, true),
            ("skewbridge 17 4711 16 4710 1000", None, true),
            ("17 4711 16 4710 1000\n", None, true),
            (&late, None, true),
            ("", None, true),
        ];
        for (said, expected, is_root) in rows {
            let last = Last::default();
            last.hear(&mut said.as_bytes()).await;
            assert_eq!(last.get(), expected, "{said:?}");
            assert_eq!(last.is_root(), is_root, "{said:?}");
        }
    }

    #[tokio::test]
    async fn nobody_waits_behind_an_introduction() {
        for said in ["skewbridge 1 2 3 4 5\n", "\nskewbridge 1 - 3 - -\n"] {
            // It says no more, and does not end.
            let (here, mut there) = tokio::io::duplex(100);
            tokio::io::AsyncWriteExt::write_all(&mut there, said.as_bytes())
                .await
                .unwrap();
            let mut here = here;
            let last = Last::default();
            let hearing = last.hear(&mut here);
            tokio::time::timeout(std::time::Duration::from_secs(20), hearing)
                .await
                .expect("it is heard");
        }
    }

    #[tokio::test]
    async fn whose_it_was_is_known_when_it_has_ended() {
        let last = Last::default();
        last.hear(&mut &b"skewbridge 1 2 3 4 5\n"[..]).await;
        last.forget();
        assert_eq!((last.get(), last.is_root()), (None, false));
    }
}
