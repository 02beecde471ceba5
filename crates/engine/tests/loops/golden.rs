//! The whole path on the real model: greedy tokens against the committed reference.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ids::TokenId;
use model::{LoadOptions, Model};

use super::world::{Bounds, World, device, greedy};

/// Below this distance between the two best logits of the reference, rounding may choose.
const NEAR_TIE: f64 = 0.15;

/// `OASISKV_TEST_MODEL`, else where the product's cache has the default model.
fn model_file() -> Option<PathBuf> {
    let cache = || {
        let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
        let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let file = "oasiskv/models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf";
        Some(base.or_else(home)?.join(file)).filter(|path| path.exists())
    };
    let named = std::env::var_os("OASISKV_TEST_MODEL").map(PathBuf::from);
    let found = named.or_else(cache);
    if found.is_none() {
        println!("SKIPPED no model file");
    }
    found
}

fn numbers(value: &serde_json::Value) -> Vec<u32> {
    let number = |n: &serde_json::Value| u32::try_from(n.as_u64().unwrap()).unwrap();
    value.as_array().unwrap().iter().map(number).collect()
}

#[tokio::test]
async fn greedy_text_of_the_real_model_equals_the_reference_up_to_near_ties() {
    let Some(path) = model_file() else { return };
    let checkpoint = checkpoint::Checkpoint::open(&path).unwrap();
    let model = Arc::new(Model::load(&checkpoint, &device(), LoadOptions::default()).unwrap());
    let bounds = Bounds { tokens: 2048, ..Bounds::default() };
    let world = World::new(&model, bounds);
    let file = "../../integration-tests/goldens/greedy.json";
    let text = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
    let golden: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let (mut same, mut all) = (0, 0);
    for case in golden["prompts"].as_array().unwrap() {
        let tokens: Arc<[TokenId]> =
            numbers(&case["prompt_ids"]).into_iter().map(TokenId).collect();
        let expected = numbers(&case["new_ids"]);
        let gaps: Vec<f64> =
            case["gap"].as_array().unwrap().iter().map(|gap| gap.as_f64().unwrap()).collect();
        let computed = world.compute(&tokens, &[]).await;
        let mut generation = greedy(u32::try_from(expected.len()).unwrap());
        generation.digest_logits = false;
        let drawn = world.draw(&computed, generation).await;
        let pairs = drawn.tokens.iter().zip(&expected);
        let equal = pairs.take_while(|(ours, theirs)| ours == theirs).count();
        if equal < expected.len() {
            let gap = gaps[equal];
            assert!(gap < NEAR_TIE, "{}: token {equal} differs, gap {gap}", case["name"]);
        }
        same += equal;
        all += expected.len();
    }
    println!("{same} of {all} tokens before the first near tie that went the other way");
    assert!(same * 2 >= all, "{same} of {all}");
}
