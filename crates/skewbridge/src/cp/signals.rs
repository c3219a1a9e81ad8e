//! What ends a copy before its time.

use skewbridge_harness::{Heard, IgnoredSignals};
use tokio::signal::unix::SignalKind;

/// Signals that end a program, but for those that whoever started us wants to be ignored.
pub(super) struct Signals {
    endpoints: [(Heard, u8); 3],
    heard: usize,
}

impl Signals {
    /// From here on they do not end the program by themselves.
    pub(super) fn listen() -> std::io::Result<Self> {
        let ignored = IgnoredSignals::now();
        let listen = |kind: SignalKind| -> std::io::Result<(Heard, u8)> {
            let number = u8::try_from(kind.as_raw_value()).unwrap_or(0);
            // What a shell says of a command that was ended so.
            Ok((ignored.listen(kind)?, 128 + number))
        };
        Ok(Self {
            endpoints: [
                listen(SignalKind::interrupt())?,
                listen(SignalKind::terminate())?,
                listen(SignalKind::hangup())?,
            ],
            heard: 0,
        })
    }

    /// The exit code of the next one.
    pub(super) async fn next(&mut self) -> u8 {
        let [(interrupt, one), (terminate, two), (hang_up, three)] = &mut self.endpoints;
        let code = tokio::select! {
            () = interrupt.recv() => *one,
            () = terminate.recv() => *two,
            () = hang_up.recv() => *three,
        };
        self.heard += 1;
        code
    }

    /// Whether there was more than one: who sends a second does not want to wait.
    pub(super) fn are_urgent(&self) -> bool {
        self.heard > 1
    }
}
