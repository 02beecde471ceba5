//! The host device: [`Device`] on the CPUs of this machine. Streams run at once and in order,
//! events are complete when recorded, "device memory" is memory of this process that is bounded
//! and counted like a GPU's. It never reports itself lost.

mod attend;
mod matmul;
mod pool;
mod rowwise;
mod score;
mod summarise;
#[cfg(test)]
mod tests;

use std::{num::NonZeroUsize, sync::Arc};

use crate::{
    NUMERICS_CLASS,
    device::{Attend, Device, DeviceLost, Element, KvWrite, Matmul, RmsNorm, Score, Summarise},
    isa::{Active, Isa},
    memory::{HugePages, MemoryError, Region},
    rope::RopeTable,
    sample::{self, SampleKey, Sampled, Sampling},
    slots::{SlotArena, SlotShape},
    summary::{SummaryArena, SummaryShape},
    weight::{Matrix, PackedWeight, WeightError},
};
use ids::{SlotIdx, SummaryIdx};
use pool::Pool;
pub use pool::THREADS_MAX;

/// How the host device is opened.
#[derive(Clone, Copy, Debug)]
pub struct HostOptions {
    /// The instruction set to force; `None` takes the widest there is. It changes no bit.
    pub isa: Option<Isa>,
    /// Threads that compute, the calling one included. Their number changes no bit.
    pub threads: NonZeroUsize,
    /// Whether weights, buffers and slots ask for huge pages.
    pub huge_pages: HugePages,
}

impl Default for HostOptions {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        Self { isa: None, threads, huge_pages: HugePages::Auto }
    }
}

/// The host device cannot be opened as asked.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The forced instruction set is not there.
    #[error("isa {isa} is not supported by this machine; the best it has is {best}")]
    Isa {
        /// What was asked for.
        isa: Isa,
        /// What there is.
        best: Isa,
    },
    /// More threads than the pool allows.
    #[error("threads {threads} is out of range; the most is {max}")]
    Threads {
        /// What was asked for.
        threads: usize,
        /// The limit.
        max: usize,
    },
    /// The system gave no thread.
    #[error("cannot start compute thread {index}; lower threads or raise the process limit")]
    Spawn {
        /// Which one.
        index: usize,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

/// The CPUs of this machine as a device. Clones share the threads; several roles may launch at
/// the same time, each from a thread of its own.
#[derive(Clone, Debug)]
pub struct HostDevice {
    active: Active,
    huge_pages: HugePages,
    pool: Arc<Pool>,
}

/// An array in host device memory.
#[derive(Debug)]
pub struct HostBuffer<T>(Region<T>);

impl<T: Element> HostBuffer<T> {
    /// All values.
    #[must_use]
    pub fn as_slice(&self) -> &[T] {
        self.0.as_slice()
    }

    /// All values, to be changed.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        self.0.as_mut_slice()
    }

    /// Number of values.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a buffer is never asked whether it is empty")]
    pub fn len(&self) -> usize {
        self.0.as_slice().len()
    }
}

/// A stream of the host device: scratch memory that only grows, so that a warm step allocates
/// nothing.
#[derive(Debug, Default)]
pub struct HostStream {
    /// Quantised rows of the current matmul.
    rows: matmul::QuantisedRows,
    /// Tiles and partial results of the current attention.
    attention: attend::Scratch,
    /// Tiles and partial results of the current scoring.
    scoring: score::Scratch,
    /// Candidates of the current sampling.
    candidates: sample::Candidates,
}

/// A point in a host stream; what it marks is done.
#[derive(Debug)]
pub struct HostEvent(());

impl HostDevice {
    /// Opens the device and starts its threads.
    ///
    /// # Errors
    /// When the instruction set is not there or a thread cannot be started.
    pub fn open(options: HostOptions) -> Result<Self, OpenError> {
        let best = Isa::detect();
        let isa = options.isa.unwrap_or(best);
        let active = isa.activate().ok_or(OpenError::Isa { isa, best })?;
        let pool = Arc::new(Pool::start(options.threads)?);
        Ok(Self { active, huge_pages: options.huge_pages, pool })
    }

    /// The instruction set in use.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.active.isa()
    }

    /// Threads that compute, the calling one included.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }
}

