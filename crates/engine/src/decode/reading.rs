//! Hot path. What a step of the batch attends to: all blocks of dense sequences, the chosen ones of
//! sparse ones. Layer by layer it brings in what a step's own query asks for where its token was
//! not covered, and hands the queries to the scorer.

use std::sync::Arc;

use ids::{KvHeadIdx, LayerIdx, SlotIdx};
use kernels::{AttendTable, Device, DeviceLost, ScoreSequence};
use kv::{BlockTable, Shape};
use model::{Attended, LayerQueries, Row, StepError};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::batch::Sparse;
use super::held::Held;
use super::sequence::Sequence;
use crate::sparse::{Resident, Target};
use crate::trace::{Lane, Tracer};

/// A sequence of the step.
enum Source<'a, D: Device> {
    Dense(&'a BlockTable),
    Sparse {
        resident: &'a Arc<Resident<D>>,
        /// By KV head, of the layer at hand: the slots, and how many blocks are left out.
        tables: Vec<(Vec<SlotIdx>, u32)>,
        /// Its place among `targets`, when its own query is to be asked.
        repair: Option<usize>,
        failed: Option<String>,
    },
}

pub(super) struct Reading<'a, D: Device> {
    shape: Shape,
    sources: Vec<Source<'a, D>>,
    sparse: Option<&'a mut Sparse<D>>,
    /// All sparse sequences whose step is scored.
    targets: Arc<[Target<D>]>,
    /// Where spans go, and when the layer at hand began.
    trace: Option<(&'a Tracer, Instant)>,
}

impl<'a, D: Device> Reading<'a, D> {
    pub(super) fn new(
        shape: Shape,
        sequences: impl Iterator<Item = &'a Sequence<D>>,
        rows: &[Row],
        (sparse, trace): (Option<&'a mut Sparse<D>>, Option<&'a Tracer>),
    ) -> Self {
        let mut targets = Vec::new();
        let mut sources = Vec::new();
        for (at, sequence) in sequences.enumerate() {
            sources.push(match &sequence.held {
                Held::Dense(dense) => Source::Dense(&dense.table),
                Held::Sparse(sparse) => {
                    let resident = &sparse.resident;
                    resident.flip();
                    let first = rows.partition_point(|row| row.sequence < at);
                    let end = rows.partition_point(|row| row.sequence <= at);
                    let mut state = resident.lock();
                    let covered = state.is_covered(rows[first].position, rows[first].token);
                    let repair = state.wants_repair(covered).then_some(targets.len());
                    if state.wants_masses() {
                        targets.push(Target {
                            resident: Arc::clone(resident),
                            rows: first..end,
                            summaries: sparse.scored_units(),
                            blocks: state.blocks() as usize,
                            actual: Mutex::default(),
                        });
                    }
                    Source::Sparse { resident, tables: Vec::new(), repair, failed: None }
                }
            });
        }
        let trace = trace.map(|trace| (trace, Instant::now()));
        Self { shape, sources, sparse, targets: targets.into(), trace }
    }

    /// Waits for the scorer; tells which sequences could not get their slices.
    pub(super) fn finish(self) -> Result<Vec<(usize, String)>, DeviceLost> {
        if let Some(sparse) = self.sparse {
            sparse.scorer.finish()?;
        }
        let failed = |source| match source {
            Source::Dense(_) => None,
            Source::Sparse { failed, .. } => failed,
        };
        let failed = self.sources.into_iter().map(failed).enumerate();
        Ok(failed.filter_map(|(at, detail)| Some((at, detail?))).collect())
    }

