//! P6: whoever is cancelled, in whatever phase, gives everything back; then the next one works.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::world::{Bounds, World, greedy, next, outputs_of, prompt, tiny, until};

/// One place in each batch.
fn narrow() -> World {
    let bounds = Bounds { active: 1, batch: 1, chunk: 16, unread: 2, ..Bounds::default() };
    World::new(&tiny(), bounds)
}

#[tokio::test]
async fn p6_prompts_cancelled_while_they_wait_compute_or_take_turns_free_everything() {
    for active in [1, 3] {
        let bounds = Bounds { active, chunk: 16, ..Bounds::default() };
        let world = World::new(&tiny(), bounds);
        let tokens = prompt(1, 300);
        let mut flags = Vec::new();
        let mut submitted = Vec::new();
        for _ in 0..6 {
            let job = world.job(&tokens, &[]);
            flags.push(Arc::clone(&job.cancelled));
            submitted.push(world.prefill.submit(job).unwrap());
        }
        // Three by their flag, two by dropping the receiver; the last one is computed.
        let last = submitted.pop().unwrap();
        submitted.truncate(3);
        for flag in &flags[..3] {
            flag.store(true, Ordering::Release);
        }
        for outputs in submitted {
            // A cancel may come too late for a prompt; it has an end all the same.
            outputs_of(outputs).await;
        }
        assert!(outputs_of(last).await.1.is_some());
        world.quiet().await;
    }
}

#[tokio::test]
async fn p6_a_prompt_that_waits_behind_a_full_loop_is_free_before_the_loop_has_a_place() {
    let world = narrow();
    let long = world.prefill.submit(world.job(&prompt(1, 512), &[])).unwrap();
    until("the first prompt runs", || world.prefill.state().running == 1).await;
    let before = world.prefill_memory.pool().occupancy();
    let job = world.job(&prompt(2, 200), &[]);
    drop(world.prefill.submit(job).unwrap());
    until("the waiting one is free", || {
        let now = world.prefill_memory.pool().occupancy();
        now.free >= before.free && world.prefill.state().waiting == 0
    })
    .await;
    assert!(outputs_of(long).await.1.is_some());
    world.quiet().await;
}

#[tokio::test]
async fn p6_sequences_cancelled_while_they_wait_run_or_sit_out_free_everything() {
    let world = narrow();
    let computed = world.compute(&prompt(1, 40), &[]).await;
    let alone = world.draw(&computed, greedy(30)).await;
    // The first one runs until its reader is too slow, the others wait for its place.
    let mut running = world.admit(&computed, greedy(400)).unwrap();
    next(&mut running).await.unwrap();
    let total = world.decode_memory.pool().occupancy();
    let waiting = world.admit(&computed, greedy(400)).unwrap();
    let sits_out = world.admit(&computed, greedy(400)).unwrap();
    drop(waiting);
    drop(sits_out);
    until("those that waited are free", || {
        world.decode_memory.pool().occupancy().free == total.free
    })
    .await;
    drop(running);
    assert_eq!(world.draw(&computed, greedy(30)).await, alone);
    drop(computed);
    world.quiet().await;
}

#[tokio::test]
async fn p6_who_hears_of_the_end_can_use_the_memory_at_once() {
    let bounds = Bounds { tokens: 64, ..Bounds::default() };
    let world = World::new(&tiny(), bounds);
    for _ in 0..20 {
        // Each needs all there is, so that the next one fails if anything is still held.
        let computed = world.compute(&prompt(1, 44), &[]).await;
        world.draw(&computed, greedy(20)).await;
        let slots = world.decode_memory.pool().occupancy();
        assert_eq!(slots.free, slots.total);
        let slots = world.prefill_memory.pool().occupancy();
        assert_eq!(slots.free, slots.total);
    }
}

#[tokio::test]
async fn p6_dropping_the_loops_ends_them_with_work_running_and_waiting() {
    let world = narrow();
    let computed = world.compute(&prompt(1, 40), &[]).await;
    let mut prompts = Vec::new();
    for _ in 0..3 {
        prompts.push(world.prefill.submit(world.job(&prompt(2, 512), &[])).unwrap());
    }
    let mut handles = Vec::new();
    for _ in 0..5 {
        handles.push(world.admit(&computed, greedy(100)).unwrap());
    }
    let (prefill, decode) = (world.prefill_memory.clone(), world.decode_memory.clone());
    drop(world);
    for memory in [prefill, decode] {
        let slots = memory.pool().occupancy();
        assert_eq!(slots.free, slots.total);
    }
    for handle in &mut handles {
        while next(handle).await.is_some() {}
    }
}