impl Device for HostDevice {
    type Buffer<T: Element> = HostBuffer<T>;
    type Weight = PackedWeight;
    type Slots = SlotArena;
    type Summaries = SummaryArena;
    type Stream = HostStream;
    type Event = HostEvent;

    fn describe(&self) -> String {
        format!("host, {}, {} threads", self.isa(), self.threads())
    }

    fn numerics_class(&self) -> &'static str {
        NUMERICS_CLASS
    }

    fn buffer<T: Element>(&self, len: usize) -> Result<HostBuffer<T>, MemoryError> {
        Region::zeroed(len, self.huge_pages).map(HostBuffer)
    }

    fn weight(&self, matrix: Matrix<'_>) -> Result<PackedWeight, WeightError> {
        PackedWeight::pack(matrix, self.huge_pages)
    }

    fn slots(&self, shape: SlotShape) -> Result<SlotArena, MemoryError> {
        SlotArena::try_new(shape, self.huge_pages)
    }

    fn summaries(&self, shape: SummaryShape) -> Result<SummaryArena, MemoryError> {
        SummaryArena::try_new(shape, self.huge_pages)
    }

    fn stream(&self) -> Result<HostStream, DeviceLost> {
        Ok(HostStream::default())
    }

    fn record(&self, _stream: &mut HostStream) -> HostEvent {
        HostEvent(())
    }

    fn wait(&self, _stream: &mut HostStream, _event: &HostEvent) {}

    fn synchronise(&self, _stream: &mut HostStream) -> Result<(), DeviceLost> {
        Ok(())
    }

    fn upload<T: Element>(
        &self,
        _stream: &mut HostStream,
        from: &[T],
        to: &mut HostBuffer<T>,
        at: usize,
    ) {
        to.as_mut_slice()[at..at + from.len()].copy_from_slice(from);
    }

    fn download<T: Element>(
        &self,
        _stream: &mut HostStream,
        from: &HostBuffer<T>,
        at: usize,
        to: &mut [T],
    ) -> Result<(), DeviceLost> {
        to.copy_from_slice(&from.as_slice()[at..at + to.len()]);
        Ok(())
    }

    fn embed(
        &self,
        _stream: &mut HostStream,
        weight: &PackedWeight,
        rows: &[u32],
        out: &mut HostBuffer<f32>,
    ) {
        let width = weight.inputs();
        let out = &mut out.as_mut_slice()[..rows.len() * width];
        for (&row, out) in rows.iter().zip(out.chunks_exact_mut(width)) {
            weight.dequantise_row(row as usize, out);
        }
    }

    fn matmul(&self, stream: &mut HostStream, launch: Matmul<'_, '_, Self>) {
        matmul::launch(self, &mut stream.rows, launch);
    }

    fn rms_norm(&self, _stream: &mut HostStream, launch: RmsNorm<'_, Self>) {
        rowwise::rms_norm(self, launch);
    }

    fn rope(
        &self,
        _stream: &mut HostStream,
        table: &RopeTable,
        heads: usize,
        positions: &[u32],
        x: &mut HostBuffer<f32>,
    ) {
        rowwise::rope(self, table, heads, positions, x.as_mut_slice());
    }

    fn silu_mul(
        &self,
        _stream: &mut HostStream,
        len: usize,
        gate: &mut HostBuffer<f32>,
        up: &HostBuffer<f32>,
    ) {
        rowwise::silu_mul(self, &mut gate.as_mut_slice()[..len], &up.as_slice()[..len]);
    }

    fn add(
        &self,
        _stream: &mut HostStream,
        len: usize,
        x: &mut HostBuffer<f32>,
        y: &HostBuffer<f32>,
    ) {
        rowwise::add(self, &mut x.as_mut_slice()[..len], &y.as_slice()[..len]);
    }

    fn take_rows(
        &self,
        _stream: &mut HostStream,
        from: &HostBuffer<f32>,
        width: usize,
        rows: &[u32],
        to: &mut HostBuffer<f32>,
    ) {
        let to = &mut to.as_mut_slice()[..rows.len() * width];
        for (&row, to) in rows.iter().zip(to.chunks_exact_mut(width)) {
            to.copy_from_slice(&from.as_slice()[row as usize * width..][..width]);
        }
    }

    fn kv_write(&self, _stream: &mut HostStream, slots: &SlotArena, launch: KvWrite<'_, Self>) {
        rowwise::kv_write(self, slots, launch);
    }

    fn attend(&self, stream: &mut HostStream, slots: &SlotArena, launch: Attend<'_, Self>) {
        attend::launch(self, &mut stream.attention, slots, launch);
    }

    fn zero(&self, _stream: &mut HostStream, slots: &SlotArena, ids: &[SlotIdx]) {
        let mut slots = slots.write();
        for &id in ids {
            slots.slot(id).fill(0);
        }
    }

    fn gather(
        &self,
        _stream: &mut HostStream,
        slots: &SlotArena,
        ids: &[SlotIdx],
        to: &mut [u8],
    ) -> Result<(), DeviceLost> {
        assert_eq!(to.len(), ids.len() * slots.slot_bytes(), "gather fills its target exactly");
        let bytes = slots.slot_bytes();
        let slots = slots.read();
        for (&id, to) in ids.iter().zip(to.chunks_exact_mut(bytes)) {
            for (to, value) in to.as_chunks_mut::<2>().0.iter_mut().zip(slots.view().slot(id)) {
                *to = value.to_le_bytes();
            }
        }
        Ok(())
    }

    fn scatter(&self, _stream: &mut HostStream, slots: &SlotArena, from: &[u8], ids: &[SlotIdx]) {
        assert_eq!(from.len(), ids.len() * slots.slot_bytes(), "scatter uses its source up");
        let bytes = slots.slot_bytes();
        let mut slots = slots.write();
        for (&id, from) in ids.iter().zip(from.chunks_exact(bytes)) {
            for (value, from) in slots.slot(id).iter_mut().zip(from.as_chunks::<2>().0) {
                *value = u16::from_le_bytes(*from);
            }
        }
    }

    fn summarise(
        &self,
        _stream: &mut HostStream,
        slots: &SlotArena,
        summaries: &SummaryArena,
        launch: Summarise<'_>,
    ) {
        summarise::launch(self, slots, summaries, launch);
    }

    fn gather_summaries(
        &self,
        _stream: &mut HostStream,
        summaries: &SummaryArena,
        ids: &[SummaryIdx],
        to: &mut [u8],
    ) -> Result<(), DeviceLost> {
        let bytes = summaries.shape().unit_bytes();
        assert_eq!(to.len(), ids.len() * bytes, "units fill their target exactly");
        let columns = summaries.shape().columns();
        summaries.read(|units| {
            for (id, to) in ids.iter().zip(to.chunks_exact_mut(bytes)) {
                for (column, to) in to.chunks_exact_mut(bytes / columns).enumerate() {
                    let words = units.column(*id, column);
                    for (to, word) in to.as_chunks_mut().0.iter_mut().zip(words) {
                        *to = word.to_le_bytes();
                    }
                }
            }
        });
        Ok(())
    }

    fn scatter_summaries(
        &self,
        _stream: &mut HostStream,
        summaries: &SummaryArena,
        from: &[u8],
        ids: &[SummaryIdx],
    ) {
        let bytes = summaries.shape().unit_bytes();
        assert_eq!(from.len(), ids.len() * bytes, "units use their source up");
        summaries.write(ids, |index, column, to| {
            let from = from[index * bytes + column * to.len() * 4..].as_chunks().0;
            for (word, from) in to.iter_mut().zip(from) {
                *word = u32::from_le_bytes(*from);
            }
        });
    }

    fn score(
        &self,
        stream: &mut HostStream,
        slots: &SlotArena,
        summaries: &SummaryArena,
        launch: Score<'_, Self>,
    ) {
        score::launch(self, &mut stream.scoring, (slots, summaries), launch);
    }

    fn sample(
        &self,
        stream: &mut HostStream,
        logits: &HostBuffer<f32>,
        vocabulary: usize,
        rows: &[(Sampling, SampleKey)],
        chosen: &mut Vec<Sampled>,
    ) -> Result<(), DeviceLost> {
        chosen.clear();
        let logits = &logits.as_slice()[..rows.len() * vocabulary];
        for (logits, (sampling, key)) in logits.chunks_exact(vocabulary).zip(rows) {
            let candidates = &mut stream.candidates;
            chosen.push(sample::choose(self.active, logits, sampling, *key, candidates));
        }
        Ok(())
    }
}
