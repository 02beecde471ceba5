//! Hot path. The sequences of the decode loop and one step over them.
//!
//! Fresh sequences draw from the hidden state that prefill handed over, the others from a pass over
//! their newest token and the drafted ones behind it; a row's bits are the same in any company
//! (P1).

use std::sync::Arc;

use ids::{Position, TokenId};
use kernels::{Device, SampleKey, Sampled, Sampling};
use model::{Model, Row, Scratch, ScratchShape, Step};
use tokio::time::Instant;

use super::DecodeOptions;
use super::held::Place;
use super::reading::Reading;
use super::sequence::{After, Drawn, Next, Sequence};
use crate::StartError;
use crate::counters::Counters;
use crate::device::DeviceKv;
use crate::sparse::{Desk, Scorer, SummaryKv};
use crate::trace::{Lane, Tracer};

pub(super) struct Batch<D: Device> {
    model: Arc<Model<D>>,
    memory: DeviceKv<D>,
    sparse: Option<Sparse<D>>,
    max: usize,
    sequences: Vec<Sequence<D>>,
    scratch: Scratch<D>,
    counters: Arc<Counters>,
    trace: Option<Tracer>,
    /// Hidden states of fresh sequences, row-major.
    hidden: Vec<f32>,
    /// Logits on the host, read only when somebody looks at those of a sequence of the step.
    logits: Vec<f32>,
    requests: Vec<(Sampling, SampleKey)>,
    chosen: Vec<Sampled>,
}

/// What sparse sequences need beside the slots.
pub(super) struct Sparse<D: Device> {
    pub(super) summaries: SummaryKv<D>,
    /// Behind the step.
    pub(super) scorer: Scorer<D>,
    /// Within it.
    pub(super) desk: Desk<D>,
}

impl<D: Device> Batch<D> {
    pub(super) fn try_new(
        model: Arc<Model<D>>,
        memory: DeviceKv<D>,
        summaries: Option<SummaryKv<D>>,
        (options, counters): (&DecodeOptions, &Arc<Counters>),
    ) -> Result<Self, StartError> {
        let max = options.batch_max.get();
        let rows = max * (1 + options.drafts_max);
        let scratch = model.scratch(ScratchShape { rows, logit_rows: rows })?;
        let sparse = |summaries: SummaryKv<D>| {
            Ok::<_, StartError>(Sparse {
                scorer: Scorer::start(
                    (&model, &memory, &summaries),
                    rows,
                    (counters, &options.trace),
                )?,
                desk: Desk::try_new(&model, &memory, &summaries)?,
                summaries,
            })
        };
        Ok(Self {
            sparse: summaries.map(sparse).transpose()?,
            model,
            memory,
            max,
            sequences: Vec::with_capacity(max),
            scratch,
            counters: Arc::clone(counters),
            trace: options.trace.clone(),
            hidden: Vec::new(),
            logits: Vec::new(),
            requests: Vec::with_capacity(rows),
            chosen: Vec::with_capacity(rows),
        })
    }

    pub(super) fn push(&mut self, sequence: Sequence<D>) {
        self.sequences.push(sequence);
    }

    pub(super) fn memory(&self) -> &DeviceKv<D> {
        &self.memory
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

    /// Takes out a sequence that cannot make a step, because its reader or its slices are slow.
    pub(super) fn take_slow(&mut self) -> Option<Sequence<D>> {
        let slow = |sequence: &Sequence<D>| !sequence.can_step();
        let index = self.sequences.iter().position(slow)?;
        Some(self.sequences.remove(index))
    }

    /// Frees the slots of every sequence that nobody waits for (P6).
    pub(super) fn drop_cancelled(&mut self) {
        self.sequences.retain(|sequence| !sequence.is_cancelled());
    }

    /// One step for every sequence that can make it; returns how many tokens' rows were computed.
    pub(super) fn step(&mut self) -> usize {
        let mut ended = Vec::new();
        let (mut fresh, mut running) = (Vec::new(), Vec::new());
        for (index, sequence) in self.sequences.iter_mut().enumerate() {
            if !sequence.can_step() {
                continue;
            }
            if let Some(detail) = sequence.failure() {
                sequence.fail(detail);
                ended.push(index);
                continue;
            }
            match sequence.next {
                Next::Hidden(_) => fresh.push(index),
                Next::Token(token) => running.push((index, token)),
            }
        }
        let mut rows = fresh.len();
        // The running ones first: a fresh one's first token must not be run in the same step.
        if !running.is_empty() {
            rows += self.run(&running, &mut ended);
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
        rows
    }

    /// A pass over the newest token of each of these sequences and its drafts, and what it draws.
    /// Returns the number of rows.
    fn run(&mut self, running: &[(usize, TokenId)], ended: &mut Vec<usize>) -> usize {
        let mut rows = Vec::with_capacity(running.len());
        for (at, (index, token)) in running.iter().enumerate() {
            let (tokens, first) = self.sequences[*index].begin(*token);
            let positions = (first..).map(Position);
            let tokens = tokens.iter().zip(positions);
            rows.extend(tokens.map(|(&token, position)| Row { token, position, sequence: at }));
        }
        let indices: Vec<usize> = running.iter().map(|(index, _)| *index).collect();
        match self.pass(&rows, &indices) {
            Ok(failed) => {
                for (index, detail) in failed {
                    self.sequences[index].doom(detail);
                }
                self.draw(&indices, ended);
            }
            Err(error) => self.fail(&indices, &error.to_string(), ended),
        }
        rows.len()
    }

    /// Hidden states and logits of the rows; returns the sequences whose slices failed.
    fn pass(
        &mut self,
        rows: &[Row],
        indices: &[usize],
    ) -> Result<Vec<(usize, String)>, model::StepError> {
        let sequences = indices.iter().map(|index| &self.sequences[*index]);
        let mut reading = Reading::new(
            self.model.spec().shape(),
            sequences,
            rows,
            (self.sparse.as_mut(), self.trace.as_ref()),
        );
        let step = Step { rows, slots: self.memory.slots(), stop: &|| false };
        self.model.forward(&mut self.scratch, &step, &mut reading)?;
        let since = Instant::now();
        let failed = reading.finish()?;
        self.counters.awaited_since(since);
        if let Some(trace) = &self.trace {
            trace.add("wait for the scorer", Lane::Loop, 0, since);
        }
        let all: Vec<u32> = (0..).take(rows.len()).collect();
        self.model.logits_of_rows(&mut self.scratch, &all);
        Ok(failed.into_iter().map(|(at, detail)| (indices[at], detail)).collect())
    }

    /// Draws behind the rows of each of these sequences from the logits at hand, in their order.
    fn draw(&mut self, indices: &[usize], ended: &mut Vec<usize>) {
        self.requests.clear();
        self.requests.extend(indices.iter().flat_map(|index| self.sequences[*index].requests()));
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
        let mut first = 0;
        for index in indices {
            let sequence = &mut self.sequences[*index];
            let rows = first..first + sequence.row_count();
            first = rows.end;
            let logits = self.logits.get(rows.start * vocab..rows.end * vocab).unwrap_or_default();
            let drawn = Drawn { chosen: &self.chosen[rows], logits };
            let mut place = Place {
                memory: &self.memory,
                summaries: self.sparse.as_ref().map(|sparse| &sparse.summaries),
                stream: self.scratch.stream(),
            };
            if sequence.take(&drawn, &mut place) == After::Ends {
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
