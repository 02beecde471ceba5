//! One GPU through its driver: what it is, its stream, its clock. Loads libcuda when asked and says
//! so where it is missing. Launches no kernel of ours: that is `launch`.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, result, sys};

use super::compile::Architecture;

/// There is no GPU to use, or it refused.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// libcuda is not on this host.
    #[error(
        "no CUDA driver (libcuda.so.1) on this host: install NVIDIA's driver, \
         or use the host device"
    )]
    NoDriver,
    /// The driver has fewer GPUs.
    #[error("no GPU {ordinal}: the CUDA driver shows {count}; see CUDA_VISIBLE_DEVICES")]
    NoDevice {
        /// What was asked for.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// A call of the driver failed. What was launched since the last answer has no result.
    #[error("{what}: {reason}")]
    Driver {
        /// What was tried.
        what: &'static str,
        /// What the driver said.
        reason: String,
    },
    /// A launch named slots that the arena does not have; those slices were left out.
    #[error("{count} slot numbers of a launch are out of range")]
    Slots {
        /// How many.
        count: u32,
    },
}

impl GpuError {
    /// Makes an error of the driver's.
    pub(super) fn driver(what: &'static str) -> impl Fn(DriverError) -> Self {
        move |error| Self::Driver { what, reason: format!("{error:?}") }
    }
}

/// Checks that there is a driver; every other call of cudarc panics without.
fn require_driver() -> Result<(), GpuError> {
    // SAFETY: loads a library that has no unsound initialisers.
    if !unsafe { sys::is_culib_present() } {
        return Err(GpuError::NoDriver);
    }
    result::init().map_err(GpuError::driver("start the CUDA driver"))
}

/// How many GPUs the driver shows to this process.
///
/// # Errors
/// [`GpuError::NoDriver`], or what the driver says.
pub fn device_count() -> Result<usize, GpuError> {
    require_driver()?;
    let count = result::device::get_count().map_err(GpuError::driver("count the GPUs"))?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// One GPU with one stream.
#[derive(Clone, Debug)]
pub struct Gpu {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    name: String,
    architecture: Architecture,
    multiprocessors: u32,
}

impl Gpu {
    /// Opens the GPU of that number.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn open(ordinal: usize) -> Result<Self, GpuError> {
        let count = device_count()?;
        if ordinal >= count {
            return Err(GpuError::NoDevice { ordinal, count });
        }
        let context = CudaContext::new(ordinal).map_err(GpuError::driver("open the GPU"))?;
        let asked = GpuError::driver("ask the GPU what it is");
        let (major, minor) = context.compute_capability().map_err(&asked)?;
        let name = context.name().map_err(&asked)?;
        let multiprocessors = context
            .attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
            .map_err(&asked)?;
        let stream = context.new_stream().map_err(GpuError::driver("make a stream"))?;
        Ok(Self {
            architecture: Architecture::new(major.unsigned_abs(), minor.unsigned_abs()),
            name,
            multiprocessors: multiprocessors.unsigned_abs(),
            context,
            stream,
        })
    }

    /// For people: name, architecture, memory and driver.
    ///
    /// # Errors
    /// When the driver does not answer.
    pub fn describe(&self) -> Result<String, GpuError> {
        let asked = GpuError::driver("ask the GPU what it is");
        let memory = self.context.total_mem().map_err(asked)?;
        let driver = driver_version()?;
        Ok(format!(
            "{}, {}, {} multiprocessors, {} MiB, driver for CUDA {}.{}",
            self.name,
            self.architecture,
            self.multiprocessors,
            memory >> 20,
            driver / 1000,
            driver % 1000 / 10,
        ))
    }

    /// What it runs.
    #[must_use]
    pub fn architecture(&self) -> Architecture {
        self.architecture
    }

    /// Multiprocessors, which decide how large a grid of slices is.
    #[must_use]
    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// Bytes that its memory can move in a second, by its clock and width; `None` where the driver
    /// does not say.
    #[must_use]
    pub fn memory_bytes_per_second(&self) -> Option<f64> {
        use sys::CUdevice_attribute as Ask;
        let clock = Ask::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE;
        let width = Ask::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH;
        let kilohertz = self.context.attribute(clock).ok().filter(|&value| value > 0)?;
        let bits = self.context.attribute(width).ok().filter(|&value| value > 0)?;
        // Two transfers a clock.
        Some(2.0 * f64::from(kilohertz) * 1e3 * f64::from(bits) / 8.0)
    }

    /// Returns when all work is done.
    ///
    /// # Errors
    /// When the work failed.
    pub fn synchronise(&self) -> Result<(), GpuError> {
        self.stream.synchronize().map_err(GpuError::driver("wait for the GPU"))
    }

    /// Begins to time what is launched next.
    ///
    /// # Errors
    /// When the driver gives no event.
    pub fn time(&self) -> Result<Timed, GpuError> {
        Ok(Timed { begun: self.mark()?, gpu: self.clone() })
    }

    fn mark(&self) -> Result<CudaEvent, GpuError> {
        let flags = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        self.stream.record_event(flags).map_err(GpuError::driver("mark a time"))
    }

    pub(super) fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    pub(super) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }
}

/// A running measurement by the GPU's own clock.
#[derive(Debug)]
pub struct Timed {
    gpu: Gpu,
    begun: CudaEvent,
}

impl Timed {
    /// Seconds that what was launched since took on the GPU. Waits for it.
    ///
    /// # Errors
    /// When the work failed.
    pub fn seconds(self) -> Result<f64, GpuError> {
        let ended = self.gpu.mark()?;
        let milliseconds =
            self.begun.elapsed_ms(&ended).map_err(GpuError::driver("read a time"))?;
        Ok(f64::from(milliseconds) / 1e3)
    }
}

/// The CUDA version that the driver is made for, as 1000 major + 10 minor.
fn driver_version() -> Result<i32, GpuError> {
    let mut version = 0;
    // SAFETY: a `Gpu` exists only where the library is; the place is ours.
    let status = unsafe { sys::cuDriverGetVersion(&raw mut version) };
    status.result().map_err(GpuError::driver("ask for the driver's version"))?;
    Ok(version)
}
