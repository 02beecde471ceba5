//! The same models in plain f64 over dequantised weights, written from the published formulas:
//! what the layer loop is compared with. Keys and values are rounded to 16 bits, as stored.

use half::f16;
use model::Architecture;

use super::tiny::Tiny;
use super::writer::GgufFile;

const EPS: f64 = 1e-5;
const THETA: f64 = 10_000.0;

/// Logits of every position of `tokens`, attended to causally.
pub(crate) fn logits(tiny: &Tiny, file: &GgufFile, tokens: &[u32]) -> Vec<Vec<f64>> {
    let width = tiny.width as usize;
    let embedding = &file.tensor("token_embd.weight").values;
    let row = |token: &u32| {
        let at = *token as usize * width;
        embedding[at..at + width].iter().copied().map(f64::from).collect()
    };
    let mut hidden: Vec<Vec<f64>> = tokens.iter().map(row).collect();
    for layer in 0..tiny.layers {
        attention(tiny, file, layer, &mut hidden);
        feed_forward(file, layer, &mut hidden);
    }
    let output = if tiny.tied { "token_embd.weight" } else { "output.weight" };
    let last = |row: &Vec<f64>| matrix(file, output, &norm(file, "output_norm.weight", row));
    hidden.iter().map(last).collect()
}

fn attention(tiny: &Tiny, file: &GgufFile, layer: u32, hidden: &mut [Vec<f64>]) {
    let name = |part: &str| format!("blk.{layer}.{part}");
    let dim = tiny.head_dim as usize;
    let group = (tiny.heads / tiny.kv_heads) as usize;
    let mut keys: Vec<Vec<f64>> = Vec::new();
    let mut values: Vec<Vec<f64>> = Vec::new();
    for (position, row) in hidden.iter_mut().enumerate() {
        let input = norm(file, &name("attn_norm.weight"), row);
        let project = |part: &str| {
            let mut out = matrix(file, &name(&format!("{part}.weight")), &input);
            if tiny.architecture == Architecture::Qwen2 {
                let bias = &file.tensor(&name(&format!("{part}.bias"))).values;
                for (value, bias) in out.iter_mut().zip(bias) {
                    *value += f64::from(*bias);
                }
            }
            out
        };
        let mut query = project("attn_q");
        let mut key = project("attn_k");
        if tiny.architecture == Architecture::Qwen3 {
            query = head_norm(file, &name("attn_q_norm.weight"), &query);
            key = head_norm(file, &name("attn_k_norm.weight"), &key);
        }
        rotate(tiny, position, &mut query);
        rotate(tiny, position, &mut key);
        keys.push(key.into_iter().map(stored).collect());
        values.push(project("attn_v").into_iter().map(stored).collect());
        let mut mixed = Vec::new();
        for head in 0..tiny.heads as usize {
            let at = head / group * dim;
            let query = &query[head * dim..(head + 1) * dim];
            let scores: Vec<f64> = keys
                .iter()
                .map(|key| dot(query, &key[at..at + dim]) / (dim as f64).sqrt())
                .collect();
            let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let mass: Vec<f64> = scores.iter().map(|score| (score - top).exp()).collect();
            let total: f64 = mass.iter().sum();
            for lane in 0..dim {
                let sum: f64 = mass.iter().zip(&values).map(|(m, v)| m * v[at + lane]).sum();
                mixed.push(sum / total);
            }
        }
        for (value, more) in row.iter_mut().zip(matrix(file, &name("attn_output.weight"), &mixed)) {
            *value += more;
        }
    }
}

fn feed_forward(file: &GgufFile, layer: u32, hidden: &mut [Vec<f64>]) {
    let name = |part: &str| format!("blk.{layer}.{part}.weight");
    for row in hidden {
        let input = norm(file, &name("ffn_norm"), row);
        let gate = matrix(file, &name("ffn_gate"), &input);
        let up = matrix(file, &name("ffn_up"), &input);
        let silu = |gate: f64| gate / (1.0 + (-gate).exp());
        let inner: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| silu(*g) * u).collect();
        for (value, more) in row.iter_mut().zip(matrix(file, &name("ffn_down"), &inner)) {
            *value += more;
        }
    }
}

fn rotate(tiny: &Tiny, position: usize, row: &mut [f64]) {
    let dim = tiny.head_dim as usize;
    for head in row.chunks_mut(dim) {
        for pair in 0..dim / 2 {
            let angle = position as f64 * THETA.powf(-2.0 * pair as f64 / dim as f64);
            let (a, b) = match tiny.architecture {
                Architecture::Llama => (2 * pair, 2 * pair + 1),
                Architecture::Qwen2 | Architecture::Qwen3 => (pair, pair + dim / 2),
            };
            let (x, y) = (head[a], head[b]);
            head[a] = x * angle.cos() - y * angle.sin();
            head[b] = x * angle.sin() + y * angle.cos();
        }
    }
}

fn norm(file: &GgufFile, gamma: &str, row: &[f64]) -> Vec<f64> {
    let mean = dot(row, row) / row.len() as f64;
    let scale = 1.0 / (mean + EPS).sqrt();
    let gamma = &file.tensor(gamma).values;
    row.iter().zip(gamma).map(|(value, gamma)| value * scale * f64::from(*gamma)).collect()
}

/// Each head on its own.
fn head_norm(file: &GgufFile, gamma: &str, row: &[f64]) -> Vec<f64> {
    let dim = file.tensor(gamma).values.len();
    row.chunks(dim).flat_map(|head| norm(file, gamma, head)).collect()
}

fn matrix(file: &GgufFile, name: &str, input: &[f64]) -> Vec<f64> {
    let values = &file.tensor(name).values;
    let row = |row: &[f32]| row.iter().zip(input).map(|(w, x)| f64::from(*w) * x).sum();
    values.chunks(input.len()).map(row).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn stored(value: f64) -> f64 {
    f16::from_f32(value as f32).to_f64()
}
