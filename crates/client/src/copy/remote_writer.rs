//! The process that writes in a container: tar or cat. It may continue to write after its
//! connection was lost, and must be stopped before a retry.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// The prefix of the announcement that [`super::commands`] print.
const ANNOUNCEMENT_PREFIX: &str = "skewbridge ";

/// How much is read before the announcement: a shell may print other lines first.
const MAX_ANNOUNCEMENT_BYTES: usize = 4 << 10;

/// A writer and its shell, each by its process ID in the container and its start time: IDs are
/// reused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RemoteWriter {
    fields: [String; 4],
}

impl RemoteWriter {
    /// The arguments of [`super::commands::stop_writer`].
    pub(super) fn fields(&self) -> [&str; 4] {
        self.fields.each_ref().map(String::as_str)
    }

    /// The writer's process ID, for messages.
    pub(super) fn pid(&self) -> &str {
        &self.fields[0]
    }
}

/// A writer's announcement. Without `/proc` the start times are unknown.
#[derive(Debug, PartialEq, Eq)]
struct Announcement {
    writer: Option<RemoteWriter>,
    /// The user ID, if it is known.
    uid: Option<u32>,
}

impl Announcement {
    fn read(line: &str) -> Option<Self> {
        let mut fields = line.strip_prefix(ANNOUNCEMENT_PREFIX)?.split(' ');
        let mut number_field = || {
            let word = fields.next()?;
            let is_number = !word.is_empty() && word.bytes().all(|it| it.is_ascii_digit());
            is_number.then(|| word.to_owned())
        };
        let fields = [
            number_field(),
            number_field(),
            number_field(),
            number_field(),
        ];
        let uid = number_field().and_then(|uid| uid.parse().ok());
        let writer = match fields {
            [Some(a), Some(b), Some(c), Some(d)] => Some(RemoteWriter {
                fields: [a, b, c, d],
            }),
            _ => None,
        };
        Some(Self { writer, uid })
    }
}

/// The last announced writer.
#[derive(Debug, Default)]
pub(super) struct LastWriter(Mutex<WriterState>);

#[derive(Debug, Default)]
struct WriterState {
    writer: Option<RemoteWriter>,
    uid: Option<u32>,
}

impl LastWriter {
    /// Reads the announcement from a command's output.
    pub(super) async fn read_announcement(&self, stdout: &mut (impl AsyncRead + Unpin)) {
        let mut line = Vec::new();
        let mut announcement = None;
        for _ in 0..MAX_ANNOUNCEMENT_BYTES {
            match stdout.read_u8().await {
                Ok(b'\n') => {
                    let text = str::from_utf8(&line).ok();
                    announcement = text.and_then(Announcement::read);
                    if announcement.is_some() {
                        break;
                    }
                    line.clear();
                }
                Ok(byte) => line.push(byte),
                Err(_) => break,
            }
        }
        let mut state = self.state();
        state.writer = None;
        if let Some(Announcement { writer, uid }) = announcement {
            *state = WriterState { writer, uid };
        }
    }

    fn state(&self) -> MutexGuard<'_, WriterState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the writer has ended.
    pub(super) fn clear(&self) {
        self.state().writer = None;
    }

    pub(super) fn get(&self) -> Option<RemoteWriter> {
        self.state().writer.clone()
    }

    /// Whether the writer may be root, or unknown: then tar changes the owner of files, after
    /// it has written them.
    pub(super) fn is_root(&self) -> bool {
        self.state().uid.is_none_or(|uid| uid == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_writer_is_identified_by_four_numbers_and_its_user() {
        let writer = RemoteWriter {
            fields: ["17", "4711", "16", "4710"].map(str::to_owned),
        };
        let state = Some(writer);
        let late_line = format!(
            "{}skewbridge 17 4711 16 4710 0\n",
            " \n".repeat(MAX_ANNOUNCEMENT_BYTES / 2)
        );
        // The output, the writer, and whether it may be root.
        let rows = [
            ("skewbridge 17 4711 16 4710 0\n", state.clone(), true),
            ("skewbridge 17 4711 16 4710 1000\n", state.clone(), false),
            ("skewbridge 17 4711 16 4710 -\n", state.clone(), true),
            (
                "Welcome!\n\nskewbridge 17 4711 16 4710 1000\n",
                state,
                false,
            ),
            ("skewbridge 17 - 16 - 1000\n", None, false),
            ("skewbridge 17  16 4710 1000\n", None, false),
            ("skewbridge -17 4711 16 4710 1000\n", None, false),
            ("skewbridge\n", None, true),
            ("skewbridge 17 4711 16 4710 1000", None, true),
            ("17 4711 16 4710 1000\n", None, true),
            (&late_line, None, true),
            ("", None, true),
        ];
        for (stdout, expected, is_root) in rows {
            let last_writer = LastWriter::default();
            last_writer.read_announcement(&mut stdout.as_bytes()).await;
            assert_eq!(last_writer.get(), expected, "{stdout:?}");
            assert_eq!(last_writer.is_root(), is_root, "{stdout:?}");
        }
    }

    #[tokio::test]
    async fn reading_stops_after_the_announcement() {
        for stdout in ["skewbridge 1 2 3 4 5\n", "\nskewbridge 1 - 3 - -\n"] {
            // The writer prints no more, and does not end.
            let (reader, mut writer_end) = tokio::io::duplex(100);
            tokio::io::AsyncWriteExt::write_all(&mut writer_end, stdout.as_bytes())
                .await
                .unwrap();
            let mut reader = reader;
            let last_writer = LastWriter::default();
            let reading = last_writer.read_announcement(&mut reader);
            tokio::time::timeout(std::time::Duration::from_secs(20), reading)
                .await
                .expect("the announcement");
        }
    }

    #[tokio::test]
    async fn the_user_is_remembered_after_the_writer_has_ended() {
        let last_writer = LastWriter::default();
        last_writer
            .read_announcement(&mut &b"skewbridge 1 2 3 4 5\n"[..])
            .await;
        last_writer.clear();
        assert_eq!((last_writer.get(), last_writer.is_root()), (None, false));
    }
}
