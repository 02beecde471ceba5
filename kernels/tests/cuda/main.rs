//! The CUDA kernels without a GPU: compiled by NVRTC for every architecture, and run on the CPU by
//! the shim in kernels/cuda/shim, under sanitizers, against the host device. Nothing here runs on
//! a GPU; kernels/cuda/check-on-gpu.sh does.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "how a test fails and tells; clippy knows tests by their attribute only"
)]
#![expect(clippy::single_range_in_vec_init, reason = "one sequence is a list of one range")]

mod case;
mod nvrtc;
mod shim;

/// Says why a test did not run; the test command counts these lines.
fn skipped(reason: &str) {
    println!("SKIPPED {reason}");
}
