//! From a configuration to a model on a device: resolve the checkpoint, open it, pack the weights.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use checkpoint::{Checkpoint, CheckpointError, FetchConfig, Progress, ResolveError, Resolved};
use kernels::{Device, HostDevice, HostOptions, HugePages, Isa, OpenError as DeviceError};
use serde::{Deserialize, Serialize};

use crate::{LoadError, LoadOptions, Model};

/// The one device that can run a model today.
const HOST: &str = "host";

/// Which weights, and how the host device runs them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ComputeConfig {
    /// An alias such as `smollm2-135m`, the path of a .gguf file or of a directory with config.json
    /// and safetensors, or a hub id: `owner/name`, with `@revision`, `:quantisation` or
    /// `/file.gguf`.
    pub name: String,
    /// Where aliases' files and the proofs of digests are kept; empty is the user's cache folder.
    /// Models of the hub are kept in the cache that its own tools use.
    pub cache: PathBuf,
    /// Never ask the model hub: its models must be in its cache, aliases come from the Python
    /// package index.
    pub hub_offline: bool,
    /// Positions to serve at most, should the model be made for more.
    pub context_max: u32,
    /// What computes: host, the CPUs of this machine. CUDA has kernels but is no whole device yet.
    pub device: String,
    /// Compute threads; 0 is one for each processor that this process may use.
    pub threads: usize,
    /// Instruction set: auto, portable, avx2 or avx512. The bits are the same with each.
    pub isa: String,
    /// Ask for huge pages; where there are none it goes on without.
    pub huge_pages: bool,
}

impl Default for ComputeConfig {
    fn default() -> Self {
        Self {
            name: checkpoint::DEFAULT_ALIAS.to_owned(),
            cache: PathBuf::new(),
            hub_offline: false,
            context_max: 131_072,
            device: HOST.to_owned(),
            threads: 0,
            isa: "auto".to_owned(),
            huge_pages: true,
        }
    }
}

/// A field of [`ComputeConfig`] that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct InvalidCompute {
    /// Which field.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: String,
}

/// There is no model to run.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The configuration names something that is not there.
    #[error(transparent)]
    Config(#[from] InvalidCompute),
    /// No file.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// What was found is no checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// No device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The model does not fit the checkpoint or the device.
    #[error(transparent)]
    Load(#[from] LoadError),
}

impl OpenError {
    /// Whether `name` itself is wrong, so that no retry and no other source can help.
    #[must_use]
    pub fn names_no_model(&self) -> bool {
        matches!(self, Self::Resolve(error) if error.names_no_model())
    }
}

/// A model that is ready to run, shared by all roles of a process.
#[derive(Clone)]
pub struct Opened<D: Device> {
    /// The file or directory.
    pub resolved: Resolved,
    /// The device that the weights are on.
    pub device: D,
    /// The weights.
    pub model: Arc<Model<D>>,
}

impl ComputeConfig {
    /// Checks what can be told without the file.
    ///
    /// # Errors
    /// [`InvalidCompute`].
    pub fn check(&self) -> Result<(), InvalidCompute> {
        if self.name.is_empty() {
            let problem = "is empty; name an alias, a hub id or a path".to_owned();
            return Err(InvalidCompute { field: "model.name", problem });
        }
        if self.context_max < 2 {
            let problem = "must be at least 2".to_owned();
            return Err(InvalidCompute { field: "model.context_max", problem });
        }
        if self.device != HOST {
            let problem = not_a_device(&self.device);
            return Err(InvalidCompute { field: "model.device", problem });
        }
        if self.threads > kernels::THREADS_MAX {
            let problem =
                format!("must be at most {}; 0 is one per processor", kernels::THREADS_MAX);
            return Err(InvalidCompute { field: "model.threads", problem });
        }
        self.options().map(drop)
    }

    /// The device's options.
    fn options(&self) -> Result<HostOptions, InvalidCompute> {
        let isa = match self.isa.as_str() {
            "auto" => None,
            name => Some(name.parse::<Isa>().map_err(|error| InvalidCompute {
                field: "model.isa",
                problem: format!("{error}; or use auto"),
            })?),
        };
        let available = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let huge_pages = if self.huge_pages { HugePages::Auto } else { HugePages::Off };
        Ok(HostOptions {
            isa,
            threads: NonZeroUsize::new(self.threads).unwrap_or(available),
            huge_pages,
        })
    }
}

/// Why a device other than the host cannot be had.
fn not_a_device(name: &str) -> String {
    if name != "cuda" {
        return format!("unknown device {name:?}; use host");
    }
    let besides = match kernels::cuda::device_count() {
        Ok(_) => "",
        Err(_) => ", and this host has no CUDA driver",
    };
    format!(
        "cuda runs no model yet, there are kernels for attention and for moves of slices only \
         (oasiskv bench kernels --device cuda){besides}; use host"
    )
}

/// Opens the host device and loads the model onto it. Blocks, for a fetch that may take minutes.
///
/// # Errors
/// [`OpenError`].
pub fn open(
    config: &ComputeConfig,
    fetch: &FetchConfig,
    progress: &mut dyn Progress,
) -> Result<Opened<HostDevice>, OpenError> {
    config.check()?;
    let resolved = checkpoint::resolve(&config.name, fetch, progress)?;
    let checkpoint = Checkpoint::open(&resolved.path)?;
    let device = HostDevice::open(config.options()?)?;
    let options = LoadOptions { context_max: config.context_max };
    let model = Model::load(&checkpoint, &device, options)?;
    Ok(Opened { resolved, device, model: Arc::new(model) })
}
