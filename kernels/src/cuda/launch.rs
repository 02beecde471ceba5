//! The kernels of one GPU, loaded, and their launches. Memory here is what a bench and a check
//! need: arena, staging, inputs; it is not the device memory of a server.

use std::sync::Arc;

use cudarc::driver::{
    CudaFunction, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, LaunchConfig,
    PinnedHostSlice, PushKernelArg, sys,
};
use cudarc::nvrtc::Ptx;
use ids::SlotIdx;

use super::{AttendPlan, CompileError, Compiler, Gpu, GpuError, Source, Tables, plan::number};
use crate::{
    device::{AttendSequence, HeadShape},
    slots::{HEAD_DIM_MAX, SlotShape, slot_bytes},
};

/// Threads of a block, as the sources have them.
const SLICE_THREADS: u32 = 128;
const ATTEND_THREADS: u32 = 128;
const MERGE_THREADS: u32 = 64;
/// Blocks of slices for each multiprocessor: more than it holds at once, so that none idles.
const SLICE_BLOCKS_EACH: u32 = 32;

/// The kernels cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// No kernel is made for that width.
    #[error("head_dim {head_dim} is not supported; it must be a multiple of 16 up to 256")]
    HeadDim {
        /// The width that was asked for.
        head_dim: usize,
    },
    /// The sources do not compile for this GPU.
    #[error("cannot compile the CUDA kernels")]
    Compile(#[from] CompileError),
    /// The driver refused them.
    #[error("cannot load the CUDA kernels")]
    Gpu(#[from] GpuError),
}

/// All kernels for one width of heads.
#[derive(Debug)]
pub struct GpuKernels {
    gpu: Gpu,
    head_dim: usize,
    gather: CudaFunction,
    scatter: CudaFunction,
    /// For 4 and for 8 queries a tile.
    attend: [CudaFunction; 2],
    merge: CudaFunction,
    /// One word: slot numbers out of range since it was last read.
    faults: CudaSlice<u32>,
}

/// An arena of slots in GPU memory.
#[derive(Debug)]
pub struct GpuSlots {
    shape: SlotShape,
    memory: CudaSlice<u32>,
}

/// Which memory slices are staged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    /// The GPU's.
    Device,
    /// The host's, pinned; the kernels reach it over the bus.
    Pinned,
}

/// A contiguous run of slices.
#[derive(Debug)]
pub struct Staging {
    memory: StagingMemory,
    /// Waited for before pinned memory is freed: the driver does not know that kernels use it.
    stream: Arc<CudaStream>,
}

#[derive(Debug)]
enum StagingMemory {
    Device(CudaSlice<u32>),
    Pinned(PinnedHostSlice<u32>),
}

impl Drop for Staging {
    fn drop(&mut self) {
        // A GPU that is lost runs nothing that could still write here.
        let _lost: bool = self.stream.synchronize().is_err();
    }
}

/// Slot numbers in GPU memory.
#[derive(Debug)]
pub struct GpuIds(CudaSlice<u32>);

/// One launch of attention, prepared: inputs and outputs in GPU memory.
#[derive(Debug)]
pub struct GpuAttend {
    shape: HeadShape,
    plan: AttendPlan,
    table_stride: usize,
    scale: f32,
    q: CudaSlice<f32>,
    positions: CudaSlice<u32>,
    tables: CudaSlice<u32>,
    tiles: CudaSlice<u32>,
    partials: CudaSlice<f32>,
    out: CudaSlice<f32>,
}

/// `struct Attend` of attend.cu, field by field.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct AttendArgument {
    q: u64,
    positions: u64,
    slots: u64,
    tables: u64,
    tiles: u64,
    partials: u64,
    out: u64,
    faults: u64,
    slot_count: u32,
    table_stride: u32,
    kv_heads: u32,
    group: u32,
    splits_max: u32,
    scale: f32,
}

// SAFETY: plain numbers in C's layout, the same as the kernel's parameter.
unsafe impl DeviceRepr for AttendArgument {}

fn grid(x: usize, y: usize, z: usize, threads: u32) -> LaunchConfig {
    LaunchConfig {
        grid_dim: (number(x), number(y), number(z)),
        block_dim: (threads, 1, 1),
        shared_mem_bytes: 0,
    }
}

