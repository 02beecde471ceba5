//! scratch
use checkpoint::*;
#[test]
fn blackhole() {
    for ep in [
        "https://10.255.255.1",
        "https://nowhere.invalid",
        "https://huggingface.co",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut c = FetchConfig::new(dir.path().into());
        c.hub.endpoint = ep.into();
        c.pip.python = "/nonexistent".into();
        let t = tokio_free_now();
        let e = resolve(DEFAULT_ALIAS, &c, &mut Bar::default()).unwrap_err();
        println!("{ep} {:?}\n{e}", t.elapsed());
    }
}
#[allow(clippy::all, clippy::disallowed_methods, clippy::disallowed_types)]
fn tokio_free_now() -> std::time::Instant {
    std::time::Instant::now()
}
