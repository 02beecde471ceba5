//! `oasiskv bench kernels`: moves of slices and attention over slots alone, without a model, on the
//! host or on a GPU. What a GPU computes is compared with the host before it is timed; on the host
//! there is nothing to compare with. Asserts no figure.

mod gpu;
mod host;
mod problem;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use clap::ValueEnum;
use daemon::exit;
use kernels::HeadShape;
use serde::Serialize;

use super::at_least_one;
use problem::Problem;

#[derive(Debug, clap::Args)]
pub(crate) struct KernelsArgs {
    /// Where the kernels run.
    #[arg(long, value_enum, default_value_t = DeviceKind::Host)]
    device: DeviceKind,
    /// Which GPU, as the driver numbers them.
    #[arg(long, default_value_t = 0, value_name = "N")]
    gpu: usize,
    /// The folder of NVRTC's library, where the loader does not find it by itself.
    #[arg(long, value_name = "FOLDER")]
    nvrtc: Option<PathBuf>,
    /// Compute threads of the host; 0 is one for each processor.
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Query heads, KV heads and their width: those of SmolLM2 135M and of Llama 3 8B.
    #[arg(long, value_delimiter = ',', default_value = "9x3x64,32x8x128", value_name = "HxKxD")]
    shapes: Vec<Shape>,
    /// Tokens of each sequence.
    #[arg(long, value_delimiter = ',', default_value = "1024,8192", value_parser = at_least_one)]
    contexts: Vec<u32>,
    /// Numbers of sequences in a launch, one row each.
    #[arg(long, value_delimiter = ',', default_value = "1,8", value_parser = at_least_one)]
    sequences: Vec<u32>,
    /// Launches that are timed together.
    #[arg(long, default_value_t = 20, value_parser = at_least_one)]
    runs: u32,
    /// Print the rows as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DeviceKind {
    /// The CPUs of this machine.
    Host,
    /// An NVIDIA GPU; needs its driver and NVRTC.
    Cuda,
}

/// A head shape on the command line.
#[derive(Clone, Copy, Debug)]
struct Shape(HeadShape);

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Vec<usize> = text.split('x').map_while(|part| part.parse().ok()).collect();
        match numbers.as_slice() {
            &[heads, kv_heads, head_dim]
                if kv_heads > 0
                    && heads > 0
                    && heads.is_multiple_of(kv_heads)
                    && (16..=256).contains(&head_dim)
                    && head_dim.is_multiple_of(16) =>
            {
                Ok(Self(HeadShape { heads, kv_heads, head_dim }))
            }
            _ => Err("use heads x KV heads x width, such as 9x3x64; KV heads divide the heads, \
                      the width is a multiple of 16 up to 256"
                .to_owned()),
        }
    }
}

/// One figure.
#[derive(Debug, Serialize)]
struct Row {
    kernel: &'static str,
    /// Where a run of slices lies; of attention, where it ran.
    place: &'static str,
    head_dim: usize,
    sequences: u32,
    context: u32,
    /// Seconds of one launch.
    seconds: f64,
    /// Payload over time: slices moved, or K and V read once.
    gigabytes_per_second: f64,
    /// Share of the GPU memory's bandwidth, where both are known; a copy within it counts twice.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_share: Option<f64>,
    /// How it compares with the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    agreement: Option<String>,
}

pub(crate) fn main(args: &KernelsArgs) -> ExitCode {
    match measure(args) {
        Ok(()) => ExitCode::from(exit::OK),
        Err(error) => {
            // If standard error is gone the exit code is all that is left to say.
            drop(std::io::stderr().write_fmt(format_args!("oasiskv: {error:#}\n")));
            ExitCode::from(exit::code_of(&error))
        }
    }
}

fn measure(args: &KernelsArgs) -> anyhow::Result<()> {
    let host = host::Host::open(args.threads)?;
    let gpu = match args.device {
        DeviceKind::Host => None,
        DeviceKind::Cuda => Some(gpu::Bench::open(args.gpu, args.nvrtc.as_deref())?),
    };
    let device = match &gpu {
        None => host.describe(),
        Some(gpu) => gpu.describe()?,
    };
    if !args.json {
        writeln!(std::io::stdout(), "{device}")?;
    }
    let mut rows = Vec::new();
    for Shape(shape) in &args.shapes {
        let mut loaded = gpu.as_ref().map(|gpu| gpu.load(shape.head_dim)).transpose()?;
        for &context in &args.contexts {
            for &sequences in &args.sequences {
                let problem = Problem::new(*shape, sequences, context);
                let new = match &mut loaded {
                    None => host.measure(&problem, args.runs)?,
                    Some(loaded) => loaded.measure(&problem, &host.attend(&problem)?, args.runs)?,
                };
                if !args.json {
                    new.iter().try_for_each(show)?;
                }
                rows.extend(new);
            }
        }
    }
    if args.json {
        let document = serde_json::json!({ "device": device, "rows": rows });
        writeln!(std::io::stdout(), "{}", serde_json::to_string_pretty(&document)?)?;
    }
    Ok(())
}

fn show(row: &Row) -> std::io::Result<()> {
    let share = row.memory_share.map(|share| format!(" {:>3.0}% of memory", share * 100.0));
    writeln!(
        std::io::stdout(),
        "{:<8} {:<7} width {:>3}, {:>3} sequences, context {:>6}: {:>9.1} us {:>8.1} GB/s{} {}",
        row.kernel,
        row.place,
        row.head_dim,
        row.sequences,
        row.context,
        row.seconds * 1e6,
        row.gigabytes_per_second,
        share.unwrap_or_default(),
        row.agreement.as_deref().unwrap_or_default(),
    )
}

impl Row {
    fn new(
        kernel: &'static str,
        place: &'static str,
        problem: &Problem,
        seconds: f64,
        bytes: usize,
    ) -> Self {
        Self {
            kernel,
            place,
            head_dim: problem.shape.head_dim,
            sequences: problem.sequences,
            context: problem.context,
            seconds,
            gigabytes_per_second: bytes as f64 / seconds / 1e9,
            memory_share: None,
            agreement: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Shape;

    #[test]
    fn a_shape_is_three_numbers_that_fit() {
        let shape = "9x3x64".parse::<Shape>().unwrap().0;
        assert_eq!((shape.heads, shape.kv_heads, shape.head_dim), (9, 3, 64));
        for bad in ["", "9x3", "9x4x64", "9x3x60", "9x0x64", "9x3x512", "axbxc", "1x1x64x1"] {
            assert!(bad.parse::<Shape>().unwrap_err().contains("9x3x64"), "{bad}");
        }
    }
}
