//! One prompt on its way: load the cached prefix, compute chunk by chunk, seal, hand over.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ids::{BLOCK_TOKENS, BlockIdx, BlockKey, Position, ShardId, SlotIdx, TokenId};
use kernels::{Device, DeviceLost};
use kv::{BlockTable, Shape, SlotReservation};
use model::{Dense, Row, Step, StepError};
use remote::BlockReceipt;
use tokio::sync::mpsc;
use tokio::time::Instant;
use transfer::SlotMut;

use super::window::{Masses, Window};
use super::{CachedBlock, HostBlock, PrefillJob, PrefillOutput, Prefilled, Runner, is_set};
use crate::device::{Chain, DeviceKv, LoadError};

pub(super) enum Progress {
    More,
    Ended,
}

pub(super) struct Job {
    tokens: Arc<[TokenId]>,
    /// Taken by the first chunk.
    cached: Vec<CachedBlock>,
    cached_blocks: usize,
    reservation: SlotReservation,
    /// Empty host slots, the next one to be used last.
    host: Vec<SlotMut>,
    cancelled: Arc<AtomicBool>,
    output: mpsc::Sender<PrefillOutput>,
    chain: Chain,
    /// `None` until the first chunk.
    table: Option<BlockTable>,
    /// Where the first working set is to be scored.
    masses: Option<Masses>,
    submitted: Instant,
    began: Instant,
}

impl Job {
    pub(super) fn new(job: PrefillJob, shape: Shape, output: mpsc::Sender<PrefillOutput>) -> Self {
        let mut host = job.host;
        host.reverse();
        let now = Instant::now();
        Self {
            masses: job.score.then(|| Masses::new(shape, job.tokens.len())),
            tokens: job.tokens,
            cached_blocks: job.cached.len(),
            cached: job.cached,
            reservation: job.reservation,
            host,
            cancelled: job.cancelled,
            output,
            chain: Chain { parent: job.root },
            table: None,
            submitted: now,
            began: now,
        }
    }

    /// Computes the next chunk. Returns the rows computed and whether there is more to do.
    ///
    /// `stop` is asked before every layer, beside whether anybody still waits for the prompt.
    pub(super) fn advance<D: Device>(
        &mut self,
        runner: &mut Runner<D>,
        stop: &dyn Fn() -> bool,
    ) -> (usize, Progress) {
        if self.is_cancelled() {
            return self.give_up();
        }
        let mut table = match self.table.take() {
            Some(table) => table,
            None => match self.load_prefix(&runner.memory) {
                Ok(table) => table,
                Err(error) => return self.fail(&error),
            },
        };
        let start = table.token_count();
        let end = (start + runner.chunk_tokens).min(self.tokens.len());
        let tokens = &self.tokens[start..end];
        table
            .append(tokens, &mut self.reservation)
            .expect("device slots for the whole prompt were reserved");
        let rows: Vec<Row> = (start..)
            .map(|position| u32::try_from(position).expect("contexts are below 2^32 tokens"))
            .zip(tokens)
            .map(|(position, token)| Row {
                token: *token,
                position: Position(position),
                sequence: 0,
            })
            .collect();
        match self.pass(runner, &table, &rows, stop) {
            Ok(()) => {}
            Err(StepError::Stopped { .. }) => return self.give_up(),
            Err(error) => return self.fail(&error),
        }
        let sealed = match self.seal(runner, &mut table) {
            Ok(sealed) => sealed,
            Err(lost) => return self.fail(&lost),
        };
        if !sealed.is_empty() {
            self.send(PrefillOutput::Sealed(sealed));
        }
        if end < self.tokens.len() {
            self.table = Some(table);
            return (rows.len(), Progress::More);
        }
        match self.finish(runner, &table, rows.len() - 1) {
            Ok(done) => {
                // Free before it is told: who hears of the end may count on the memory.
                drop(table);
                drop(self.reservation.split(self.reservation.left()));
                self.send(PrefillOutput::Done(Box::new(done)));
            }
            Err(lost) => return self.fail(&lost),
        }
        (rows.len(), Progress::Ended)
    }

    /// Runs the rows of a chunk; those of the window are scored where that was asked for.
    fn pass<D: Device>(
        &mut self,
        runner: &mut Runner<D>,
        table: &BlockTable,
        rows: &[Row],
        stop: &dyn Fn() -> bool,
    ) -> Result<(), StepError> {
        let Runner { model, memory, scratch, summariser, .. } = runner;
        let (cancelled, output) = (&self.cancelled, &self.output);
        let stop = || stop() || is_set(cancelled) || output.is_closed();
        let step = Step { rows, slots: memory.slots(), stop: &stop };
        match (&mut self.masses, summariser) {
            (Some(masses), Some(summariser)) => {
                let first = rows.first().map_or(0, |row| row.position.0 as usize);
                let desk = summariser.desk();
                model.forward(scratch, &step, &mut Window { table, first, masses, desk })
            }
            _ => model.forward(scratch, &step, &mut Dense(&[table])),
        }
    }

