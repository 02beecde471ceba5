//! Sparse decode and drafts in the loop: P1 whatever the tiers do, and nothing left behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use engine::{
    Admission, Arrival, Backing, BackingError, DecodeItem, HostBacking, PromptKv, SliceAt,
    SparsePrompt, SubmitError,
};
use ids::BlockIdx;
use parking_lot::Mutex;
use session::Generation;
use sparse::Policy;
use transfer::{Slot, SlotMut};

use super::world::{Bounds, Computed, Drawn, World, drawn, greedy, next, prompt, tiny, until};
use super::writer::Random;

/// Slices that arrive late, in another order than they were asked for, or not at all.
struct Slow {
    inner: Arc<HostBacking>,
    random: AtomicU64,
    /// Longest delay.
    micros: u64,
    /// Fetches that succeed; those behind them fail.
    good: AtomicUsize,
}

impl Backing for Slow {
    fn fetch(&self, slices: &[SliceAt], arrival: Arrival) {
        let fine =
            self.good.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        if fine.is_err() {
            let block = slices.first().map(|slice| slice.block);
            return arrival(Err(BackingError { block, detail: "as the test wants".to_owned() }));
        }
        let mut random = Random(self.random.fetch_add(1, Ordering::Relaxed));
        let delay = Duration::from_micros(random.next() % self.micros);
        let (inner, slices) = (Arc::clone(&self.inner), slices.to_vec());
        let late = move || {
            #[expect(clippy::disallowed_methods, reason = "slices come from another thread, late")]
            std::thread::sleep(delay);
            inner.fetch(&slices, arrival);
        };
        std::thread::Builder::new().name("slices".into()).spawn(late).unwrap();
    }

    fn keep(
        &self,
        block: BlockIdx,
        write: &mut dyn FnMut(&mut [SlotMut]),
    ) -> Result<(), transfer::SlabFull> {
        self.inner.keep(block, write)
    }
}

#[derive(Clone, Copy)]
enum Tiers {
    Quick,
    Slow { seed: u64 },
    Failing { seed: u64, good: usize },
}

