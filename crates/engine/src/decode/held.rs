//! The KV that a sequence of the batch holds on the device: all of it, or what it attends to.

use std::sync::Arc;

use ids::{BLOCK_TOKENS, BlockHash, BlockIdx, SummaryIdx, TokenId};
use kernels::{Device, DeviceLost, SlotIdx, Summarise};
use kv::{BlockTable, SlotLease, SlotReservation};
use sparse::{Policy, Predictor, State};

use super::{KvUsage, PromptKv, SparsePrompt};
use crate::device::{Chain, DeviceKv};
use crate::sparse::{Resident, SummaryKv, Waker, unit};

/// What the blocks of a sequence lie in.
pub(super) enum Held<D: Device> {
    Dense(DenseKv),
    Sparse(Box<SparseKv<D>>),
}

/// Every block.
pub(super) struct DenseKv {
    pub(super) table: BlockTable,
    reservation: SlotReservation,
    chain: Chain,
}

/// The attended blocks, and the summaries of all sealed ones.
pub(super) struct SparseKv<D: Device> {
    pub(super) resident: Arc<Resident<D>>,
    /// Of the sealed blocks, in order.
    units: Arc<[SummaryIdx]>,
    /// Scored by stored keys, which all stay resident.
    by_keys: bool,
    leases: Vec<SlotLease>,
    more_units: SlotReservation,
    /// Tokens whose K and V are written, or are about to be.
    length: usize,
}

/// The device's part of a step: where blocks and summaries lie, and a stream.
pub(super) struct Place<'a, D: Device> {
    pub(super) memory: &'a DeviceKv<D>,
    pub(super) summaries: Option<&'a SummaryKv<D>>,
    pub(super) stream: &'a mut D::Stream,
}

