//! Hot path. The background of a step: while the loop computes later layers, a thread of its own
//! scores the blocks of each layer that is behind it with the rows' queries, lets the selection
//! choose, and asks for what enters.
//!
//! The results do not depend on when it runs: a column is scored once a step, with this step's
//! queries, and nothing that it chooses is attended to before the next step.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use ids::{KvHeadIdx, LayerIdx, SlotIdx, SummaryIdx};
use kernels::{Device, DeviceLost, HeadShape, MemoryError, Score, ScoreSequence};
use model::{LayerQueries, Model};
use parking_lot::Mutex;
use sparse::Rows;
use tokio::time::Instant;

use super::memory::SummaryKv;
use super::resident::Resident;
use crate::StartError;
use crate::counters::Counters;
use crate::device::DeviceKv;
use crate::trace::{Lane, Tracer};

/// A sequence of the step that is scored.
pub(crate) struct Target<D: Device> {
    pub(crate) resident: Arc<Resident<D>>,
    /// Its rows in the step: the actual one, then the drafted ones.
    pub(crate) rows: Range<usize>,
    /// Of its sealed blocks, in order; none where everything is scored by its stored keys.
    pub(crate) summaries: Arc<[SummaryIdx]>,
    /// Blocks there are, those of drafted tokens included.
    pub(crate) blocks: usize,
    /// The masses of the actual row in the layer at hand, `[heads][blocks]`, where the step itself
    /// asked for them: the same bits, so they are not scored again.
    pub(crate) actual: Mutex<Vec<f32>>,
}

/// One layer to be scored.
struct Job<D: Device> {
    layer: LayerIdx,
    ready: D::Event,
    /// Copies of the step's queries and positions; the buffer goes back.
    queries: D::Buffer<f32>,
    positions: Arc<[u32]>,
    targets: Arc<[Target<D>]>,
    /// Slots behind the summaries: `[target][head][block]`.
    exact: Vec<Vec<Vec<SlotIdx>>>,
    /// Masses of actual rows that are known, of each target, or nothing.
    actual: Vec<Vec<f32>>,
}

/// The loop's side: copies queries out of the way and hands them over.
pub(crate) struct Scorer<D: Device> {
    device: D,
    width: usize,
    jobs: Option<SyncSender<Job<D>>>,
    done: Receiver<Result<D::Buffer<f32>, DeviceLost>>,
    /// Buffers for queries that are not under way.
    spare: Vec<D::Buffer<f32>>,
    under_way: usize,
    thread: Option<JoinHandle<()>>,
}

impl<D: Device> Scorer<D> {
    /// Starts the thread, with memory for steps of so many rows and blocks.
    pub(crate) fn start(
        (model, memory, summaries): (&Model<D>, &DeviceKv<D>, &SummaryKv<D>),
        rows: usize,
        (counters, trace): (&Arc<Counters>, &Option<Tracer>),
    ) -> Result<Self, StartError> {
        let spec = model.spec();
        let device = model.device().clone();
        let layers = usize::from(spec.layers);
        let width = usize::from(spec.heads) * usize::from(spec.head_dim);
        let buffers = (0..layers).map(|_| device.buffer(rows * width));
        let spare =
            buffers.collect::<Result<_, MemoryError>>().map_err(model::ScratchError::from)?;
        let mut desk = Desk::try_new(model, memory, summaries)?;
        let (jobs, inbox) = sync_channel::<Job<D>>(layers);
        let (results, done) = sync_channel(layers);
        let (counters, trace) = (Arc::clone(counters), trace.clone());
        let thread = std::thread::Builder::new().name("scorer".into()).spawn(move || {
            while let Ok(job) = inbox.recv() {
                if results.send(desk.carry_out(job, &counters, trace.as_ref())).is_err() {
                    return;
                }
            }
        })?;
        let (jobs, thread) = (Some(jobs), Some(thread));
        Ok(Self { device, width, jobs, done, spare, under_way: 0, thread })
    }

