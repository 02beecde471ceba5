//! Runs from their reservation to their end.

use std::sync::Arc;

use ids::{BlockHash, Incarnation, TokenId};
use remote::{Grant, ReserveRefused};
use session::PrefillRequest;
use tonic::Code;
use transfer::{Failure, Refusal};

use super::fixture::{Node, finish, prompt};

#[tokio::test]
async fn p1_p2_a_prompt_is_computed_read_and_reused_with_the_same_bits() {
    let node = Node::start(1024).await;
    let text = prompt(1, 203);
    let first = node.reserve(1, 203).await.unwrap();
    let cold = node.run(&first, &text).await;
    assert_eq!(cold.handover.cached_tokens, 0);
    assert_eq!(cold.sealed.len(), 12);
    let tail = cold.handover.tail.as_ref().unwrap();
    assert_eq!(tail.receipt.tokens, 11);
    for block in cold.sealed.iter().chain([tail]) {
        let slices = node.read(&first, block).await.unwrap();
        let sums: Vec<_> = slices.iter().map(|slice| kv::checksum(slice)).collect();
        assert_eq!(sums[..], block.receipt.checksums[..]);
    }
    let second = node.reserve(2, 203).await.unwrap();
    let warm = node.run(&second, &text).await;
    // All blocks that the last 32 tokens do not touch.
    assert_eq!(warm.handover.cached_tokens, 160);
    assert_eq!(warm.handover.last_hidden, cold.handover.last_hidden);
    for (warm, cold) in warm.sealed.iter().zip(&cold.sealed) {
        assert_eq!(warm.receipt, cold.receipt);
        node.read(&second, warm).await.unwrap();
    }
    node.release(&first).await;
    let refused = node.read(&first, tail).await.unwrap_err();
    assert!(matches!(refused, Failure::Refused(Refusal::NoGrant)), "{refused:?}");
    node.release(&second).await;
    node.quiet().await;
    assert_eq!(node.metric("vllm:prefix_cache_hits_total", ""), 160);
    assert_eq!(node.metric("vllm:prefix_cache_queries_total", ""), 406);
}

#[tokio::test]
async fn p6_runs_that_are_left_or_released_free_everything_in_every_phase() {
    // Device memory for one prompt: the others wait for it.
    let node = Node::start(320).await;
    for round in 0..8u128 {
        let mut grants = Vec::new();
        let mut streams = Vec::new();
        for i in 0..3u128 {
            let grant = node.reserve(1 + 10 * round + i, 300).await.unwrap();
            let text = prompt(u64::try_from(10 * round + i).unwrap(), 300);
            streams.push(node.begin(node.request(&grant, &text)).await.unwrap());
            grants.push(grant);
        }
        let last = streams.pop().unwrap();
        // One is left by its reader, one is released; in odd rounds the first has begun by then.
        if round % 2 == 1 {
            assert!(streams[0].message().await.unwrap().is_some());
        }
        drop(streams.remove(usize::from(round % 4 > 1)));
        let released = usize::from(round % 4 <= 1);
        node.release(&grants[released]).await;
        assert!(finish(last).await.is_ok());
        for grant in &grants {
            node.release(grant).await;
        }
        node.quiet().await;
    }
}

#[tokio::test]
async fn p4_prompts_wait_for_device_memory_in_the_order_they_came_and_all_are_computed() {
    let node = Node::start(320).await;
    let mut runs = Vec::new();
    for i in 0..5u128 {
        let length = [300, 20, 310, 33, 280][usize::try_from(i).unwrap()];
        let grant = node.reserve(1 + i, length).await.unwrap();
        let text = prompt(u64::try_from(i).unwrap(), length);
        let stream = node.begin(node.request(&grant, &text)).await.unwrap();
        runs.push((grant, stream, length));
    }
    for (grant, stream, length) in runs {
        assert_eq!(finish(stream).await.unwrap().sealed.len(), length / 16);
        node.release(&grant).await;
    }
    node.quiet().await;
}

#[tokio::test]
async fn p7_runs_that_are_not_for_this_node_or_contradict_themselves_are_refused() {
    let node = Node::start(320).await;
    let text = prompt(1, 40);
    let grant = node.reserve(1, 40).await.unwrap();
    let code = async |change: &dyn Fn(&mut PrefillRequest)| {
        let mut request = node.request(&grant, &text);
        change(&mut request);
        match node.begin(request).await {
            Ok(stream) => finish(stream).await.map(drop).unwrap_err().code(),
            Err(status) => status.code(),
        }
    };
    let other = |it: &mut PrefillRequest| it.plan.prefill.incarnation = Incarnation(1);
    assert_eq!(code(&other).await, Code::FailedPrecondition);
    let class = |it: &mut PrefillRequest| it.plan.numerics_class = "other".to_owned();
    assert_eq!(code(&class).await, Code::FailedPrecondition);
    let root = |it: &mut PrefillRequest| it.prompt.root = BlockHash([6; 32]);
    assert_eq!(code(&root).await, Code::InvalidArgument);
    let secret = |it: &mut PrefillRequest| it.grant = Grant { secret: [0; 16], ..it.grant.clone() };
    assert_eq!(code(&secret).await, Code::PermissionDenied);
    let long = |it: &mut PrefillRequest| it.prompt = prompt(1, 400);
    assert_eq!(code(&long).await, Code::OutOfRange);
    let words = |it: &mut PrefillRequest| it.prompt.tokens = Arc::new([TokenId(500); 5]);
    let no_hashes = |it: &mut PrefillRequest| {
        words(it);
        it.prompt.hashes = Arc::new([]);
    };
    assert_eq!(code(&no_hashes).await, Code::InvalidArgument);
    // That one was the session's run.
    assert_eq!(code(&|_| {}).await, Code::AlreadyExists);
    node.release(&grant).await;
    assert_eq!(code(&|_| {}).await, Code::NotFound);
    node.quiet().await;
}

#[tokio::test]
async fn case_6_a_draining_node_refuses_new_sessions_and_serves_those_it_has() {
    let node = Node::start(320).await;
    let grant = node.reserve(1, 40).await.unwrap();
    let ran = node.run(&grant, &prompt(1, 40)).await;
    node.daemon.end(daemon::Ending::Finished);
    let finishing = node.daemon.finish();
    let serving = async {
        let mut session = 2;
        while node.reserve(session, 40).await != Err(ReserveRefused::Draining) {
            session += 1;
        }
        for session in 2..session {
            let grant = Grant { session: ids::SessionId(session), ..grant.clone() };
            node.release(&grant).await;
        }
        assert!(node.read(&grant, &ran.sealed[0]).await.is_ok());
        node.release(&grant).await;
    };
    let (drained, ()) = tokio::join!(finishing, serving);
    assert!(drained.overran.is_empty(), "{:?}", drained.overran);
}
