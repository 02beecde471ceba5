//! Compiles the protos with `protox`, so that no system protoc is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files =
        ["cluster", "plan", "storage", "session"].map(|name| format!("oasiskv/v1/{name}.proto"));
    println!("cargo::rerun-if-changed=oasiskv");
    let descriptors = protox::compile(&files, ["."])?;
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    Ok(())
}
