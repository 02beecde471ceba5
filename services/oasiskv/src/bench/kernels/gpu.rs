//! The CUDA kernels on a GPU: first held against the host's answers, then timed by the GPU's own
//! clock. An answer that is not the host's is an error, not a row.

use std::path::Path;

use anyhow::Context;
use kernels::cuda::{
    Agreement, Compiler, Gpu, GpuError, GpuIds, GpuKernels, GpuSlots, Staging, Where,
};

use super::{Problem, Row};

/// Launches before the clock starts.
const WARM_UP: u32 = 3;

pub(super) struct Bench {
    gpu: Gpu,
    compiler: Compiler,
}

impl Bench {
    pub(super) fn open(ordinal: usize, nvrtc: Option<&Path>) -> anyhow::Result<Self> {
        let gpu = Gpu::open(ordinal).context("--device cuda")?;
        let compiler = Compiler::open(nvrtc).context("--device cuda")?;
        Ok(Self { gpu, compiler })
    }

    pub(super) fn describe(&self) -> anyhow::Result<String> {
        let (major, minor) = self.compiler.version();
        Ok(format!("{}, NVRTC {major}.{minor}", self.gpu.describe()?))
    }

    /// Compiles and loads the kernels for one width of heads, which takes a second.
    pub(super) fn load(&self, head_dim: usize) -> anyhow::Result<Loaded> {
        let kernels = GpuKernels::load(&self.gpu, &self.compiler, head_dim)?;
        Ok(Loaded { gpu: self.gpu.clone(), kernels })
    }
}

/// The kernels for one width of heads.
pub(super) struct Loaded {
    gpu: Gpu,
    kernels: GpuKernels,
}

impl Loaded {
    /// `want` is what the host's attention answers.
    pub(super) fn measure(
        &mut self,
        problem: &Problem,
        want: &[f32],
        runs: u32,
    ) -> anyhow::Result<Vec<Row>> {
        let slots = self.kernels.slots(u32::try_from(problem.ids.len())?)?;
        let ids = self.kernels.ids(&problem.ids)?;
        let Self { gpu, kernels } = self;
        let mut bench = Filled { gpu, kernels, slots, ids, problem, runs };
        // Scatter first: it fills the arena that the others read.
        let mut rows = Vec::new();
        for (place, name) in [(Where::Device, "device"), (Where::Pinned, "pinned")] {
            let mut staging = bench.kernels.staging(place, problem.ids.len())?;
            rows.push(bench.scatter(&mut staging, name)?);
            rows.push(bench.gather(&mut staging, name)?);
            if place == Where::Device {
                // A copy within the GPU's memory reads and writes it.
                for row in &mut rows {
                    row.memory_share = bench.share(2 * problem.bytes(), row.seconds);
                }
            }
        }
        rows.push(bench.attend(want)?);
        Ok(rows)
    }
}

/// Kernels with the slots of one problem.
struct Filled<'a> {
    gpu: &'a Gpu,
    kernels: &'a mut GpuKernels,
    slots: GpuSlots,
    ids: GpuIds,
    problem: &'a Problem,
    runs: u32,
}

impl Filled<'_> {
    /// All slices in the order of the ids.
    fn run_of_slices(&self) -> Vec<u32> {
        self.problem.ids.iter().flat_map(|&id| self.problem.slot(id)).copied().collect()
    }

    fn scatter(&mut self, staging: &mut Staging, place: &'static str) -> anyhow::Result<Row> {
        staging.write(&self.run_of_slices())?;
        let seconds = self.timed(|own| own.kernels.scatter(&mut own.slots, &own.ids, staging))?;
        Ok(Row::new("scatter", place, self.problem, seconds, self.problem.bytes()))
    }

    /// Behind a scatter of the same staging: what comes back must be what went in.
    fn gather(&mut self, staging: &mut Staging, place: &'static str) -> anyhow::Result<Row> {
        let want = self.run_of_slices();
        staging.write(&vec![0; want.len()])?;
        let seconds = self.timed(|own| own.kernels.gather(&own.slots, &own.ids, staging))?;
        anyhow::ensure!(
            staging.read()? == want,
            "gather or scatter with {place} staging: the slices that came back are others"
        );
        let mut row = Row::new("gather", place, self.problem, seconds, self.problem.bytes());
        row.agreement = Some("same bytes".to_owned());
        Ok(row)
    }

    fn attend(&mut self, want: &[f32]) -> anyhow::Result<Row> {
        let problem = self.problem;
        let mut launch = problem.with_sequences(|sequences| {
            let scale = problem.scale();
            let positions = &problem.positions;
            self.kernels.prepare(problem.shape, &problem.q, positions, sequences, scale)
        })?;
        let seconds = self.timed(|own| own.kernels.attend(&own.slots, &mut launch))?;
        let got = self.kernels.rows(&launch)?;
        let agreement = Agreement::of(&got, want, problem.shape.head_dim);
        anyhow::ensure!(agreement.is_right(), "attention differs from the host's: {agreement}");
        let mut row = Row::new("attend", "device", problem, seconds, problem.bytes());
        row.memory_share = self.share(problem.bytes(), seconds);
        row.agreement = Some(agreement.to_string());
        Ok(row)
    }

    /// Seconds of one launch, by the GPU's clock.
    fn timed(
        &mut self,
        mut launch: impl FnMut(&mut Self) -> Result<(), GpuError>,
    ) -> anyhow::Result<f64> {
        for _ in 0..WARM_UP {
            launch(self)?;
        }
        self.kernels.finish()?;
        let clock = self.gpu.time()?;
        for _ in 0..self.runs {
            launch(self)?;
        }
        let seconds = clock.seconds()?;
        self.kernels.finish()?;
        Ok(seconds / f64::from(self.runs))
    }

    fn share(&self, bytes: usize, seconds: f64) -> Option<f64> {
        let all = self.gpu.memory_bytes_per_second()?;
        Some(bytes as f64 / seconds / all)
    }
}
