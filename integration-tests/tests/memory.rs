//! All roles in one process share the weights and the compute threads, and the process takes little
//! more memory than weights and pools. Read from what the system says of the process; Linux only.
//! Deliberately not here: single structures' sizes; a peak counts whatever it is made of.

#![cfg(target_os = "linux")]
#![expect(clippy::print_stdout, reason = "the figures are what the long test is run for")]

use std::fs;
use std::path::Path;

use integration_tests::{Cluster, Layout, Setting, model};
use serde_json::{Value, json};

const TEXT: &str = include_str!("../goldens/logits_text.txt");

const MIB: f64 = (1 << 20) as f64;

/// Peak of the process's resident memory in MiB, file mappings included (`VmHWM`).
fn peak_mib(process: u32) -> f64 {
    let path = format!("/proc/{process}/status");
    let status = fs::read_to_string(path).expect("the process is there");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("it has a peak");
    let kib = line.split_whitespace().nth(1).and_then(|kib| kib.parse::<f64>().ok());
    kib.expect("a number of KiB") / 1024.0
}

/// Names of the process's threads.
fn threads(process: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("the process is there");
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.map(|name| name.trim().to_owned()).collect()
}

fn prompt(model: &str, repeats: usize, salt: usize) -> Value {
    json!({
        "model": model, "prompt": TEXT.repeat(repeats), "max_tokens": 2, "temperature": 0,
        "cache_salt": salt.to_string(),
    })
}

/// The bound: `1.3 * (weights + pools) + 100 MB`, in MiB.
fn bound_mib(weights_mib: f64, pools_mib: f64) -> f64 {
    1.3 * (weights_mib + pools_mib) + 100e6 / MIB
}

/// Fills the pools with prompts, `together` of them at a time, and holds the peak to the bound.
async fn check(
    settings: &[Setting<'_>],
    pools_mib: f64,
    repeats: usize,
    rounds: usize,
    together: usize,
) {
    let Some(model) = model::path() else {
        return;
    };
    let weights_mib = file_mib(&model);
    let cluster = Cluster::start(Layout::Together, &model, settings).await;
    let mut cluster = cluster.expect("it starts");
    let process = cluster.process().expect("one process");
    let idle_mib = peak_mib(process);
    for round in 0..rounds {
        let prompts = (0..together).map(|i| prompt(&cluster.model, repeats, round * together + i));
        let prompts: Vec<Value> = prompts.collect();
        let asked = prompts.iter().map(|prompt| cluster.client.ask("/v1/completions", prompt));
        for answer in join_all(asked).await {
            answer.expect("an answer");
        }
    }
    let (peak_mib, bound_mib) = (peak_mib(process), bound_mib(weights_mib, pools_mib));
    println!(
        "weights {weights_mib:.0} MiB, pools {pools_mib:.0} MiB: peak {idle_mib:.0} MiB after the \
         start, {peak_mib:.0} MiB after the prompts; bound {bound_mib:.0} MiB"
    );
    assert!(peak_mib <= bound_mib, "{peak_mib} MiB of {bound_mib} MiB");
    // What is not pools holds the weights once: a second copy would pass the bound above.
    assert!(idle_mib < 2.0 * weights_mib, "{idle_mib} MiB before a pool is touched");
    assert!(peak_mib - pools_mib < 2.0 * weights_mib, "{peak_mib} MiB with {pools_mib} of pools");
    // Otherwise nothing was shown.
    assert!(peak_mib > weights_mib + 0.7 * pools_mib, "{peak_mib} MiB: the pools are not full");
    cluster.check_health(&[]).expect("no errors");
}

fn file_mib(path: &Path) -> f64 {
    fs::metadata(path).expect("the model").len() as f64 / MIB
}

/// Drives all at once on this task.
async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut pending: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|cx| {
        let mut waits = false;
        for (future, output) in pending.iter_mut().filter(|(_, output)| output.is_none()) {
            match future.as_mut().poll(cx) {
                std::task::Poll::Ready(ready) => *output = Some(ready),
                std::task::Poll::Pending => waits = true,
            }
        }
        if waits { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
    })
    .await;
    pending.into_iter().filter_map(|(_, output)| output).collect()
}

#[tokio::test]
async fn up_takes_weights_and_pools_once_and_little_else() {
    // One prompt of 1,425 tokens takes 33 MiB on a device and the same on each host it visits.
    let sizes = [
        ("", "memory.device", "36MiB"),
        ("", "memory.decode_host", "12MiB"),
        ("", "memory.prefill_device", "36MiB"),
        ("", "memory.prefill_host", "64MiB"),
        ("", "memory.remote", "24MiB"),
    ];
    check(&sizes, 36.0 + 12.0 + 36.0 + 64.0 + 2.0 * 24.0, 2, 4, 1).await;
}

#[tokio::test]
#[ignore = "long: 1.9 GiB of pools are filled, which takes two minutes"]
async fn up_as_it_is_started_by_default_keeps_within_the_bound() {
    // Two prompts of 7,800 tokens at a time: a third would wait for the device, longer than it may.
    check(&[], 512.0 + 64.0 + 256.0 + 512.0 + 2.0 * 256.0, 11, 3, 2).await;
}

#[tokio::test]
async fn roles_in_one_process_share_one_pool_of_threads() {
    let Some(model) = model::path() else {
        return;
    };
    let cluster = Cluster::start(Layout::Together, &model, &[("", "model.threads", "3")]).await;
    let cluster = cluster.expect("it starts");
    let threads = threads(cluster.process().expect("one process"));
    let count = |name: &str| threads.iter().filter(|thread| thread.starts_with(name)).count();
    // The loops compute as well, so a pool of three has two threads of its own.
    let counted = (count("kernel-"), count("prefill-loop"), count("decode-loop"));
    assert_eq!(counted, (2, 1, 1), "{threads:?}");
}

#[tokio::test]
async fn decode_goes_on_while_a_long_prompt_is_computed() {
    let Some(model) = model::path() else {
        return;
    };
    let cluster = Cluster::start(Layout::Together, &model, &[]).await;
    let cluster = cluster.expect("it starts");
    let stream = json!({
        "model": cluster.model, "prompt": "Once upon a time", "max_tokens": 4000, "temperature": 0,
        "ignore_eos": true, "stream": true,
    });
    let stream = cluster.client.stream("/v1/completions", &stream).await;
    let mut stream = stream.expect("a stream");
    stream.next().await.expect("it goes on").expect("an event");
    let long = prompt(&cluster.model, 2, 0);
    let mut asked = Box::pin(cluster.client.ask("/v1/completions", &long));
    // 1,425 tokens are six chunks; a decode step that waited for whole chunks would come six times.
    let mut steps = 0;
    loop {
        tokio::select! {
            answer = &mut asked => break drop(answer.expect("an answer")),
            event = stream.next() => steps += usize::from(event.expect("it goes on").is_some()),
        }
    }
    println!("{steps} pieces of an answer came while 1,425 tokens were computed");
    assert!(steps > 20, "{steps} pieces");
}
