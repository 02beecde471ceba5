//! What one session holds in a store, and what a request would add to it.
//!
//! Charges are counted here; memory is the store's.

use std::collections::{BTreeSet, HashMap};

use ids::BlockKey;

use super::PlaceRefused;
use remote::{BlockReceipt, Copies, CopyKey, Landing, SliceRef};

/// What one session holds here.
pub(super) struct Holding<F, S> {
    /// What it was promised.
    pub(super) reserved: u32,
    /// What it uses: slices landing, being verified and pinned. Never above `reserved`.
    pub(super) used: u32,
    pub(super) landing: Landing<F>,
    /// Kept blocks that it pins.
    pub(super) pins: BTreeSet<CopyKey>,
    /// Slots of its pinned blocks by number: the generation that is right, and the guard. Looked
    /// up once per slice read, never walked.
    pub(super) readable: HashMap<u32, (u32, S)>,
}

/// What placing some blocks takes, found out before anything changes.
#[derive(Default)]
pub(super) struct Survey {
    /// To be written here.
    pub(super) fresh: Vec<BlockReceipt>,
    /// Here already.
    pub(super) held: Vec<BlockKey>,
    /// Of those, the ones that the session has not pinned yet.
    pub(super) to_pin: Vec<CopyKey>,
}

pub(super) fn survey<F, S>(
    copies: &Copies<S>,
    holding: &Holding<F, S>,
    receipts: Vec<BlockReceipt>,
) -> Result<Survey, PlaceRefused> {
    let (mut survey, mut seen, mut wanted) = (Survey::default(), BTreeSet::new(), 0);
    let mut left = (holding.reserved - holding.used) as usize;
    for receipt in receipts {
        let (key, at) = (receipt.key, (receipt.key, receipt.shard));
        if !seen.insert(at) {
            return Err(PlaceRefused::Twice { key });
        }
        let Some(copy) = copies.get(at) else {
            wanted += receipt.checksums.len();
            // Begun anew, so what it uses now will be given back.
            let former = holding.landing.find(key, receipt.shard);
            left += former.map_or(0, |former| former.slices.len());
            survey.fresh.push(receipt);
            continue;
        };
        if copy.receipt.checksums != receipt.checksums {
            return Err(PlaceRefused::Conflict { key });
        }
        survey.held.push(key);
        if !holding.pins.contains(&at) {
            wanted += receipt.checksums.len();
            survey.to_pin.push(at);
        }
    }
    if wanted > left {
        return Err(PlaceRefused::OverReservation { wanted, left });
    }
    Ok(survey)
}

pub(super) fn count_of(slices: usize) -> u32 {
    u32::try_from(slices).expect("no more slices than slots, which are counted in u32")
}

/// Pins a kept block and charges the session for it.
pub(super) fn pin<F, S: Clone>(
    copies: &mut Copies<S>,
    holding: &mut Holding<F, S>,
    at: CopyKey,
    place: impl Fn(&S) -> SliceRef,
) {
    if copies.pin(at) {
        let slices = note_pin(copies, holding, at, place);
        holding.used += count_of(slices);
    }
}

/// Makes a pinned block readable for the session; returns its number of slices.
pub(super) fn note_pin<F, S: Clone>(
    copies: &Copies<S>,
    holding: &mut Holding<F, S>,
    at: CopyKey,
    place: impl Fn(&S) -> SliceRef,
) -> usize {
    let Some(copy) = copies.get(at) else {
        return 0;
    };
    holding.pins.insert(at);
    for slot in copy.slices.iter() {
        let SliceRef { slot: index, generation } = place(slot);
        holding.readable.insert(index, (generation, slot.clone()));
    }
    copy.slices.len()
}

/// Undoes [`pin`].
pub(super) fn unpin<F, S: Clone>(
    copies: &mut Copies<S>,
    holding: &mut Holding<F, S>,
    at: CopyKey,
    place: impl Fn(&S) -> SliceRef,
) {
    if let Some(copy) = copies.get(at) {
        for slot in copy.slices.iter() {
            holding.readable.remove(&place(slot).slot);
        }
        holding.used -= count_of(copy.slices.len());
    }
    holding.pins.remove(&at);
    copies.unpin(at);
}
