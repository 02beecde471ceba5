//! qwen2.5-coder-0.5b in Q4_K_M, that is Q4_K, Q5_0, Q6_K and Q8_0 in one file, against the
//! committed reference (transformers, float32, on the dequantised weights). Needs the file that
//! integration-tests/fetch-qwen.sh fetches, its path in `OASISKV_TEST_QWEN`; makes no small models.

use checkpoint::Checkpoint;

use super::golden::{Top, arg_max, floats, folder, kl_of_top};
use super::host::{device, load};
use super::runner::Runner;

struct Golden {
    /// Of the text and of the prompt.
    text: Vec<u32>,
    prompt: Vec<u32>,
    /// What follows the prompt when the best token is always taken.
    continuation: Vec<u32>,
    /// How many of the largest logits are known.
    top: usize,
    ids: Vec<usize>,
    values: Vec<f64>,
    lse: Vec<f64>,
}

impl Golden {
    fn read() -> Self {
        let text = std::fs::read_to_string(folder().join("qwen.json")).unwrap();
        let head: serde_json::Value = serde_json::from_str(&text).unwrap();
        let number = |value: &serde_json::Value| u32::try_from(value.as_u64().unwrap()).unwrap();
        let numbers = |name: &str| head[name].as_array().unwrap().iter().map(number).collect();
        let lse = head["lse"].as_array().unwrap().iter();
        let ids = std::fs::read(folder().join("qwen_top_ids.u32")).unwrap();
        let ids = ids.as_chunks().0.iter();
        Self {
            text: numbers("token_ids"),
            prompt: numbers("prompt_ids"),
            continuation: numbers("new_ids"),
            top: number(&head["top_k"]) as usize,
            ids: ids.map(|id| u32::from_le_bytes(*id) as usize).collect(),
            values: floats("qwen_top_values.f32"),
            lse: lse.map(|value| value.as_f64().unwrap()).collect(),
        }
    }
}

fn widened(logits: Vec<f32>) -> Vec<f64> {
    logits.into_iter().map(f64::from).collect()
}

#[test]
#[ignore = "long"]
fn k_quants_of_qwen2_give_the_logits_and_the_answer_of_an_independent_implementation() {
    let Some(path) = std::env::var_os("OASISKV_TEST_QWEN") else {
        println!("SKIPPED OASISKV_TEST_QWEN names no file, see integration-tests/fetch-qwen.sh");
        return;
    };
    let checkpoint = Checkpoint::open(path.as_ref()).unwrap();
    let golden = Golden::read();
    let mut runner = Runner::new(load(&checkpoint, &device(2, None)), 256, 64);
    let mut sequence = runner.sequence(64);
    runner.step(&mut [(&mut sequence, &golden.text)]);
    let (mut same, mut kl) = (0, 0.0);
    for position in 0..golden.text.len() {
        let at = position * golden.top..(position + 1) * golden.top;
        let theirs = Top {
            ids: &golden.ids[at.clone()],
            values: &golden.values[at],
            lse: golden.lse[position],
        };
        let ours = widened(runner.logits(position));
        same += usize::from(arg_max(&ours) == theirs.ids[0]);
        kl += kl_of_top(&theirs, &ours);
    }
    let positions = golden.text.len();
    let mean = kl / positions as f64;
    println!("top-1 equal at {same} of {positions} positions; mean KL {mean:e}");
    assert!(mean <= 1e-3, "mean KL {mean:e}");
    assert!(same * 100 >= positions * 98, "top-1 equal at {same} only");

    let mut sequence = runner.sequence(128);
    runner.step(&mut [(&mut sequence, &golden.prompt)]);
    let mut row = golden.prompt.len() - 1;
    for (at, expected) in golden.continuation.iter().enumerate() {
        let chosen = u32::try_from(arg_max(&widened(runner.logits(row)))).unwrap();
        assert_eq!(chosen, *expected, "token {at} of the answer");
        runner.step(&mut [(&mut sequence, &[chosen])]);
        row = 0;
    }
}
