//! P4: who is slow to read sits out, and nobody else waits for it. And how sequences end.

use std::sync::Arc;

use session::Finish;

use super::world::{Bounds, World, drawn, greedy, prompt, tiny, until};

#[tokio::test]
async fn p4_a_slow_reader_sits_out_while_others_go_on_and_gets_every_token_in_the_end() {
    let world = World::new(&tiny(), Bounds { unread: 4, ..Bounds::default() });
    let computed = world.compute(&prompt(1, 33), &[]).await;
    let alone = world.draw(&computed, greedy(50)).await;
    let mut slow = world.admit(&computed, greedy(50)).unwrap();
    assert_eq!(world.draw(&computed, greedy(50)).await, alone);
    until("the slow one is all that is left", || world.decode.state().running == 1).await;
    let looked = world.decode.state().turns;
    until("the loop looks again while every reader is slow", || {
        world.decode.state().turns > looked + 2
    })
    .await;
    assert_eq!(drawn(&mut slow).await, alone);
    drop((slow, computed));
    world.quiet().await;
}

#[tokio::test]
async fn p4_slow_readers_do_not_keep_the_places_of_a_full_batch() {
    let bounds = Bounds { batch: 2, unread: 1, ..Bounds::default() };
    let world = World::new(&tiny(), bounds);
    let computed = world.compute(&prompt(1, 20), &[]).await;
    let alone = world.draw(&computed, greedy(30)).await;
    let admit = || world.admit(&computed, greedy(30)).unwrap();
    let mut slow = [admit(), admit(), admit()];
    assert_eq!(world.draw(&computed, greedy(30)).await, alone);
    for handle in &mut slow {
        assert_eq!(drawn(handle).await, alone);
    }
    drop((slow, computed));
    world.quiet().await;
}

#[tokio::test]
async fn sequences_end_at_their_limit_or_at_a_stop_token_that_is_not_part_of_the_text() {
    let world = World::new(&tiny(), Bounds::default());
    let computed = world.compute(&prompt(1, 48), &[]).await;
    let free = world.draw(&computed, greedy(20)).await;
    let one = world.draw(&computed, greedy(1)).await;
    assert_eq!((one.tokens.len(), one.sampled, one.finish), (1, 1, Finish::Length));
    for stop in [0, 5] {
        let token = ids::TokenId(free.tokens[stop]);
        let first = free.tokens.iter().position(|other| *other == token.0).unwrap();
        let mut generation = greedy(20);
        generation.stop_tokens = Arc::new([token]);
        let stopped = world.draw(&computed, generation).await;
        assert_eq!(stopped.tokens, free.tokens[..first]);
        assert_eq!(stopped.finish, Finish::Stop);
        assert_eq!(stopped.sampled as usize, first + 1);
    }
}

#[tokio::test]
async fn p4_work_beyond_the_bound_is_refused_at_once_and_keeps_nothing() {
    let bounds = Bounds { batch: 1, unread: 1, waiting: 2, active: 1, ..Bounds::default() };
    let world = World::new(&tiny(), bounds);
    let computed = world.compute(&prompt(1, 20), &[]).await;
    let mut taken = Vec::new();
    let refused = loop {
        match world.admit(&computed, greedy(400)) {
            Ok(handle) => taken.push(handle),
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused, engine::SubmitError::Full { waiting: 2 });
    assert!((2..=3).contains(&taken.len()), "{} were taken", taken.len());
    drop((taken, computed));
    world.quiet().await;
}
