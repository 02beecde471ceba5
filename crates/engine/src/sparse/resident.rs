//! What is in device memory of one sparse sequence, and what is on its way. Shared by the loop, the
//! scorer, and whatever brings slices: each takes the lock for a short time.
//!
//! A slice that arrives after its sequence has ended finds it closed and writes nothing: its slot
//! may be somebody else's by then.

use std::sync::Arc;

use ids::{BlockIdx, KvHeadIdx, LayerIdx, Position, SlotIdx, TokenId};
use kernels::Device;
use kv::{Shape, SlotLease};
use parking_lot::{Condvar, Mutex, MutexGuard};
use sparse::{Attended, Change, Meter, Rows, State as Mind};
use tokio::time::Instant;

use super::backing::{Arrival, Backing, BackingError, SliceAt, Slices};
use super::column::Column;
use crate::device::DeviceKv;
use crate::trace::{Lane, Tracer};

/// Who hears that slices have arrived.
#[derive(Clone)]
pub(crate) struct Waker {
    /// Makes the loop look again.
    pub(crate) wake: Arc<dyn Fn() + Send + Sync>,
    pub(crate) trace: Option<Tracer>,
}

pub(crate) struct Resident<D: Device> {
    memory: DeviceKv<D>,
    backing: Arc<dyn Backing>,
    waker: Waker,
    state: Mutex<State>,
    arrived: Condvar,
}

pub(crate) struct State {
    mind: Mind,
    shape: Shape,
    /// In the shape's order.
    columns: Vec<Column>,
    /// Slots that no column has: columns may take more than an even share (pooled budgets).
    free: Vec<SlotLease>,
    /// Blocks there are, those that only drafted tokens are in included.
    blocks: u32,
    step: u32,
    /// Slices fetched ahead of a step, and within one.
    prefetched: u64,
    repaired: u64,
    /// Steps whose token had not helped to choose the set.
    uncovered: u64,
    /// Fetches under way for the next step.
    coming: u32,
    /// Fetches under way that this step waits for.
    repairing: u32,
    failed: Option<BackingError>,
    closed: bool,
}

/// Slices to be fetched and the slots that they go to.
#[derive(Default)]
pub(crate) struct Wanted {
    slices: Vec<SliceAt>,
    slots: Vec<SlotIdx>,
}

impl State {
    /// The slot of a resident block.
    pub(crate) fn slot(&self, layer: LayerIdx, head: KvHeadIdx, block: u32) -> Option<SlotIdx> {
        self.columns[self.shape.index(layer, head)].slot(block)
    }

    /// Slots of the attended blocks, those with drafted tokens alone behind them.
    pub(crate) fn table(&self, layer: LayerIdx, head: KvHeadIdx) -> &[SlotIdx] {
        self.columns[self.shape.index(layer, head)].table()
    }

    /// Whether the next step attends to everything.
    pub(crate) fn is_whole(&self) -> bool {
        self.mind.selection.is_complete()
    }

    /// Whether the step at hand must be scored.
    pub(crate) fn wants_masses(&self) -> bool {
        self.mind.selection.wants_masses()
    }

    /// Whether the step at hand brings in what its own query asks for.
    pub(crate) fn wants_repair(&mut self, covered: bool) -> bool {
        self.uncovered += u64::from(!covered);
        self.mind.selection.wants_repair(covered)
    }

    /// Whether a token was a row of the last step, on the accepted prefix.
    pub(crate) fn is_covered(&self, position: Position, token: TokenId) -> bool {
        self.mind.covered.is_covered(position, token)
    }

    /// Slices fetched ahead of a step, and within one.
    pub(crate) fn fetched(&self) -> (u64, u64) {
        (self.prefetched, self.repaired)
    }

    /// Steps whose token had not helped to choose the set.
    pub(crate) fn uncovered(&self) -> u64 {
        self.uncovered
    }

    /// What was missed so far.
    pub(crate) fn meter(&self) -> &Meter {
        &self.mind.meter
    }

    /// Takes in the masses of a layer's rows: measures, and plans the next step.
    pub(crate) fn observe(&mut self, layer: LayerIdx, head: KvHeadIdx, rows: &Rows<'_>) {
        let observed = self.mind.selection.observe(layer, head, rows);
        self.mind.meter.record(layer, &observed, Attended::Set);
    }

