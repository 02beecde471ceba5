//! Devices and files for the tests.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use checkpoint::Checkpoint;
use kernels::{HostDevice, HostOptions, HugePages, Isa};
use model::{LoadOptions, Model};

use super::writer::GgufFile;

/// A host device with so many threads, on a forced instruction set or the best there is.
pub(crate) fn device(threads: usize, isa: Option<Isa>) -> HostDevice {
    let options = HostOptions {
        isa,
        threads: NonZeroUsize::new(threads).unwrap(),
        huge_pages: HugePages::Off,
    };
    HostDevice::open(options).unwrap()
}

/// Instruction sets of this machine.
pub(crate) fn isas() -> Vec<Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.supported()).collect()
}

/// Writes a file and opens it; it is gone when the handle is.
pub(crate) fn open(file: &GgufFile) -> Checkpoint {
    let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
    file.write(&path);
    Checkpoint::open(&path).unwrap()
}

/// The default model's file: `OASISKV_TEST_MODEL`, else where the product's cache has it.
pub(crate) fn real_file() -> Option<Checkpoint> {
    let cache = || {
        let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
        let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home)?;
        let file = "oasiskv/models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf";
        Some(base.join(file)).filter(|path| path.exists())
    };
    let path = std::env::var_os("OASISKV_TEST_MODEL").map(PathBuf::from).or_else(cache);
    match path {
        Some(path) => Some(Checkpoint::open(&path).unwrap()),
        None => {
            println!("SKIPPED no model file");
            None
        }
    }
}

pub(crate) fn load(checkpoint: &Checkpoint, device: &HostDevice) -> Model<HostDevice> {
    Model::load(checkpoint, device, LoadOptions::default()).unwrap()
}
