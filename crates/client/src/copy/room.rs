//! How much may be written here: who sends an archive may say that a file has any size.

/// What stays free on a disk, so that whoever else writes there can go on.
const RESERVE: u64 = 16 << 20;

/// What a file takes of a disk, at least.
const CLUSTER: u64 = 4096;

/// How much is written before the disk is asked again. It is no more than what stays free
/// anyway, should somebody else have taken the rest meanwhile; and on a disk of another
/// machine a question for each small file would take longer than the file.
const UNASKED: u64 = RESERVE;

/// The room for files, which come one after the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// What somebody gave is one of bytes, not of what they take of a disk.
    allowed: Option<u64>,
    /// What is left of the last answer of the disk.
    unasked: u64,
}

/// Why there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Full {
    /// How much there would be.
    pub(super) room: u64,
    /// Whose limit that is.
    pub(super) limit: &'static str,
}

impl Room {
    pub(super) fn new(allowed: Option<u64>) -> Self {
        Self {
            allowed,
            unasked: 0,
        }
    }

    /// Takes the room of a file. What is free is asked for at this moment: a file that was
    /// replaced has given back its own room by then, and others may have taken some. A disk
    /// that does not know (`None`) has no limit.
    pub(super) fn take(
        &mut self,
        size: u64,
        free: impl FnOnce() -> Option<u64>,
    ) -> Result<(), Full> {
        if let Some(allowed) = self.allowed
            && size > allowed
        {
            return Err(Full {
                room: allowed,
                limit: "--max-bytes",
            });
        }
        let needed = size
            .max(CLUSTER)
            .checked_next_multiple_of(CLUSTER)
            .unwrap_or(u64::MAX);
        if needed > self.unasked {
            let room = free().map_or(u64::MAX, |free| free.saturating_sub(RESERVE));
            if needed > room {
                return Err(Full {
                    room,
                    limit: "what is free",
                });
            }
            self.unasked = needed.saturating_add(UNASKED).min(room);
        }
        self.unasked -= needed;
        self.allowed = self.allowed.map(|allowed| allowed - size);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn no_room(room: u64) -> Result<(), Full> {
        Err(Full {
            room,
            limit: "what is free",
        })
    }

    #[test]
    fn each_large_file_is_judged_by_what_is_free_when_it_comes() {
        // Size, free at that moment, and what becomes of it.
        let rows = [
            (40 * MIB, 66 * MIB, Ok(())),
            // It has replaced one as large: all of them may come, one after the other.
            (40 * MIB, 66 * MIB, Ok(())),
            (50 * MIB, 66 * MIB, Ok(())),
            (50 * MIB + 1, 66 * MIB, no_room(50 * MIB)),
            // Somebody else has written.
            (40 * MIB, 50 * MIB, no_room(34 * MIB)),
            (17 * MIB, 16 * MIB, no_room(0)),
            (10 << 30, 66 * MIB, no_room(50 * MIB)),
            (u64::MAX, 66 * MIB, no_room(50 * MIB)),
        ];
        let mut room = Room::new(None);
        for (size, free, expected) in rows {
            assert_eq!(room.take(size, || Some(free)), expected, "{size} of {free}");
        }
    }

    #[test]
    fn small_files_ask_now_and_then_and_never_take_what_stays_free() {
        for free in [RESERVE, RESERVE + MIB, 10 * MIB, 100 * MIB] {
            let mut room = Room::new(None);
            let (mut written, mut asked) = (0, 0);
            // Empty ones take room too.
            while room
                .take(0, || {
                    asked += 1;
                    Some(free - written)
                })
                .is_ok()
            {
                written += CLUSTER;
            }
            assert_eq!(written, free.saturating_sub(RESERVE), "{free}");
            assert!(asked <= 2 + written / UNASKED, "{asked} for {free}");
        }
    }

    #[test]
    fn what_somebody_allows_is_counted_in_bytes_over_all_files() {
        let full = |room| {
            Err(Full {
                room,
                limit: "--max-bytes",
            })
        };
        let mut room = Room::new(Some(10));
        for (size, expected) in [(4, Ok(())), (7, full(6)), (6, Ok(())), (1, full(0))] {
            assert_eq!(room.take(size, || Some(100 * MIB)), expected, "{size}");
        }
        // It makes no room where there is none.
        let mut room = Room::new(Some(100 * MIB));
        assert_eq!(room.take(50 * MIB, || Some(26 * MIB)), no_room(10 * MIB));
        // Who does not know of a disk is not asked twice what is allowed.
        assert_eq!(room.take(100 * MIB, || None), Ok(()));
        assert_eq!(room.take(1, || None), full(0));
    }
}
