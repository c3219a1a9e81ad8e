//! How much may be written here: who sends an archive may say that a file has any size.

/// What stays free on a disk, so that whoever else writes there can go on.
const RESERVED_FREE_BYTES: u64 = 16 << 20;

/// What a file takes of a disk, at least.
const DISK_BLOCK_BYTES: u64 = 4096;

/// How much is written before the disk is asked again. It is no more than what stays free
/// anyway, should somebody else have taken the rest meanwhile; and on a disk of another
/// machine a question for each small file would take longer than the file.
const RECHECK_BYTES: u64 = RESERVED_FREE_BYTES;

/// The room for files, which come one after the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct DiskBudget {
    /// What somebody gave is one of bytes, not of what they take of a disk.
    max_bytes: Option<u64>,
    /// What is left of the last answer of the disk.
    unchecked_bytes: u64,
}

/// Why there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DiskFull {
    /// How much there would be.
    pub(super) available: u64,
    /// Whose limit that is.
    pub(super) limit: &'static str,
}

impl DiskBudget {
    pub(super) fn new(max_bytes: Option<u64>) -> Self {
        Self {
            max_bytes,
            unchecked_bytes: 0,
        }
    }

    /// Takes the room of a file. What is free is asked for at this moment: a file that was
    /// replaced has given back its own room by then, and others may have taken some. A disk
    /// that does not know (`None`) has no limit.
    pub(super) fn reserve(
        &mut self,
        size: u64,
        free: impl FnOnce() -> Option<u64>,
    ) -> Result<(), DiskFull> {
        if let Some(max_bytes) = self.max_bytes
            && size > max_bytes
        {
            return Err(DiskFull {
                available: max_bytes,
                limit: "--max-bytes",
            });
        }
        let needed = size
            .max(DISK_BLOCK_BYTES)
            .checked_next_multiple_of(DISK_BLOCK_BYTES)
            .unwrap_or(u64::MAX);
        if needed > self.unchecked_bytes {
            let available =
                free().map_or(u64::MAX, |free| free.saturating_sub(RESERVED_FREE_BYTES));
            if needed > available {
                return Err(DiskFull {
                    available,
                    limit: "what is free",
                });
            }
            self.unchecked_bytes = needed.saturating_add(RECHECK_BYTES).min(available);
        }
        self.unchecked_bytes -= needed;
        self.max_bytes = self.max_bytes.map(|max_bytes| max_bytes - size);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn disk_full(available: u64) -> Result<(), DiskFull> {
        Err(DiskFull {
            available,
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
            (50 * MIB + 1, 66 * MIB, disk_full(50 * MIB)),
            // Somebody else has written.
            (40 * MIB, 50 * MIB, disk_full(34 * MIB)),
            (17 * MIB, 16 * MIB, disk_full(0)),
            (10 << 30, 66 * MIB, disk_full(50 * MIB)),
            (u64::MAX, 66 * MIB, disk_full(50 * MIB)),
        ];
        let mut available = DiskBudget::new(None);
        for (size, free, expected) in rows {
            assert_eq!(
                available.reserve(size, || Some(free)),
                expected,
                "{size} of {free}"
            );
        }
    }

    #[test]
    fn small_files_ask_now_and_then_and_never_take_what_stays_free() {
        for free in [
            RESERVED_FREE_BYTES,
            RESERVED_FREE_BYTES + MIB,
            10 * MIB,
            100 * MIB,
        ] {
            let mut available = DiskBudget::new(None);
            let (mut written, mut checks) = (0, 0);
            // Empty ones take room too.
            while available
                .reserve(0, || {
                    checks += 1;
                    Some(free - written)
                })
                .is_ok()
            {
                written += DISK_BLOCK_BYTES;
            }
            assert_eq!(written, free.saturating_sub(RESERVED_FREE_BYTES), "{free}");
            assert!(checks <= 2 + written / RECHECK_BYTES, "{checks} for {free}");
        }
    }

    #[test]
    fn what_somebody_allows_is_counted_in_bytes_over_all_files() {
        let max_bytes_exceeded = |available| {
            Err(DiskFull {
                available,
                limit: "--max-bytes",
            })
        };
        let mut available = DiskBudget::new(Some(10));
        for (size, expected) in [
            (4, Ok(())),
            (7, max_bytes_exceeded(6)),
            (6, Ok(())),
            (1, max_bytes_exceeded(0)),
        ] {
            assert_eq!(
                available.reserve(size, || Some(100 * MIB)),
                expected,
                "{size}"
            );
        }
        // It makes no room where there is none.
        let mut available = DiskBudget::new(Some(100 * MIB));
        assert_eq!(
            available.reserve(50 * MIB, || Some(26 * MIB)),
            disk_full(10 * MIB)
        );
        // Who does not know of a disk is not asked twice what is allowed.
        assert_eq!(available.reserve(100 * MIB, || None), Ok(()));
        assert_eq!(available.reserve(1, || None), max_bytes_exceeded(0));
    }
}
