//! The state at the start of a segment: what older segments would tell, so that they can go.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes};
use outhaul_event::wire::{Reader, put_bytes, put_varint};
use outhaul_event::{DecodeError, TargetName};

use crate::journal::format::{put_retry, put_runs, put_sequences, read_retry, read_runs, read_sequences};
use crate::log::RetryState;
use crate::queue::{QueueId, Queues, Runs};

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
    /// The segments in which something waited, this one not included. Version 0 says no more than their numbers.
    pub(crate) segments: Vec<Listed>,
    pub(crate) queues: Vec<CheckpointQueue>,
    pub(crate) input: Option<InputState>,
}

/// A segment as a checkpoint lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) number: u64,
    pub(crate) first_sequence: u64,
    pub(crate) end_sequence: u64,
    /// Where its valid bytes end; 0 is unknown.
    pub(crate) end: u64,
    /// What waited in it, over all queues: to say what is lost when the file is.
    pub(crate) waiting: u64,
}

#[derive(Debug)]
pub(crate) struct CheckpointQueue {
    pub(crate) number: QueueId,
    /// None for one that was removed.
    pub(crate) name: Option<TargetName>,
    pub(crate) label: String,
    pub(crate) last: u64,
    pub(crate) settled: Runs,
    pub(crate) retries: BTreeMap<u64, RetryState>,
    pub(crate) crashes: BTreeMap<u64, u32>,
    pub(crate) in_flight: Vec<u64>,
}

impl Checkpoint {
    /// Writes the fields, with the queues as they are now instead of `self.queues`.
    pub(crate) fn encode(&self, queues: &Queues, out: &mut Vec<u8>) {
        for field in [self.number, self.base, self.epoch, self.next_sequence, self.segments.len() as u64] {
            put_varint(out, field);
        }
        for listed in &self.segments {
            for field in
                [listed.number, listed.first_sequence, listed.end_sequence, listed.end, listed.waiting]
            {
                put_varint(out, field);
            }
        }
        put_varint(out, queues.len() as u64);
        let mut next = 0;
        for (id, queue) in queues.iter() {
            put_varint(out, u64::from(id) - next);
            next = u64::from(id) + 1;
            put_bytes(out, if queue.removed { b"" } else { queue.name.as_str().as_bytes() });
            put_bytes(out, queue.label.as_bytes());
            put_varint(out, queue.last);
            put_runs(out, &queue.settled);
            put_varint(out, queue.retries.len() as u64);
            for (&sequence, &state) in &queue.retries {
                put_retry(out, sequence, state);
            }
            put_varint(out, queue.crashes.len() as u64);
            for (&sequence, &count) in &queue.crashes {
                put_varint(out, sequence);
                put_varint(out, count.into());
            }
            put_sequences(out, &queue.in_flight);
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

    pub(crate) fn decode(bytes: &[u8], format: u32) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let mut checkpoint = Self {
            number: reader.varint()?,
            base: reader.varint()?,
            epoch: reader.varint()?,
            next_sequence: reader.varint()?,
            ..Self::default()
        };
        for _ in 0..reader.varint()? {
            checkpoint.segments.push(Listed::decode(&mut reader, format)?);
        }
        let mut next = 0;
        for _ in 0..reader.varint()? {
            let queue = CheckpointQueue::decode(&mut reader, next, format)?;
            next = u64::from(queue.number) + 1;
            checkpoint.queues.push(queue);
        }
        if reader.u8()? == 1 {
            let note = Bytes::copy_from_slice(reader.bytes()?);
            checkpoint.input = Some(InputState { note, admitted: read_runs(&mut reader)? });
        }
        match reader.is_at_end() {
            true => Ok(checkpoint),
            false => Err(DecodeError::Impossible(reader.position())),
        }
    }
}

impl Listed {
    fn decode(reader: &mut Reader<'_>, format: u32) -> Result<Self, DecodeError> {
        let number = reader.varint()?;
        if format == 0 {
            return Ok(Self { number, first_sequence: 0, end_sequence: 0, end: 0, waiting: 0 });
        }
        let mut field = || reader.varint();
        let (first_sequence, end_sequence, end, waiting) = (field()?, field()?, field()?, field()?);
        Ok(Self { number, first_sequence, end_sequence, end, waiting })
    }
}

impl CheckpointQueue {
    /// `next` is the lowest number that it can have.
    fn decode(reader: &mut Reader<'_>, next: u64, format: u32) -> Result<Self, DecodeError> {
        let at = reader.position();
        let passed_over = if format > 1 { reader.varint()? } else { 0 };
        let number = next.checked_add(passed_over).and_then(|number| QueueId::try_from(number).ok());
        let number = number.ok_or(DecodeError::Impossible(at))?;
        let at = reader.position();
        let name = match reader.string()? {
            "" => None,
            name => Some(TargetName::new(name).map_err(|_| DecodeError::Impossible(at))?),
        };
        let label = reader.string()?.to_owned();
        let (last, settled) = (reader.varint()?, read_runs(reader)?);
        let mut retries = BTreeMap::new();
        for _ in 0..reader.varint()? {
            let (sequence, state) = read_retry(reader)?;
            retries.insert(sequence, state);
        }
        let (mut crashes, mut in_flight) = (BTreeMap::new(), Vec::new());
        if format > 0 {
            for _ in 0..reader.varint()? {
                let sequence = reader.varint()?;
                crashes.insert(sequence, u32::try_from(reader.varint()?).unwrap_or(u32::MAX));
            }
            in_flight = read_sequences(reader)?;
        }
        Ok(Self { number, name, label, last, settled, retries, crashes, in_flight })
    }
}
