//! The kernels of the host device: the figures to hold a GPU's against, and the right answers.

use std::num::NonZeroUsize;

use anyhow::Context;
use kernels::{Attend, Device, HostDevice, HostOptions, HugePages, SlotArena, SlotShape};
use tokio::time::Instant;

use super::{Problem, Row};

pub(super) struct Host {
    device: HostDevice,
}

impl Host {
    pub(super) fn open(threads: usize) -> anyhow::Result<Self> {
        let mut options = HostOptions::default();
        options.threads = NonZeroUsize::new(threads).unwrap_or(options.threads);
        options.huge_pages = HugePages::Auto;
        let device = HostDevice::open(options).context("--threads")?;
        Ok(Self { device })
    }

    pub(super) fn describe(&self) -> String {
        self.device.describe()
    }

    fn arena(&self, problem: &Problem) -> anyhow::Result<(SlotArena, Vec<u8>)> {
        let head_dim = problem.shape.head_dim;
        let count = u32::try_from(problem.ids.len())?;
        let arena = self.device.slots(SlotShape { head_dim, count })?;
        let words = problem.ids.iter().flat_map(|&id| problem.slot(id));
        let bytes: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
        self.device.scatter(&mut self.device.stream()?, &arena, &bytes, &problem.ids);
        Ok((arena, bytes))
    }

    /// What attention answers, `[sequences][heads * head_dim]`.
    pub(super) fn attend(&self, problem: &Problem) -> anyhow::Result<Vec<f32>> {
        let (arena, _) = self.arena(problem)?;
        let (rows, _) = self.attend_runs(problem, &arena, 0)?;
        Ok(rows)
    }

    /// One launch, then `runs` of them under the clock.
    fn attend_runs(
        &self,
        problem: &Problem,
        arena: &SlotArena,
        runs: u32,
    ) -> anyhow::Result<(Vec<f32>, f64)> {
        let mut stream = self.device.stream()?;
        let mut q = self.device.buffer(problem.q.len())?;
        self.device.upload(&mut stream, &problem.q, &mut q, 0);
        let mut out = self.device.buffer(problem.q.len())?;
        let seconds = problem.with_sequences(|sequences| {
            let mut launch = || {
                let launch = Attend {
                    shape: problem.shape,
                    q: &q,
                    positions: &problem.positions,
                    sequences,
                    scale: problem.scale(),
                    out: &mut out,
                };
                self.device.attend(&mut stream, arena, launch);
            };
            launch();
            timed(runs, launch)
        });
        Ok((out.as_slice().to_vec(), seconds))
    }

    pub(super) fn measure(&self, problem: &Problem, runs: u32) -> anyhow::Result<Vec<Row>> {
        let (arena, mut bytes) = self.arena(problem)?;
        let mut stream = self.device.stream()?;
        let mut outcome = Ok(());
        let gather = timed(runs, || {
            if let Err(lost) = self.device.gather(&mut stream, &arena, &problem.ids, &mut bytes) {
                outcome = Err(lost);
            }
        });
        outcome?;
        let scatter = timed(runs, || {
            self.device.scatter(&mut stream, &arena, &bytes, &problem.ids);
        });
        let (_, attend) = self.attend_runs(problem, &arena, runs)?;
        let row = |kernel, seconds| Row::new(kernel, "host", problem, seconds, problem.bytes());
        Ok(vec![row("gather", gather), row("scatter", scatter), row("attend", attend)])
    }
}

/// Seconds of one run.
fn timed(runs: u32, mut run: impl FnMut()) -> f64 {
    let began = Instant::now();
    for _ in 0..runs {
        run();
    }
    began.elapsed().as_secs_f64() / f64::from(runs.max(1))
}
