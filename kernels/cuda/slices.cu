// Whole slices between the arena of slots and one contiguous run: one launch moves all slices of
// a layer, or of a session. The run may lie in device memory or in pinned host memory that the
// device can address; which one makes no difference here.
//
// A warp moves a slice: 16 bytes a lane, eight loads in flight before the first store, because a
// slice of 4 KiB lies anywhere and only many requests at once hide where it lies.
#include "device.cuh"

constexpr unsigned SLICE_THREADS = 128;
constexpr unsigned SLICE_WARPS = SLICE_THREADS / WARP;

// `vectors` is a multiple of 64 (head_dim is one of 16); lanes copy 8, then 2 vectors at a time.
static __device__ __forceinline__ void copy_slice(const uint4 *__restrict__ from,
                                                  uint4 *__restrict__ to, unsigned vectors,
                                                  unsigned lane) {
    unsigned at = lane;
    for (; at + 7 * WARP < vectors; at += 8 * WARP) {
        uint4 held[8];
#pragma unroll
        for (unsigned i = 0; i < 8; i++) {
            held[i] = from[at + i * WARP];
        }
#pragma unroll
        for (unsigned i = 0; i < 8; i++) {
            to[at + i * WARP] = held[i];
        }
    }
    for (; at < vectors; at += 2 * WARP) {
        const uint4 first = from[at];
        const uint4 second = from[at + WARP];
        to[at] = first;
        to[at + WARP] = second;
    }
}

// to[i] = slots[ids[i]]. A slice whose id is out of range is left as it is and counted.
extern "C" __global__ void __launch_bounds__(SLICE_THREADS)
gather_slices(const uint4 *__restrict__ slots, unsigned slot_count, unsigned vectors,
               const unsigned *__restrict__ ids, unsigned ids_len, uint4 *__restrict__ to,
               unsigned *faults) {
    const unsigned lane = threadIdx.x % WARP;
    const unsigned first = blockIdx.x * SLICE_WARPS + threadIdx.x / WARP;
    for (unsigned i = first; i < ids_len; i += gridDim.x * SLICE_WARPS) {
        const unsigned id = ids[i];
        if (id >= slot_count) {
            if (lane == 0) {
                atomicAdd(faults, 1u);
            }
            continue;
        }
        const unsigned long long vectors_wide = vectors;
        copy_slice(slots + id * vectors_wide, to + i * vectors_wide, vectors, lane);
    }
}

// slots[ids[i]] = from[i]. The ids of a launch are distinct; one out of range is counted.
extern "C" __global__ void __launch_bounds__(SLICE_THREADS)
scatter_slices(uint4 *__restrict__ slots, unsigned slot_count, unsigned vectors,
                const unsigned *__restrict__ ids, unsigned ids_len,
                const uint4 *__restrict__ from, unsigned *faults) {
    const unsigned lane = threadIdx.x % WARP;
    const unsigned first = blockIdx.x * SLICE_WARPS + threadIdx.x / WARP;
    for (unsigned i = first; i < ids_len; i += gridDim.x * SLICE_WARPS) {
        const unsigned id = ids[i];
        if (id >= slot_count) {
            if (lane == 0) {
                atomicAdd(faults, 1u);
            }
            continue;
        }
        const unsigned long long vectors_wide = vectors;
        copy_slice(from + i * vectors_wide, slots + id * vectors_wide, vectors, lane);
    }
}
