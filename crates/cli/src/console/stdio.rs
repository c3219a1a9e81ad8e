//! Standard input and output without threads.
//!
//! Pipes and terminals are reopened through `/proc/self/fd`, which gives them their own flags:
//! the descriptor shared with the shell stays blocking. Files are read and written directly,
//! since they never block. Where neither works (sockets, terminals of another user), threads are
//! used.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::buffer::spare_capacity;
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe::{Receiver, Sender};

/// Standard input.
#[derive(Debug)]
pub(crate) enum StdInput {
    Polled(Receiver),
    File(BorrowedFd<'static>),
    Thread(tokio::io::Stdin),
}

/// Standard output, or standard error.
#[derive(Debug)]
pub(crate) enum StdOutput {
    Polled(Sender),
    File(BorrowedFd<'static>),
    Out(tokio::io::Stdout),
    Err(tokio::io::Stderr),
}

/// How a descriptor is read or written.
enum DescriptorKind {
    /// Reads and writes never block.
    File,
    /// The descriptor can be polled.
    Pollable(File),
    Other,
}

fn descriptor_kind(fd: BorrowedFd<'_>, number: i32, flags: OFlags) -> DescriptorKind {
    let Ok(stat) = fstat(fd) else {
        return DescriptorKind::Other;
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => DescriptorKind::File,
        FileType::CharacterDevice if !rustix::termios::isatty(fd) => DescriptorKind::File,
        FileType::Fifo | FileType::CharacterDevice => {
            let path = format!("/proc/self/fd/{number}");
            let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            match open(path, flags, Mode::empty()) {
                Ok(fd) => DescriptorKind::Pollable(fd.into()),
                Err(_) => DescriptorKind::Other,
            }
        }
        _ => DescriptorKind::Other,
    }
}

impl StdInput {
    pub(crate) fn open() -> Self {
        let fd = rustix::stdio::stdin();
        let polled = match descriptor_kind(fd, 0, OFlags::RDONLY) {
            DescriptorKind::File => return Self::File(fd),
            // A terminal can be read like a pipe.
            DescriptorKind::Pollable(file) => Receiver::from_file_unchecked(file).ok(),
            DescriptorKind::Other => None,
        };
        polled.map_or_else(|| Self::Thread(tokio::io::stdin()), Self::Polled)
    }

    /// Appends bytes, up to the free capacity; 0 is the end. It is cancellation-safe.
    pub(crate) async fn read(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Self::Polled(pipe) => match pipe.read_buf(buffer).await {
                // The other end of the terminal is closed.
                Err(error) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => Ok(0),
                read => read,
            },
            Self::File(fd) => Ok(rustix::io::read(*fd, spare_capacity(buffer))?),
            Self::Thread(stdin) => stdin.read_buf(buffer).await,
        }
    }
}

impl StdOutput {
    pub(crate) fn stdout() -> Self {
        let fd = rustix::stdio::stdout();
        Self::open(fd, 1).unwrap_or_else(|| Self::Out(tokio::io::stdout()))
    }

    pub(crate) fn stderr() -> Self {
        let fd = rustix::stdio::stderr();
        Self::open(fd, 2).unwrap_or_else(|| Self::Err(tokio::io::stderr()))
    }

    fn open(fd: BorrowedFd<'static>, number: i32) -> Option<Self> {
        match descriptor_kind(fd, number, OFlags::WRONLY) {
            DescriptorKind::File => Some(Self::File(fd)),
            DescriptorKind::Pollable(file) => {
                Sender::from_file_unchecked(file).ok().map(Self::Polled)
            }
            DescriptorKind::Other => None,
        }
    }

    /// Writes all bytes.
    pub(crate) async fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Polled(pipe) => pipe.write_all(bytes).await,
            Self::File(fd) => {
                while !bytes.is_empty() {
                    let written = rustix::io::write(fd.as_fd(), bytes)?;
                    bytes = &bytes[written..];
                }
                Ok(())
            }
            Self::Out(out) => {
                out.write_all(bytes).await?;
                out.flush().await
            }
            Self::Err(err) => {
                err.write_all(bytes).await?;
                err.flush().await
            }
        }
    }
}
