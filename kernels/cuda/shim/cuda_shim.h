// CUDA's execution model on the CPU: enough of it to run the kernels beside it unchanged, one
// std::thread for each CUDA thread, so that the sanitizers see what the hardware would do.
//
// Thread blocks run one after the other; within a block all threads are real. A barrier and a
// shuffle check that every thread of the block or warp has come to the same place of the source:
// a divergent one is an error here and not a hang. Shared memory is filled with ones before each
// block (not under ASan, which keeps zones around it instead), so that what is read before it was
// written is a NaN.
//
// What it cannot show: a shuffle orders the memory of its warp here and does not on a GPU, and
// nothing is said about speed. Partial warps, partial masks and grids that synchronise are refused
// or absent.
#pragma once

#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <source_location>
#include <string_view>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#if defined(__SANITIZE_ADDRESS__)
#define SHIM_ADDRESS_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SHIM_ADDRESS_SANITIZER
#endif
#endif
#ifdef SHIM_ADDRESS_SANITIZER
#define __shared__ static
#else
#define __shared__ static __attribute__((section("shim_shared")))
#endif

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};

inline thread_local uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;

namespace shim {

using Place = std::source_location;

[[noreturn]] inline void fail(const char *what, const Place &at, const char *other = "") {
    std::fprintf(stderr, "shim: %s at %s:%u %s\n", what, at.file_name(), unsigned(at.line()), other);
    std::_Exit(3);
}

// A barrier of `count` threads that must all wait at one place.
class Barrier {
  public:
    explicit Barrier(unsigned count) : count(count) {}

    void wait(const Place &at) {
        std::unique_lock lock(mutex);
        if (waiting == 0) {
            place = at;
        } else if (place.line() != at.line() ||
                   std::string_view(place.file_name()) != at.file_name()) {
            fail("threads of one group wait at different places", at, place.file_name());
        }
        if (++waiting == count) {
            waiting = 0;
            turn++;
            changed.notify_all();
            return;
        }
        const unsigned long long mine = turn;
        changed.wait(lock, [&] { return turn != mine; });
    }

  private:
    const unsigned count;
    unsigned waiting = 0;
    unsigned long long turn = 0;
    Place place;
    std::mutex mutex;
    std::condition_variable changed;
};

struct Warp {
    Barrier barrier{32};
    std::uint32_t lanes[32] = {};
};

struct Block {
    explicit Block(unsigned threads) : barrier(threads), warps(threads / 32) {}
    Barrier barrier;
    std::vector<Warp> warps;
};

inline std::unique_ptr<Block> block;
// The line of the one barrier that is left out, 0 for none: how a test shows that the thread
// sanitizer sees a missing barrier.
inline unsigned skipped_line = 0;

inline Warp &warp() {
    return block->warps[threadIdx.x / 32];
}

#ifndef SHIM_ADDRESS_SANITIZER
extern "C" char __start_shim_shared[], __stop_shim_shared[];
#endif

inline void poison_shared() {
#ifndef SHIM_ADDRESS_SANITIZER
    std::memset(__start_shim_shared, 0xff, __stop_shim_shared - __start_shim_shared);
#endif
}

template <class T>
T exchange(unsigned mask, T value, unsigned from, const Place &at) {
    static_assert(sizeof(T) == 4);
    if (mask != 0xffffffffu) {
        fail("only whole warps shuffle here", at);
    }
    Warp &all = warp();
    std::memcpy(&all.lanes[threadIdx.x % 32], &value, 4);
    all.barrier.wait(at);
    T out;
    std::memcpy(&out, &all.lanes[from], 4);
    all.barrier.wait(at);
    return out;
}

// Runs a kernel on a grid; returns when all of its blocks are done.
template <class Kernel>
void launch(dim3 grid, unsigned threads, const Kernel &kernel) {
    if (threads == 0 || threads % 32 != 0) {
        fail("a block is whole warps", Place::current());
    }
    gridDim = grid;
    blockDim = dim3{threads};
    block = std::make_unique<Block>(threads);
    std::vector<std::thread> all;
    for (unsigned thread = 0; thread < threads; thread++) {
        all.emplace_back([&, thread] {
            threadIdx = uint3{thread, 0, 0};
            const unsigned blocks = grid.x * grid.y * grid.z;
            for (unsigned i = 0; i < blocks; i++) {
                blockIdx = uint3{i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y};
                // Where a barrier is left out, ones would end the run before its race is seen.
                if (thread == 0 && skipped_line == 0) {
                    poison_shared();
                }
                block->barrier.wait(Place::current());
                kernel();
                block->barrier.wait(Place::current());
            }
        });
    }
    for (std::thread &thread : all) {
        thread.join();
    }
}

} // namespace shim

inline void __syncthreads(shim::Place at = shim::Place::current()) {
    if (at.line() != shim::skipped_line) {
        shim::block->barrier.wait(at);
    }
}

inline void __syncwarp(unsigned mask = 0xffffffffu, shim::Place at = shim::Place::current()) {
    if (mask != 0xffffffffu) {
        shim::fail("only whole warps synchronise here", at);
    }
    if (at.line() != shim::skipped_line) {
        shim::warp().barrier.wait(at);
    }
}

template <class T>
T __shfl_sync(unsigned mask, T value, unsigned from, shim::Place at = shim::Place::current()) {
    return shim::exchange(mask, value, from % 32, at);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, unsigned bits,
                  shim::Place at = shim::Place::current()) {
    return shim::exchange(mask, value, (threadIdx.x ^ bits) % 32, at);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, shim::Place at = shim::Place::current()) {
    const unsigned lane = threadIdx.x % 32;
    return shim::exchange(mask, value, lane < by ? lane : lane - by, at);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, shim::Place at = shim::Place::current()) {
    const unsigned lane = threadIdx.x % 32;
    return shim::exchange(mask, value, lane + by > 31 ? lane : lane + by, at);
}

inline unsigned atomicAdd(unsigned *at, unsigned value) {
    return std::atomic_ref<unsigned>(*at).fetch_add(value, std::memory_order_relaxed);
}

// Single operations, rounded to nearest even; compiled with -ffp-contract=off.
inline float __fmaf_rn(float a, float b, float c) {
    return __builtin_fmaf(a, b, c);
}
inline float __fadd_rn(float a, float b) {
    return a + b;
}
inline float __fsub_rn(float a, float b) {
    return a - b;
}
inline float __fmul_rn(float a, float b) {
    return a * b;
}
inline float __fdiv_rn(float a, float b) {
    return a / b;
}
inline int __float_as_int(float value) {
    int bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}
inline float __int_as_float(int bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
inline int __float2int_rn(float value) {
    return std::isnan(value) ? 0 : int(std::nearbyint(value));
}

// Half precision widened exactly: the exponent is moved by a multiplication, which normalises
// subnormal numbers as well.
inline float __half_bits_to_float(unsigned short bits) {
    const unsigned magnitude = (bits & 0x7fffu) << 13;
    const unsigned scaled =
        unsigned(__float_as_int(__int_as_float(int(magnitude)) * __int_as_float((127 + 112) << 23)));
    const unsigned special = (bits & 0x7c00u) == 0x7c00u ? 0xffu << 23 : 0;
    return __int_as_float(int(scaled | special | (bits & 0x8000u) << 16));
}