    /// The end of a step that had `rows` from `first` on, committed some of them, and goes on with
    /// `next`; the sequence has `blocks` blocks now.
    pub(crate) fn end_step(
        &mut self,
        (first, rows): (Position, &[TokenId]),
        committed: usize,
        next: TokenId,
        blocks: u32,
    ) {
        self.mind.covered.turn(first, rows, committed, next);
        self.mind.end_step(blocks);
    }

    /// KV heads of a layer.
    pub(crate) fn heads(&self) -> u16 {
        self.shape.heads
    }

    /// Blocks there are.
    pub(crate) fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Opens a block in every column; its slots are to be zeroed by whoever writes to it.
    pub(crate) fn open(&mut self) {
        for column in 0..self.columns.len() {
            let slot = self.take_slot(column);
            self.columns[column].place(self.blocks, slot, self.step);
        }
        self.blocks += 1;
    }

    /// A slot for a column: a free one, or that of the block which it, or else another one, needs
    /// least.
    fn take_slot(&mut self, column: usize) -> SlotLease {
        if let Some(slot) = self.free.pop().or_else(|| self.columns[column].evict()) {
            return slot;
        }
        let slot = self.columns.iter_mut().find_map(Column::evict);
        slot.expect("slots for all budgets, for what enters and for open blocks were reserved")
    }

    /// Takes slots for what enters a column and is not resident.
    fn place(&mut self, (layer, head): (LayerIdx, KvHeadIdx), enter: &[u32], wanted: &mut Wanted) {
        let index = self.shape.index(layer, head);
        for &block in enter {
            if self.columns[index].slot(block).is_some() {
                self.columns[index].pin(block);
                continue;
            }
            let slot = self.take_slot(index);
            let slot = self.columns[index].place(block, slot, self.step);
            wanted.slices.push(SliceAt { block: BlockIdx(block), layer, head });
            wanted.slots.push(slot);
        }
    }

    fn attend(&mut self, layer: LayerIdx, head: KvHeadIdx) {
        let selection = &self.mind.selection;
        let attended = selection.attended(layer, head);
        let drafted = selection.blocks()..self.blocks;
        let column = &mut self.columns[self.shape.index(layer, head)];
        column.attend(attended.iter().copied().chain(drafted), self.step);
    }
}

