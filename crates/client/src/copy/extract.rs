//! An archive onto the disk. A file has another name until it is whole, so what has
//! its name is complete; what came before a cut is kept, and gone on with.

use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{self, AtFlags, Mode, OFlags, Timespec};
use rustix::io::Errno;

use super::cksum::Sum;
use super::contained::{self, Top};
use super::error::{Error, Skipped};
use super::options::{Notice, Options, Preserve};
use super::place::Landing;
use super::room::Room;
use super::tally::Tally;
use super::tar::{Entry, Event, Kind, Reader};
use super::tree::{self, Finish, Tree};

/// Writes an archive below a target.
pub(super) struct Extractor {
    top: Top,
    landing: Landing,
    options: Options,
    tally: Arc<Tally>,
    ground: Option<Ground>,
    file: Option<Unfinished>,
    room: Room,
    skipped: u64,
    token: u64,
}

/// Where it goes, once the first entry has said what it is.
enum Ground {
    Directory(Tree),
    /// One file of this name.
    File(Tree, Vec<u8>),
}

/// A file that is not whole.
struct Unfinished {
    directory: Arc<OwnedFd>,
    temporary: Vec<u8>,
    name: Vec<u8>,
    path: PathBuf,
    file: File,
    size: u64,
    left: u64,
    time: Option<Timespec>,
}

impl Extractor {
    pub(super) fn new(top: Top, landing: Landing, options: Options, tally: Arc<Tally>) -> Self {
        Self {
            top,
            landing,
            tally,
            ground: None,
            file: None,
            room: Room::new(options.max_bytes),
            skipped: 0,
            // Nobody else may guess it, and make something of that name.
            token: RandomState::new().hash_one(std::process::id()),
            options,
        }
    }

    /// Takes a piece of an archive. `true` is that its end has come.
    pub(super) fn take(&mut self, reader: &mut Reader, mut input: &[u8]) -> Result<bool, Error> {
        while let Some(event) = reader.next(&mut input)? {
            match event {
                Event::Entry(entry) => self.entry(&entry)?,
                Event::Data(data) => self.data(data)?,
                Event::End => return Ok(true),
            }
        }
        Ok(reader.is_whole())
    }

    /// The archive begins again: what is not whole is thrown away.
    pub(super) fn begin_again(&mut self) {
        self.file = None;
        self.skipped = 0;
        self.room = Room::new(self.options.max_bytes);
    }

    /// Adds what has come of the file that is not whole, if there is one. `false` is that
    /// it cannot be read, or that nobody wants it any more.
    pub(super) fn add_begun(&self, sum: &mut Sum) -> bool {
        let Some(begun) = &self.file else {
            return true;
        };
        let leave = || self.options.stop.is_told();
        let added = sum.add_file(&begun.file, begun.size - begun.left, leave);
        added.unwrap_or(false)
    }

    /// Everything has come, and the container's tar says so too.
    pub(super) fn finish(mut self) -> Result<(), Error> {
        match &mut self.ground {
            None => return Err(Error::Unexpected("there is nothing in it".to_owned())),
            Some(Ground::Directory(tree)) => tree.finish()?,
            Some(Ground::File(..)) => {}
        }
        Skipped::result(self.skipped)
    }

    fn entry(&mut self, entry: &Entry) -> Result<(), Error> {
        if let Some(file) = self.file.take() {
            // A file's contents come before the next entry, or never.
            return Err(Error::Unexpected(format!("{} is cut", file.path.display())));
        }
        self.tally.entry(&entry.name);
        let parts = self.below(&entry.name)?;
        if self.ground.is_none() {
            self.ground = Some(self.settle(entry, &parts)?);
        }
        let Some(ground) = &mut self.ground else {
            return Ok(());
        };
        match ground {
            Ground::File(tree, name) => {
                if !parts.is_empty() || entry.kind != Kind::File {
                    return Err(Error::Unexpected(format!(
                        "the {} {:?} is not what was asked for",
                        entry.kind,
                        contained::shown(&entry.name)
                    )));
                }
                let name = name.clone();
                let directory = tree.root().clone();
                let path = tree.shown(&[&name]);
                self.begin(entry, directory, &name, path)
            }
            Ground::Directory(tree) => match (parts.split_last(), entry.kind) {
                (_, Kind::Directory) => {
                    let finish = finish(self.options.preserve, entry);
                    tree.enter(&parts, finish)?;
                    Ok(())
                }
                // The first entry has said that it is a directory.
                (None, kind) => Err(Error::Unexpected(format!(
                    "{} is a directory and a {kind}",
                    tree.shown(&[]).display()
                ))),
                (Some((name, above)), Kind::File) => {
                    let directory = tree.enter(above, None)?;
                    let path = tree.shown(&parts);
                    self.begin(entry, directory, name, path)
                }
                (Some(_), Kind::Symlink) => self.symlink(entry, &parts),
                (Some(_), Kind::HardLink) => self.hard_link(entry, &parts),
                (Some(_), kind @ (Kind::Character | Kind::Block | Kind::Fifo)) => {
                    let path = tree.shown(&parts);
                    self.skip(Notice::Special { path, kind });
                    Ok(())
                }
            },
        }
    }

