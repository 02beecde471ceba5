//! Every limit on what is read from the network by gRPC, in one place.
//!
//! They bound memory before a peer is trusted; a deployment's own, lower limits (context length,
//! queue sizes) are configuration and checked later.

/// Bytes of one gRPC message, in either direction.
///
/// The largest message is a prompt of [`TOKENS_PER_PROMPT_MAX`] tokens: 5 MiB of tokens and 2 MiB
/// of hashes; sealed blocks come [`BLOCKS_PER_MESSAGE_MAX`] at a time.
pub const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Memory that the elements of one message may take once decoded, before any rule is checked.
///
/// Four times the bytes on the wire: lists of small numbers need it. An empty element of a list of
/// messages would otherwise make hundreds of bytes out of two.
pub const MESSAGE_HEAP_BYTES_MAX: usize = 4 * MESSAGE_BYTES_MAX;

/// Tokens of one prompt.
pub const TOKENS_PER_PROMPT_MAX: usize = 1 << 20;

/// Tokens that one request may generate.
pub const TOKENS_GENERATED_MAX: u32 = 1 << 20;

/// Receipts, keys or located blocks in one message.
pub const BLOCKS_PER_MESSAGE_MAX: usize = 4_096;

/// Slices of one block: layers times KV heads of a shard (126 layers with 8 heads are 1,008).
pub const SLICES_PER_BLOCK_MAX: usize = 16_384;

/// Slices that one reservation may name: 64 GiB at 4 KiB a slice.
pub const SLICES_PER_RESERVATION_MAX: u32 = 1 << 24;

/// Ranges of blocks with homes of their own in one plan.
pub const HOMES_PER_PLAN_MAX: usize = 4_096;

/// Homes of one range, and home grants of one prefill request per range.
pub const NODES_PER_HOME_MAX: usize = 8;

/// Nodes of one cluster.
pub const NODES_MAX: usize = 4_096;

/// Tokens that end a text.
pub const STOP_TOKENS_MAX: usize = 256;

/// Width of a model's residual stream.
pub const MODEL_WIDTH_MAX: usize = 65_536;

/// Entries of a ledger's table of moved bytes: every pair of tiers once.
pub const MOVED_MAX: usize = 16;

/// Bytes of a tenant's name.
pub const TENANT_BYTES_MAX: usize = 256;

/// Bytes of `host:port`.
pub const ADDRESS_BYTES_MAX: usize = 261;

/// Bytes of a numerics class.
pub const NUMERICS_CLASS_BYTES_MAX: usize = 128;

/// Bytes of an operator's sentence in a refusal.
pub const DETAIL_BYTES_MAX: usize = 1_024;

/// Longest lease of a reservation or a registration.
pub const LEASE_MS_MAX: u64 = 3_600_000;

/// Longest advice to wait.
pub const RETRY_AFTER_MS_MAX: u64 = 3_600_000;
