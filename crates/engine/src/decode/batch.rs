//! Hot path. The sequences of the decode loop and one step over them.
//!
//! Fresh sequences draw from the hidden state that prefill handed over, the others from a pass over
//! their newest token; a row's bits are the same in either company (P1).

use std::sync::Arc;

use ids::Position;
use kernels::{Device, SampleKey, Sampled, Sampling};
use kv::BlockTable;
use model::{Model, Row, Scratch, ScratchError, ScratchShape, Step};

use super::sequence::{After, Next, Sequence};
use crate::device::DeviceKv;

pub(super) struct Batch<D: Device> {
    model: Arc<Model<D>>,
    memory: DeviceKv<D>,
    max: usize,
    sequences: Vec<Sequence>,
    scratch: Scratch<D>,
    /// Hidden states of fresh sequences, row-major.
    hidden: Vec<f32>,
    /// Logits on the host, read only when a sequence of the step wants them digested.
    logits: Vec<f32>,
    requests: Vec<(Sampling, SampleKey)>,
    chosen: Vec<Sampled>,
}

impl<D: Device> Batch<D> {
    pub(super) fn try_new(
        model: Arc<Model<D>>,
        memory: DeviceKv<D>,
        max: usize,
    ) -> Result<Self, ScratchError> {
        let scratch = model.scratch(ScratchShape { rows: max, logit_rows: max })?;
        Ok(Self {
            model,
            memory,
            max,
            sequences: Vec::with_capacity(max),
            scratch,
            hidden: Vec::new(),
            logits: Vec::new(),
            requests: Vec::with_capacity(max),
            chosen: Vec::with_capacity(max),
        })
    }

    pub(super) fn push(&mut self, sequence: Sequence) {
        self.sequences.push(sequence);
    }

    pub(super) fn len(&self) -> usize {
        self.sequences.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    pub(super) fn has_room(&self) -> bool {
        self.sequences.len() < self.max
    }

    pub(super) fn can_step(&self) -> bool {
        self.sequences.iter().any(Sequence::can_step)
    }

    /// Takes out a sequence that cannot make a step, because its reader is slow.
    pub(super) fn take_slow(&mut self) -> Option<Sequence> {
        let slow = |sequence: &Sequence| !sequence.can_step();
        let index = self.sequences.iter().position(slow)?;
        Some(self.sequences.remove(index))
    }

    /// Frees the slots of every sequence that nobody waits for (P6).
    pub(super) fn drop_cancelled(&mut self) {
        self.sequences.retain(|sequence| !sequence.is_cancelled());
    }

    /// One step for every sequence whose reader keeps up; returns how many rows were drawn from.
    pub(super) fn step(&mut self) -> usize {
        let (fresh, running): (Vec<usize>, Vec<usize>) = self
            .sequences
            .iter()
            .enumerate()
            .filter(|(_, sequence)| sequence.can_step())
            .map(|(index, _)| index)
            .partition(|index| matches!(self.sequences[*index].next, Next::Hidden(_)));
        let mut ended = Vec::new();
        // The running ones first: a fresh one's first token must not be run in the same step.
        if !running.is_empty() {
            match self.run(&running) {
                Ok(()) => self.draw(&running, &mut ended),
                Err(error) => self.fail(&running, &error.to_string(), &mut ended),
            }
        }
        if !fresh.is_empty() {
            self.hidden.clear();
            for index in &fresh {
                if let Next::Hidden(hidden) = &self.sequences[*index].next {
                    self.hidden.extend_from_slice(hidden);
                }
            }
            self.model.logits_of_hidden(&mut self.scratch, &self.hidden);
            self.draw(&fresh, &mut ended);
        }
        ended.sort_unstable();
        for index in ended.into_iter().rev() {
            self.sequences.remove(index);
        }
        fresh.len() + running.len()
    }

    /// A pass over the newest token of each of these sequences.
    fn run(&mut self, running: &[usize]) -> Result<(), model::StepError> {
        let mut rows = Vec::with_capacity(running.len());
        for (at, index) in running.iter().enumerate() {
            let sequence = &mut self.sequences[*index];
            if let Next::Token(token) = sequence.next {
                let position = Position(sequence.append(token));
                rows.push(Row { token, position, sequence: at });
            }
        }
        let tables: Vec<&BlockTable> =
            running.iter().map(|index| &self.sequences[*index].table).collect();
        let slots = self.memory.slots();
        let step = Step { rows: &rows, tables: &tables, slots, stop: &|| false };
        self.model.forward(&mut self.scratch, &step)?;
        let all: Vec<u32> = (0..).take(rows.len()).collect();
        self.model.logits_of_rows(&mut self.scratch, &all);
        Ok(())
    }

    /// Draws a token for each of these sequences from the logits at hand, in their order.
    fn draw(&mut self, indices: &[usize], ended: &mut Vec<usize>) {
        self.requests.clear();
        self.requests.extend(indices.iter().map(|index| self.sequences[*index].request()));
        if let Err(error) = self.scratch.sample(&self.requests, &mut self.chosen) {
            return self.fail(indices, &error.to_string(), ended);
        }
        self.logits.clear();
        if indices.iter().any(|index| self.sequences[*index].wants_logits())
            && let Err(error) = self.scratch.read_logits(&mut self.logits)
        {
            return self.fail(indices, &error.to_string(), ended);
        }
        let vocab = self.model.spec().vocab as usize;
        let logits = self.logits.chunks_exact(vocab).map(Some).chain(std::iter::repeat(None));
        for ((index, sampled), logits) in indices.iter().zip(&self.chosen).zip(logits) {
            if self.sequences[*index].take(*sampled, logits) == After::Ends {
                ended.push(*index);
            }
        }
    }

    fn fail(&mut self, indices: &[usize], detail: &str, ended: &mut Vec<usize>) {
        for index in indices {
            self.sequences[*index].fail(detail.to_owned());
            ended.push(*index);
        }
    }
}
