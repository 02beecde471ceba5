//! P7: work that contradicts itself is refused by the name of what is wrong, and never ends the
//! process.

use std::sync::Arc;

use engine::{Admission, PrefillJob, SubmitError};
use ids::TokenId;

use super::world::{Bounds, World, greedy, none, prompt, tiny};

fn field<T>(answer: Result<T, SubmitError>) -> &'static str {
    match answer {
        Err(SubmitError::Unfit { field, .. }) => field,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was taken"),
    }
}

#[tokio::test]
async fn p7_a_prompt_that_cannot_be_computed_is_refused_by_the_name_of_what_is_wrong() {
    let world = World::new(&tiny(), Bounds::default());
    let computed = world.compute(&prompt(1, 64), &[]).await;
    let check = |wrong: &dyn Fn(&mut PrefillJob), expected: &str| {
        let mut job = world.job(&prompt(1, 64), &[]);
        wrong(&mut job);
        assert_eq!(field(world.prefill.submit(job)), expected);
    };
    check(&|job| job.tokens = Arc::new([]), "tokens");
    check(&|job| job.tokens = Arc::new([TokenId(96)]), "tokens");
    check(&|job| job.tokens = prompt(1, 513), "tokens");
    check(&|job| job.tokens = prompt(1, 65), "reservation");
    check(&|job| job.host = none(), "host");
    check(&|job| job.cached = computed.sealed.clone(), "cached");
    drop(computed);
    world.quiet().await;
}

#[tokio::test]
async fn p7_a_sequence_that_cannot_be_run_is_refused_by_the_name_of_what_is_wrong() {
    let world = World::new(&tiny(), Bounds::default());
    let computed = world.compute(&prompt(1, 40), &[]).await;
    let check = |wrong: &dyn Fn(&mut Admission), expected: &str| {
        let mut admission = world.admission(&computed, greedy(20));
        wrong(&mut admission);
        assert_eq!(field(world.decode.admit(admission)), expected);
    };
    check(&|it| it.last_hidden = Arc::new([0.0; 127]), "last_hidden");
    check(&|it| it.last_hidden = Arc::new([]), "last_hidden");
    check(&|it| it.tokens = prompt(1, 41), "table");
    check(&|it| it.tokens = Arc::new([]), "tokens");
    check(&|it| it.generation.max_tokens = 0, "max_tokens");
    check(&|it| it.generation.max_tokens = 474, "max_tokens");
    check(&|it| it.generation.max_tokens = u32::MAX, "max_tokens");
    check(&|it| it.generation.max_tokens = 42, "reservation");
    drop(computed);
    world.quiet().await;
}

#[tokio::test]
async fn p2_numbers_that_are_none_end_their_own_sequence_only() {
    let world = World::new(&tiny(), Bounds::default());
    let computed = world.compute(&prompt(1, 40), &[]).await;
    let alone = world.draw(&computed, greedy(20)).await;
    let mut admission = world.admission(&computed, greedy(20));
    admission.last_hidden = vec![f32::NAN; 128].into();
    let mut wrong = world.decode.admit(admission).unwrap();
    assert_eq!(world.draw(&computed, greedy(20)).await, alone);
    let item = super::world::next(&mut wrong).await;
    assert!(matches!(item, Some(engine::DecodeItem::Failed { .. })), "{item:?}");
}
