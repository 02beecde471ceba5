//! NVRTC: from the sources in `kernels/cuda` to code for one GPU, and what the code takes of it.
//! Needs no GPU and no CUDA toolkit but the NVRTC library itself. It keeps no cache: one width of
//! heads compiles in about a second.

use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cudarc::nvrtc::{result, sys};

/// Registers that a thread of any kernel may take: 128 threads of 128 registers let a
/// multiprocessor of 65,536 hold four blocks, which is what hides the memory's latency.
pub const REGISTERS_MAX: u32 = 128;

const DEVICE_CUH: &CStr = c"device.cuh";
const DEVICE_CUH_TEXT: &str = include_str!("../../cuda/device.cuh");

/// A file of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// `slices.cu`: gather and scatter.
    Slices,
    /// `attend.cu`: attention for one width of heads, or for all of [`super::HEAD_DIMS`].
    Attend {
        /// The width; a multiple of 16 up to 256.
        head_dim: Option<usize>,
    },
}

impl Source {
    fn text(self) -> &'static str {
        match self {
            Self::Slices => include_str!("../../cuda/slices.cu"),
            Self::Attend { .. } => include_str!("../../cuda/attend.cu"),
        }
    }

    fn name(self) -> &'static CStr {
        match self {
            Self::Slices => c"slices.cu",
            Self::Attend { .. } => c"attend.cu",
        }
    }
}

/// What a GPU can run: its compute capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Architecture {
    major: u32,
    minor: u32,
}

impl Architecture {
    /// Of compute capability `major.minor`.
    #[must_use]
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("sm_{}{}", self.major, self.minor))
    }
}

/// There is no NVRTC to compile with.
#[derive(Debug, thiserror::Error)]
pub enum NoCompiler {
    /// The loader finds none.
    #[error(
        "no NVRTC library (libnvrtc.so.12): install the CUDA toolkit, or unpack the Python package \
         nvidia-cuda-nvrtc-cu12 and name its lib folder with --nvrtc"
    )]
    Missing,
    /// The folder that was named has none that loads.
    #[error("{}: no NVRTC library that loads ({reason})", folder.display())]
    Folder {
        /// What was named.
        folder: PathBuf,
        /// What the loader said.
        reason: String,
    },
}

/// The sources do not compile for an architecture.
#[derive(Debug, thiserror::Error)]
#[error("{source_name} for {architecture}: {status}: {log}")]
pub struct CompileError {
    source_name: String,
    architecture: Architecture,
    status: result::NvrtcError,
    /// What the compiler said.
    log: String,
}

/// NVRTC, loaded. Only [`Compiler::open`] makes one, which the SAFETY notes below rest on.
#[derive(Clone, Copy, Debug)]
pub struct Compiler {
    version: (i32, i32),
}

/// Code for one architecture.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The cubin, as the driver loads it.
    pub image: Vec<u8>,
    /// What compiler and assembler said.
    pub log: String,
}

/// What one kernel takes of a multiprocessor, by the assembler's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelUsage {
    /// Its name in the source.
    pub kernel: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes written to and read from local memory because registers ran out.
    pub spilled_bytes: u32,
    /// Bytes of shared memory of a block.
    pub shared_bytes: u32,
}

impl Compiler {
    /// Loads NVRTC: from `folder` where one is named, else from where the loader looks.
    ///
    /// # Errors
    /// [`NoCompiler`].
    pub fn open(folder: Option<&Path>) -> Result<Self, NoCompiler> {
        if let Some(folder) = folder {
            load_from(folder)?;
        }
        // SAFETY: loads a library that has no unsound initialisers; cudarc would panic without.
        if !unsafe { sys::is_culib_present() } {
            return Err(match folder {
                Some(folder) => NoCompiler::Folder {
                    folder: folder.to_owned(),
                    reason: "its version is not 12".to_owned(),
                },
                None => NoCompiler::Missing,
            });
        }
        let mut version = (0, 0);
        // SAFETY: the library is there, and both places are ours.
        let status = unsafe { sys::nvrtcVersion(&raw mut version.0, &raw mut version.1) };
        match status.result() {
            Ok(()) => Ok(Self { version }),
            Err(_) => Err(NoCompiler::Missing),
        }
    }

    /// The library's version, major and minor.
    #[must_use]
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// Compiles one file.
    ///
    /// # Errors
    /// [`CompileError`], when the compiler does not know the architecture.
    pub fn compile(
        &self,
        source: Source,
        architecture: Architecture,
    ) -> Result<Compiled, CompileError> {
        let failed = |status, log| CompileError {
            source_name: source.name().to_string_lossy().into_owned(),
            architecture,
            status,
            log,
        };
        let program = Program::create(source).map_err(|status| failed(status, String::new()))?;
        let mut options = vec![
            format!("--gpu-architecture={architecture}"),
            "--std=c++17".to_owned(),
            // Named one by one because the bits hang on them; kernels write each FMA out.
            "--fmad=false".to_owned(),
            "--ftz=false".to_owned(),
            "--prec-div=true".to_owned(),
            "--prec-sqrt=true".to_owned(),
            "--ptxas-options=-v".to_owned(),
        ];
        if let Source::Attend { head_dim: Some(head_dim) } = source {
            options.push(format!("--define-macro=OASISKV_HEAD_DIM={head_dim}"));
        }
        // SAFETY: the program was made above and lives on.
        let compiled = unsafe { result::compile_program(program.0, &options) };
        let log = program.log();
        let image = compiled.and_then(|()| program.image());
        match image {
            Ok(image) => Ok(Compiled { image, log }),
            Err(status) => Err(failed(status, log)),
        }
    }
}