impl GpuKernels {
    /// Compiles the kernels for this GPU and width of heads, and loads them.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn load(gpu: &Gpu, compiler: &Compiler, head_dim: usize) -> Result<Self, LoadError> {
        if head_dim == 0 || !head_dim.is_multiple_of(16) || head_dim > HEAD_DIM_MAX {
            return Err(LoadError::HeadDim { head_dim });
        }
        let load = |source| {
            let image = compiler.compile(source, gpu.architecture())?.image;
            let refused = GpuError::driver("load code onto the GPU");
            let module = gpu.context().load_module(Ptx::from_binary(image)).map_err(refused)?;
            Ok::<_, LoadError>(move |name: &str| {
                module.load_function(name).map_err(GpuError::driver("find a kernel"))
            })
        };
        let slices = load(Source::Slices)?;
        let attend = load(Source::Attend { head_dim: Some(head_dim) })?;
        let zeroed = gpu.stream().alloc_zeros(1).map_err(GpuError::driver("take GPU memory"))?;
        Ok(Self {
            gpu: gpu.clone(),
            head_dim,
            gather: slices("gather_slices")?,
            scatter: slices("scatter_slices")?,
            attend: [
                attend(&format!("attend_{head_dim}_4"))?,
                attend(&format!("attend_{head_dim}_8"))?,
            ],
            merge: attend(&format!("merge_{head_dim}"))?,
            faults: zeroed,
        })
    }

    /// Zeroed slots.
    ///
    /// # Errors
    /// When the GPU has no such memory.
    pub fn slots(&self, count: u32) -> Result<GpuSlots, GpuError> {
        let shape = SlotShape { head_dim: self.head_dim, count };
        let words = slot_bytes(self.head_dim) / 4 * count as usize;
        let taken = GpuError::driver("take GPU memory for slots");
        let memory = self.gpu.stream().alloc_zeros(words).map_err(taken)?;
        Ok(GpuSlots { shape, memory })
    }

    /// Zeroed room for `slices` slices.
    ///
    /// # Errors
    /// When there is no such memory.
    pub fn staging(&self, place: Where, slices: usize) -> Result<Staging, GpuError> {
        let words = slot_bytes(self.head_dim) / 4 * slices;
        let stream = Arc::clone(self.gpu.stream());
        let memory = match place {
            Where::Device => {
                let taken = GpuError::driver("take GPU memory for staging");
                StagingMemory::Device(stream.alloc_zeros(words).map_err(taken)?)
            }
            Where::Pinned => {
                let taken = GpuError::driver("pin host memory for staging");
                let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE;
                // SAFETY: every word is written below before anything reads it.
                let pinned =
                    unsafe { self.gpu.context().alloc_pinned_with_flags::<u32>(words, flags) };
                let mut pinned = pinned.map_err(&taken)?;
                pinned.as_mut_slice().map_err(taken)?.fill(0);
                StagingMemory::Pinned(pinned)
            }
        };
        Ok(Staging { memory, stream })
    }

    /// Slot numbers for launches. One beyond the arena is counted and left out, see
    /// [`Self::finish`].
    ///
    /// # Errors
    /// When the GPU has no such memory.
    pub fn ids(&self, ids: &[SlotIdx]) -> Result<GpuIds, GpuError> {
        let ids: Vec<u32> = ids.iter().map(|id| id.0).collect();
        self.upload(&ids).map(GpuIds)
    }

    /// Copies slots to staging, one after the other. Returns before it is done.
    ///
    /// # Errors
    /// When the launch is refused.
    ///
    /// # Panics
    /// When the staging is shorter than the ids.
    pub fn gather(
        &mut self,
        slots: &GpuSlots,
        ids: &GpuIds,
        to: &mut Staging,
    ) -> Result<(), GpuError> {
        let stream = Arc::clone(self.gpu.stream());
        let (slots_at, _reads) = slots.memory.device_ptr(&stream);
        let staged = to.words();
        let (to_at, _writes) = to.address_mut(&stream)?;
        let moved = Moved { from: slots_at, to: to_at, slots: slots.shape, staged };
        self.move_slices(&self.gather, Direction::OutOfSlots, ids, &moved)
    }

    /// Copies staging to slots; the ids are distinct. Returns before it is done.
    ///
    /// # Errors
    /// When the launch is refused.
    ///
    /// # Panics
    /// When the staging is shorter than the ids.
    pub fn scatter(
        &mut self,
        slots: &mut GpuSlots,
        ids: &GpuIds,
        from: &mut Staging,
    ) -> Result<(), GpuError> {
        let stream = Arc::clone(self.gpu.stream());
        let shape = slots.shape;
        let staged = from.words();
        let (slots_at, _writes) = slots.memory.device_ptr_mut(&stream);
        let (from_at, _reads) = from.address_mut(&stream)?;
        let moved = Moved { from: from_at, to: slots_at, slots: shape, staged };
        self.move_slices(&self.scatter, Direction::IntoSlots, ids, &moved)
    }

    fn move_slices(
        &self,
        kernel: &CudaFunction,
        direction: Direction,
        ids: &GpuIds,
        moved: &Moved,
    ) -> Result<(), GpuError> {
        let len = ids.0.len();
        let words = slot_bytes(self.head_dim) / 4;
        assert!(len * words <= moved.staged, "staging of {} words for {len} slices", moved.staged);
        if len == 0 {
            return Ok(());
        }
        let stream = self.gpu.stream();
        let (count, vectors, ids_len) = (moved.slots.count, number(words / 4), number(len));
        let warps = SLICE_THREADS / 32;
        let blocks = ids_len.div_ceil(warps).min(self.gpu.multiprocessors() * SLICE_BLOCKS_EACH);
        let (ids_at, _reads) = ids.0.device_ptr(stream);
        let (faults_at, _counts) = self.faults.device_ptr(stream);
        // Arena first, staging behind the ids, in both kernels.
        let (arena, run) = match direction {
            Direction::OutOfSlots => (moved.from, moved.to),
            Direction::IntoSlots => (moved.to, moved.from),
        };
        let mut launch = stream.launch_builder(kernel);
        launch.arg(&arena).arg(&count).arg(&vectors);
        launch.arg(&ids_at).arg(&ids_len).arg(&run).arg(&faults_at);
        // SAFETY: the seven arguments are those of slices.cu, in its order; the ids bound reads
        // of the run (asserted above), the kernel itself bounds slots by `count`. The memory is
        // borrowed by the caller and freed only behind this stream's work.
        let launched = unsafe { launch.launch(grid(blocks as usize, 1, 1, SLICE_THREADS)) };
        launched.map(drop).map_err(GpuError::driver("launch a move of slices"))
    }

    /// Brings the inputs of an attention to the GPU: `q` is `[rows][heads * head_dim]`.
    ///
    /// # Errors
    /// When the GPU has no such memory.
    ///
    /// # Panics
    /// When shapes do not fit, as [`AttendPlan::cut`] says.
    pub fn prepare(
        &self,
        shape: HeadShape,
        q: &[f32],
        positions: &[u32],
        sequences: &[AttendSequence<'_>],
        scale: f32,
    ) -> Result<GpuAttend, GpuError> {
        assert_eq!(shape.head_dim, self.head_dim, "kernels of another width");
        assert_eq!(q.len(), positions.len() * shape.heads * shape.head_dim, "q is rows by heads");
        let plan = AttendPlan::cut(shape, positions, sequences);
        let tables = Tables::collect(sequences);
        let stream = self.gpu.stream();
        let taken = GpuError::driver("take GPU memory for attention");
        let partials = plan.partials_len(shape, positions.len()).max(1);
        Ok(GpuAttend {
            shape,
            table_stride: tables.stride,
            // In f32, as the host multiplies it.
            scale: scale * std::f32::consts::LOG2_E,
            q: self.upload(q)?,
            positions: self.upload(positions)?,
            tables: self.upload(&tables.slots)?,
            tiles: self.upload(plan.tiles.as_flattened())?,
            partials: stream.alloc_zeros(partials).map_err(&taken)?,
            out: stream.alloc_zeros(q.len()).map_err(taken)?,
            plan,
        })
    }

    /// Attention over slots. Returns before it is done.
    ///
    /// # Errors
    /// When a launch is refused.
    pub fn attend(&mut self, slots: &GpuSlots, launch: &mut GpuAttend) -> Result<(), GpuError> {
        let stream = Arc::clone(self.gpu.stream());
        let (tiles, queries) = (launch.plan.tiles.len(), launch.plan.queries);
        if tiles == 0 {
            return Ok(());
        }
        let HeadShape { heads, kv_heads, .. } = launch.shape;
        let (q, _q) = launch.q.device_ptr(&stream);
        let (positions, _positions) = launch.positions.device_ptr(&stream);
        let (slots_at, _slots) = slots.memory.device_ptr(&stream);
        let (tables, _tables) = launch.tables.device_ptr(&stream);
        let (tiles_at, _tiles) = launch.tiles.device_ptr(&stream);
        let (partials, _partials) = launch.partials.device_ptr_mut(&stream);
        let (out, _out) = launch.out.device_ptr_mut(&stream);
        let (faults, _faults) = self.faults.device_ptr_mut(&stream);
        let argument = AttendArgument {
            q,
            positions,
            slots: slots_at,
            tables,
            tiles: tiles_at,
            partials,
            out,
            faults,
            slot_count: slots.shape.count,
            table_stride: number(launch.table_stride),
            kv_heads: number(kv_heads),
            group: number(heads / kv_heads),
            splits_max: number(launch.plan.splits_max),
            scale: launch.scale,
        };
        let refused = GpuError::driver("launch attention");
        let kernel = &self.attend[usize::from(queries == 8)];
        let cut = grid(launch.plan.splits_max, kv_heads, tiles, ATTEND_THREADS);
        let mut partial = stream.launch_builder(kernel);
        // SAFETY: the one argument has the kernel's layout; the plan was cut from these positions
        // and tables, so every index of it lies inside the arrays, and slots are checked by the
        // kernel. All memory is borrowed here and freed only behind this stream's work.
        unsafe { partial.arg(&argument).launch(cut) }.map_err(&refused)?;
        let cut = grid(tiles, kv_heads, queries, MERGE_THREADS);
        let mut merge = stream.launch_builder(&self.merge);
        // SAFETY: as above.
        unsafe { merge.arg(&argument).launch(cut) }.map_err(refused)?;
        Ok(())
    }

    /// Waits for an attention and brings its rows to the host.
    ///
    /// # Errors
    /// When the work failed or named slots that do not exist.
    pub fn rows(&mut self, launch: &GpuAttend) -> Result<Vec<f32>, GpuError> {
        self.finish()?;
        let copied = GpuError::driver("copy results to the host");
        let rows = self.gpu.stream().clone_dtoh(&launch.out).map_err(copied)?;
        self.gpu.synchronise()?;
        Ok(rows)
    }

    /// Waits for all launches.
    ///
    /// # Errors
    /// When one failed, or named slots that do not exist.
    pub fn finish(&mut self) -> Result<(), GpuError> {
        let stream = Arc::clone(self.gpu.stream());
        let read = GpuError::driver("read how launches went");
        let faults = stream.clone_dtoh(&self.faults).map_err(&read)?;
        self.gpu.synchronise()?;
        match faults.first() {
            Some(0) | None => Ok(()),
            Some(&count) => {
                stream.memset_zeros(&mut self.faults).map_err(read)?;
                Err(GpuError::Slots { count })
            }
        }
    }

    fn upload<T: DeviceRepr>(&self, from: &[T]) -> Result<CudaSlice<T>, GpuError> {
        self.gpu.stream().clone_htod(from).map_err(GpuError::driver("copy to the GPU"))
    }
}

