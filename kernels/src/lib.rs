//! The device of a node and every kernel that a step of a language model needs: packed weights,
//! matmul, normalisation, rotary positions, paged attention over slots, moving slices in and out
//! of device memory, sampling.
//!
//! [`Device`] is what a step is written against; [`HostDevice`] fills it on the CPUs of the host.
//! It knows neither models nor sequences nor blocks beyond a slot's number: which slot holds what
//! is the business of crate `kv`, the order of layers that of crate `model`.
//!
//! # The numeric rules (promise P1)
//!
//! A row's result depends on that row, the weight and the KV it attends to, and on nothing else:
//! not on other rows, on how many there are, on chunks, threads or the instruction set.
//!
//! * Every kernel is written once over 16 virtual lanes (`lanes`); an instruction set only changes
//!   how many registers they take. FMA is exact everywhere, division and square root are the
//!   correctly rounded ones of IEEE 754, integer sums are exact and so have no order.
//! * No function of the C library's mathematics is on the number path: `math` has its own.
//! * Sums run in one fixed order: over k ascending in fixed chains, over lanes by a fixed tree,
//!   over KV blocks by ascending block index with splits fixed by block index.
//! * Threads share out tiles of results; no sum is ever shared between threads.
//! * The floating point environment is left alone: rounding to nearest even, denormals kept.
//!
//! [`NUMERICS_CLASS`] names the arithmetic; it changes whenever any bit may.
//!
//! NEON is not written out: on aarch64 the portable code runs, with the same bits (there
//! `f32::mul_add` is one instruction, and the compiler vectorises the lanes).
#![expect(unsafe_code, reason = "SIMD, device memory and the tile pool live here")]

pub mod cuda;
mod device;
mod host;
mod isa;
mod lanes;
mod math;
mod memory;
mod rope;
mod sample;
mod slots;
mod summary;
mod weight;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use device::{
    Attend, AttendSequence, AttendTable, Device, DeviceLost, Element, Epilogue, HeadShape, KvWrite,
    Matmul, MatmulOutput, RmsNorm, RowRange, Score, ScoreSequence, Summarise,
};
pub use host::{
    HostBuffer, HostDevice, HostEvent, HostOptions, HostStream, OpenError, THREADS_MAX,
};
pub use ids::{BLOCK_TOKENS, SlotIdx, SummaryIdx};
pub use isa::{Isa, ParseIsaError};
pub use memory::{HugePages, MemoryError};
pub use rope::{RopeError, RopeScaling, RopeSpec, RopeStyle, RopeTable, Yarn, YarnAttention};
pub use sample::{SampleKey, Sampled, Sampling, SamplingError};
pub use slots::{SlotArena, SlotShape, slot_bytes};
pub use summary::{ParseSummaryError, SummaryArena, SummaryKind, SummaryShape};
pub use weight::{Matrix, PackedWeight, WeightError, WeightFormat};

/// The arithmetic of the host device. Nodes whose class is equal produce equal bits.
pub const NUMERICS_CLASS: &str = "host-2";
