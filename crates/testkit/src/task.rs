use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::JoinHandle;

/// A task that ends when its owner is dropped.
#[derive(Debug)]
pub(crate) struct Owned<T>(JoinHandle<T>);

impl<T: Send + 'static> Owned<T> {
    pub(crate) fn spawn(future: impl Future<Output = T> + Send + 'static) -> Self {
        Self(tokio::spawn(future))
    }

    /// Ends the task and waits until everything it held is released.
    pub(crate) async fn end(mut self) {
        self.0.abort();
        let _ = (&mut self.0).await;
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Remembers whether a test's own code panicked inside a task, where nobody would notice.
#[derive(Clone, Debug, Default)]
pub(crate) struct PanicFlag(Arc<AtomicBool>);

impl PanicFlag {
    /// Raises the flag when the guard is dropped by a panic.
    pub(crate) fn watch(&self) -> PanicWatch {
        PanicWatch(self.clone())
    }

    /// Passes the panic on, unless the test fails already.
    pub(crate) fn check(&self, who: &str) {
        let raised = self.0.load(Ordering::Relaxed);
        assert!(
            !raised || std::thread::panicking(),
            "{who} of a stand-in server panicked, see above"
        );
    }
}

#[derive(Debug)]
pub(crate) struct PanicWatch(PanicFlag);

impl Drop for PanicWatch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.0.store(true, Ordering::Relaxed);
        }
    }
}
