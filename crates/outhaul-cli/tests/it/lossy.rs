//! The real program on a disk that loses power: a file system in the test's own process that keeps only what was
//! synced, mounted through FUSE.
//!
//! [`disk`] is the disk, [`fuse`] its way to the kernel, [`load`] what is sent and how arrivals are judged. [`power`]
//! cuts the power again and again, [`faults`] lets calls fail.

mod disk;
mod faults;
mod fuse;
mod load;
mod model;
mod power;

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use fastrand::Rng;
use fuser::BackgroundSession;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;

use self::fuse::{Shared, State};
use crate::mounts::MountPoint;
use crate::support::{Ended, Running, until};

/// A mounted disk.
struct LossyDisk {
    shared: Arc<Shared>,
    session: Option<BackgroundSession>,
    at: MountPoint,
}

impl LossyDisk {
    /// None, and a line that says why, where this file system cannot be mounted.
    fn new() -> Option<Self> {
        let mut disk = Self { shared: Shared::new(), session: None, at: MountPoint::new() };
        match disk.shared.mount(disk.at.path()) {
            Ok(session) => disk.session = Some(session),
            Err(error) => {
                println!("not run: mounting is not allowed here (FUSE, which needs /dev/fuse: {error})");
                return None;
            }
        }
        Some(disk)
    }

    fn path(&self) -> &Path {
        self.at.path()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.shared.state()
    }

    /// Nothing is done behind so many more calls that change something.
    fn freeze_after(&self, calls: u64) {
        let mut state = self.state();
        state.freeze_at = Some(state.calls + calls);
    }

    /// A program that runs on it.
    fn machine(&self, running: Running) -> Machine {
        Machine { running: Some(running), shared: Arc::clone(&self.shared) }
    }

    /// The power goes, with whatever runs, and comes back.
    fn cut(&mut self, machine: Machine, chance: Option<&mut Rng>) {
        drop(machine);
        self.unmount();
        {
            let mut state = self.state();
            state.disk.cut(chance);
            state.power_on();
        }
        self.session = Some(until("the mount", || match self.shared.mount(self.at.path()) {
            // Seen once in thousands, under load: the connection was gone before its first message.
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => None,
            mounted => Some(mounted.unwrap()),
        }));
    }

    /// The program is killed; what it wrote stays to be seen, and is durable no more than before.
    fn kill(&self, machine: Machine) {
        drop(machine);
        self.state().power_on();
    }

    fn unmount(&mut self) {
        if let Some(session) = self.session.take() {
            unmount(self.at.path(), UnmountFlags::DETACH).unwrap();
            session.join().unwrap();
        }
    }
}

/// A program that goes down with the power.
struct Machine {
    running: Option<Running>,
    shared: Arc<Shared>,
}

impl Machine {
    fn running(&mut self) -> &mut Running {
        self.running.as_mut().unwrap()
    }

    /// Waits for its end.
    fn end(mut self) -> Ended {
        self.running.take().unwrap().end()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let Some(running) = self.running.take() else { return };
        // Killed first, so that it sees nothing of a disk that fails; a call that hangs has to end before it can die.
        running.signal(Signal::KILL);
        self.shared.power_off();
        running.kill();
    }
}

impl Drop for LossyDisk {
    fn drop(&mut self) {
        self.shared.power_off();
        if let Some(session) = self.session.take() {
            unmount(self.at.path(), UnmountFlags::DETACH).unwrap_or_default();
            session.join().unwrap_or_default();
        }
    }
}
