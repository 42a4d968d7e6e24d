//! The rows that a workflow engine's ledger writes: seven keys for each step of a process.

pub const KEYS_PER_GROUP: usize = 7;

pub type Row = (Vec<u8>, Vec<u8>);

/// What one operation of the ledger writes, atomically. The first row is read before it is written, as a
/// compare-and-set does.
pub type Group = [Row; KEYS_PER_GROUP];

pub struct Ledger {
    random: fastrand::Rng,
    processes: Vec<u64>,
    steps: u64,
}

impl Ledger {
    pub fn new(seed: u64) -> Self {
        Self { random: fastrand::Rng::with_seed(seed), processes: Vec::new(), steps: 0 }
    }

    /// A process that was not there before.
    pub fn new_process(&mut self) -> Group {
        let pid = self.random.u64(..);
        self.processes.push(pid);
        self.step(pid)
    }

    /// A further step of a process drawn at random: its row is written over, the rest is new.
    pub fn next_step(&mut self) -> Group {
        let pid = self.known();
        self.step(pid)
    }

    /// The key of a process that was written.
    pub fn known_key(&mut self) -> Vec<u8> {
        process_key(self.known())
    }

    /// Somewhere among the operations, which are listed in order by whoever works them off.
    pub fn scan_start(&mut self) -> Vec<u8> {
        format!("op/{:020}", self.random.u64(1..=self.steps)).into_bytes()
    }

    fn known(&mut self) -> u64 {
        self.processes[self.random.usize(..self.processes.len())]
    }

    fn step(&mut self, pid: u64) -> Group {
        self.steps += 1;
        let step = self.steps;
        let key = |text: String| text.into_bytes();
        [
            (process_key(pid), self.row(400)),
            (key(format!("task/{pid:016x}/{step:016x}")), self.row(250)),
            (key(format!("op/{step:020}")), self.row(300)),
            (key(format!("op-of/{pid:016x}/{step:020}")), Vec::new()),
            (key(format!("message/{:016x}", self.random.u64(..))), self.row(500)),
            (key(format!("delivery/billing/{step:020}")), self.row(120)),
            (key(format!("state/running/{pid:016x}/{step:016x}")), vec![1; 8]),
        ]
    }

    /// Text as rows hold it: field names that repeat, and values that do not.
    fn row(&mut self, bytes: usize) -> Vec<u8> {
        let mut row = String::with_capacity(bytes + 48);
        while row.len() < bytes {
            row += &format!("\"state\":\"running\",\"at\":\"{:016x}\",", self.random.u64(..));
        }
        row.truncate(bytes);
        row.into_bytes()
    }
}

fn process_key(pid: u64) -> Vec<u8> {
    format!("process/{pid:016x}").into_bytes()
}
