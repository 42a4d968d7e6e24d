//! The engines, each with what a key-value store over it would do: a revision before every value, and one synced
//! commit for whatever is handed over together.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use fjall::{KeyspaceCreateOptions, PersistMode};
use redb::{ReadableDatabase, ReadableTable, TableDefinition};

use crate::ledger::{Group, Row};

const CACHE_BYTES: usize = 64 << 20;
const ROWS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("rows");

#[derive(Clone, Copy)]
pub enum Kind {
    Redb,
    /// Saves the allocator's state with each commit, so that a kill is followed by no walk over the file.
    RedbQuickRepair,
    Fjall,
    /// With a write buffer of 8 MiB in place of 64, so that less of the journal is read again at open.
    FjallSmallBuffer,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Redb, Self::RedbQuickRepair, Self::Fjall, Self::FjallSmallBuffer];

    pub fn name(self) -> &'static str {
        match self {
            Self::Redb => "redb",
            Self::RedbQuickRepair => "redb, quick repair",
            Self::Fjall => "fjall",
            Self::FjallSmallBuffer => "fjall, 8 MiB buffer",
        }
    }

    pub fn named(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).context("no such engine")
    }

    pub fn open(self, dir: &Path) -> Result<Box<dyn Engine>> {
        fs::create_dir_all(dir)?;
        Ok(match self {
            Self::Redb | Self::RedbQuickRepair => {
                let mut builder = redb::Builder::new();
                builder.set_cache_size(CACHE_BYTES);
                let db = builder.create(dir.join("rows.redb"))?;
                Box::new(Redb { db, quick_repair: matches!(self, Self::RedbQuickRepair) })
            }
            Self::Fjall | Self::FjallSmallBuffer => {
                let db = fjall::Database::builder(dir).cache_size(CACHE_BYTES as u64).open()?;
                let buffer_bytes = if matches!(self, Self::Fjall) { 64 << 20 } else { 8 << 20 };
                let rows =
                    db.keyspace("rows", || KeyspaceCreateOptions::default().max_memtable_size(buffer_bytes))?;
                Box::new(Fjall { db, rows })
            }
        })
    }
}

pub trait Engine {
    /// Writes the groups in one synced commit. The first row of each is read before.
    fn commit(&self, groups: &[Group]) -> Result<()>;
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>>;
    /// The rows from `start` on, at most `limit`.
    fn scan(&self, start: &[u8], limit: usize) -> Result<Vec<Row>>;
    fn close(self: Box<Self>) -> Result<()>;
}

fn revised(value: &[u8]) -> Vec<u8> {
    [&7_u64.to_be_bytes(), value].concat()
}

struct Redb {
    db: redb::Database,
    quick_repair: bool,
}

impl Engine for Redb {
    fn commit(&self, groups: &[Group]) -> Result<()> {
        let mut transaction = self.db.begin_write()?;
        transaction.set_quick_repair(self.quick_repair);
        {
            let mut rows = transaction.open_table(ROWS)?;
            for group in groups {
                let before = rows.get(group[0].0.as_slice())?.map(|found| found.value().len());
                std::hint::black_box(before);
                for (key, value) in group {
                    rows.insert(key.as_slice(), revised(value).as_slice())?;
                }
            }
        }
        transaction.commit()?;
        Ok(())
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let rows = self.db.begin_read()?.open_table(ROWS)?;
        Ok(rows.get(key)?.map(|found| found.value().to_vec()))
    }

    fn scan(&self, start: &[u8], limit: usize) -> Result<Vec<Row>> {
        let rows = self.db.begin_read()?.open_table(ROWS)?;
        let mut found = Vec::new();
        for row in rows.range(start..)?.take(limit) {
            let (key, value) = row?;
            found.push((key.value().to_vec(), value.value().to_vec()));
        }
        Ok(found)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.db.close()?)
    }
}

struct Fjall {
    db: fjall::Database,
    rows: fjall::Keyspace,
}

impl Engine for Fjall {
    fn commit(&self, groups: &[Group]) -> Result<()> {
        let mut batch = self.db.batch().durability(Some(PersistMode::SyncData));
        for group in groups {
            std::hint::black_box(self.rows.get(&group[0].0)?);
            for (key, value) in group {
                batch.insert(&self.rows, key.as_slice(), revised(value));
            }
        }
        Ok(batch.commit()?)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.rows.get(key)?.map(|found| found.to_vec()))
    }

    fn scan(&self, start: &[u8], limit: usize) -> Result<Vec<Row>> {
        let mut found = Vec::new();
        for row in self.rows.range(start..).take(limit) {
            let (key, value) = row.into_inner()?;
            found.push((key.to_vec(), value.to_vec()));
        }
        Ok(found)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.db.persist(PersistMode::SyncAll)?;
        Ok(())
    }
}