    /// Lets in what the actual rows' own queries ask for.
    fn repair(&mut self, queries: &mut LayerQueries<'_, D>) -> Result<(), DeviceLost> {
        let Some(sparse) = self.sparse.as_mut() else { return Ok(()) };
        let asking: Vec<usize> = self.sources.iter().filter_map(Source::repair).collect();
        if asking.is_empty() {
            return Ok(());
        }
        let targets: Vec<&Target<D>> = asking.iter().map(|at| &self.targets[*at]).collect();
        let exact: Vec<Vec<Vec<SlotIdx>>> =
            targets.iter().map(|target| target.exact(queries.layer)).collect();
        let exact: Vec<Vec<&[SlotIdx]>> =
            exact.iter().map(|heads| heads.iter().map(Vec::as_slice).collect()).collect();
        let sequences: Vec<ScoreSequence<'_>> = targets
            .iter()
            .zip(&exact)
            .map(|(target, exact)| ScoreSequence {
                rows: target.rows.start..target.rows.start + 1,
                summaries: &target.summaries,
                exact,
            })
            .collect();
        let stride = targets.iter().map(|target| target.blocks).max().unwrap_or(0);
        let mass = sparse.desk.score_behind(queries, &sequences, stride)?;
        let heads = usize::from(self.shape.heads);
        for source in &mut self.sources {
            let (Some(at), Source::Sparse { resident, failed, .. }) = (source.repair(), source)
            else {
                continue;
            };
            let target = &self.targets[at];
            let row = |head| &mass[(target.rows.start * heads + head) * stride..][..target.blocks];
            let mass: Vec<&[f32]> = (0..heads).map(row).collect();
            *target.actual.lock() = mass.concat();
            if let Err(error) = resident.repair(queries.layer, &mass) {
                *failed = Some(error.to_string());
            }
        }
        Ok(())
    }
}

impl<D: Device> Source<'_, D> {
    fn repair(&self) -> Option<usize> {
        match self {
            Self::Sparse { repair, failed: None, .. } => *repair,
            Self::Sparse { .. } | Self::Dense(_) => None,
        }
    }
}

impl<D: Device> Attended<D> for Reading<'_, D> {
    fn shape(&self, sequence: usize) -> Shape {
        match &self.sources[sequence] {
            Source::Dense(table) => table.shape(),
            Source::Sparse { .. } => self.shape,
        }
    }

    fn slot(&self, sequence: usize, layer: LayerIdx, head: KvHeadIdx, block: usize) -> SlotIdx {
        match &self.sources[sequence] {
            Source::Dense(table) => table.slots(layer, head)[block],
            Source::Sparse { resident, .. } => {
                let block = u32::try_from(block).expect("contexts are below 2^32 tokens");
                let slot = resident.lock().slot(layer, head, block);
                slot.expect("blocks that rows lie in are resident")
            }
        }
    }

    fn prepare(&mut self, mut queries: LayerQueries<'_, D>) -> Result<(), StepError> {
        let layer = queries.layer.0;
        if let Some((trace, begin)) = &mut self.trace {
            trace.add("layer", Lane::Loop, layer, *begin);
            *begin = Instant::now();
        }
        self.repair(&mut queries)?;
        if let Some((trace, begin)) = &mut self.trace {
            trace.add("repair", Lane::Loop, layer, *begin);
            *begin = Instant::now();
        }
        for source in &mut self.sources {
            let Source::Sparse { resident, tables, .. } = source else { continue };
            let state = resident.lock();
            tables.clear();
            for head in (0..self.shape.heads).map(KvHeadIdx) {
                let slots = state.table(queries.layer, head).to_vec();
                let there = u32::try_from(slots.len()).expect("contexts are below 2^32 tokens");
                tables.push((slots, state.blocks() - there));
            }
        }
        if let Some(sparse) = self.sparse.as_mut().filter(|_| !self.targets.is_empty()) {
            sparse.scorer.publish(&mut queries, &self.targets);
        }
        Ok(())
    }

    fn table(&self, sequence: usize, layer: LayerIdx, head: KvHeadIdx) -> AttendTable<'_> {
        match &self.sources[sequence] {
            Source::Dense(table) => AttendTable { slots: table.slots(layer, head), absent: 0 },
            Source::Sparse { tables, .. } => {
                let (slots, absent) = &tables[usize::from(head.0)];
                AttendTable { slots, absent: *absent }
            }
        }
    }
}
