//! The kernel's calls, answered by a [`Disk`]; and what a test does to them: freeze, fail.
//!
//! Nothing is cached by the kernel but pages that were read, and each write arrives before it returns to the program.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use super::disk::{BLOCK_BYTES, Disk, Stat};

/// What is asked of the disk by the calls that change something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Create,
    Write,
    Truncate,
    Sync,
    SyncDir,
    Rename,
    Remove,
}

/// A call that is to fail.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault {
    pub(crate) call: Call,
    /// How many of them succeed before.
    pub(crate) after: u64,
    pub(crate) error: Errno,
}

/// What the mount and the test share.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) disk: Disk,
    /// Calls that changed something, or tried to.
    pub(crate) calls: u64,
    /// No call behind this one is done any more.
    pub(crate) freeze_at: Option<u64>,
    /// A call came behind that one.
    pub(crate) frozen: bool,
    /// The power is off.
    pub(crate) off: bool,
    pub(crate) faults: Vec<Fault>,
    /// Calls that failed as they were told.
    pub(crate) failed: u64,
}

impl State {
    pub(crate) fn power_on(&mut self) {
        (self.freeze_at, self.frozen, self.off) = (None, false, false);
        self.faults.clear();
    }
}

impl Shared {
    pub(crate) fn new() -> Arc<Self> {
        let state = State {
            disk: Disk::new(),
            calls: 0,
            freeze_at: None,
            frozen: false,
            off: false,
            faults: Vec::new(),
            failed: 0,
        };
        Arc::new(Self { state: Mutex::new(state), moved: Condvar::new() })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Switches the power off: calls that hang in a freeze come back, and all calls fail.
    pub(crate) fn power_off(&self) {
        self.state().off = true;
        self.moved.notify_all();
    }

    pub(crate) fn mount(self: &Arc<Self>, at: &Path) -> io::Result<BackgroundSession> {
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("outhaul-lossy".to_owned()), MountOption::NoAtime];
        fuser::spawn_mount(Lossy(Arc::clone(self)), at, &config)
    }

    /// A call that changes something: counted, held by a freeze, failed if the test says so.
    fn change(&self, call: Call) -> Result<MutexGuard<'_, State>, (MutexGuard<'_, State>, Errno)> {
        let mut state = self.state();
        state.calls += 1;
        while !state.off && state.freeze_at.is_some_and(|at| state.calls > at) {
            state.frozen = true;
            state = self.moved.wait(state).unwrap();
        }
        if state.off {
            return Err((state, Errno::EIO));
        }
        let Some(at) = state.faults.iter().position(|fault| fault.call == call) else { return Ok(state) };
        match state.faults[at].after.checked_sub(1) {
            Some(left) => {
                state.faults[at].after = left;
                Ok(state)
            }
            None => {
                let fault = state.faults.remove(at);
                state.failed += 1;
                Err((state, fault.error))
            }
        }
    }

    fn changed<T>(&self, call: Call, act: impl FnOnce(&mut Disk) -> Result<T, Errno>) -> Result<T, Errno> {
        let mut state = self.change(call).map_err(|(_, error)| error)?;
        act(&mut state.disk)
    }

    fn looked<T>(&self, act: impl FnOnce(&Disk) -> Result<T, Errno>) -> Result<T, Errno> {
        let state = self.state();
        if state.off { Err(Errno::EIO) } else { act(&state.disk) }
    }
}

struct Lossy(Arc<Shared>);

/// Nothing that was told is believed later.
const TTL: Duration = Duration::ZERO;

fn attributes(stat: Stat) -> FileAttr {
    let now = SystemTime::now().max(UNIX_EPOCH);
    let (kind, perm, nlink) = match stat.dir {
        true => (FileType::Directory, 0o700, 2),
        false => (FileType::RegularFile, 0o600, 1),
    };
    FileAttr {
        ino: INodeNo(stat.node),
        size: stat.length,
        blocks: stat.length.div_ceil(512),
        atime: now,
        mtime: now,
        ctime: now,
        crtime: now,
        kind,
        perm,
        nlink,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        rdev: 0,
        blksize: BLOCK_BYTES as u32,
        flags: 0,
    }
}

