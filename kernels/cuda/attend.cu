// Paged attention over slots: softmax(q k) v for a few query rows of many sequences, with the
// arithmetic of kernels/src/host/attend in every bit.
//
// A query is one (row, head). A tile is up to QUERIES queries of one sequence and one KV head: the
// heads of a GQA group and neighbouring rows share what is read. One thread block walks one split
// (64 block indices, 1,024 tokens) of a tile and leaves a partial state for each query; a second
// kernel merges the partials of a query in ascending order. Splits are fixed by block index and
// a query's arithmetic names no other query, so a row's bits depend on neither batch nor grid (P1).
//
// The online softmax of the host goes step by step (four blocks, 64 tokens, fixed by index). Its scores, its running maxima (a prefix
// maximum, exact in any order) and its weights do not depend on the order, so they are computed
// side by side; only the two chains that do, the lane sums and the accumulators, are walked.
//
// Not here: writing K and V, choosing slots, prefill's large tiles (this reads K once per tile and
// multiplies without tensor cores).
#include "device.cuh"

// As SPLIT_BLOCKS of kernels/src/host/attend.rs.
constexpr unsigned SPLIT_BLOCKS = 64;
constexpr unsigned SPLIT_TOKENS = SPLIT_BLOCKS * BLOCK_TOKENS;
// As STEP_BLOCKS of kernels/src/host/attend/walk.rs.
constexpr unsigned STEP_BLOCKS = 4;
constexpr unsigned STEP_TOKENS = STEP_BLOCKS * BLOCK_TOKENS;
constexpr unsigned SPLIT_STEPS = SPLIT_BLOCKS / STEP_BLOCKS;
constexpr unsigned ATTEND_THREADS = 128;
constexpr unsigned ATTEND_WARPS = ATTEND_THREADS / WARP;
constexpr unsigned MERGE_THREADS = 64;
// Lanes that share a block of keys: each has two tokens, one word of every row of K. A warp has a
// step.
constexpr unsigned KEY_LANES = BLOCK_TOKENS / 2;
static_assert(WARP / KEY_LANES == STEP_BLOCKS, "a warp scores one step");

// A partial state in floats: [0] the maximum, [16..32) the lane sums, [32..) the accumulator.
constexpr unsigned STATE_SUMS = 16;
constexpr unsigned STATE_ACCUMULATOR = 32;

// One launch. Device addresses; `kernels::cuda` fills it in.
struct Attend {
    // [rows][heads * head_dim], rotated.
    const float *q;
    // [rows]; ascending within a sequence.
    const unsigned *positions;
    const unsigned *slots;
    // [sequences][kv_heads][table_stride]: place i is block index i.
    const unsigned *tables;
    // (sequence, its first row, first query of the tile, queries of the tile). Query j of a
    // sequence is head j % group of row j / group.
    const uint4 *tiles;
    // [rows * heads][splits_max][32 + head_dim].
    float *partials;
    // [rows][heads * head_dim].
    float *out;
    // Slot numbers out of range.
    unsigned *faults;
    unsigned slot_count;
    unsigned table_stride;
    unsigned kv_heads;
    unsigned group;
    unsigned splits_max;
    // The caller's scale times log2 e, multiplied on the host.
    float scale;
};

template <unsigned HEAD_DIM, unsigned QUERIES>
struct alignas(16) Tile {
    // Scaled queries, side by side for one dimension.
    float query[HEAD_DIM][QUERIES];
    // Scores, then weights, of the split's tokens.
    float weight[QUERIES][SPLIT_TOKENS];
    // Per step its largest score, then the maximum up to it.
    float largest[QUERIES][SPLIT_STEPS];
    // Per step what the state before it is multiplied by.
    float decay[QUERIES][SPLIT_STEPS];
    // Tokens of this split that each query sees; 0 for places without a query.
    unsigned tokens[QUERIES];
    unsigned slot[SPLIT_BLOCKS];
};