impl Compiled {
    /// What each kernel takes, in the order of the assembler's report.
    #[must_use]
    pub fn usage(&self) -> Vec<KernelUsage> {
        usage(&self.log)
    }
}

/// Reads `ptxas -v`.
fn usage(log: &str) -> Vec<KernelUsage> {
    let mut found: Vec<KernelUsage> = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let kernel = rest.split('\'').next().unwrap_or_default().to_owned();
            found.push(KernelUsage { kernel, registers: 0, spilled_bytes: 0, shared_bytes: 0 });
        }
        let Some(last) = found.last_mut() else { continue };
        let before = |unit: &str| {
            let (head, _) = line.split_once(unit)?;
            head.split([' ', ',']).next_back()?.parse::<u32>().ok()
        };
        last.registers = before(" registers").unwrap_or(last.registers);
        last.shared_bytes = before(" bytes smem").unwrap_or(last.shared_bytes);
        last.spilled_bytes += before(" bytes spill stores").unwrap_or(0);
        last.spilled_bytes += before(" bytes spill loads").unwrap_or(0);
    }
    found
}

/// A program of NVRTC.
struct Program(sys::nvrtcProgram);

impl Program {
    fn create(source: Source) -> Result<Self, result::NvrtcError> {
        let text = CString::new(source.text()).expect("our sources hold no zero byte");
        let header = CString::new(DEVICE_CUH_TEXT).expect("our sources hold no zero byte");
        let mut program = std::ptr::null_mut();
        let (headers, names) = ([header.as_ptr()], [DEVICE_CUH.as_ptr()]);
        let name = source.name().as_ptr();
        // SAFETY: all texts end in zero and outlive the call, which copies them; one header and
        // one name are passed, as said. The library is there: callers hold a `Compiler`.
        let status = unsafe {
            sys::nvrtcCreateProgram(
                &raw mut program,
                text.as_ptr(),
                name,
                headers.len() as c_int,
                headers.as_ptr(),
                names.as_ptr(),
            )
        };
        status.result().map(|()| Self(program))
    }

    fn log(&self) -> String {
        // SAFETY: the program is alive.
        let log = unsafe { result::get_program_log(self.0) }.unwrap_or_default();
        let bytes: Vec<u8> = log.iter().map(|&byte| byte.cast_unsigned()).collect();
        String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned()
    }

    fn image(&self) -> Result<Vec<u8>, result::NvrtcError> {
        let mut len = 0;
        // SAFETY: the program is alive and compiled, the place is ours.
        unsafe { sys::nvrtcGetCUBINSize(self.0, &raw mut len) }.result()?;
        let mut image = vec![0_u8; len];
        // SAFETY: the image has the length that the library asked for.
        unsafe { sys::nvrtcGetCUBIN(self.0, image.as_mut_ptr().cast::<c_char>()) }.result()?;
        Ok(image)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program is ours and is not used again. A refusal leaks it, no more.
        let _leaked: bool = unsafe { result::destroy_program(self.0) }.is_err();
    }
}

/// Loads the libraries of a folder by their paths. The loader then knows them by their names, by
/// which cudarc (and NVRTC, for its built-in functions) asks for them.
fn load_from(folder: &Path) -> Result<(), NoCompiler> {
    let failed = |reason: String| NoCompiler::Folder { folder: folder.to_owned(), reason };
    let entries = std::fs::read_dir(folder).map_err(|error| failed(error.to_string()))?;
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| {
            let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
            name.starts_with("libnvrtc") && name.contains(".so") && !name.contains(".alt.")
        })
        .collect();
    // "libnvrtc-builtins" sorts before "libnvrtc.", which needs it.
    paths.sort();
    if paths.is_empty() {
        return Err(failed("no libnvrtc.so* in it".to_owned()));
    }
    for path in paths {
        let text = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| failed("its name holds a zero byte".to_owned()))?;
        // SAFETY: the text ends in zero; NVRTC has no unsound initialisers. Never closed: code
        // of the library may run until the process ends.
        let handle = unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if handle.is_null() {
            return Err(failed(format!("{} does not load", path.display())));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_assemblers_report_is_read_per_kernel() {
        let log = "ptxas info    : 48 bytes gmem
ptxas info    : Compiling entry function 'merge_64' for 'sm_90'
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 4 bytes smem
ptxas info    : Compiling entry function 'attend_64' for 'sm_90'
ptxas         .     16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 124 registers, used 1 barriers, 39200 bytes smem, 440 bytes cmem[0]";
        let want = |kernel: &str, registers, spilled_bytes, shared_bytes| KernelUsage {
            kernel: kernel.to_owned(),
            registers,
            spilled_bytes,
            shared_bytes,
        };
        assert_eq!(usage(log), [want("merge_64", 32, 0, 4), want("attend_64", 124, 20, 39200)]);
    }

    #[test]
    fn a_folder_without_the_library_is_named_in_the_error() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let text = Compiler::open(Some(&folder)).unwrap_err().to_string();
        assert!(text.contains("src") && text.contains("libnvrtc.so"), "{text}");
    }
}
