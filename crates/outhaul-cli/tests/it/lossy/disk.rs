//! [`Disk`]: files and names, each as the program sees them and as the platters hold them.
//!
//! It is stricter than any real file system. The content of a file is durable after a sync of that file, a name after
//! a sync of its directory, and neither by anything else. A cut of the power leaves what is durable; where chance is
//! given, also any subset of the unsynced 4 KiB blocks, one of them torn between two sectors, and any subset of the
//! unsynced changes of names. A sync that failed marks its blocks clean, as Linux does: they are seen until the cut,
//! a later sync does not write them.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use fastrand::Rng;
use fuser::Errno;

pub(crate) const BLOCK_BYTES: usize = 4096;
const SECTOR_BYTES: usize = 512;
/// The root directory's number.
pub(crate) const ROOT: u64 = 1;

type Block = Arc<[u8; BLOCK_BYTES]>;
type Names = BTreeMap<OsString, u64>;

/// The disk of one test.
#[derive(Debug)]
pub(crate) struct Disk {
    nodes: BTreeMap<u64, Node>,
    next: u64,
    /// What happened to names since it was last made durable, in order.
    steps: Vec<Step>,
    /// Bytes that fit; more is `ENOSPC`.
    pub(crate) capacity: u64,
}

#[derive(Debug)]
enum Node {
    File(FileNode),
    Dir { live: Names, durable: Names },
}

#[derive(Debug, Default)]
struct FileNode {
    live: Content,
    durable: Content,
    /// Blocks that the next sync writes.
    dirty: BTreeSet<usize>,
    /// Blocks that a failed sync left behind.
    lost: BTreeSet<usize>,
}

/// Bytes in blocks; one that was never written is a hole.
#[derive(Debug, Default, Clone)]
struct Content {
    blocks: Vec<Option<Block>>,
    length: u64,
}

/// What one call did to names. It lands as a whole or not at all: a rename leaves a file under at least one name.
type Step = Vec<Change>;

#[derive(Debug)]
struct Change {
    dir: u64,
    name: OsString,
    node: Option<u64>,
}

/// What a node is, to whoever asks for its attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) node: u64,
    pub(crate) dir: bool,
    pub(crate) length: u64,
}

impl Disk {
    pub(crate) fn new() -> Self {
        let root = Node::Dir { live: Names::new(), durable: Names::new() };
        Self { nodes: [(ROOT, root)].into(), next: ROOT + 1, steps: Vec::new(), capacity: u64::MAX }
    }

    pub(crate) fn stat(&self, node: u64) -> Result<Stat, Errno> {
        match self.nodes.get(&node).ok_or(Errno::ENOENT)? {
            Node::File(file) => Ok(Stat { node, dir: false, length: file.live.length }),
            Node::Dir { .. } => Ok(Stat { node, dir: true, length: 0 }),
        }
    }

    pub(crate) fn lookup(&self, dir: u64, name: &OsStr) -> Result<Stat, Errno> {
        self.stat(*self.names(dir)?.get(name).ok_or(Errno::ENOENT)?)
    }

    pub(crate) fn names(&self, dir: u64) -> Result<&Names, Errno> {
        match self.nodes.get(&dir) {
            Some(Node::Dir { live, .. }) => Ok(live),
            _ => Err(Errno::ENOTDIR),
        }
    }

    pub(crate) fn create(&mut self, dir: u64, name: &OsStr, is_dir: bool) -> Result<Stat, Errno> {
        if self.names(dir)?.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        if self.used() >= self.capacity {
            return Err(Errno::ENOSPC);
        }
        let node = self.next;
        self.next += 1;
        let new = match is_dir {
            true => Node::Dir { live: Names::new(), durable: Names::new() },
            false => Node::File(FileNode::default()),
        };
        self.nodes.insert(node, new);
        self.step(vec![Change { dir, name: name.to_owned(), node: Some(node) }])?;
        self.stat(node)
    }

    pub(crate) fn remove(&mut self, dir: u64, name: &OsStr) -> Result<(), Errno> {
        let found = self.lookup(dir, name)?;
        if found.dir && !self.names(found.node)?.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.step(vec![Change { dir, name: name.to_owned(), node: None }])
    }

    pub(crate) fn rename(&mut self, from: (u64, &OsStr), to: (u64, &OsStr)) -> Result<(), Errno> {
        let found = self.lookup(from.0, from.1)?;
        self.step(vec![
            Change { dir: from.0, name: from.1.to_owned(), node: None },
            Change { dir: to.0, name: to.1.to_owned(), node: Some(found.node) },
        ])
    }

