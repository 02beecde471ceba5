//! The kernels compiled for every architecture that is promised, without a GPU. The library comes
//! from the folder in `OASISKV_TEST_NVRTC` (the test command fetches one), else from the system.

use std::path::PathBuf;

use kernels::cuda::{ARCHITECTURES, Compiler, HEAD_DIMS, REGISTERS_MAX, Source};

use crate::skipped;

/// Shared memory that a block may have without asking for more.
const SHARED_BYTES_MAX: u32 = 48 << 10;

#[test]
fn kernels_compile_for_every_architecture_without_spills_and_within_their_registers() {
    let folder = std::env::var_os("OASISKV_TEST_NVRTC").map(PathBuf::from);
    let compiler = match Compiler::open(folder.as_deref()) {
        Ok(compiler) => compiler,
        Err(error) if folder.is_none() => return skipped(&format!("{error}")),
        Err(error) => panic!("OASISKV_TEST_NVRTC: {error}"),
    };
    let (major, minor) = compiler.version();
    println!("NVRTC {major}.{minor}");
    for architecture in ARCHITECTURES {
        let mut kernels = 0;
        for source in [Source::Slices, Source::Attend { head_dim: None }] {
            let compiled = compiler.compile(source, architecture).unwrap();
            assert!(compiled.image.starts_with(b"\x7fELF"), "a cubin is an ELF file");
            for usage in compiled.usage() {
                println!(
                    "{architecture:<7} {:<24} {:>3} registers {:>3} spilled {:>6} shared",
                    usage.kernel, usage.registers, usage.spilled_bytes, usage.shared_bytes
                );
                assert_eq!(usage.spilled_bytes, 0, "{usage:?}");
                assert!((1..=REGISTERS_MAX).contains(&usage.registers), "{usage:?}");
                assert!(usage.shared_bytes <= SHARED_BYTES_MAX, "{usage:?}");
                kernels += 1;
            }
        }
        // Gather, scatter; attention of 4 and of 8 queries and the merge for each width.
        assert_eq!(kernels, 2 + 3 * HEAD_DIMS.len(), "{architecture}");
    }
    // One width alone, as a GPU's host compiles it; one that is in no list.
    let own = Source::Attend { head_dim: Some(48) };
    let usage = compiler.compile(own, ARCHITECTURES[0]).unwrap().usage();
    let names: Vec<&str> = usage.iter().map(|usage| usage.kernel.as_str()).collect();
    for name in ["attend_48_4", "attend_48_8", "merge_48"] {
        assert!(names.contains(&name), "{names:?}");
    }
}

#[test]
fn an_architecture_that_the_compiler_does_not_know_is_named_in_the_error() {
    let folder = std::env::var_os("OASISKV_TEST_NVRTC").map(PathBuf::from);
    let Ok(compiler) = Compiler::open(folder.as_deref()) else {
        return skipped("no NVRTC library");
    };
    let unknown = kernels::cuda::Architecture::new(1, 0);
    let text = compiler.compile(Source::Slices, unknown).unwrap_err().to_string();
    assert!(text.contains("slices.cu") && text.contains("sm_10"), "{text}");
}