fn policy(text: &str) -> Policy {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

impl World {
    fn sparse(
        &self,
        prompt: &Computed,
        generation: Generation,
        (policy, tiers): (&Policy, Tiers),
    ) -> Admission {
        let memory = &self.decode_memory;
        let tokens = u32::try_from(prompt.tokens.len()).unwrap();
        let all = tokens + generation.max_tokens;
        let each = Admission::slots_per_column(policy.sparse().unwrap(), tokens, all);
        let slots = each * u32::try_from(memory.shape().slices()).unwrap();
        let units = all.div_ceil(16);
        let mut more_summaries = self.summaries.pool().try_reserve(units).unwrap();
        let device = super::world::device();
        let load = |bytes: &Arc<[u8]>| {
            self.summaries.load(&device, &mut more_summaries, bytes).unwrap().unwrap()
        };
        let summaries = prompt.sealed.iter().map(|block| block.summary.as_ref().unwrap()).map(load);
        let summaries = summaries.collect();
        let blocks: Vec<Arc<[Slot]>> =
            prompt.sealed.iter().map(|block| Arc::clone(&block.slices)).collect();
        let inner = Arc::new(HostBacking::new(memory.shape(), self.slab.clone(), blocks));
        let slow = |seed, good| {
            let (random, good) = (AtomicU64::new(seed), AtomicUsize::new(good));
            Arc::new(Slow { inner: Arc::clone(&inner), random, micros: 700, good })
        };
        let backing: Arc<dyn Backing> = match tiers {
            Tiers::Quick => inner,
            Tiers::Slow { seed } => slow(seed, usize::MAX),
            Tiers::Failing { seed, good } => slow(seed, good),
        };
        let kv = PromptKv::Sparse(Box::new(SparsePrompt {
            slots: memory.pool().try_reserve(slots).unwrap(),
            summaries,
            more_summaries,
            first: prompt.end.first.clone().unwrap(),
            tail: prompt.end.tail.iter().flat_map(|tail| tail.slices.to_vec()).collect(),
            backing,
        }));
        let mut admission = self.admission(prompt, generation);
        (admission.kv, admission.policy) = (kv, policy.clone());
        admission
    }

    async fn draw_sparse(&self, prompt: &Computed, policy: &Policy, tiers: Tiers) -> Drawn {
        let admission = self.sparse(prompt, greedy(60), (policy, tiers));
        drawn(&mut self.decode.admit(admission).unwrap()).await
    }
}

/// Tokens, end and bits; what it cost may differ.
fn result(drawn: &Drawn) -> (&[u32], Option<[u8; 32]>) {
    (&drawn.tokens, drawn.digest)
}

#[tokio::test]
async fn p1_with_room_for_everything_sparse_decode_has_the_bits_of_dense() {
    let world = World::new(&tiny(), Bounds::default());
    for length in [16, 75, 300] {
        let prompt = world.compute(&prompt(7, length), &[]).await;
        let dense = world.draw(&prompt, greedy(60)).await;
        for text in [
            "sparse:v1,budget=512",
            "sparse:v1,budget=512,slack=0,drafts=both,k=4,accept=covered",
            "sparse:v1,predictor=ondemand,budget=400,slack=0,drafts=none",
            "sparse:v1,budget=128,slack=384,drafts=ngram,k=2,accept=always",
        ] {
            let sparse = world.draw_sparse(&prompt, &policy(text), Tiers::Slow { seed: 1 }).await;
            assert_eq!(result(&sparse), result(&dense), "{length} tokens, {text}");
        }
    }
}

/// Policies under which a prompt of some hundred tokens is attended to in part.
fn policies() -> Vec<Policy> {
    let mut texts: Vec<String> =
        ["lookahead", "previous", "history", "ondemand", "window", "oracle"]
            .iter()
            .map(|predictor| format!("predictor={predictor},drafts=none"))
            .collect();
    for drafts in [
        "ngram,k=1,accept=never",
        "self,k=2,accept=covered",
        "both,k=4,accept=covered",
        "both,k=3,accept=always",
    ] {
        texts.push(format!("drafts={drafts}"));
    }
    texts.push("budgets=pooled,drafts=both,k=2,accept=covered".to_owned());
    texts.push("prefetch=0,repair=0,drafts=self,k=1,accept=covered".to_owned());
    let whole = |text| policy(&format!("sparse:v1,budget=128,slack=0,recent=32,guard=off,{text}"));
    texts.iter().map(whole).collect()
}

#[tokio::test]
async fn p1_a_sparse_sequence_is_the_same_in_any_company_and_whatever_the_tiers_do() {
    let model = tiny();
    let quiet = World::new(&model, Bounds::default());
    let chunked = World::new(&model, Bounds { chunk: 16, ..Bounds::default() });
    let tokens = prompt(11, 333);
    let alone = quiet.compute(&tokens, &[]).await;
    let again = chunked.compute(&tokens, &alone.sealed).await;
    let neighbour = chunked.compute(&prompt(12, 150), &[]).await;
    let dense = quiet.draw(&alone, greedy(60)).await;
    for (seed, policy) in policies().into_iter().enumerate() {
        let want = quiet.draw_sparse(&alone, &policy, Tiers::Quick).await;
        assert_ne!(want.digest, dense.digest, "{policy} leaves something out");
        let seed = seed as u64 * 1000;
        let slow = Tiers::Slow { seed };
        let mut own =
            chunked.decode.admit(chunked.sparse(&again, greedy(60), (&policy, slow))).unwrap();
        // One dense, one sparse, both shorter: they leave while it goes on.
        let mut beside = vec![chunked.admit(&neighbour, greedy(9)).unwrap()];
        let other = chunked.sparse(&again, greedy(20), (&policy, Tiers::Slow { seed: seed + 500 }));
        beside.push(chunked.decode.admit(other).unwrap());
        let got = drawn(&mut own).await;
        assert_eq!(result(&got), result(&want), "{policy}");
        assert_eq!(got.usage.quality, want.usage.quality, "{policy}");
        for mut handle in beside {
            drawn(&mut handle).await;
        }
    }
    drop((alone, again, neighbour));
    quiet.quiet().await;
    chunked.quiet().await;
}

#[tokio::test]
async fn p1_drafts_change_no_token_of_dense_decode() {
    let world = World::new(&tiny(), Bounds::default());
    let mut sampled = greedy(80);
    (sampled.sampling.temperature, sampled.sampling.seed) = (1.0, 5);
    for (seed, length) in [(21, 33), (22, 200)] {
        let prompt = world.compute(&prompt(seed, length), &[]).await;
        for generation in [greedy(80), sampled.clone()] {
            let plain = world.draw(&prompt, generation.clone()).await;
            for drafts in ["ngram,k=4", "self,k=1", "self,k=4", "both,k=3"] {
                for accept in ["never", "covered", "always"] {
                    let mut admission = world.admission(&prompt, generation.clone());
                    admission.policy = policy(&format!("dense:v1,drafts={drafts},accept={accept}"));
                    let got = drawn(&mut world.decode.admit(admission).unwrap()).await;
                    assert_eq!(result(&got), result(&plain), "{drafts} {accept}");
                    let (usage, plain) = (&got.usage, &plain.usage);
                    assert!(usage.drafted > 0);
                    assert_eq!(usage.steps + usage.committed, plain.steps, "{drafts} {accept}");
                    assert_eq!(usage.committed > 0, accept != "never" && usage.steps < plain.steps);
                }
            }
        }
    }
}

#[tokio::test]
async fn drafts_that_are_right_save_passes() {
    let world = World::new(&tiny(), Bounds::default());
    // A tiny greedy model comes to repeat itself, and its drafts to be right.
    let prompt = world.compute(&prompt(23, 40), &[]).await;
    let mut admission = world.admission(&prompt, greedy(300));
    admission.policy = policy("dense:v1,drafts=both,k=4,accept=covered");
    let got = drawn(&mut world.decode.admit(admission).unwrap()).await;
    assert!(got.usage.committed > 30, "{:?}", got.usage);
    assert_eq!(got.usage.steps + got.usage.committed, 299);
}

#[tokio::test]
async fn a_fetch_that_fails_ends_its_own_sequence_only() {
    let world = World::new(&tiny(), Bounds::default());
    let prompt = world.compute(&prompt(31, 333), &[]).await;
    let policy = &policies()[0];
    let want = world.draw_sparse(&prompt, policy, Tiers::Quick).await;
    let mut whole = world.decode.admit(world.sparse(&prompt, greedy(60), (policy, Tiers::Quick)));
    let mut drawn_with_logprobs = Vec::new();
    while let Some(DecodeItem::Token { token, logprob }) = next(whole.as_mut().unwrap()).await {
        drawn_with_logprobs.push((token.0, logprob));
    }
    for good in (0..40).step_by(3) {
        let failing = Tiers::Failing { seed: 3, good };
        let bad = world.sparse(&prompt, greedy(60), (policy, failing));
        let mut bad = world.decode.admit(bad).unwrap();
        let other = world.draw_sparse(&prompt, policy, Tiers::Slow { seed: 9 }).await;
        assert_eq!(result(&other), result(&want));
        let mut tokens = Vec::new();
        let detail = loop {
            match next(&mut bad).await {
                Some(DecodeItem::Token { token, logprob }) => tokens.push((token.0, logprob)),
                Some(DecodeItem::Failed { detail }) => break detail,
                other => panic!("{other:?}"),
            }
        };
        assert!(detail.contains("as the test wants"), "{detail}");
        assert_eq!(
            tokens,
            drawn_with_logprobs[..tokens.len()],
            "P2: nothing wrong was sent before"
        );
    }
    drop(prompt);
    world.quiet().await;
}

/// Answers the first fetches, and none behind them while it lives.
struct Silent {
    inner: Arc<HostBacking>,
    good: AtomicUsize,
    kept: Mutex<Vec<Arrival>>,
}

impl Backing for Silent {
    fn fetch(&self, slices: &[SliceAt], arrival: Arrival) {
        let good =
            self.good.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        match good {
            Ok(_) => self.inner.fetch(slices, arrival),
            Err(_) => self.kept.lock().push(arrival),
        }
    }

    fn keep(
        &self,
        block: BlockIdx,
        write: &mut dyn FnMut(&mut [SlotMut]),
    ) -> Result<(), transfer::SlabFull> {
        self.inner.keep(block, write)
    }
}

#[tokio::test]
async fn p6_a_sequence_that_is_left_is_free_though_its_slices_never_come() {
    let world = World::new(&tiny(), Bounds::default());
    let prompt = world.compute(&prompt(61, 333), &[]).await;
    // Without repair: nothing waits within a step.
    let policy = policy("sparse:v1,budget=128,slack=0,recent=32,guard=off,repair=0,drafts=none");
    let blocks = prompt.sealed.iter().map(|block| Arc::clone(&block.slices)).collect();
    let inner = HostBacking::new(world.decode_memory.shape(), world.slab.clone(), blocks);
    let silent = Arc::new(Silent {
        inner: Arc::new(inner),
        good: AtomicUsize::new(3),
        kept: Mutex::default(),
    });
    let mut admission = world.sparse(&prompt, greedy(60), (&policy, Tiers::Quick));
    let PromptKv::Sparse(kv) = &mut admission.kv else { panic!("it is sparse") };
    kv.backing = Arc::<Silent>::clone(&silent);
    let handle = world.decode.admit(admission).unwrap();
    until("a fetch that is not answered", || !silent.kept.lock().is_empty()).await;
    drop(handle);
    let slots = || world.decode_memory.pool().occupancy();
    until("all slots free", || slots().free == slots().total).await;
    // What comes now is written to nobody's memory.
    let other = world.draw_sparse(&prompt, &policy, Tiers::Quick).await;
    let late = std::mem::take(&mut *silent.kept.lock());
    late.into_iter().for_each(|arrival| {
        arrival(Err(BackingError { block: None, detail: "late".to_owned() }));
    });
    let again = world.draw_sparse(&prompt, &policy, Tiers::Quick).await;
    assert_eq!(result(&again), result(&other));
    drop((prompt, silent));
    world.quiet().await;
}

/// P6, P4: whoever leaves, fails or is slow leaves no slot, no summary and no host slice behind,
/// and a slice that arrives late is written to nobody's memory.
#[tokio::test]
async fn p6_after_200_random_schedules_everything_is_free_and_nobody_was_disturbed() {
    let world = World::new(&tiny(), Bounds { batch: 4, tokens: 2048, ..Bounds::default() });
    let prompt = world.compute(&prompt(41, 333), &[]).await;
    let policies = policies();
    let mut want = Vec::new();
    for policy in &policies {
        want.push(world.draw_sparse(&prompt, policy, Tiers::Quick).await);
    }
    let mut random = Random(77);
    for schedule in 0..200 {
        // Those that were left are freed by the next turn of the loop.
        until("room for three", || world.summaries.pool().occupancy().free >= 3 * 25).await;
        let mut running = Vec::new();
        for _ in 0..1 + random.next() % 3 {
            let which = (random.next() % policies.len() as u64) as usize;
            let seed = random.next() % 1_000_000;
            let tiers = match random.next() % 4 {
                0 => Tiers::Quick,
                1 => Tiers::Failing { seed, good: (random.next() % 40) as usize },
                _ => Tiers::Slow { seed },
            };
            let admission = world.sparse(&prompt, greedy(60), (&policies[which], tiers));
            running.push((which, world.decode.admit(admission).unwrap()));
        }
        for (which, mut handle) in running {
            let leaves_after = random.next() % 80;
            let mut tokens = Vec::new();
            while (tokens.len() as u64) < leaves_after {
                match next(&mut handle).await {
                    Some(DecodeItem::Token { token, .. }) => tokens.push(token.0),
                    _ => break,
                }
            }
            let want = &want[which].tokens[..tokens.len()];
            assert_eq!(tokens, want, "schedule {schedule}, {}", policies[which]);
        }
    }
    drop(prompt);
    world.quiet().await;
}

#[tokio::test]
async fn p7_a_sparse_admission_that_cannot_be_is_refused_by_the_name_of_what_is_wrong() {
    let world = World::new(&tiny(), Bounds::default());
    let prompt = world.compute(&prompt(51, 333), &[]).await;
    let policy = &policies()[0];
    let check = |wrong: &dyn Fn(&mut Admission, &mut SparsePrompt), expected: &str| {
        let mut admission = world.sparse(&prompt, greedy(20), (policy, Tiers::Quick));
        let dense = world.admission(&prompt, greedy(20)).kv;
        let PromptKv::Sparse(mut kv) = std::mem::replace(&mut admission.kv, dense) else {
            panic!("it is sparse");
        };
        wrong(&mut admission, &mut kv);
        admission.kv = PromptKv::Sparse(kv);
        match world.decode.admit(admission) {
            Err(SubmitError::Unfit { field, .. }) => assert_eq!(field, expected),
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("{expected} was taken"),
        }
    };
    check(&|it, _| it.policy = Policy::dense(), "policy");
    check(&|it, _| it.policy = crate::sparse_decode::policy("sparse:v1,summary=int2"), "policy");
    check(&|_, kv| drop(kv.slots.split(1)), "slots");
    check(&|_, kv| drop(kv.summaries.pop()), "summaries");
    check(&|_, kv| drop(kv.more_summaries.split(kv.more_summaries.left())), "more_summaries");
    check(&|_, kv| kv.first = Arc::new([]), "first");
    check(&|_, kv| drop(kv.tail.pop()), "tail");
    drop(prompt);
    world.quiet().await;
}