    pub(crate) fn read(&self, node: u64, offset: u64, length: usize, direct: bool) -> Result<Vec<u8>, Errno> {
        let Some(Node::File(file)) = self.nodes.get(&node) else { return Err(Errno::EISDIR) };
        let end = file.live.length.min(offset.saturating_add(length as u64));
        let mut bytes = Vec::with_capacity(end.saturating_sub(offset) as usize);
        let mut at = offset;
        while at < end {
            let (index, inside) = place(at);
            let part = (BLOCK_BYTES - inside).min((end - at) as usize);
            // Past the page cache only that is there which a sync has written.
            let content = if direct && file.lost.contains(&index) { &file.durable } else { &file.live };
            bytes.extend_from_slice(&content.block(index)[inside..inside + part]);
            at += part as u64;
        }
        Ok(bytes)
    }

    /// Writes what fits, which is less than asked only where the disk fills up.
    pub(crate) fn write(&mut self, node: u64, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        let mut room = self.capacity.saturating_sub(self.used()) / BLOCK_BYTES as u64;
        let Some(Node::File(file)) = self.nodes.get_mut(&node) else { return Err(Errno::EISDIR) };
        let mut done = 0;
        while done < bytes.len() {
            let (index, inside) = place(offset + done as u64);
            let part = (BLOCK_BYTES - inside).min(bytes.len() - done);
            if file.live.blocks.get(index).is_none_or(Option::is_none) {
                if room == 0 {
                    return if done == 0 { Err(Errno::ENOSPC) } else { Ok(done) };
                }
                room -= 1;
            }
            file.live.block_mut(index)[inside..inside + part].copy_from_slice(&bytes[done..done + part]);
            file.lost.remove(&index);
            file.dirty.insert(index);
            done += part;
            file.live.length = file.live.length.max(offset + done as u64);
        }
        Ok(done)
    }

    pub(crate) fn set_length(&mut self, node: u64, length: u64) -> Result<(), Errno> {
        let Some(Node::File(file)) = self.nodes.get_mut(&node) else { return Err(Errno::EISDIR) };
        if length < file.live.length {
            let blocks = length.div_ceil(BLOCK_BYTES as u64) as usize;
            let (index, inside) = place(length);
            file.dirty.extend(blocks..file.live.blocks.len());
            file.live.blocks.truncate(blocks);
            if inside > 0 && file.live.blocks.get(index).is_some_and(Option::is_some) {
                file.live.block_mut(index)[inside..].fill(0);
                file.dirty.insert(index);
            }
        }
        file.live.length = length;
        Ok(())
    }

    pub(crate) fn sync(&mut self, node: u64) -> Result<(), Errno> {
        let Some(Node::File(file)) = self.nodes.get_mut(&node) else { return Err(Errno::EISDIR) };
        for index in std::mem::take(&mut file.dirty) {
            file.durable.put(index, file.live.blocks.get(index).cloned().flatten());
        }
        file.durable.length = file.live.length;
        Ok(())
    }

    /// A sync that fails: what it should have written is never written by another one.
    pub(crate) fn fail_sync(&mut self, node: u64) {
        if let Some(Node::File(file)) = self.nodes.get_mut(&node) {
            file.lost.append(&mut file.dirty);
        }
    }

    /// Makes the names in a directory durable.
    pub(crate) fn sync_dir(&mut self, dir: u64) -> Result<(), Errno> {
        self.names(dir)?;
        let touches = |step: &Step| step.iter().any(|change| change.dir == dir);
        let (now, later) = std::mem::take(&mut self.steps).into_iter().partition(touches);
        self.steps = later;
        self.land(&now);
        Ok(())
    }

    /// Cuts the power. With chance, some of what was not synced stays.
    pub(crate) fn cut(&mut self, mut chance: Option<&mut Rng>) {
        let steps = std::mem::take(&mut self.steps);
        // A journal of names keeps a beginning of them, others any; this is one or the other.
        let kept: Vec<Step> = match chance.as_deref_mut() {
            None => Vec::new(),
            Some(random) => {
                let beginning = random.bool().then(|| random.usize(0..=steps.len()));
                let keep =
                    |(at, _): &(usize, Step)| beginning.map_or_else(|| random.bool(), |count| *at < count);
                steps.into_iter().enumerate().filter(keep).map(|(_, step)| step).collect()
            }
        };
        self.land(&kept);
        for node in self.nodes.values_mut() {
            match node {
                Node::Dir { live, durable } => live.clone_from(durable),
                Node::File(file) => file.cut(chance.as_deref_mut()),
            }
        }
        let mut reached = BTreeSet::from([ROOT]);
        let mut open = vec![ROOT];
        while let Some(dir) = open.pop() {
            for &node in self.names(dir).into_iter().flat_map(Names::values) {
                if reached.insert(node) {
                    open.push(node);
                }
            }
        }
        self.nodes.retain(|node, _| reached.contains(node));
    }