static __device__ __forceinline__ unsigned blocks_of(unsigned tokens) {
    return (tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
}

static __device__ __forceinline__ unsigned steps_of(unsigned tokens) {
    return (tokens + STEP_TOKENS - 1) / STEP_TOKENS;
}

// The number of a query among all rows and heads.
static __device__ __forceinline__ unsigned query_index(const Attend &launch, const uint4 &tile,
                                                       unsigned kv_head, unsigned query) {
    const unsigned in_sequence = tile.z + query;
    const unsigned row = tile.y + in_sequence / launch.group;
    const unsigned head = kv_head * launch.group + in_sequence % launch.group;
    return row * launch.kv_heads * launch.group + head;
}

static __device__ __forceinline__ unsigned position_of(const Attend &launch, const uint4 &tile,
                                                       unsigned query) {
    return launch.positions[tile.y + (tile.z + query) / launch.group];
}

template <unsigned HEAD_DIM>
static __device__ __forceinline__ float *state_of(const Attend &launch, unsigned long long query,
                                                  unsigned split) {
    return launch.partials + (query * launch.splits_max + split) * (STATE_ACCUMULATOR + HEAD_DIM);
}

// Queries, what they see, and the slots of the split. Returns the blocks that any query sees.
template <unsigned HEAD_DIM, unsigned QUERIES>
static __device__ __forceinline__ unsigned begin(const Attend &launch, const uint4 &tile,
                                                 unsigned kv_head, unsigned split,
                                                 Tile<HEAD_DIM, QUERIES> &shared) {
    const unsigned first_token = split * SPLIT_TOKENS;
    if (threadIdx.x < QUERIES) {
        unsigned tokens = 0;
        if (threadIdx.x < tile.w) {
            const unsigned end = position_of(launch, tile, threadIdx.x) + 1;
            tokens = end > first_token ? end - first_token : 0;
            tokens = tokens < SPLIT_TOKENS ? tokens : SPLIT_TOKENS;
        }
        shared.tokens[threadIdx.x] = tokens;
    }
    for (unsigned i = threadIdx.x; i < HEAD_DIM * QUERIES; i += ATTEND_THREADS) {
        const unsigned query = i / HEAD_DIM;
        const unsigned d = i % HEAD_DIM;
        float value = 0.0f;
        if (query < tile.w) {
            const unsigned long long at = query_index(launch, tile, kv_head, query);
            value = __fmul_rn(launch.q[at * HEAD_DIM + d], launch.scale);
        }
        shared.query[d][query] = value;
    }
    __syncthreads();
    unsigned tokens = 0;
    for (unsigned query = 0; query < QUERIES; query++) {
        tokens = shared.tokens[query] > tokens ? shared.tokens[query] : tokens;
    }
    const unsigned blocks = blocks_of(tokens);
    const unsigned long long table = tile.x * launch.kv_heads + kv_head;
    const unsigned *ids = launch.tables + table * launch.table_stride + split * SPLIT_BLOCKS;
    if (threadIdx.x < blocks) {
        shared.slot[threadIdx.x] =
            checked_slot(ids[threadIdx.x], launch.slot_count, launch.faults);
    }
    __syncthreads();
    return blocks;
}

// Scores of all tokens and the largest of each step. A warp takes a step, eight lanes a block, two
// tokens a lane: one chain of FMA over the dimensions, as on the host.
template <unsigned HEAD_DIM, unsigned QUERIES>
static __device__ __forceinline__ void scores(const Attend &launch, unsigned blocks,
                                              Tile<HEAD_DIM, QUERIES> &shared) {
    const unsigned lane = threadIdx.x % WARP;
    const unsigned pair = lane % KEY_LANES;
    for (unsigned step = threadIdx.x / WARP; step * STEP_BLOCKS < blocks; step += ATTEND_WARPS) {
        const unsigned block = step * STEP_BLOCKS + lane / KEY_LANES;
        // Behind the last block it stands in for those that are missing: no query sees them.
        const unsigned long long slot = shared.slot[block < blocks ? block : blocks - 1];
        const unsigned *keys = launch.slots + slot * slot_words(HEAD_DIM) + pair;
        float2 sum[QUERIES];
#pragma unroll
        for (unsigned query = 0; query < QUERIES; query++) {
            sum[query] = float2{0.0f, 0.0f};
        }
        for (unsigned d = 0; d < HEAD_DIM; d += 16) {
            unsigned words[16];
#pragma unroll
            for (unsigned i = 0; i < 16; i++) {
                words[i] = keys[(d + i) * KEY_LANES];
            }
#pragma unroll
            for (unsigned i = 0; i < 16; i++) {
                const float2 key = widened(words[i]);
#pragma unroll
                for (unsigned query = 0; query < QUERIES; query++) {
                    const float x = shared.query[d + i][query];
                    sum[query].x = __fmaf_rn(key.x, x, sum[query].x);
                    sum[query].y = __fmaf_rn(key.y, x, sum[query].y);
                }
            }
        }
        const unsigned token = block * BLOCK_TOKENS + 2 * pair;
#pragma unroll
        for (unsigned query = 0; query < QUERIES; query++) {
            const unsigned tokens = shared.tokens[query];
            const float x = token < tokens ? sum[query].x : minus_infinity();
            const float y = token + 1 < tokens ? sum[query].y : minus_infinity();
            float most = larger(x, y);
#pragma unroll
            for (unsigned bits = WARP / 2; bits > 0; bits /= 2) {
                most = larger(most, __shfl_xor_sync(FULL_WARP, most, bits));
            }
            shared.weight[query][token] = x;
            shared.weight[query][token + 1] = y;
            if (lane == 0) {
                shared.largest[query][step] = most;
            }
        }
    }
    __syncthreads();
}

// The running maximum of each query and the decay at each step; a warp takes a query, a lane one
// step. Most steps bring no new maximum, and their decay is exactly 1; the first step's is 0.
template <unsigned HEAD_DIM, unsigned QUERIES>
static __device__ __forceinline__ void maxima(Tile<HEAD_DIM, QUERIES> &shared) {
    const unsigned lane = threadIdx.x % WARP;
    for (unsigned query = threadIdx.x / WARP; query < QUERIES; query += ATTEND_WARPS) {
        const unsigned steps = steps_of(shared.tokens[query]);
        float through = lane < steps ? shared.largest[query][lane] : minus_infinity();
#pragma unroll
        for (unsigned by = 1; by < SPLIT_STEPS; by *= 2) {
            const float other = __shfl_up_sync(FULL_WARP, through, by);
            through = lane >= by ? larger(other, through) : through;
        }
        float before = __shfl_up_sync(FULL_WARP, through, 1);
        before = lane == 0 ? minus_infinity() : before;
        if (lane < SPLIT_STEPS) {
            shared.largest[query][lane] = through;
            shared.decay[query][lane] =
                through == before ? 1.0f : exp2_fixed(__fsub_rn(before, through));
        }
    }
    __syncthreads();
}

template <unsigned HEAD_DIM, unsigned QUERIES>
static __device__ __forceinline__ void weights(Tile<HEAD_DIM, QUERIES> &shared) {
    for (unsigned query = 0; query < QUERIES; query++) {
        const unsigned end = steps_of(shared.tokens[query]) * STEP_TOKENS;
        for (unsigned token = threadIdx.x; token < end; token += ATTEND_THREADS) {
            const float score = shared.weight[query][token];
            const float largest = shared.largest[query][token / STEP_TOKENS];
            shared.weight[query][token] = exp2_fixed(__fsub_rn(score, largest));
        }
    }
    __syncthreads();
}

// The first chain: 16 lane sums of each query, step after step. Tokens that it does not see have
// the weight 0.
template <unsigned HEAD_DIM, unsigned QUERIES>
static __device__ __forceinline__ void sums(const Attend &launch, const uint4 &tile,
                                            unsigned kv_head, unsigned split,
                                            const Tile<HEAD_DIM, QUERIES> &shared) {
    const unsigned query = threadIdx.x / BLOCK_TOKENS;
    const unsigned lane = threadIdx.x % BLOCK_TOKENS;
    if (query >= QUERIES || shared.tokens[query] == 0) {
        return;
    }
    const unsigned steps = steps_of(shared.tokens[query]);
    float sum = 0.0f;
    for (unsigned step = 0; step < steps; step++) {
        const float *weight = &shared.weight[query][step * STEP_TOKENS + lane];
        sum = __fmaf_rn(sum, shared.decay[query][step], weight[0]);
#pragma unroll
        for (unsigned block = 1; block < STEP_BLOCKS; block++) {
            sum = __fadd_rn(sum, weight[block * BLOCK_TOKENS]);
        }
    }
    const unsigned long long index = query_index(launch, tile, kv_head, query);
    float *state = state_of<HEAD_DIM>(launch, index, split);
    state[STATE_SUMS + lane] = sum;
    if (lane == 0) {
        state[0] = shared.largest[query][steps - 1];
    }
}

// What one block adds to the accumulators of one query, token after token; the first block of a
// step decays them before.
static __device__ __forceinline__ void add_block(float2 &sum, const unsigned (&words)[BLOCK_TOKENS],
                                                 const float *weights, float decay,
                                                 unsigned tokens) {
    sum.x = __fmul_rn(sum.x, decay);
    sum.y = __fmul_rn(sum.y, decay);
#pragma unroll
    for (unsigned token = 0; token < BLOCK_TOKENS; token++) {
        // A token that the query does not see is skipped, not added with weight 0: that could turn
        // -0 into +0, and an infinity into NaN.
        if (token < tokens) {
            const float2 value = widened(words[token]);
            sum.x = __fmaf_rn(value.x, weights[token], sum.x);
            sum.y = __fmaf_rn(value.y, weights[token], sum.y);
        }
    }
}

// The second chain: a thread has two dimensions of every GROUPS-th query. The next block's words
// are on their way while this one's are used.
template <unsigned HEAD_DIM, unsigned QUERIES>
static __device__ __forceinline__ void values(const Attend &launch, const uint4 &tile,
                                              unsigned kv_head, unsigned split, unsigned blocks,
                                              const Tile<HEAD_DIM, QUERIES> &shared) {
    constexpr unsigned PAIRS = HEAD_DIM / 2;
    constexpr unsigned GROUPS = ATTEND_THREADS / PAIRS;
    constexpr unsigned EACH = (QUERIES + GROUPS - 1) / GROUPS;
    const unsigned group = threadIdx.x / PAIRS;
    const unsigned pair = threadIdx.x % PAIRS;
    if (group >= GROUPS || group >= tile.w) {
        return;
    }
    const unsigned *slots = launch.slots + slot_words(HEAD_DIM) / 2 + pair;
    float2 sum[EACH];
#pragma unroll
    for (unsigned i = 0; i < EACH; i++) {
        sum[i] = float2{0.0f, 0.0f};
    }
    unsigned next[BLOCK_TOKENS];
#pragma unroll
    for (unsigned token = 0; token < BLOCK_TOKENS; token++) {
        const unsigned long long slot = shared.slot[0];
        next[token] = slots[slot * slot_words(HEAD_DIM) + token * PAIRS];
    }
    for (unsigned block = 0; block < blocks; block++) {
        unsigned words[BLOCK_TOKENS];
        const unsigned long long slot = shared.slot[block + 1 < blocks ? block + 1 : block];
#pragma unroll
        for (unsigned token = 0; token < BLOCK_TOKENS; token++) {
            words[token] = next[token];
            next[token] = slots[slot * slot_words(HEAD_DIM) + token * PAIRS];
        }
#pragma unroll
        for (unsigned i = 0; i < EACH; i++) {
            const unsigned query = group + i * GROUPS;
            if (query < QUERIES && block * BLOCK_TOKENS < shared.tokens[query]) {
                const float *weights = &shared.weight[query][block * BLOCK_TOKENS];
                const unsigned tokens = shared.tokens[query] - block * BLOCK_TOKENS;
                const float decay =
                    block % STEP_BLOCKS == 0 ? shared.decay[query][block / STEP_BLOCKS] : 1.0f;
                add_block(sum[i], words, weights, decay, tokens);
            }
        }
    }
#pragma unroll
    for (unsigned i = 0; i < EACH; i++) {
        const unsigned query = group + i * GROUPS;
        if (query < QUERIES && shared.tokens[query] > 0) {
            const unsigned long long index = query_index(launch, tile, kv_head, query);
            float *state = state_of<HEAD_DIM>(launch, index, split);
            state[STATE_ACCUMULATOR + 2 * pair] = sum[i].x;
            state[STATE_ACCUMULATOR + 2 * pair + 1] = sum[i].y;
        }
    }
}

// Grid (splits_max, kv_heads, tiles), ATTEND_THREADS threads.
template <unsigned HEAD_DIM, unsigned QUERIES>
static __device__ __forceinline__ void attend(const Attend &launch,
                                              Tile<HEAD_DIM, QUERIES> &shared) {
    const unsigned split = blockIdx.x;
    const unsigned kv_head = blockIdx.y;
    const uint4 tile = launch.tiles[blockIdx.z];
    // Positions ascend, so the last query sees most; a split beyond it has nothing to do.
    if (position_of(launch, tile, tile.w - 1) < split * SPLIT_TOKENS) {
        return;
    }
    const unsigned blocks = begin(launch, tile, kv_head, split, shared);
    scores(launch, blocks, shared);
    maxima(shared);
    weights(shared);
    sums(launch, tile, kv_head, split, shared);
    values(launch, tile, kv_head, split, blocks, shared);
}

// Merges the partials of one query in ascending order of split and divides by the sum. Grid
// (tiles, kv_heads, QUERIES), MERGE_THREADS threads; a thread has every MERGE_THREADS-th dimension.
template <unsigned HEAD_DIM>
static __device__ __forceinline__ void merge(const Attend &launch, float &inverse) {
    constexpr unsigned EACH = (HEAD_DIM + MERGE_THREADS - 1) / MERGE_THREADS;
    const uint4 tile = launch.tiles[blockIdx.x];
    if (blockIdx.z >= tile.w) {
        return;
    }
    const unsigned long long index = query_index(launch, tile, blockIdx.y, blockIdx.z);
    const unsigned splits = position_of(launch, tile, blockIdx.z) / SPLIT_TOKENS + 1;
    const unsigned lane = threadIdx.x % BLOCK_TOKENS;
    const float *state = state_of<HEAD_DIM>(launch, index, 0);
    float largest = state[0];
    float sum = state[STATE_SUMS + lane];
    float total[EACH];
#pragma unroll
    for (unsigned i = 0; i < EACH; i++) {
        const unsigned d = threadIdx.x + i * MERGE_THREADS;
        total[i] = d < HEAD_DIM ? state[STATE_ACCUMULATOR + d] : 0.0f;
    }
    for (unsigned split = 1; split < splits; split++) {
        state += STATE_ACCUMULATOR + HEAD_DIM;
        const float both = larger(largest, state[0]);
        const float decay = exp2_fixed(__fsub_rn(largest, both));
        const float factor = exp2_fixed(__fsub_rn(state[0], both));
        largest = both;
        sum = __fmaf_rn(state[STATE_SUMS + lane], factor, __fmul_rn(sum, decay));
#pragma unroll
        for (unsigned i = 0; i < EACH; i++) {
            const unsigned d = threadIdx.x + i * MERGE_THREADS;
            if (d < HEAD_DIM) {
                total[i] = __fmaf_rn(state[STATE_ACCUMULATOR + d], factor,
                                     __fmul_rn(total[i], decay));
            }
        }
    }
    // The host's tree over 16 lanes: i + (i + 8), i + (i + 4), i + (i + 2), i + (i + 1).
#pragma unroll
    for (unsigned half = BLOCK_TOKENS / 2; half > 0; half /= 2) {
        sum = __fadd_rn(sum, __shfl_down_sync(FULL_WARP, sum, half));
    }
    if (threadIdx.x == 0) {
        inverse = __fdiv_rn(1.0f, sum);
    }
    __syncthreads();
#pragma unroll
    for (unsigned i = 0; i < EACH; i++) {
        const unsigned d = threadIdx.x + i * MERGE_THREADS;
        if (d < HEAD_DIM) {
            launch.out[index * HEAD_DIM + d] = __fmul_rn(total[i], inverse);
        }
    }
}

#define OASISKV_ATTEND(HEAD_DIM, QUERIES)                                                          \
    extern "C" __global__ void __launch_bounds__(ATTEND_THREADS)                                   \
        attend_##HEAD_DIM##_##QUERIES(const Attend launch) {                               \
        __shared__ Tile<HEAD_DIM, QUERIES> shared;                                                 \
        attend<HEAD_DIM, QUERIES>(launch, shared);                                                 \
    }

#define OASISKV_MERGE(HEAD_DIM)                                                                    \
    extern "C" __global__ void __launch_bounds__(MERGE_THREADS)                                    \
        merge_##HEAD_DIM(const Attend launch) {                                            \
        __shared__ float inverse;                                                                  \
        merge<HEAD_DIM>(launch, inverse);                                                          \
    }

// Three kernels; the detour expands a name to its number before it is pasted.
#define OASISKV_KERNELS(HEAD_DIM)                                                                  \
    OASISKV_ATTEND(HEAD_DIM, 4)                                                                    \
    OASISKV_ATTEND(HEAD_DIM, 8)                                                                    \
    OASISKV_MERGE(HEAD_DIM)

// Who knows the width of the heads compiles for that one alone, any multiple of 16 up to 256.
#ifdef OASISKV_HEAD_DIM
OASISKV_KERNELS(OASISKV_HEAD_DIM)
#else
OASISKV_KERNELS(64)
OASISKV_KERNELS(80)
OASISKV_KERNELS(96)
OASISKV_KERNELS(128)
OASISKV_KERNELS(256)
#endif
