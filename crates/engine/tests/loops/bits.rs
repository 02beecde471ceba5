//! P1: what a prompt or a sequence gives is the same however it was cut and in whatever company.

use std::sync::Arc;

use engine::HostBlock;
use ids::TokenId;

use super::world::{Bounds, Computed, World, drawn, greedy, next, prompt, tiny};

/// All that prefill hands over, as bits.
fn bits(prompt: &Computed) -> Vec<Vec<u8>> {
    let block = |block: &HostBlock| {
        let receipt = format!("{:?}", block.receipt).into_bytes();
        let bytes = block.slices.iter().flat_map(|slice| slice.to_vec());
        receipt.into_iter().chain(bytes).collect()
    };
    let hidden = prompt.end.last_hidden.iter();
    let hidden = hidden.flat_map(|value| value.to_bits().to_le_bytes());
    prompt.sealed.iter().chain(&prompt.end.tail).map(block).chain([hidden.collect()]).collect()
}

fn worlds() -> Vec<World> {
    let model = tiny();
    let with = |chunk| World::new(&model, Bounds { chunk, ..Bounds::default() });
    [16, 64, 256].map(with).into()
}

#[tokio::test]
async fn p1_prompts_of_any_length_are_the_same_in_chunks_of_16_64_256_and_behind_a_prefix() {
    let worlds = worlds();
    let lengths = (1..=50).chain([63, 64, 65, 128, 200, 256, 257, 320, 511, 512]);
    for length in lengths {
        let tokens = prompt(3, length);
        let cold = worlds[0].compute(&tokens, &[]).await;
        assert_eq!(cold.sealed.len(), length / 16);
        assert_eq!(cold.end.tail.is_some(), length % 16 > 0);
        for world in &worlds {
            let again = world.compute(&tokens, &[]).await;
            assert_eq!(bits(&again), bits(&cold), "{length} tokens, cold");
            let behind = world.compute(&tokens, &cold.sealed).await;
            assert_eq!(behind.end.cached_blocks, length.saturating_sub(32) / 16);
            assert_eq!(bits(&behind), bits(&cold), "{length} tokens, prefix");
        }
    }
}

#[tokio::test]
async fn p1_a_prompt_is_the_same_beside_others_that_take_turns_with_it() {
    let world = World::new(&tiny(), Bounds { active: 4, chunk: 16, ..Bounds::default() });
    let tokens = prompt(5, 177);
    let alone = world.compute(&tokens, &[]).await;
    let others: Vec<Arc<[TokenId]>> = (0..5).map(|i| prompt(i, 40 + 60 * i as usize)).collect();
    let submitted: Vec<_> =
        others.iter().map(|tokens| world.prefill.submit(world.job(tokens, &[])).unwrap()).collect();
    let among = world.compute(&tokens, &[]).await;
    assert_eq!(bits(&among), bits(&alone));
    drop((submitted, alone, among));
    world.quiet().await;
}

#[tokio::test]
async fn p1_logits_are_the_same_alone_and_among_seven_that_join_and_leave() {
    let world = World::new(&tiny(), Bounds::default());
    for length in [1, 16, 75, 128] {
        let main = world.compute(&prompt(length as u64, length), &[]).await;
        let mut neighbours = Vec::new();
        for i in 1..8usize {
            let tokens = prompt(100 + i as u64, 23 * i);
            neighbours.push(world.compute(&tokens, &[]).await);
        }
        let alone = world.draw(&main, greedy(60)).await;
        assert!(alone.digest.is_some() && alone.tokens.len() == 60);

        let mut handle = world.admit(&main, greedy(60)).unwrap();
        let mut beside = Vec::new();
        for (i, neighbour) in neighbours.iter().enumerate() {
            // Every third leaves in the middle, the others after as many tokens as they may draw.
            let generation = greedy(5 + 7 * u32::try_from(i).unwrap());
            beside.push(world.admit(neighbour, generation).unwrap());
            // The items that are unread here are few enough for the loop to go on.
            if i % 3 == 2 {
                next(&mut beside[i]).await.unwrap();
                beside.remove(0);
                beside.insert(0, world.admit(neighbour, greedy(3)).unwrap());
            }
        }
        let among = drawn(&mut handle).await;
        assert_eq!(among, alone, "{length} tokens");
        drop((handle, beside, main, neighbours));
        world.quiet().await;
    }
}

#[tokio::test]
async fn p1_sequences_behind_a_prefix_hit_draw_the_same() {
    let worlds = worlds();
    let tokens = prompt(9, 207);
    let cold = worlds[0].compute(&tokens, &[]).await;
    let drawn = worlds[0].draw(&cold, greedy(40)).await;
    for world in &worlds {
        let behind = world.compute(&tokens, &cold.sealed).await;
        assert_eq!(world.draw(&behind, greedy(40)).await, drawn);
    }
}