    /// Bytes that files with a name take.
    pub(crate) fn used(&self) -> u64 {
        let mut named = BTreeSet::new();
        for node in self.nodes.values() {
            if let Node::Dir { live, .. } = node {
                named.extend(live.values().copied());
            }
        }
        let blocks = |node: &u64| match self.nodes.get(node) {
            Some(Node::File(file)) => file.live.blocks.iter().flatten().count(),
            _ => 0,
        };
        (named.iter().map(blocks).sum::<usize>() * BLOCK_BYTES) as u64
    }

    fn step(&mut self, step: Step) -> Result<(), Errno> {
        for change in &step {
            match self.nodes.get_mut(&change.dir) {
                Some(Node::Dir { live, .. }) => change.apply(live),
                _ => return Err(Errno::ENOTDIR),
            }
        }
        self.steps.push(step);
        Ok(())
    }

    fn land(&mut self, steps: &[Step]) {
        for change in steps.iter().flatten() {
            if let Some(Node::Dir { durable, .. }) = self.nodes.get_mut(&change.dir) {
                change.apply(durable);
            }
        }
    }
}

impl Change {
    fn apply(&self, names: &mut Names) {
        match self.node {
            Some(node) => names.insert(self.name.clone(), node),
            None => names.remove(&self.name),
        };
    }
}

impl FileNode {
    fn cut(&mut self, chance: Option<&mut Rng>) {
        let unsynced: Vec<usize> = self.dirty.union(&self.lost).copied().collect();
        if let Some(random) = chance {
            let torn = random.choice(unsynced.iter().copied());
            // Mostly a half of them; sometimes nearly all, sometimes nearly none.
            let share = random.choice([0.1, 0.5, 0.9]).unwrap_or(0.5);
            for index in unsynced {
                let new = self.live.blocks.get(index).cloned().flatten();
                if torn == Some(index) && random.bool() {
                    let sectors = random.usize(1..BLOCK_BYTES / SECTOR_BYTES);
                    let new = new.unwrap_or_else(zeros);
                    let part = sectors * SECTOR_BYTES;
                    self.durable.block_mut(index)[..part].copy_from_slice(&new[..part]);
                } else if random.f64() < share {
                    self.durable.put(index, new);
                }
            }
            let (low, high) =
                (self.durable.length.min(self.live.length), self.durable.length.max(self.live.length));
            self.durable.length = match random.u8(0..3) {
                0 => low,
                1 => high,
                _ => (random.u64(low..=high) / BLOCK_BYTES as u64 * BLOCK_BYTES as u64).max(low),
            };
        }
        self.durable.trim();
        self.live = self.durable.clone();
        self.dirty.clear();
        self.lost.clear();
    }
}

impl Content {
    fn block(&self, index: usize) -> &[u8; BLOCK_BYTES] {
        const ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];
        self.blocks.get(index).and_then(Option::as_deref).unwrap_or(&ZEROS)
    }

    fn block_mut(&mut self, index: usize) -> &mut [u8; BLOCK_BYTES] {
        self.reach(index);
        Arc::make_mut(self.blocks[index].get_or_insert_with(zeros))
    }

    fn put(&mut self, index: usize, block: Option<Block>) {
        self.reach(index);
        self.blocks[index] = block;
    }

    fn reach(&mut self, index: usize) {
        if index >= self.blocks.len() {
            self.blocks.resize(index + 1, None);
        }
    }

    /// Takes away what lies behind the end.
    fn trim(&mut self) {
        self.blocks.truncate(self.length.div_ceil(BLOCK_BYTES as u64) as usize);
        let (index, inside) = place(self.length);
        if inside > 0 && self.blocks.get(index).is_some_and(Option::is_some) {
            self.block_mut(index)[inside..].fill(0);
        }
    }
}

fn zeros() -> Block {
    Arc::new([0; BLOCK_BYTES])
}

fn place(offset: u64) -> (usize, usize) {
    ((offset / BLOCK_BYTES as u64) as usize, (offset % BLOCK_BYTES as u64) as usize)
}
