// What the CUDA kernels share: the layout of a slot, half precision, 2^x, faults.
//
// Every operation here is one IEEE 754 operation, named by its intrinsic so that no compiler may
// fuse or reorder it; the sequences are those of kernels/src/math.rs and host/attend, so that host
// and GPU give the same bits (P1). Deliberately free of the CUDA toolkit's headers: NVRTC compiles
// it with nothing but its own library, and the shim in shim/ compiles it as C++.
#pragma once

constexpr unsigned WARP = 32;
constexpr unsigned FULL_WARP = 0xffffffffu;
// ids::BLOCK_TOKENS.
constexpr unsigned BLOCK_TOKENS = 16;

// 32-bit words of one slot: K transposed [head_dim][16], then V [16][head_dim], half precision.
static __device__ constexpr unsigned slot_words(unsigned head_dim) {
    return 2 * BLOCK_TOKENS * head_dim / 2;
}

// Two halves of a word, the lower address first, widened exactly.
static __device__ __forceinline__ float2 widened(unsigned word) {
    float2 out;
#ifdef __CUDACC__
    asm("{ .reg .f16 low, high;\n"
        "  mov.b32 {low, high}, %2;\n"
        "  cvt.f32.f16 %0, low;\n"
        "  cvt.f32.f16 %1, high; }"
        : "=f"(out.x), "=f"(out.y)
        : "r"(word));
#else
    out.x = __half_bits_to_float(static_cast<unsigned short>(word & 0xffffu));
    out.y = __half_bits_to_float(static_cast<unsigned short>(word >> 16));
#endif
    return out;
}

static __device__ __forceinline__ float minus_infinity() {
    return __int_as_float(static_cast<int>(0xff800000u));
}

// Not fmaxf: a NaN in `b` survives, as in kernels/src/lanes.rs.
static __device__ __forceinline__ float larger(float a, float b) {
    return a > b ? a : b;
}

// 2^x as kernels/src/math.rs has it: 0 below -126, infinity from 128 on, NaN stays.
static __device__ __forceinline__ float exp2_fixed(float x) {
    const float below = 128.0f < x ? 128.0f : x;
    const float clamped = -126.0f > below ? -126.0f : below;
    const float whole = rintf(clamped);
    const float rest = __fsub_rn(clamped, whole);
    float power = 1.5353362e-4f;
    power = __fmaf_rn(power, rest, 1.3398875e-3f);
    power = __fmaf_rn(power, rest, 9.618437e-3f);
    power = __fmaf_rn(power, rest, 5.5503323e-2f);
    power = __fmaf_rn(power, rest, 2.4022648e-1f);
    power = __fmaf_rn(power, rest, 6.931472e-1f);
    power = __fmaf_rn(power, rest, 1.0f);
    const unsigned shift = static_cast<unsigned>(__float2int_rn(whole)) << 23;
    const float shifted = __int_as_float(
        static_cast<int>(static_cast<unsigned>(__float_as_int(power)) + shift));
    return x < -126.0f ? 0.0f : shifted;
}

// A slot that may be read: a number beyond the arena is counted as a fault, which the host finds
// after the launch, and slot 0 stands in for it, so that no launch touches foreign memory.
static __device__ __forceinline__ unsigned checked_slot(unsigned id, unsigned count,
                                                        unsigned *faults) {
    if (id < count) {
        return id;
    }
    atomicAdd(faults, 1u);
    return 0;
}
