//! Signals that cancel a copy.

use skewbridge_exec_proxy::{IgnoredSignals, SignalStream};
use tokio::signal::unix::SignalKind;

/// Terminating signals, except those that were ignored at the start.
pub(super) struct Signals {
    endpoints: [(SignalStream, u8); 3],
    received: usize,
}

impl Signals {
    /// Catches the signals: from now on, they do not end the program.
    pub(super) fn listen() -> std::io::Result<Self> {
        let ignored = IgnoredSignals::current();
        let listen = |kind: SignalKind| -> std::io::Result<(SignalStream, u8)> {
            let number = u8::try_from(kind.as_raw_value()).unwrap_or(0);
            // The exit code that shells report for the signal.
            Ok((ignored.listen(kind)?, 128 + number))
        };
        Ok(Self {
            endpoints: [
                listen(SignalKind::interrupt())?,
                listen(SignalKind::terminate())?,
                listen(SignalKind::hangup())?,
            ],
            received: 0,
        })
    }

    /// Waits for the next signal; returns the exit code for it.
    pub(super) async fn next(&mut self) -> u8 {
        let [(interrupt, one), (terminate, two), (hang_up, three)] = &mut self.endpoints;
        let code = tokio::select! {
            () = interrupt.recv() => *one,
            () = terminate.recv() => *two,
            () = hang_up.recv() => *three,
        };
        self.received += 1;
        code
    }

    /// Whether a second signal arrived, which skips the cleanup.
    pub(super) fn are_urgent(&self) -> bool {
        self.received > 1
    }
}