fn done(result: Result<(), Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

fn entry(result: Result<Stat, Errno>, reply: ReplyEntry) {
    match result {
        Ok(stat) => reply.entry(&TTL, &attributes(stat), Generation(0)),
        Err(error) => reply.error(error),
    }
}

fn attribute(result: Result<Stat, Errno>, reply: ReplyAttr) {
    match result {
        Ok(stat) => reply.attr(&TTL, &attributes(stat)),
        Err(error) => reply.error(error),
    }
}

impl Filesystem for Lossy {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        entry(self.0.looked(|disk| disk.lookup(parent.0, name)), reply);
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        attribute(self.0.looked(|disk| disk.stat(node.0)), reply);
    }

    fn setattr(
        &self,
        _: &Request,
        node: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        // Times and modes are nobody's concern here.
        let result = match size {
            None => self.0.looked(|disk| disk.stat(node.0)),
            Some(size) => self.0.changed(Call::Truncate, |disk| {
                disk.set_length(node.0, size).and_then(|()| disk.stat(node.0))
            }),
        };
        attribute(result, reply);
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        entry(self.0.changed(Call::Create, |disk| disk.create(parent.0, name, true)), reply);
    }

    fn create(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        match self.0.changed(Call::Create, |disk| disk.create(parent.0, name, false)) {
            Ok(stat) => {
                reply.created(&TTL, &attributes(stat), Generation(0), FileHandle(0), FopenFlags::empty());
            }
            Err(error) => reply.error(error),
        }
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(self.0.changed(Call::Remove, |disk| disk.remove(parent.0, name)), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(self.0.changed(Call::Remove, |disk| disk.remove(parent.0, name)), reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !flags.is_empty() {
            return reply.error(Errno::EINVAL);
        }
        let renamed =
            self.0.changed(Call::Rename, |disk| disk.rename((parent.0, name), (new_parent.0, new_name)));
        done(renamed, reply);
    }

    fn read(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let direct = flags.0 & rustix::fs::OFlags::DIRECT.bits() as i32 != 0;
        match self.0.looked(|disk| disk.read(node.0, offset, size as usize, direct)) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.0.changed(Call::Write, |disk| disk.write(node.0, offset, data)) {
            Ok(written) => reply.written(written as u32),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, node: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let result = match self.0.change(Call::Sync) {
            Ok(mut state) => state.disk.sync(node.0),
            Err((mut state, error)) => {
                // One that never began leaves its blocks to the next.
                if !state.off {
                    state.disk.fail_sync(node.0);
                }
                Err(error)
            }
        };
        done(result, reply);
    }

    fn readdir(&self, _: &Request, node: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        // What an answer refers to is the place in the order of names; nobody here changes a directory it lists.
        let result = self.0.looked(|disk| {
            for (at, (name, &node)) in disk.names(node.0)?.iter().enumerate().skip(offset as usize) {
                let kind = if disk.stat(node)?.dir { FileType::Directory } else { FileType::RegularFile };
                if reply.add(INodeNo(node), at as u64 + 1, kind, name) {
                    break;
                }
            }
            Ok(())
        });
        match result {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn fsyncdir(&self, _: &Request, node: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        done(self.0.changed(Call::SyncDir, |disk| disk.sync_dir(node.0)), reply);
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let state = self.0.state();
        // As much as a file system says that is not full.
        let total = state.disk.capacity.min(1 << 40) / BLOCK_BYTES as u64;
        let free = total.saturating_sub(state.disk.used() / BLOCK_BYTES as u64);
        reply.statfs(total, free, free, 1 << 20, 1 << 20, BLOCK_BYTES as u32, 255, BLOCK_BYTES as u32);
    }
}