/// Which way slices go.
#[derive(Clone, Copy, Debug)]
enum Direction {
    OutOfSlots,
    IntoSlots,
}

/// The two sides of a move.
#[derive(Clone, Copy, Debug)]
struct Moved {
    from: u64,
    to: u64,
    slots: SlotShape,
    /// Words of the staging.
    staged: usize,
}

impl Staging {
    /// Words that it holds.
    fn words(&self) -> usize {
        match &self.memory {
            StagingMemory::Device(memory) => memory.len(),
            StagingMemory::Pinned(memory) => memory.len(),
        }
    }

    /// Its address on the GPU. Pinned memory has one address on both sides (unified addressing,
    /// which every 64-bit system has).
    fn address_mut<'a>(
        &'a mut self,
        stream: &'a CudaStream,
    ) -> Result<(u64, Option<cudarc::driver::SyncOnDrop<'a>>), GpuError> {
        match &mut self.memory {
            StagingMemory::Device(memory) => {
                let (at, guard) = memory.device_ptr_mut(stream);
                Ok((at, Some(guard)))
            }
            StagingMemory::Pinned(memory) => {
                let at = memory.as_mut_ptr().map_err(GpuError::driver("use pinned memory"))?;
                Ok((at.expose_provenance() as u64, None))
            }
        }
    }

    /// Replaces its first slices.
    ///
    /// # Errors
    /// When the copy failed.
    pub fn write(&mut self, words: &[u32]) -> Result<(), GpuError> {
        self.stream.synchronize().map_err(GpuError::driver("wait for the GPU"))?;
        let copied = GpuError::driver("copy to staging");
        match &mut self.memory {
            StagingMemory::Device(memory) => self.stream.memcpy_htod(words, memory).map_err(copied),
            StagingMemory::Pinned(memory) => {
                memory.as_mut_slice().map_err(copied)?[..words.len()].copy_from_slice(words);
                Ok(())
            }
        }
    }

    /// All of it, when what was launched is done.
    ///
    /// # Errors
    /// When the copy failed.
    pub fn read(&self) -> Result<Vec<u32>, GpuError> {
        self.stream.synchronize().map_err(GpuError::driver("wait for the GPU"))?;
        let copied = GpuError::driver("copy from staging");
        match &self.memory {
            StagingMemory::Device(memory) => self.stream.clone_dtoh(memory).map_err(copied),
            StagingMemory::Pinned(memory) => Ok(memory.as_slice().map_err(copied)?.to_vec()),
        }
    }
}