    /// Hands over the queries of a layer.
    pub(crate) fn publish(
        &mut self,
        queries: &mut LayerQueries<'_, D>,
        targets: &Arc<[Target<D>]>,
    ) {
        let mut copy = self.spare.pop().expect("a buffer for each layer");
        let rows: Vec<u32> = (0..).take(queries.positions.len()).collect();
        self.device.take_rows(queries.stream, queries.values, self.width, &rows, &mut copy);
        let job = Job {
            layer: queries.layer,
            ready: self.device.record(queries.stream),
            queries: copy,
            positions: queries.positions.into(),
            targets: Arc::clone(targets),
            exact: targets.iter().map(|target| target.exact(queries.layer)).collect(),
            actual: targets
                .iter()
                .map(|target| std::mem::take(&mut *target.actual.lock()))
                .collect(),
        };
        let jobs = self.jobs.as_ref().expect("taken by Drop alone");
        jobs.send(job).expect("the scorer ends after the loop");
        self.under_way += 1;
    }

    /// Waits until every layer that was handed over is scored.
    pub(crate) fn finish(&mut self) -> Result<(), DeviceLost> {
        let mut outcome = Ok(());
        for _ in 0..std::mem::take(&mut self.under_way) {
            match self.done.recv().expect("the scorer ends after the loop") {
                Ok(buffer) => self.spare.push(buffer),
                Err(lost) => outcome = Err(lost),
            }
        }
        outcome
    }
}

impl<D: Device> Drop for Scorer<D> {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

impl<D: Device> Target<D> {
    /// The slots that are scored by their stored keys, of each head.
    pub(crate) fn exact(&self, layer: LayerIdx) -> Vec<Vec<SlotIdx>> {
        let state = self.resident.lock();
        let blocks = self.summaries.len()..self.blocks;
        let slot = |head, block: usize| {
            let block = u32::try_from(block).expect("contexts are below 2^32 tokens");
            state.slot(layer, head, block).expect("blocks without a summary are resident")
        };
        let heads = (0..state.heads()).map(KvHeadIdx);
        heads.map(|head| blocks.clone().map(|block| slot(head, block)).collect()).collect()
    }
}

/// A stream and the memory of whoever scores.
pub(crate) struct Desk<D: Device> {
    device: D,
    memory: DeviceKv<D>,
    summaries: SummaryKv<D>,
    shape: HeadShape,
    scale: f32,
    stream: D::Stream,
    mass: D::Buffer<f32>,
    host: Vec<f32>,
}

/// What is to be scored, of one layer.
pub(crate) struct Question<'a, D: Device> {
    pub(crate) layer: LayerIdx,
    pub(crate) queries: &'a D::Buffer<f32>,
    pub(crate) positions: &'a [u32],
    pub(crate) sequences: &'a [ScoreSequence<'a>],
    /// The most blocks of a sequence.
    pub(crate) stride: usize,
}

impl<D: Device> Desk<D> {
    pub(crate) fn try_new(
        model: &Model<D>,
        memory: &DeviceKv<D>,
        summaries: &SummaryKv<D>,
    ) -> Result<Self, StartError> {
        let spec = model.spec();
        let device = model.device().clone();
        Ok(Self {
            shape: HeadShape {
                heads: usize::from(spec.heads),
                kv_heads: usize::from(spec.kv_heads),
                head_dim: usize::from(spec.head_dim),
            },
            scale: model.attention_scale(),
            stream: device.stream().map_err(model::ScratchError::from)?,
            mass: device.buffer(0).map_err(model::ScratchError::from)?,
            host: Vec::new(),
            memory: memory.clone(),
            summaries: summaries.clone(),
            device,
        })
    }

