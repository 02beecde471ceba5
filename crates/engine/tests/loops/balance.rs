//! P6, cases 31 and 32: random schedules of work and cancels end with nothing held.

use std::sync::Arc;

use super::world::{Bounds, Computed, Drawn, World, drawn, greedy, next, outputs_of, prompt, tiny};
use super::writer::Random;

const LENGTHS: [usize; 4] = [1, 30, 64, 111];
const MAX_TOKENS: u32 = 24;

/// Prompts, and what each draws alone.
async fn expected(world: &World) -> Vec<(Computed, Drawn)> {
    let mut all = Vec::new();
    for length in LENGTHS {
        let computed = world.compute(&prompt(length as u64, length), &[]).await;
        let alone = world.draw(&computed, greedy(MAX_TOKENS)).await;
        all.push((computed, alone));
    }
    all
}

/// One schedule: ten acts, then everything that still lives is read to its end.
async fn schedule(world: &World, expected: &[(Computed, Drawn)], seed: u64) {
    let mut random = Random(seed);
    let mut pick = |n: usize| usize::try_from(random.next() % n as u64).unwrap();
    let mut prompts = Vec::new();
    let mut sequences = Vec::new();
    for _ in 0..10 {
        match pick(6) {
            0 | 1 => {
                let at = pick(expected.len());
                let tokens = &expected[at].0.tokens;
                let job = world.job(tokens, &[]);
                prompts.extend(world.prefill.submit(job).map(|outputs| (at, outputs)));
            }
            2 | 3 => {
                let at = pick(expected.len());
                let admitted = world.admit(&expected[at].0, greedy(MAX_TOKENS));
                sequences.extend(admitted.map(|handle| (at, handle, Vec::new())));
            }
            4 if !prompts.is_empty() => drop(prompts.swap_remove(pick(prompts.len()))),
            5 if !sequences.is_empty() => {
                let at = pick(sequences.len());
                if pick(2) == 0 {
                    drop(sequences.swap_remove(at));
                } else if let Some(engine::DecodeItem::Token { token, .. }) =
                    next(&mut sequences[at].1).await
                {
                    sequences[at].2.push(token.0);
                }
            }
            _ => {}
        }
    }
    for (at, outputs) in prompts {
        let (_, end) = outputs_of(outputs).await;
        let hidden = &expected[at].0.end.last_hidden;
        assert_eq!(&end.unwrap().last_hidden, hidden, "seed {seed}");
    }
    for (at, mut handle, mut tokens) in sequences {
        let rest = drawn(&mut handle).await;
        tokens.extend(&rest.tokens);
        let whole = Drawn { tokens, ..rest };
        assert_eq!(whole, expected[at].1, "seed {seed}");
    }
}

#[tokio::test]
async fn case_31_a_hundred_random_schedules_end_with_every_slot_free_and_the_right_tokens() {
    let model = tiny();
    let bounds = Bounds { batch: 3, active: 2, chunk: 16, unread: 3, ..Bounds::default() };
    let world = World::new(&model, bounds);
    // Held in the slab of another world, so that this one's can be empty.
    let other = World::new(&model, Bounds::default());
    let expected = Arc::new(expected(&other).await);
    for seed in 0..100 {
        schedule(&world, &expected, seed).await;
        world.quiet().await;
    }
}
