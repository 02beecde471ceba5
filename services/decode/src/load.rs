//! Brings a prompt's blocks onto the device, in order: fetched from the nearest copy, verified,
//! scattered into the session's slots.
//!
//! One task per session. It owns the block table while it fills and gives it up, full, to the
//! engine; dropping it frees everything.

use std::sync::Arc;

use engine::DeviceKv;
use ids::{BLOCK_TOKENS, ByteCount, Tier};
use kernels::HostDevice;
use kv::{BlockTable, SlotReservation};
use session::{Event, Moved, Prompt, SealedBlock};
use tiers::{FetchBlock, FetchedBlock, Fetcher, Source};
use tokio::sync::{mpsc, oneshot};

/// Blocks fetched together: they are in the landing slab at the same time.
pub(crate) const BLOCKS_PER_FETCH: usize = 16;

/// What a loader is told.
pub(crate) enum Order {
    /// Bring these, behind those before.
    Fetch(Vec<SealedBlock>),
    /// Give up the table.
    Finish(oneshot::Sender<(BlockTable, SlotReservation)>),
}

/// One session's loader.
pub(crate) struct Loader {
    pub(crate) fetcher: Arc<Fetcher>,
    pub(crate) memory: DeviceKv<HostDevice>,
    pub(crate) prompt: Prompt,
    /// Prefill host first, then the homes.
    pub(crate) sources: Vec<Source>,
    pub(crate) reservation: SlotReservation,
    pub(crate) events: mpsc::Sender<Event>,
}

impl Loader {
    /// Obeys until it is told to finish, or fails; a failure is an event.
    pub(crate) async fn run(mut self, mut orders: mpsc::Receiver<Order>) {
        let mut table = BlockTable::new(self.memory.shape());
        while let Some(order) = orders.recv().await {
            let blocks = match order {
                Order::Fetch(blocks) => blocks,
                Order::Finish(to) => {
                    // If the session ended meanwhile, the table goes with the message.
                    drop(to.send((table, self.reservation)));
                    return;
                }
            };
            for blocks in blocks.chunks(BLOCKS_PER_FETCH) {
                table = match self.bring(table, blocks).await {
                    Ok(table) => table,
                    Err(detail) => {
                        drop(self.events.send(Event::FetchFailed { detail }).await);
                        return;
                    }
                };
            }
        }
    }

    async fn bring(
        &mut self,
        table: BlockTable,
        blocks: &[SealedBlock],
    ) -> Result<BlockTable, String> {
        let wanted: Vec<FetchBlock> = blocks
            .iter()
            .map(|block| FetchBlock {
                receipt: block.receipt.clone(),
                at: Some(Arc::clone(&block.at)),
            })
            .collect();
        let fetched = self.fetcher.fetch(&wanted, &self.sources).await;
        let fetched = fetched.map_err(|error| error.to_string())?;
        let arrived: Vec<Event> = fetched.iter().map(|block| self.arrived(block)).collect();
        let table = self.load(table, fetched).await?;
        for event in arrived {
            if self.events.send(event).await.is_err() {
                return Err("the session has ended".to_owned());
            }
        }
        Ok(table)
    }

    fn arrived(&self, block: &FetchedBlock) -> Event {
        let bytes = ByteCount((block.slices.len() * self.memory.slot_bytes()) as u64);
        Event::Resident {
            index: block.receipt.index,
            moved: vec![
                Moved { from: block.from, to: Tier::DecodeHost, bytes },
                Moved { from: Tier::DecodeHost, to: Tier::Device, bytes },
            ],
            replica: block.replica,
        }
    }

    /// Scatters into device slots, off the runtime's threads: a block is thousands of copies.
    async fn load(
        &mut self,
        mut table: BlockTable,
        blocks: Vec<FetchedBlock>,
    ) -> Result<BlockTable, String> {
        let memory = self.memory.clone();
        let rest = self.reservation.left();
        let reservation = self.reservation.split(rest);
        let mut reservation = reservation.expect("all that is left can be split off");
        let tokens = Arc::clone(&self.prompt.tokens);
        let loading = tokio::task::spawn_blocking(move || {
            for block in blocks {
                let start = block.receipt.index.index() * BLOCK_TOKENS;
                let tokens = &tokens[start..];
                let loaded = match tokens.first_chunk::<BLOCK_TOKENS>() {
                    Some(tokens) => memory.load_sealed(
                        &mut table,
                        &mut reservation,
                        (block.receipt.key, tokens),
                        &block.slices,
                    ),
                    None => memory.load_open(&mut table, &mut reservation, tokens, &block.slices),
                };
                loaded.map_err(|error| error.to_string())?;
            }
            Ok::<_, String>((table, reservation))
        });
        let (table, reservation) = loading.await.map_err(|error| error.to_string())??;
        self.reservation = reservation;
        Ok(table)
    }
}
