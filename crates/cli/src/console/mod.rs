//! The local terminal and standard streams: raw mode that is always restored, window sizes,
//! detach keys, and pipes without threads.

mod color;
mod detach;
mod stdio;
mod terminal;

pub(crate) use color::Color;
pub(crate) use detach::{DetachKeys, KeyResult};
pub(crate) use stdio::{StdInput, StdOutput};
pub(crate) use terminal::{EXIT_INTERRUPTED, RawTerminal, Signals, TermSignals, is_terminal, size};
