//! Captures log lines of all bridges in this process: about OpenAPI, about components that are newer than
//! all servers, and the access log. Bridges run on their own threads, so the subscriber is global.

use std::fmt::{Debug, Write as _};
use std::sync::{Mutex, Once, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

const LOG_TARGETS: [&str; 3] = [
    "skewbridge_gateway::control::openapi_merger",
    "skewbridge_gateway::state",
    "skewbridge::access",
];

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Installs the capturing subscriber, once per process.
pub(crate) fn capture() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(CaptureSubscriber).unwrap());
}

/// The captured lines that contain this text.
pub(crate) fn lines_with(text: &str) -> Vec<String> {
    let lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    let found = lines.iter().filter(|line| line.contains(text));
    found.cloned().collect()
}

struct CaptureSubscriber;

impl Subscriber for CaptureSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let target = metadata.target();
        metadata.is_event() && LOG_TARGETS.iter().any(|it| target.starts_with(it))
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        LINES
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(line.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        let _ = write!(self.0, " {field}={value}");
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {field}={value:?}");
    }
}
