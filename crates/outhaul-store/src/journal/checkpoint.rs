//! The state at the start of a segment: what older segments would tell, so that they can go.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes};
use outhaul_event::wire::{Reader, put_bytes, put_varint};
use outhaul_event::{DecodeError, TargetName};

use crate::journal::format::{put_retry, put_runs, read_retry, read_runs};
use crate::log::RetryState;
use crate::queue::{Queues, Runs};

/// How far the log's one input was admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InputState {
    pub(crate) note: Bytes,
    pub(crate) admitted: Runs,
}

/// What a checkpoint says, besides which segment it opens.
#[derive(Debug, Default)]
pub(crate) struct Checkpoint {
    pub(crate) number: u64,
    pub(crate) base: u64,
    pub(crate) epoch: u64,
    pub(crate) next_sequence: u64,
    /// The segments that were alive, this one not included.
    pub(crate) segments: Vec<u64>,
    pub(crate) queues: Vec<CheckpointQueue>,
    pub(crate) input: Option<InputState>,
}

#[derive(Debug)]
pub(crate) struct CheckpointQueue {
    pub(crate) name: TargetName,
    pub(crate) label: String,
    pub(crate) last: u64,
    pub(crate) settled: Runs,
    pub(crate) retries: BTreeMap<u64, RetryState>,
}

impl Checkpoint {
    /// Writes the fields, with the queues as they are now instead of `self.queues`.
    pub(crate) fn encode(&self, queues: &Queues, out: &mut Vec<u8>) {
        for field in [self.number, self.base, self.epoch, self.next_sequence, self.segments.len() as u64] {
            put_varint(out, field);
        }
        for &number in &self.segments {
            put_varint(out, number);
        }
        put_varint(out, queues.len() as u64);
        for (_, queue) in queues.iter() {
            put_bytes(out, queue.name.as_str().as_bytes());
            put_bytes(out, queue.label.as_bytes());
            put_varint(out, queue.last);
            put_runs(out, &queue.settled);
            put_varint(out, queue.retries.len() as u64);
            for (&sequence, &state) in &queue.retries {
                put_retry(out, sequence, state);
            }
        }
        match &self.input {
            None => out.put_u8(0),
            Some(input) => {
                out.put_u8(1);
                put_bytes(out, &input.note);
                put_runs(out, &input.admitted);
            }
        }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let mut checkpoint = Self {
            number: reader.varint()?,
            base: reader.varint()?,
            epoch: reader.varint()?,
            next_sequence: reader.varint()?,
            ..Self::default()
        };
        for _ in 0..reader.varint()? {
            checkpoint.segments.push(reader.varint()?);
        }
        for _ in 0..reader.varint()? {
            checkpoint.queues.push(CheckpointQueue::decode(&mut reader)?);
        }
        if reader.u8()? == 1 {
            let note = Bytes::copy_from_slice(reader.bytes()?);
            checkpoint.input = Some(InputState { note, admitted: read_runs(&mut reader)? });
        }
        Ok(checkpoint)
    }
}

impl CheckpointQueue {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let at = reader.position();
        let name = TargetName::new(reader.string()?).map_err(|_| DecodeError::Impossible(at))?;
        let label = reader.string()?.to_owned();
        let (last, settled) = (reader.varint()?, read_runs(reader)?);
        let mut retries = BTreeMap::new();
        for _ in 0..reader.varint()? {
            let (sequence, state) = read_retry(reader)?;
            retries.insert(sequence, state);
        }
        Ok(Self { name, label, last, settled, retries })
    }
}
