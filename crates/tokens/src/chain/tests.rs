//! Tests of the hash chain: golden vectors, and that every field separates.

use std::collections::BTreeSet;

use ids::{BlockHash, ModelDigest, PolicyDigest, TokenId};

use super::{BlockChain, BlockHashes, BlockNamespace, HowComputed, KvDtype, KvLayout};

fn namespace() -> BlockNamespace<'static> {
    BlockNamespace {
        model: ModelDigest([7; 32]),
        numerics_class: "host-1",
        layout: KvLayout { dtype: KvDtype::F16, head_dim: 64, layers: 30, kv_heads: 3 },
        tenant_salt: b"",
        computed: HowComputed::Dense,
    }
}

fn tokens(count: u32) -> Vec<TokenId> {
    (0..count).map(TokenId).collect()
}

/// P2: names agree across processes, architectures and releases. A change here needs a new FORMAT.
/// The vectors were computed by the Python package blake3 from the drawing in chain.rs.
#[test]
fn p2_golden_vectors_hold() {
    let hashes = BlockHashes::of(&namespace(), &tokens(40));
    let text: Vec<_> = hashes.iter().map(ToString::to_string).collect();
    assert_eq!(
        namespace().root().to_string(),
        "53e6eb81858b217817ce97aba36c37dba9f683168eb0770d8eb9c6df5936c5c6"
    );
    assert_eq!(
        text,
        [
            "061b2f0b2067df8fe20c1ad59e3d97ba0c5d0098b73c815eb4dc0d150343d1a0",
            "42d6e630d18a7bd3cf99456cc597ecbfeedf7bf4926d5222f2499b8b26c20968"
        ]
    );
}

/// P2: no field can be mistaken for another, or its absence for an empty value.
#[test]
fn p2_every_field_of_the_namespace_separates() {
    let base = namespace();
    let layout = |change: fn(&mut KvLayout)| {
        let mut changed = namespace();
        change(&mut changed.layout);
        changed.root()
    };
    let sparse = |byte| HowComputed::Sparse(PolicyDigest([byte; 16]));
    let roots = [
        base.root(),
        BlockNamespace { model: ModelDigest([8; 32]), ..base.clone() }.root(),
        BlockNamespace { numerics_class: "host-2", ..base.clone() }.root(),
        BlockNamespace { numerics_class: "", tenant_salt: b"host-1", ..base.clone() }.root(),
        BlockNamespace { tenant_salt: b"host-1", ..base.clone() }.root(),
        BlockNamespace { tenant_salt: b"\0", ..base.clone() }.root(),
        BlockNamespace { computed: sparse(0), ..base.clone() }.root(),
        BlockNamespace { computed: sparse(1), ..base.clone() }.root(),
        layout(|l| l.head_dim = 128),
        layout(|l| l.layers = 3),
        layout(|l| l.kv_heads = 30),
    ];
    assert_eq!(roots.iter().collect::<BTreeSet<_>>().len(), roots.len());
}

#[test]
fn a_block_is_named_by_its_whole_prefix() {
    let all = BlockHashes::of(&namespace(), &tokens(64));
    assert_eq!(all.len(), 4);
    assert_eq!(BlockHashes::of(&namespace(), &tokens(63)), all[..3]);
    assert_eq!(BlockHashes::of(&namespace(), &tokens(15)), []);
    let mut other = tokens(64);
    other[0] = TokenId(99);
    let changed = BlockHashes::of(&namespace(), &other);
    let same = all.iter().filter(|hash| changed.contains(hash)).count();
    assert_eq!(same, 0, "a change in block 0 renames every later block");
    // Equal blocks at different places have different names.
    let repeated = BlockHashes::of(&namespace(), &[TokenId(5); 48]);
    assert_eq!(repeated.iter().collect::<BTreeSet<_>>().len(), 3);
}

#[test]
fn growing_token_by_token_gives_the_same_names() {
    let all = BlockHashes::of(&namespace(), &tokens(50));
    let mut chain = BlockChain::new(namespace().root());
    let grown: Vec<BlockHash> = tokens(50).into_iter().filter_map(|t| chain.push(t)).collect();
    assert_eq!(grown, all);
    assert_eq!(Some(&chain.head()), all.last());
    let resumed = BlockHashes::from_root(all[0], &tokens(50)[16..]);
    assert_eq!(resumed, all[1..]);
}