    fn finish<D: Device>(
        &mut self,
        runner: &mut Runner<D>,
        table: &BlockTable,
        last_row: usize,
    ) -> Result<Prefilled, DeviceLost> {
        let mut last_hidden = Vec::new();
        runner.scratch.read_hidden(last_row, &mut last_hidden)?;
        Ok(Prefilled {
            cached_blocks: self.cached_blocks,
            tail: self.tail(&runner.memory, table)?,
            first: self.masses.take().map(|masses| masses.into_values().into()),
            last_hidden: last_hidden.into(),
            queued: (self.began - self.submitted).into(),
            computed: self.began.elapsed().into(),
        })
    }

    /// Whether nobody waits for it any more.
    pub(super) fn is_cancelled(&self) -> bool {
        is_set(&self.cancelled) || self.output.is_closed()
    }

    /// The end of a job that nobody waits for; dropping it frees what it holds.
    pub(super) fn give_up(&self) -> (usize, Progress) {
        self.send(PrefillOutput::Cancelled);
        (0, Progress::Ended)
    }

    fn fail(&mut self, error: &dyn std::error::Error) -> (usize, Progress) {
        self.send(PrefillOutput::Failed { detail: error.to_string() });
        (0, Progress::Ended)
    }

    /// Brings the cached blocks onto the device: the first act of a job.
    fn load_prefix<D: Device>(&mut self, memory: &DeviceKv<D>) -> Result<BlockTable, LoadError> {
        self.began = Instant::now();
        let mut table = BlockTable::new(memory.shape());
        let cached = std::mem::take(&mut self.cached);
        for (block, tokens) in cached.iter().zip(self.tokens.chunks_exact(BLOCK_TOKENS)) {
            let tokens = tokens.try_into().expect("chunks of a block's size");
            let key = self.chain.next(tokens);
            let identity = (key, tokens);
            memory.load_sealed(&mut table, &mut self.reservation, identity, &block.slices)?;
        }
        Ok(table)
    }

    /// Makes every full block immutable: identity, host copy, checksums.
    fn seal<D: Device>(
        &mut self,
        runner: &mut Runner<D>,
        table: &mut BlockTable,
    ) -> Result<Vec<HostBlock>, DeviceLost> {
        let mut sealed = Vec::with_capacity(table.full_count());
        while table.full_count() > 0 {
            let index = table.sealed().len();
            let oldest = table.filling().next().expect("a full block is a filling one");
            let tokens: [TokenId; BLOCK_TOKENS] =
                oldest.tokens().try_into().expect("a full block has 16 tokens");
            let key = self.chain.next(&tokens);
            let block = table.seal_oldest(key).expect("it is full");
            let slots: Vec<SlotIdx> = block.slots().collect();
            let mut block = self.copy_out(&runner.memory, &slots, (key, index, BLOCK_TOKENS))?;
            if let Some(summariser) = &mut runner.summariser {
                block.summary = Some(summariser.bytes_of(&slots)?);
            }
            sealed.push(block);
        }
        Ok(sealed)
    }

    /// The open block as it stands at the end of the prompt.
    fn tail<D: Device>(
        &mut self,
        memory: &DeviceKv<D>,
        table: &BlockTable,
    ) -> Result<Option<HostBlock>, DeviceLost> {
        let Some(open) = table.filling().next() else {
            return Ok(None);
        };
        let slots: Vec<SlotIdx> = open.slots().collect();
        // Not content-addressed: an open block is handed to one session and never shared.
        let key = BlockKey { hash: self.chain.parent, generation: u32::MAX };
        let place = (key, table.sealed().len(), open.tokens().len());
        self.copy_out(memory, &slots, place).map(Some)
    }

    fn copy_out<D: Device>(
        &mut self,
        memory: &DeviceKv<D>,
        slots: &[SlotIdx],
        (key, index, tokens): (BlockKey, usize, usize),
    ) -> Result<HostBlock, DeviceLost> {
        let rest = self.host.len().checked_sub(slots.len());
        let rest = rest.expect("host slots for every block were given with the job");
        let mut targets = self.host.split_off(rest);
        targets.reverse();
        memory.gather(slots, &mut targets)?;
        let checksums = targets.iter().map(|slice| kv::checksum(slice)).collect();
        let receipt = BlockReceipt {
            key,
            index: BlockIdx(u32::try_from(index).expect("contexts are below 2^32 tokens")),
            shard: ShardId(0),
            tokens: u8::try_from(tokens).expect("at most 16"),
            checksums,
        };
        let slices = targets.into_iter().map(SlotMut::seal).collect();
        Ok(HostBlock { receipt, slices, summary: None })
    }

    fn send(&self, output: PrefillOutput) {
        // The channel was made with room for everything; a reader that left cancels the job.
        let _delivered = self.output.try_send(output);
    }
}
