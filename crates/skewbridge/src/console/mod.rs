//! The terminal, and what is read and written here: raw mode that always ends, window
//! sizes, keys to detach, and pipes without threads.

mod detach;
mod stdio;
mod terminal;

pub(crate) use detach::{DetachKeys, Pressed};
pub(crate) use stdio::{StdInput, StdOutput};
pub(crate) use terminal::{INTERRUPTED, RawTerminal, Signals, TermSignals, is_terminal, size};
