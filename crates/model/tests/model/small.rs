//! Small models with random weights against transformers' own implementation: hub checkpoints of
//! every family and scaling, and the same as llama.cpp's converter writes them. See
//! integration-tests/goldens; makes no claim about real weights.

use std::path::{Path, PathBuf};

use checkpoint::Checkpoint;
use serde_json::Value;

use super::golden::{arg_max, floats, folder, kl_of_all};
use super::host::{device, load};
use super::runner::Runner;

/// Below this distance between the two best logits of the reference, rounding may choose.
const NEAR_TIE: f64 = 0.01;
/// Nats that may lie between us and the reference in the mean; a few 1e-7 are usual.
pub(crate) const KL_MAX: f64 = 1e-5;

pub(crate) struct Golden {
    first: usize,
    vocab: usize,
    tokens: Vec<u32>,
    models: Vec<String>,
    gguf: Vec<String>,
}

pub(crate) fn small() -> PathBuf {
    folder().join("small")
}

impl Golden {
    pub(crate) fn read() -> Self {
        let text = std::fs::read_to_string(small().join("small.json")).unwrap();
        let head: Value = serde_json::from_str(&text).unwrap();
        let number = |value: &Value| usize::try_from(value.as_u64().unwrap()).unwrap();
        let names = |key: &str| {
            let list = head[key].as_array().unwrap().iter();
            list.map(|name| name.as_str().unwrap().to_owned()).collect()
        };
        let ids = head["token_ids"].as_array().unwrap().iter();
        Self {
            first: number(&head["first_position"]),
            vocab: number(&head["vocab"]),
            tokens: ids.map(|id| u32::try_from(number(id)).unwrap()).collect(),
            models: names("models"),
            gguf: names("gguf"),
        }
    }

    /// How far the model at `path` is from the reference of `name`: the share of positions with
    /// the same best token or a near tie, and the mean KL in nats.
    pub(crate) fn distance(&self, name: &str, path: &Path) -> (f64, f64) {
        let theirs = floats(&format!("small/{name}/logits.f32"));
        let model = load(&Checkpoint::open(path).unwrap(), &device(2, None));
        let mut runner = Runner::new(model, self.tokens.len(), 64);
        let mut sequence = runner.sequence(self.tokens.len());
        let (mut same, mut kl) = (0, 0.0);
        for chunk in self.tokens.chunks(64) {
            let start = sequence.len();
            runner.step(&mut [(&mut sequence, chunk)]);
            for row in (0..chunk.len()).filter(|row| start + row >= self.first) {
                let at = (start + row - self.first) * self.vocab;
                let theirs = &theirs[at..at + self.vocab];
                let ours: Vec<f64> = runner.logits(row).into_iter().map(f64::from).collect();
                let best = theirs[arg_max(theirs)];
                same += usize::from(theirs[arg_max(&ours)] > best - NEAR_TIE);
                kl += kl_of_all(theirs, &ours);
            }
        }
        let positions = (self.tokens.len() - self.first) as f64;
        (same as f64 / positions, kl / positions)
    }
}

#[test]
fn logits_of_every_family_and_scaling_are_those_of_transformers() {
    let golden = Golden::read();
    let directories = golden.models.iter().map(|name| (name, small().join(name)));
    let files = golden.gguf.iter().map(|name| (name, small().join(format!("{name}.gguf"))));
    for (name, path) in directories.chain(files) {
        let (same, kl) = golden.distance(name, &path);
        println!("{name}: top-1 equal at {:.1}%, mean KL {kl:e}", same * 100.0);
        assert!(same >= 0.99, "{}: top-1 equal at {same} only", path.display());
        assert!(kl <= KL_MAX, "{}: mean KL {kl:e}", path.display());
    }
}

/// What the test above would say of a loader that passes over the scaling: it must fail.
#[test]
fn logits_without_the_scaling_would_be_far_away() {
    let golden = Golden::read();
    for name in ["llama3", "yarn", "linear"] {
        let dir = tempfile::tempdir().unwrap();
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(small().join(name).join(file), dir.path().join(file)).unwrap();
        }
        let path = dir.path().join("config.json");
        let text = std::fs::read_to_string(&path).unwrap();
        let mut config: Value = serde_json::from_str(&text).unwrap();
        for key in ["rope_scaling", "rope_parameters"] {
            config.as_object_mut().unwrap().remove(key);
        }
        std::fs::write(&path, config.to_string()).unwrap();
        let (_, kl) = golden.distance(name, dir.path());
        println!("{name} without scaling: mean KL {kl:e}");
        assert!(kl > 0.05, "{name}: mean KL {kl:e}: the model does not notice its scaling");
    }
}