    fn below<'a>(&self, name: &'a [u8]) -> Result<Vec<&'a [u8]>, Error> {
        contained::below(&self.top, name).map_err(|why| Error::Escapes {
            name: contained::shown(name),
            why,
        })
    }

    /// The first entry says whether it is a file or a tree.
    fn settle(&mut self, entry: &Entry, parts: &[&[u8]]) -> Result<Ground, Error> {
        let is_top = parts.is_empty();
        let ground = match entry.kind {
            Kind::Directory if is_top => {
                let (mut tree, existed) = Tree::open(self.landing.directory())?;
                if let Some(finish) = finish(self.options.preserve, entry)
                    && !existed
                {
                    tree.keep_root(finish)?;
                }
                Ground::Directory(tree)
            }
            Kind::File if is_top => {
                let (directory, name) = self.landing.file(&self.top)?;
                let (tree, _) = Tree::open(&directory)?;
                let path = tree.shown(&[&name]);
                refuse_special(tree.root(), &name, &path)?;
                self.tally.expect(entry.size);
                Ground::File(tree, name)
            }
            Kind::Symlink if is_top => {
                return Err(Error::Unexpected(format!(
                    "what was asked for is a symlink to {:?}; ask for that, or for the directory \
                     behind it by a / at the end",
                    contained::shown(&entry.link)
                )));
            }
            kind => {
                return Err(Error::Unexpected(format!(
                    "what was asked for is a {kind}, which cannot be copied"
                )));
            }
        };
        Ok(ground)
    }

    fn begin(
        &mut self,
        entry: &Entry,
        directory: Arc<OwnedFd>,
        name: &[u8],
        path: PathBuf,
    ) -> Result<(), Error> {
        // Before a byte of it is written: a disk that is full is everybody's problem.
        let room = self.room.take(entry.size, || free(&directory));
        room.map_err(|full| Error::NoRoom {
            name: contained::shown(&entry.name),
            size: entry.size,
            room: full.room,
            limit: full.limit,
            target: self.landing.directory().to_path_buf(),
        })?;
        let temporary = self.temporary();
        // It is read again if it has to be gone on with.
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // The umask applies; setuid, setgid and sticky bits are never taken over.
        let mode = match self.options.preserve {
            Preserve::Yes => entry.mode & 0o777,
            Preserve::No => 0o666,
        };
        let file = fs::openat(&directory, &temporary[..], flags, Mode::from_raw_mode(mode));
        let file = match file {
            Ok(file) => File::from(file),
            Err(errno) => {
                return Err(Error::Local {
                    doing: "write to",
                    path,
                    cause: errno.into(),
                });
            }
        };
        let mut unfinished = Unfinished {
            directory,
            temporary,
            name: name.to_vec(),
            path,
            file,
            size: entry.size,
            left: entry.size,
            time: (self.options.preserve == Preserve::Yes).then(|| time(entry)),
        };
        if entry.size == 0 {
            unfinished.put_in_place()?;
        } else {
            self.file = Some(unfinished);
        }
        Ok(())
    }

    fn data(&mut self, data: &[u8]) -> Result<(), Error> {
        let Some(file) = &mut self.file else {
            return Err(Error::Unexpected("contents of no file".to_owned()));
        };
        file.file.write_all(data).map_err(|cause| Error::Local {
            doing: "write to",
            path: file.path.clone(),
            cause,
        })?;
        self.tally.moved(data.len());
        file.left = file.left.saturating_sub(data.len() as u64);
        if file.left == 0
            && let Some(mut whole) = self.file.take()
        {
            whole.put_in_place()?;
        }
        Ok(())
    }

    fn symlink(&mut self, entry: &Entry, parts: &[&[u8]]) -> Result<(), Error> {
        let Some(Ground::Directory(tree)) = &mut self.ground else {
            return Ok(());
        };
        let Some((name, above)) = parts.split_last() else {
            return Ok(());
        };
        let path = tree.shown(parts);
        if !contained::stays(above.len(), &entry.link) {
            self.skip(Notice::Symlink {
                path,
                target: contained::shown(&entry.link),
            });
            return Ok(());
        }
        let directory = tree.enter(above, None)?;
        let make = || -> io::Result<()> {
            tree::remove(&directory, name)?;
            fs::symlinkat(&entry.link[..], &directory, *name)?;
            if self.options.preserve == Preserve::Yes {
                let times = tree::at(time(entry));
                fs::utimensat(&directory, *name, &times, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            Ok(())
        };
        make().map_err(|cause| tree.local("make the symlink", parts, cause))
    }

    fn hard_link(&mut self, entry: &Entry, parts: &[&[u8]]) -> Result<(), Error> {
        let target = self.below(&entry.link)?;
        let Some(Ground::Directory(tree)) = &mut self.ground else {
            return Ok(());
        };
        let (Some((to, to_above)), Some((from, from_above))) =
            (parts.split_last(), target.split_last())
        else {
            return Err(Error::Unexpected("a hard link to a directory".to_owned()));
        };
        if parts == target {
            return Ok(());
        }
        let source = tree.enter(from_above, None)?;
        let directory = tree.enter(to_above, None)?;
        let status = fs::statat(&source, *from, AtFlags::SYMLINK_NOFOLLOW);
        if matches!(status, Err(Errno::NOENT)) {
            // To a pipe that was left out, for example.
            let path = tree.shown(parts);
            self.skip(Notice::HardLink {
                path,
                target: contained::shown(&entry.link),
            });
            return Ok(());
        }
        let make = || -> io::Result<()> {
            // A file, and not a symlink that another program could follow.
            if !fs::FileType::from_raw_mode(status?.st_mode).is_file() {
                return Err(io::Error::other("what it links to is no file"));
            }
            tree::remove(&directory, to)?;
            Ok(fs::linkat(
                &source,
                *from,
                &directory,
                *to,
                AtFlags::empty(),
            )?)
        };
        make().map_err(|cause| tree.local("make the hard link", parts, cause))
    }

    fn skip(&mut self, notice: Notice) {
        self.skipped += 1;
        self.options.tell(notice);
    }

    /// A name that nobody else has.
    fn temporary(&mut self) -> Vec<u8> {
        self.token = self.token.wrapping_add(1);
        format!(".skewbridge-{:016x}.part", self.token).into_bytes()
    }
}

impl Unfinished {
    fn put_in_place(&mut self) -> Result<(), Error> {
        let place = || -> io::Result<()> {
            if let Some(time) = self.time {
                fs::futimens(&self.file, &tree::at(time))?;
            }
            let (directory, name) = (&self.directory, &self.name[..]);
            fs::renameat(directory, &self.temporary[..], directory, name)?;
            Ok(())
        };
        place().map_err(|cause| Error::Local {
            doing: "write to",
            path: self.path.clone(),
            cause,
        })?;
        // Nothing to remove any more.
        self.temporary.clear();
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.temporary.is_empty() {
            let _ = tree::remove(&self.directory, &self.temporary);
        }
    }
}

/// A file of one's own wish may replace a file or a symlink, but no device: who
/// copies to /dev/null does not want it to be a file from now on.
fn refuse_special(directory: &OwnedFd, name: &[u8], path: &Path) -> Result<(), Error> {
    let there = match fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(status) => fs::FileType::from_raw_mode(status.st_mode),
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => {
            return Err(Error::Local {
                doing: "write to",
                path: path.to_path_buf(),
                cause: errno.into(),
            });
        }
    };
    if there.is_file() || there.is_symlink() {
        return Ok(());
    }
    Err(Error::Local {
        doing: "write to",
        path: path.to_path_buf(),
        cause: io::Error::other("it is no file"),
    })
}

/// How much may be written to the disk of a directory, if that says so.
fn free(directory: &OwnedFd) -> Option<u64> {
    let disk = fs::fstatvfs(directory).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

fn finish(preserve: Preserve, entry: &Entry) -> Option<Finish> {
    (preserve == Preserve::Yes).then(|| Finish {
        mode: entry.mode & 0o777,
        time: time(entry),
    })
}

fn time(entry: &Entry) -> Timespec {
    Timespec {
        tv_sec: entry.mtime,
        tv_nsec: entry.mtime_nanos.into(),
    }
}

#[cfg(test)]
mod tests;
