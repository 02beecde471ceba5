//! Runs sequences on a model the way an engine does: leased slots, block tables, steps.

use ids::{Position, TokenId};
use kernels::{Device as _, HostDevice, SlotArena, SlotShape};
use kv::{BlockTable, SlotPool, SlotReservation, blocks_for};
use model::{Dense, Model, Row, Scratch, ScratchShape, Step};

/// A model with KV memory and working memory.
pub(crate) struct Runner {
    pub(crate) model: Model<HostDevice>,
    pub(crate) scratch: Scratch<HostDevice>,
    pub(crate) arena: SlotArena,
    pool: SlotPool,
}

/// Tokens whose KV is in the arena.
pub(crate) struct Sequence {
    pub(crate) blocks: BlockTable,
    reservation: SlotReservation,
}

impl Sequence {
    pub(crate) fn len(&self) -> usize {
        self.blocks.token_count()
    }
}

impl Runner {
    /// Room for so many tokens and for steps of so many rows.
    pub(crate) fn new(model: Model<HostDevice>, tokens: usize, rows: usize) -> Self {
        let spec = *model.spec();
        let slots = blocks_for(tokens) * spec.slices_per_block();
        let slots = u32::try_from(slots).unwrap();
        let head_dim = usize::from(spec.head_dim);
        let arena = model.device().slots(SlotShape { head_dim, count: slots }).unwrap();
        assert_eq!(arena.slot_bytes(), spec.slice_bytes());
        let scratch = model.scratch(ScratchShape { rows, logit_rows: 32 }).unwrap();
        Self { model, scratch, arena, pool: SlotPool::new(slots) }
    }

    /// An empty sequence with the right to slots for so many tokens.
    pub(crate) fn sequence(&self, tokens: usize) -> Sequence {
        let shape = self.model.spec().shape();
        let slots = u32::try_from(blocks_for(tokens) * shape.slices()).unwrap();
        Sequence {
            blocks: BlockTable::new(shape),
            reservation: self.pool.try_reserve(slots).unwrap(),
        }
    }

    /// Appends tokens to each sequence and runs them all in one step.
    pub(crate) fn step(&mut self, work: &mut [(&mut Sequence, &[u32])]) {
        let mut rows = Vec::new();
        for (index, (sequence, tokens)) in work.iter_mut().enumerate() {
            let start = append(sequence, tokens);
            rows.extend(tokens.iter().enumerate().map(|(at, token)| Row {
                token: TokenId(*token),
                position: Position(u32::try_from(start + at).unwrap()),
                sequence: index,
            }));
        }
        let tables: Vec<&BlockTable> = work.iter().map(|(sequence, _)| &sequence.blocks).collect();
        let step = Step { rows: &rows, slots: &self.arena, stop: &|| false };
        self.model.forward(&mut self.scratch, &step, &mut Dense(&tables)).unwrap();
    }

    /// Hidden state of one row of the last step, as bits.
    pub(crate) fn hidden(&mut self, row: usize) -> Vec<f32> {
        let mut out = Vec::new();
        self.scratch.read_hidden(row, &mut out).unwrap();
        out
    }

    /// Logits of one row of the last step.
    pub(crate) fn logits(&mut self, row: usize) -> Vec<f32> {
        self.model.logits_of_rows(&mut self.scratch, &[u32::try_from(row).unwrap()]);
        let mut out = Vec::new();
        self.scratch.read_logits(&mut out).unwrap();
        out
    }

    /// All slices of the first `blocks` blocks, block by block in the shape's order.
    pub(crate) fn gather(&mut self, sequence: &Sequence, blocks: usize) -> Vec<u8> {
        let ids = slots(sequence, 0..blocks);
        let mut out = vec![0; ids.len() * self.arena.slot_bytes()];
        let device = self.model.device().clone();
        device.gather(self.scratch.stream(), &self.arena, &ids, &mut out).unwrap();
        out
    }

    /// Gives an empty sequence the KV of whole blocks that another runner computed.
    pub(crate) fn scatter(&mut self, sequence: &mut Sequence, tokens: &[u32], slices: &[u8]) {
        append(sequence, tokens);
        let ids = slots(sequence, 0..sequence.blocks.block_count());
        let device = self.model.device().clone();
        device.scatter(self.scratch.stream(), &self.arena, slices, &ids);
    }
}

fn append(sequence: &mut Sequence, tokens: &[u32]) -> usize {
    let start = sequence.len();
    let tokens: Vec<TokenId> = tokens.iter().copied().map(TokenId).collect();
    sequence.blocks.append(&tokens, &mut sequence.reservation).unwrap();
    start
}

fn slots(sequence: &Sequence, blocks: std::ops::Range<usize>) -> Vec<ids::SlotIdx> {
    let filling: Vec<_> = sequence.blocks.filling().collect();
    blocks.flat_map(|block| filling[block].slots().collect::<Vec<_>>()).collect()
}
