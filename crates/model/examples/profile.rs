//! scratch
#![allow(warnings, clippy::all)]
#[path = "../tests/model/runner.rs"]
mod runner;
use checkpoint::Gguf;
use kernels::*;
use model::*;
use runner::*;
use std::num::NonZeroUsize;
use std::time::Instant;
fn main() {
    let th: usize = std::env::args().nth(1).unwrap().parse().unwrap();
    let isa = std::env::args().nth(2).map(|s| s.parse().unwrap());
    let g = Gguf::open(std::path::Path::new("/tmp/smollm2.gguf")).unwrap();
    let d = HostDevice::open(HostOptions {
        isa,
        threads: NonZeroUsize::new(th).unwrap(),
        huge_pages: HugePages::Auto,
    })
    .unwrap();
    let t = Instant::now();
    let m = Model::load(&g, &d, LoadOptions::default()).unwrap();
    println!("load {:?}", t.elapsed());
    let mut r = Runner::new(m, 8192 * 2, 512);
    let toks: Vec<u32> = (0..8000u32).map(|i| (i * 7919) % 40000).collect();
    let mut s = r.sequence(8100);
    for (a, b) in [(0, 512), (512, 2048), (2048, 4096), (4096, 7168)] {
        let t = Instant::now();
        for c in toks[a..b].chunks(256) {
            r.step(&mut [(&mut s, c)]);
        }
        let e = t.elapsed().as_secs_f64();
        println!("prefill {a}..{b}: {:.0} tok/s", (b - a) as f64 / e);
        decode(&mut r, &toks, b);
    }
    drop(s);
    decode(&mut r, &toks, 1);
    // 8 sequences short
    let mut seqs: Vec<_> = (0..8).map(|_| r.sequence(700)).collect();
    for s in seqs.iter_mut() {
        for c in toks[..512].chunks(256) {
            r.step(&mut [(s, c)]);
        }
    }
    let mut v = vec![];
    for i in 0..20 {
        let t = Instant::now();
        let mut w: Vec<_> = seqs.iter_mut().map(|s| (s, &toks[i..i + 1])).collect();
        r.step(&mut w);
        r.model
            .logits_of_rows(&mut r.scratch, &[0, 1, 2, 3, 4, 5, 6, 7]);
        v.push(t.elapsed().as_secs_f64() * 1e3);
    }
    v.sort_by(|a, b| a.total_cmp(b));
    println!("8 seqs x 512: best {:.2} median {:.2} ms", v[0], v[10]);
}
fn decode(r: &mut Runner, toks: &[u32], ctx: usize) {
    // fresh sequence whose KV is garbage zero: scatter zero
    let mut s = r.sequence(ctx + 40);
    let blocks = ctx / 16;
    let kv = vec![0u8; blocks * r.model.spec().block_bytes()];
    r.scatter(&mut s, &toks[..blocks * 16], &kv);
    let mut v = vec![];
    let mut l = vec![];
    for i in 0..25 {
        let t = Instant::now();
        r.step(&mut [(&mut s, &toks[i..i + 1])]);
        let a = t.elapsed().as_secs_f64() * 1e3;
        r.model.logits_of_rows(&mut r.scratch, &[0]);
        v.push(t.elapsed().as_secs_f64() * 1e3);
        l.push(v.last().unwrap() - a);
    }
    v.sort_by(|a, b| a.total_cmp(b));
    l.sort_by(|a, b| a.total_cmp(b));
    println!(
        "  decode at {ctx}: best {:.2} median {:.2} ms (logits {:.2})",
        v[0], v[12], l[12]
    );
}
