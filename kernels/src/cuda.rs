//! CUDA: the first kernels for NVIDIA GPUs, how they are compiled at run time (NVRTC) and how they
//! are launched. Gather and scatter of slices, and paged decode attention.
//!
//! This is not a [`crate::Device`] yet: norms, matmuls and sampling are missing, so no model runs
//! on a GPU. What is here is reached by `oasiskv bench kernels --device cuda` and by
//! `oasiskv doctor`. Nothing of CUDA is needed to build or to start: libcuda and libnvrtc are
//! loaded when a function here is called, and where they are missing it says so.
//!
//! The sources lie in `kernels/cuda` and are part of the program. The tests compile them for
//! [`ARCHITECTURES`] and run them on the CPU under sanitizers against the host device; they have
//! not run on a GPU yet.

mod agree;
mod compile;
mod gpu;
mod launch;
mod plan;

pub use agree::Agreement;
pub use compile::{
    Architecture, CompileError, Compiled, Compiler, KernelUsage, NoCompiler, REGISTERS_MAX, Source,
};
pub use gpu::{Gpu, GpuError, Timed, device_count};
pub use launch::{GpuAttend, GpuIds, GpuKernels, GpuSlots, LoadError, Staging, Where};
pub use plan::{AttendPlan, Tables};

/// The class of [`crate::NUMERICS_CLASS`] whose attention the CUDA kernels compute to the last
/// bit. Where the host has moved on, results agree within [`TOLERANCE`] instead.
pub const NUMERICS_CLASS: &str = "host-2";

/// How far a value of attention may lie from the host's, relative to the largest value of its
/// query, when the classes differ: two f32 softmaxes over the same halves, thousands of terms each.
pub const TOLERANCE: f32 = 1e-5;

/// What the kernels are compiled for in tests: Ampere, Hopper and Blackwell data centre GPUs.
pub const ARCHITECTURES: [Architecture; 3] =
    [Architecture::new(8, 0), Architecture::new(9, 0), Architecture::new(10, 0)];

/// Widths of heads that are compiled together where none is named.
pub const HEAD_DIMS: [usize; 5] = [64, 80, 96, 128, 256];
