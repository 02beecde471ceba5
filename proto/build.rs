//! Compiles the protos with `protox`, so that no system protoc is needed, and writes down for every
//! message what its elements take in memory (src/codec.rs says why).

use std::fmt::Write;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files =
        ["cluster", "plan", "storage", "session"].map(|name| format!("oasiskv/v1/{name}.proto"));
    println!("cargo::rerun-if-changed=oasiskv");
    let descriptors = protox::compile(&files, ["."])?;
    let mut shapes = String::new();
    for message in descriptors.file.iter().flat_map(|file| &file.message_type) {
        assert!(message.nested_type.is_empty(), "shapes of nested messages are not written");
        let (mut messages, mut lists) = (String::new(), String::new());
        for field in &message.field {
            // FieldDescriptorProto.Type: 11 is a message, 9 and 12 are text and bytes.
            match field.r#type.unwrap_or_default() {
                11 => {
                    let name = field.type_name().rsplit('.').next().unwrap_or_default();
                    write!(messages, "({}, {name}::SHAPE), ", field.number())?;
                }
                9 | 12 => {}
                // Label 3: repeated.
                kind if field.label.unwrap_or_default() == 3 => {
                    // Fixed widths and floats are as large in memory; a variable one may be one
                    // byte on the wire, of 8 (3, 4, 18) or at most 4 in memory.
                    let factor = match kind {
                        1 | 2 | 6 | 7 | 15 | 16 => 1,
                        3 | 4 | 18 => 8,
                        _ => 4,
                    };
                    write!(lists, "({}, {factor}), ", field.number())?;
                }
                _ => {}
            }
        }
        writeln!(
            shapes,
            "impl Shaped for {name} {{ const SHAPE: &'static Shape = &Shape {{ \
             bytes: size_of::<{name}>(), messages: &[{messages}], lists: &[{lists}] }}; }}",
            name = message.name(),
        )?;
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    std::fs::write(out.join("shapes.rs"), shapes)?;
    let mut services = tonic_prost_build::configure().bytes(".");
    services = services.codec_path("crate::codec::BoundedCodec");
    services.compile_fds(descriptors)?;
    Ok(())
}
