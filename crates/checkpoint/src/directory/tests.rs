//! Tests of directories made here: whole, split, linked, damaged.

use std::os::unix::fs::symlink;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView, serialize};

use super::Directory;

/// A file of weights with the named vectors of three floats, each filled with its first letter.
fn weights(path: &Path, names: &[&str]) {
    let bytes = |name: &str| vec![name.as_bytes()[0]; 12];
    let held: Vec<_> = names.iter().map(|name| (*name, bytes(name))).collect();
    let view = |bytes| TensorView::new(Dtype::F32, vec![3], bytes).unwrap();
    let tensors = held.iter().map(|(name, bytes)| (*name, view(bytes)));
    std::fs::write(path, serialize(tensors, None).unwrap()).unwrap();
}

/// A directory with config.json and two files of weights.
fn split() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("config.json", r#"{"model_type":"llama"}"#);
    write(
        "model.safetensors.index.json",
        r#"{"weight_map":{"a":"1.safetensors","b":"1.safetensors","c":"2.safetensors"}}"#,
    );
    weights(&dir.path().join("1.safetensors"), &["a", "b"]);
    weights(&dir.path().join("2.safetensors"), &["c", "extra"]);
    dir
}

fn refused(dir: &Path) -> String {
    Directory::open(dir).unwrap_err().to_string()
}

#[test]
fn split_weights_are_found_where_the_index_says() {
    let dir = split();
    let opened = Directory::open(dir.path()).unwrap();
    let names: Vec<_> = opened.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"], "what the index does not name is no part of the model");
    for name in names {
        assert_eq!(opened.tensor_bytes(name).unwrap(), [name.as_bytes()[0]; 12]);
        opened.release(name);
        assert_eq!(opened.tensor_bytes(name).unwrap(), [name.as_bytes()[0]; 12]);
    }
    assert_eq!(opened.config()["model_type"], "llama");
    assert!(opened.tensor_bytes("extra").unwrap_err().to_string().contains("is missing"));
    assert!(opened.find_tensor("extra").is_none());
}

#[test]
fn one_file_wins_over_an_index_and_all_texts_are_read() {
    let dir = split();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    weights(&dir.path().join("model.safetensors"), &["x"]);
    write("generation_config.json", r#"{"eos_token_id":[1,2]}"#);
    write("tokenizer.json", "{}");
    write("tokenizer_config.json", r#"{"chat_template":null}"#);
    write("chat_template.json", r#"{"chat_template":"old"}"#);
    let opened = Directory::open(dir.path()).unwrap();
    assert_eq!(opened.tensors().len(), 1);
    assert_eq!(opened.generation_config().unwrap()["eos_token_id"][1], 2);
    assert_eq!(opened.tokenizer(), Some("{}"));
    assert_eq!(opened.chat_template(), Some("old"));
    write("tokenizer_config.json", r#"{"chat_template":"inside"}"#);
    assert_eq!(Directory::open(dir.path()).unwrap().chat_template(), None);
    write("chat_template.jinja", "own file");
    assert_eq!(Directory::open(dir.path()).unwrap().chat_template(), Some("own file"));
}

#[test]
fn what_is_missing_is_named_with_the_remedy() {
    let dir = split();
    let path = |name: &str| dir.path().join(name);
    std::fs::remove_file(path("2.safetensors")).unwrap();
    let error = refused(dir.path());
    assert!(error.contains("2.safetensors is missing, tensor \"c\""), "{error}");
    weights(&path("2.safetensors"), &["d"]);
    let error = refused(dir.path());
    assert!(error.contains("2.safetensors has no tensor \"c\""), "{error}");
    std::fs::remove_file(path("model.safetensors.index.json")).unwrap();
    std::fs::remove_file(path("1.safetensors")).unwrap();
    std::fs::remove_file(path("2.safetensors")).unwrap();
    let cases = [
        (None, "fetch the model again"),
        (Some("pytorch_model.bin"), "safe_serialization=True"),
        (Some("adapter_model.safetensors"), "merge it into the model"),
        (Some("m-Q4_K_M.gguf"), "give the path of m-Q4_K_M.gguf itself"),
    ];
    for (file, expected) in cases {
        if let Some(file) = file {
            std::fs::write(path(file), "").unwrap();
        }
        let error = refused(dir.path());
        assert!(error.contains("no model.safetensors and no model.safetensors.index"), "{error}");
        assert!(error.contains(expected), "{error} has no {expected:?}");
    }
    std::fs::remove_file(path("m-Q4_K_M.gguf")).unwrap();
    std::fs::remove_file(path("config.json")).unwrap();
    assert!(refused(dir.path()).contains("has no config.json"));
    assert!(refused(&path("nowhere")).contains("cannot read"));
}

#[test]
fn links_lead_into_the_directory_or_to_blobs_of_the_hub_only() {
    let dir = split();
    let path = |name: &str| dir.path().join(name);
    let elsewhere = tempfile::tempdir().unwrap();
    let blobs = elsewhere.path().join("models--o--n/blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::rename(path("2.safetensors"), blobs.join("etag")).unwrap();
    symlink(blobs.join("etag"), path("2.safetensors")).unwrap();
    std::fs::rename(path("config.json"), path("the-config")).unwrap();
    symlink("the-config", path("config.json")).unwrap();
    Directory::open(dir.path()).unwrap();
    std::fs::rename(blobs.join("etag"), elsewhere.path().join("secret")).unwrap();
    std::fs::remove_file(path("2.safetensors")).unwrap();
    symlink(elsewhere.path().join("secret"), path("2.safetensors")).unwrap();
    let error = refused(dir.path());
    assert!(error.contains("2.safetensors is a link to"), "{error}");
    std::fs::remove_file(path("2.safetensors")).unwrap();
    symlink("2.safetensors", path("2.safetensors")).unwrap();
    assert!(refused(dir.path()).contains("cannot read"), "a link to itself ends");
    std::fs::remove_file(path("2.safetensors")).unwrap();
    std::fs::create_dir(path("2.safetensors")).unwrap();
    assert!(refused(dir.path()).contains("is not a regular file"));
}

#[test]
fn p4_texts_are_bounded_in_size_and_depth() {
    let dir = split();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("tokenizer_config.json"), "[".repeat(100_000)).unwrap();
    let error = refused(dir.path());
    assert!(error.contains("recursion limit exceeded"), "{error}");
    std::fs::write(path("tokenizer_config.json"), [b'"', 0xff, b'"']).unwrap();
    assert!(refused(dir.path()).contains("is not valid JSON"));
    std::fs::remove_file(path("tokenizer_config.json")).unwrap();
    std::fs::write(path("chat_template.jinja"), [0xff]).unwrap();
    assert!(refused(dir.path()).contains("is not valid UTF-8"));
    let file = std::fs::File::create(path("chat_template.jinja")).unwrap();
    file.set_len((4 << 20) + 1).unwrap();
    let error = refused(dir.path());
    assert!(error.contains("has 4194305 bytes, over the limit of 4194304"), "{error}");
}

#[test]
fn a_file_of_weights_that_shrinks_after_opening_is_an_error_not_a_crash() {
    let dir = split();
    let opened = Directory::open(dir.path()).unwrap();
    let path = dir.path().join("1.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let error = opened.tensor_bytes("a").unwrap_err().to_string();
    assert!(error.contains("the file changed or the disk failed"), "{error}");
    opened.tensor_bytes("c").unwrap();
}
