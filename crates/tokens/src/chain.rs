//! The hash chain that names a block by everything its KV depends on.
//!
//! Deliberately BLAKE3 with domain separation and never a process-local seed: the same prefix has
//! the same name in every process, on every architecture, after every restart, and two different
//! ones cannot be made to collide. Golden vectors are in the tests; a change of format raises
//! [`FORMAT`] and with it changes every name.
//!
//! root  = derive_key(ROOT, for each field: tag u8, length u64 LE, bytes)
//! block = derive_key(BLOCK, parent hash (32 bytes), 16 token ids as u32 LE)
//! The root is the parent of block 0. A partial last block has no hash.

#[cfg(test)]
mod tests;

use ids::{BLOCK_TOKENS, BlockHash, ModelDigest, PolicyDigest, TokenId};

/// Version of everything below; part of the root.
const FORMAT: u32 = 1;
/// BLAKE3 contexts: globally unique, never reused for something else.
const ROOT: &str = "oasiskv 2026-11 kv block namespace root v1";
const BLOCK: &str = "oasiskv 2026-11 kv block chain link v1";

/// Element type of stored K and V.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvDtype {
    /// IEEE half precision.
    F16,
}

/// How the KV of one block lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Element type.
    pub dtype: KvDtype,
    /// Elements of one head's vector.
    pub head_dim: u32,
    /// Transformer layers.
    pub layers: u32,
    /// KV heads of one layer.
    pub kv_heads: u32,
}

/// How the KV was computed: sparse decode gives other bits than prefill for the same tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HowComputed {
    /// By attention over all blocks; the only kind that other requests may reuse.
    Dense,
    /// By attention over blocks that this policy chose.
    Sparse(PolicyDigest),
}

/// What two requests must agree on before equal tokens mean equal KV.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockNamespace<'a> {
    /// The weights.
    pub model: ModelDigest,
    /// Kernel revision and device family within which bits agree.
    pub numerics_class: &'a str,
    /// Shape and type.
    pub layout: KvLayout,
    /// Secret of the tenant, from the server; empty where tenants share (P7).
    pub tenant_salt: &'a [u8],
    /// Dense, or which sparse policy.
    pub computed: HowComputed,
}

impl BlockNamespace<'_> {
    /// The parent of block 0.
    #[must_use]
    pub fn root(&self) -> BlockHash {
        let mut hasher = blake3::Hasher::new_derive_key(ROOT);
        let mut field = |tag: u8, bytes: &[u8]| {
            hasher.update(&[tag]);
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        let layout = &self.layout;
        let dtype: u8 = match layout.dtype {
            KvDtype::F16 => 1,
        };
        field(1, &FORMAT.to_le_bytes());
        field(2, &self.model.0);
        field(3, self.numerics_class.as_bytes());
        field(4, &(BLOCK_TOKENS as u64).to_le_bytes());
        field(5, &[dtype]);
        field(6, &layout.head_dim.to_le_bytes());
        field(7, &layout.layers.to_le_bytes());
        field(8, &layout.kv_heads.to_le_bytes());
        field(9, self.tenant_salt);
        match self.computed {
            HowComputed::Dense => field(10, &[]),
            HowComputed::Sparse(policy) => field(11, &policy.0),
        }
        // 12 is the adapter's content digest; there are none yet, and none is not an empty one.
        field(13, &[]);
        BlockHash(*hasher.finalize().as_bytes())
    }
}

/// Hashes of whole prompts.
#[derive(Clone, Copy, Debug)]
pub struct BlockHashes;

impl BlockHashes {
    /// One hash per full block of `tokens`; a partial last block has none.
    #[must_use]
    pub fn of(namespace: &BlockNamespace<'_>, tokens: &[TokenId]) -> Vec<BlockHash> {
        Self::from_root(namespace.root(), tokens)
    }

    /// As [`BlockHashes::of`] for a root, or a last block's hash, that is already known.
    #[must_use]
    pub fn from_root(root: BlockHash, tokens: &[TokenId]) -> Vec<BlockHash> {
        let mut chain = BlockChain::new(root);
        tokens.iter().filter_map(|token| chain.push(*token)).collect()
    }
}

/// The chain of a sequence that grows token by token.
#[derive(Clone, Debug)]
pub struct BlockChain {
    /// Hash of the last full block, or the root.
    parent: BlockHash,
    /// Tokens of the open block; those from `filled` on are left over.
    open: [TokenId; BLOCK_TOKENS],
    /// How many tokens the open block has, always less than a full block.
    filled: usize,
}

impl BlockChain {
    /// A chain without tokens.
    #[must_use]
    pub fn new(root: BlockHash) -> Self {
        Self { parent: root, open: [TokenId(0); BLOCK_TOKENS], filled: 0 }
    }

    /// Adds a token; gives the hash of the block that it completes.
    pub fn push(&mut self, token: TokenId) -> Option<BlockHash> {
        self.open[self.filled] = token;
        self.filled += 1;
        if self.filled < BLOCK_TOKENS {
            return None;
        }
        self.filled = 0;
        let mut hasher = blake3::Hasher::new_derive_key(BLOCK);
        hasher.update(&self.parent.0);
        for token in self.open {
            hasher.update(&token.0.to_le_bytes());
        }
        self.parent = BlockHash(*hasher.finalize().as_bytes());
        Some(self.parent)
    }

    /// Hash of the last full block, or the root.
    #[must_use]
    pub fn head(&self) -> BlockHash {
        self.parent
    }
}