impl<D: Device> Resident<D> {
    /// A sequence whose sealed blocks are in the backing, with the slots that it may use.
    pub(crate) fn new(
        memory: DeviceKv<D>,
        backing: Arc<dyn Backing>,
        waker: Waker,
        mind: Mind,
        slots: Vec<SlotLease>,
    ) -> Arc<Self> {
        let state = State {
            shape: memory.shape(),
            columns: (0..memory.shape().slices()).map(|_| Column::default()).collect(),
            free: slots,
            blocks: mind.selection.blocks(),
            mind,
            step: 0,
            prefetched: 0,
            repaired: 0,
            uncovered: 0,
            coming: 0,
            repairing: 0,
            failed: None,
            closed: false,
        };
        Arc::new(Self { memory, backing, waker, state: Mutex::new(state), arrived: Condvar::new() })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(crate) fn backing(&self) -> &dyn Backing {
        &*self.backing
    }

    /// Asks for the first working set, or for everything; blocks from `sealed` on are placed only.
    pub(crate) fn begin(self: &Arc<Self>, sealed: u32, everything: bool) {
        let mut state = self.lock();
        let (layers, heads, blocks) = (state.shape.layers, state.shape.heads, state.blocks);
        for layer in (0..layers).map(LayerIdx) {
            let mut wanted = Wanted::default();
            for head in (0..heads).map(KvHeadIdx) {
                let mut enter = match everything {
                    true => (0..blocks).collect(),
                    false => state.mind.selection.attended(layer, head).to_vec(),
                };
                let open = enter.partition_point(|&block| block < sealed);
                let open = enter.split_off(open);
                state.place((layer, head), &enter, &mut wanted);
                state.place((layer, head), &open, &mut Wanted::default());
            }
            self.fetch(&mut state, wanted, |state| &mut state.coming);
        }
    }

    /// The slots of a block that is resident in every column, in the shape's order.
    pub(crate) fn slots_of(&self, block: u32) -> Vec<SlotIdx> {
        let state = self.lock();
        let slots = state.columns.iter().map(|column| column.slot(block));
        slots.map(|slot| slot.expect("a block that is being written is resident")).collect()
    }

    /// Whether everything that the next step attends to is here. An error is the sequence's end.
    pub(crate) fn is_ready(&self) -> Result<bool, BackingError> {
        let state = self.lock();
        match &state.failed {
            Some(error) => Err(error.clone()),
            None => Ok(state.coming == 0),
        }
    }

    /// Makes the chosen sets what attention walks: the beginning of a step.
    pub(crate) fn flip(&self) {
        let mut state = self.lock();
        state.step += 1;
        for layer in (0..state.shape.layers).map(LayerIdx) {
            for head in (0..state.shape.heads).map(KvHeadIdx) {
                state.attend(layer, head);
            }
        }
    }

    /// Asks for what enters the columns of a layer with the next step.
    pub(crate) fn prefetch(self: &Arc<Self>, layer: LayerIdx) {
        let mut state = self.lock();
        let mut wanted = Wanted::default();
        for head in (0..state.shape.heads).map(KvHeadIdx) {
            let enter = state.mind.selection.pending(layer, head).enter.clone();
            state.place((layer, head), &enter, &mut wanted);
        }
        state.prefetched += wanted.slices.len() as u64;
        self.fetch(&mut state, wanted, |state| &mut state.coming);
    }

    /// Brings in what the step's own queries ask for, `mass[head]` over blocks, and waits for it.
    ///
    /// # Errors
    /// When a slice cannot be had.
    pub(crate) fn repair(
        self: &Arc<Self>,
        layer: LayerIdx,
        mass: &[&[f32]],
    ) -> Result<(), BackingError> {
        let mut state = self.lock();
        let mut wanted = Wanted::default();
        let mut change = Change::default();
        for (head, mass) in (0..).map(KvHeadIdx).zip(mass) {
            state.mind.selection.repair(layer, head, mass, &mut change);
            let index = state.shape.index(layer, head);
            for block in &change.leave {
                state.columns[index].unpin(*block);
            }
            state.place((layer, head), &change.enter, &mut wanted);
        }
        state.repaired += wanted.slices.len() as u64;
        self.fetch(&mut state, wanted, |state| &mut state.repairing);
        while state.repairing > 0 {
            self.arrived.wait(&mut state);
        }
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        for head in (0..state.shape.heads).map(KvHeadIdx) {
            state.attend(layer, head);
        }
        Ok(())
    }

    /// Asks the backing; `count` is what this fetch is counted in until it has ended.
    fn fetch(
        self: &Arc<Self>,
        state: &mut MutexGuard<'_, State>,
        wanted: Wanted,
        count: fn(&mut State) -> &mut u32,
    ) {
        if wanted.slices.is_empty() {
            return;
        }
        *count(state) += 1;
        let (this, slots) = (Arc::clone(self), wanted.slots);
        let (layer, began) = (wanted.slices[0].layer.0, Instant::now());
        let arrival: Arrival = Box::new(move |outcome| {
            let mut state = this.lock();
            this.store(&mut state, &slots, outcome);
            *count(&mut state) -= 1;
            drop(state);
            this.arrived.notify_all();
            if let Some(trace) = &this.waker.trace {
                trace.add("slices", Lane::Fetch, layer, began);
            }
            (this.waker.wake)();
        });
        // It may arrive before this returns.
        MutexGuard::unlocked(state, || self.backing.fetch(&wanted.slices, arrival));
    }

    /// Under the lock, so that the slots are still the sequence's own.
    fn store(&self, state: &mut State, slots: &[SlotIdx], outcome: Result<Slices, BackingError>) {
        if state.closed {
            return;
        }
        let stored = outcome.and_then(|slices| {
            let lost =
                |error: crate::LoadError| BackingError { block: None, detail: error.to_string() };
            self.memory.scatter(slots, &slices).map_err(lost)
        });
        if let Err(error) = stored {
            state.failed.get_or_insert(error);
        }
    }

    /// Gives all slots back; nothing is written to them any more.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.columns.clear();
        state.free.clear();
    }
}