/// A sealed block could not be kept.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeepError {
    #[error(transparent)]
    Lost(#[from] DeviceLost),
    #[error("no room below the device for a sealed block")]
    Full(#[from] transfer::SlabFull),
}

impl<D: Device> Held<D> {
    pub(super) fn new(
        kv: PromptKv,
        (policy, tokens): (&Policy, usize),
        parent: BlockHash,
        (memory, waker): (&DeviceKv<D>, &Waker),
    ) -> Result<Self, crate::LoadError> {
        match kv {
            PromptKv::Dense { table, reservation } => {
                Ok(Self::Dense(DenseKv { table, reservation, chain: Chain { parent } }))
            }
            PromptKv::Sparse(prompt) => {
                let kv = SparseKv::new(*prompt, (policy, tokens), memory, waker)?;
                Ok(Self::Sparse(Box::new(kv)))
            }
        }
    }

    /// Tokens whose K and V are written, or are about to be.
    pub(super) fn length(&self) -> u32 {
        let length = match self {
            Self::Dense(dense) => dense.table.token_count(),
            Self::Sparse(sparse) => sparse.length,
        };
        u32::try_from(length).expect("contexts are below 2^32 tokens")
    }

    /// Takes the place of the next token's K and V.
    pub(super) fn push(&mut self, token: TokenId) {
        match self {
            Self::Dense(dense) => dense
                .table
                .append(&[token], &mut dense.reservation)
                .expect("slots for the final length were reserved at admission"),
            Self::Sparse(sparse) => {
                sparse.length += 1;
                sparse.make_room(0);
            }
        }
    }

    /// Makes room for up to `wanted` drafted rows behind the newest token; returns for how many.
    pub(super) fn make_room(&mut self, wanted: usize) -> usize {
        match self {
            // Within the open block: a table does not open blocks that it may not keep.
            Self::Dense(dense) => {
                let used = dense.table.token_count() % BLOCK_TOKENS;
                wanted.min((BLOCK_TOKENS - used) % BLOCK_TOKENS)
            }
            Self::Sparse(sparse) => {
                sparse.make_room(wanted);
                wanted
            }
        }
    }

    /// Whether the next step attends to every block.
    pub(super) fn is_whole(&self) -> bool {
        match self {
            Self::Dense(_) => true,
            Self::Sparse(sparse) => sparse.resident.lock().is_whole(),
        }
    }

    /// A full block becomes immutable as soon as its last KV is written.
    pub(super) fn seal(&mut self, place: &mut Place<'_, D>) -> Result<(), KeepError> {
        match self {
            Self::Dense(dense) => dense.seal(),
            Self::Sparse(sparse) => {
                while sparse.leases.len() < sparse.length / BLOCK_TOKENS {
                    sparse.seal_oldest(place)?;
                }
            }
        }
        Ok(())
    }

    /// Fills in what the sets came to.
    pub(super) fn complete(&self, usage: &mut KvUsage) {
        if let Self::Sparse(sparse) = self {
            let state = sparse.resident.lock();
            (usage.prefetched, usage.repaired) = state.fetched();
            usage.uncovered = state.uncovered();
            usage.quality = *state.meter().totals();
        }
    }

    /// Gives everything back.
    pub(super) fn free(&mut self) {
        match self {
            Self::Dense(dense) => {
                dense.table = BlockTable::new(dense.table.shape());
                drop(dense.reservation.split(dense.reservation.left()));
            }
            Self::Sparse(sparse) => {
                sparse.resident.close();
                sparse.leases.clear();
                drop(sparse.more_units.split(sparse.more_units.left()));
            }
        }
    }
}

impl DenseKv {
    fn seal(&mut self) {
        while self.table.full_count() > 0 {
            let oldest = self.table.filling().next().expect("a full block is a filling one");
            let tokens: [TokenId; BLOCK_TOKENS] =
                oldest.tokens().try_into().expect("a full block has 16 tokens");
            let key = self.chain.next(&tokens);
            self.table.seal_oldest(key).expect("it is full");
        }
    }
}

impl<D: Device> Drop for SparseKv<D> {
    /// Slots are free at once, though a fetch under way still holds the residents (P6).
    fn drop(&mut self) {
        self.resident.close();
    }
}

impl<D: Device> SparseKv<D> {
    fn new(
        prompt: SparsePrompt,
        (policy, tokens): (&Policy, usize),
        memory: &DeviceKv<D>,
        waker: &Waker,
    ) -> Result<Self, crate::LoadError> {
        let SparsePrompt { mut slots, summaries, more_summaries, first, tail, backing } = prompt;
        let shape = memory.shape();
        let sealed = tokens / BLOCK_TOKENS;
        let blocks = kv::blocks_for(tokens);
        let count = |number: usize| u32::try_from(number).expect("contexts are below 2^32 tokens");
        let masses = |layer, head| &first[shape.index(layer, head) * blocks..][..blocks];
        let mind = State::new(policy.clone(), shape, count(blocks), masses);
        let resident = Resident::new(
            memory.clone(),
            backing,
            waker.clone(),
            mind,
            slots.take_many(slots.left()).unwrap_or_default(),
        );
        let by_keys = policy.sparse().is_some_and(|sparse| sparse.predictor == Predictor::Oracle);
        resident.begin(count(sealed), by_keys);
        if !tail.is_empty() {
            let open: Vec<SlotIdx> = resident.slots_of(count(sealed));
            memory.scatter(&open, &tail)?;
        }
        Ok(Self {
            resident,
            by_keys,
            units: summaries.iter().map(unit).collect(),
            leases: summaries,
            more_units: more_summaries,
            length: tokens,
        })
    }

    /// The units that stand for the sealed blocks when they are scored: none for the oracle, which
    /// reads the keys themselves.
    pub(super) fn scored_units(&self) -> Arc<[SummaryIdx]> {
        if self.by_keys { Arc::new([]) } else { Arc::clone(&self.units) }
    }

    /// Opens blocks for the newest token and `drafted` rows behind it.
    fn make_room(&self, drafted: usize) {
        let wanted = kv::blocks_for(self.length + drafted);
        let mut state = self.resident.lock();
        while (state.blocks() as usize) < wanted {
            state.open();
        }
    }

    fn seal_oldest(&mut self, place: &mut Place<'_, D>) -> Result<(), KeepError> {
        let index = u32::try_from(self.leases.len()).expect("contexts are below 2^32 tokens");
        let slots = self.resident.slots_of(index);
        let lease = self.more_units.take().expect("summaries of the final length were reserved");
        let summaries = place.summaries.expect("a sparse sequence was admitted");
        let launch = Summarise { from: &slots, to: &[unit(&lease)] };
        let device = place.memory.device();
        device.summarise(place.stream, place.memory.slots(), summaries.units(), launch);
        device.synchronise(place.stream)?;
        let mut copied = Ok(());
        self.resident.backing().keep(BlockIdx(index), &mut |slices| {
            copied = place.memory.gather(&slots, slices);
        })?;
        copied?;
        self.leases.push(lease);
        self.units = self.leases.iter().map(unit).collect();
        Ok(())
    }
}
