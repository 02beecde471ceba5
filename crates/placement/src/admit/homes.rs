//! Which memory nodes get a copy of a prompt's sealed blocks.

use ids::{ByteCount, Moment, NodeId, Role, ShardId, Tier};

use super::times;
use crate::plan::{AdmitRequest, Refused};
use crate::rendezvous::rank;
use crate::view::{Node, Room, View};

/// Most ranges of one plan; half of what a message may carry.
const HOMES_MAX: u32 = 2_048;

/// One range of blocks and its home.
pub(super) struct HomeDraft {
    pub(super) first: u32,
    pub(super) count: u32,
    pub(super) shard: ShardId,
    pub(super) node: NodeId,
    pub(super) bytes: ByteCount,
}

impl View {
    /// Homes for the sealed blocks: one copy beside the prefill host's own, on another host where
    /// one has room, else on another node.
    pub(super) fn homes(
        &self,
        request: &AdmitRequest,
        sealed: u32,
        prefill: &Node,
        now: Moment,
    ) -> Result<Vec<HomeDraft>, Refused> {
        let role = |node: &&Node| node.record.role == Role::Memory;
        let memory = self.nodes.values().filter(role).filter(|node| node.live(now, self.config));
        let mut open: Vec<(&Node, Room)> =
            memory.map(|node| (node, node.room(Tier::Remote))).collect();
        if sealed > 0 && open.is_empty() {
            return Err(self.no_node(Role::Memory, now));
        }
        let shards = u32::from(prefill.record.shards.max(1));
        let block = ByteCount(prefill.record.block_bytes.0.div_ceil(shards.into()).max(1));
        let all = Room {
            free: open.iter().map(|(_, room)| room.free).sum(),
            total: open.iter().map(|(_, room)| room.total).sum(),
        };
        let spread = sealed.saturating_mul(shards).div_ceil(HOMES_MAX);
        let per_home = self.config.blocks_per_home_max.max(spread).max(1);
        let mut homes = Vec::new();
        for shard in 0..prefill.record.shards.max(1) {
            let mut first = 0;
            while first < sealed {
                let wanted = (sealed - first).min(per_home);
                let range = Range { request, index: homes.len(), block, wanted };
                let Some((node, room)) = range.choose(&mut open, prefill) else {
                    let bytes = times(times(block, shards), sealed);
                    return Err(self.short(Tier::Remote, bytes, all));
                };
                let count = u32::try_from(room.free.0 / block.0).unwrap_or(u32::MAX).min(wanted);
                let bytes = times(block, count);
                room.free = room.free.saturating_sub(bytes);
                let node = node.record.id.clone();
                homes.push(HomeDraft { first, count, shard: ShardId(shard), node, bytes });
                first += count;
            }
        }
        Ok(homes)
    }
}

/// A range of blocks that needs a home.
#[derive(Clone, Copy)]
struct Range<'a> {
    request: &'a AdmitRequest,
    /// Which range of the request.
    index: usize,
    /// Bytes of one block of the shard.
    block: ByteCount,
    /// Blocks that would be best.
    wanted: u32,
}

impl Range<'_> {
    /// Of two nodes that the range ranks first, the one with more free bytes.
    ///
    /// Two choices balance almost as well as looking at all, and no node, however empty it just
    /// came back, draws more than twice its share (case 11). Nodes on another host than prefill
    /// come first, nodes that fit the whole range before those that fit a part of it. `None` when
    /// not one block fits anywhere.
    fn choose<'n, 'o>(
        self,
        open: &'o mut [(&'n Node, Room)],
        prefill: &Node,
    ) -> Option<(&'n Node, &'o mut Room)> {
        let whole = times(self.block, self.wanted);
        let index = u32::try_from(self.index).unwrap_or(u32::MAX).saturating_add(2);
        let wishes = [(true, whole), (false, whole), (true, self.block), (false, self.block)];
        let at = wishes.into_iter().find_map(|(elsewhere, least)| {
            let fits = |(_, (node, room)): &(usize, &(&Node, Room))| {
                let apart = node.record.host != prefill.record.host;
                (apart || !elsewhere) && room.free >= least
            };
            let ranked = open.iter().enumerate().filter(fits).map(|(at, (node, room))| {
                (rank(self.request.session, index, &node.record.id), room.free, at)
            });
            let mut ranked: Vec<(u64, ByteCount, usize)> = ranked.collect();
            ranked.sort_unstable();
            let best = ranked.into_iter().take(2).max_by_key(|(_, free, at)| (*free, *at));
            best.map(|(_, _, at)| at)
        })?;
        let (node, room) = &mut open[at];
        Some((*node, room))
    }
}