    /// The masses on the host: `[rows][kv_heads][stride]`.
    pub(crate) fn score(&mut self, question: &Question<'_, D>) -> Result<&[f32], DeviceLost> {
        let rows = question.positions.len();
        let wanted = rows * self.shape.kv_heads * question.stride;
        if self.host.len() < wanted {
            self.mass = self.device.buffer(wanted).map_err(|error| DeviceLost {
                device: self.device.describe(),
                reason: error.to_string(),
            })?;
            self.host.resize(wanted, 0.0);
        }
        let launch = Score {
            shape: self.shape,
            layer: usize::from(question.layer.0),
            q: question.queries,
            positions: question.positions,
            sequences: question.sequences,
            scale: self.scale,
            stride: question.stride,
            mass: &mut self.mass,
        };
        self.device.score(&mut self.stream, self.memory.slots(), self.summaries.units(), launch);
        self.device.download(&mut self.stream, &self.mass, 0, &mut self.host[..wanted])?;
        Ok(&self.host[..wanted])
    }

    /// The masses of a layer's rows, behind the work that computed them.
    pub(crate) fn score_behind(
        &mut self,
        queries: &mut LayerQueries<'_, D>,
        sequences: &[ScoreSequence<'_>],
        stride: usize,
    ) -> Result<&[f32], DeviceLost> {
        let ready = self.device.record(queries.stream);
        self.wait(&ready);
        self.score(&Question {
            layer: queries.layer,
            queries: queries.values,
            positions: queries.positions,
            sequences,
            stride,
        })
    }

    /// Makes later questions wait for the work that an event marks.
    fn wait(&mut self, event: &D::Event) {
        self.device.wait(&mut self.stream, event);
    }

    fn carry_out(
        &mut self,
        job: Job<D>,
        counters: &Counters,
        trace: Option<&Tracer>,
    ) -> Result<D::Buffer<f32>, DeviceLost> {
        self.wait(&job.ready);
        let exact: Vec<Vec<&[SlotIdx]>> =
            job.exact.iter().map(|heads| heads.iter().map(Vec::as_slice).collect()).collect();
        let sequences: Vec<ScoreSequence<'_>> = job
            .targets
            .iter()
            .zip(exact.iter().zip(&job.actual))
            .map(|(target, (exact, actual))| ScoreSequence {
                rows: target.rows.start + usize::from(!actual.is_empty())..target.rows.end,
                summaries: &target.summaries,
                exact,
            })
            .collect();
        let stride = job.targets.iter().map(|target| target.blocks).max().unwrap_or(0);
        let heads = self.shape.kv_heads;
        let began = Instant::now();
        let mass = self.score(&Question {
            layer: job.layer,
            queries: &job.queries,
            positions: &job.positions,
            sequences: &sequences,
            stride,
        })?;
        let scored = began.elapsed();
        if let Some(trace) = trace {
            trace.add("score", Lane::Scorer, job.layer.0, began);
        }
        let choosing = Instant::now();
        let mut drafted = Vec::new();
        for (target, actual) in job.targets.iter().zip(&job.actual) {
            let mut state = target.resident.lock();
            for head in 0..heads {
                let row = |row: usize| &mass[(row * heads + head) * stride..][..target.blocks];
                drafted.clear();
                target.rows.clone().skip(1).for_each(|at| drafted.extend_from_slice(row(at)));
                let actual = match actual.is_empty() {
                    true => row(target.rows.start),
                    false => &actual[head * target.blocks..][..target.blocks],
                };
                let rows = Rows { actual, drafted: &drafted, late: &[] };
                let head = KvHeadIdx(u16::try_from(head).expect("heads are a u16"));
                state.observe(job.layer, head, &rows);
            }
            drop(state);
            target.resident.prefetch(job.layer);
        }
        if let Some(trace) = trace {
            trace.add("choose and ask", Lane::Scorer, job.layer.0, choosing);
        }
        counters.scored(scored, choosing.elapsed());
        Ok(job.queries)
    }
}
