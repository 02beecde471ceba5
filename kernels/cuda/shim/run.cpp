// Runs one case of one kernel: reads words from a file, launches through the shim, writes words.
// It compares nothing: the Rust tests (kernels/tests/cuda) make the cases and know the answers.
//
//     run CASE RESULT [LINE]     LINE: the barrier of attend.cu to leave out
//
// A file is a run of arrays, each its length in 32-bit words and then the words, in the machine's
// byte order. The first array of a case is {kernel, scalars..}. Every array is an allocation of its
// own and exactly as long as it must be, so that the address sanitizer sees the first word beyond.
#include "cuda_shim.h"

#include "../attend.cu"
#include "../slices.cu"

#include <fstream>

namespace {

using Words = std::vector<unsigned>;

// An array where a kernel may find vectors of 16 bytes: malloc aligns to that.
class Array {
  public:
    explicit Array(const Words &words)
        : words_len(words.size()), memory(std::malloc(4 * words.size()), std::free) {
        if (!words.empty()) {
            std::memcpy(memory.get(), words.data(), 4 * words.size());
        }
    }
    template <class T> T *as() { return static_cast<T *>(memory.get()); }
    Words words() const {
        Words out(words_len);
        if (!out.empty()) {
            std::memcpy(out.data(), memory.get(), 4 * out.size());
        }
        return out;
    }

  private:
    std::size_t words_len;
    std::unique_ptr<void, void (*)(void *)> memory;
};

std::vector<Words> read_arrays(const char *path) {
    std::ifstream file(path, std::ios::binary);
    std::vector<Words> arrays;
    unsigned len = 0;
    while (file.read(reinterpret_cast<char *>(&len), 4)) {
        Words words(len);
        file.read(reinterpret_cast<char *>(words.data()), 4 * std::streamsize(len));
        arrays.push_back(std::move(words));
    }
    return arrays;
}

void write_arrays(const char *path, const std::vector<Words> &arrays) {
    std::ofstream file(path, std::ios::binary);
    for (const Words &words : arrays) {
        const unsigned len = unsigned(words.size());
        file.write(reinterpret_cast<const char *>(&len), 4);
        file.write(reinterpret_cast<const char *>(words.data()), 4 * std::streamsize(len));
    }
}

enum Kernel : unsigned { GATHER, SCATTER, ATTEND, WIDEN, DIVERGE };

// Checks of the shim itself: half precision, and a barrier that only half of the threads reach.
void widen_kernel(const unsigned *words, unsigned len, float *to) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < len;
         i += gridDim.x * blockDim.x) {
        const float2 both = widened(words[i]);
        to[2 * i] = both.x;
        to[2 * i + 1] = both.y;
    }
}

void diverging_kernel() {
    if (threadIdx.x < 32) {
        __syncthreads();
    }
}

// {kernel}, words.
std::vector<Words> widen_case(const std::vector<Words> &in) {
    const unsigned len = unsigned(in.at(1).size());
    Array words(in.at(1)), to(Words(2 * in.at(1).size()));
    shim::launch(dim3{2}, 64, [&] { widen_kernel(words.as<unsigned>(), len, to.as<float>()); });
    return {to.words()};
}

// {kernel, slot_count, vectors}, slots, ids, run.
std::vector<Words> slices_case(const std::vector<Words> &in) {
    const Words &head = in.at(0);
    Array slots(in.at(1)), ids(in.at(2)), run(in.at(3)), faults(Words{0});
    const unsigned count = unsigned(in.at(2).size());
    // Fewer blocks than slices, so that the grid's stride is taken.
    const dim3 grid{count / 8 + 1};
    shim::launch(grid, SLICE_THREADS, [&] {
        if (head.at(0) == GATHER) {
            gather_slices(slots.as<uint4>(), head.at(1), head.at(2), ids.as<unsigned>(), count,
                           run.as<uint4>(), faults.as<unsigned>());
        } else {
            scatter_slices(slots.as<uint4>(), head.at(1), head.at(2), ids.as<unsigned>(), count,
                            run.as<uint4>(), faults.as<unsigned>());
        }
    });
    return {head.at(0) == GATHER ? run.words() : slots.words(), faults.words()};
}

void attend_kernels(unsigned head_dim, unsigned queries, const Attend &launch, dim3 grid) {
    const dim3 merge_grid{grid.z, grid.y, queries};
#define SHIM_CASE(HEAD_DIM, QUERIES)                                                               \
    if (head_dim == HEAD_DIM && queries == QUERIES) {                                              \
        shim::launch(grid, ATTEND_THREADS,                                                         \
                     [&] { attend_##HEAD_DIM##_##QUERIES(launch); });                      \
        shim::launch(merge_grid, MERGE_THREADS, [&] { merge_##HEAD_DIM(launch); });        \
        return;                                                                                    \
    }
#define SHIM_HEAD_DIM(HEAD_DIM) SHIM_CASE(HEAD_DIM, 4) SHIM_CASE(HEAD_DIM, 8)
    SHIM_HEAD_DIM(64)
    SHIM_HEAD_DIM(80)
    SHIM_HEAD_DIM(96)
    SHIM_HEAD_DIM(128)
    SHIM_HEAD_DIM(256)
    std::fprintf(stderr, "run: no kernel for head_dim %u, %u queries\n", head_dim, queries);
    std::_Exit(2);
}

// {kernel, head_dim, queries, heads, kv_heads, scale, slot_count, table_stride, splits_max},
// slots, tables, tiles, positions, q, out.
std::vector<Words> attend_case(const std::vector<Words> &in) {
    const Words &head = in.at(0);
    Array slots(in.at(1)), tables(in.at(2)), tiles(in.at(3)), positions(in.at(4)), q(in.at(5)),
        out(in.at(6)), faults(Words{0});
    const unsigned head_dim = head.at(1), heads = head.at(3), splits_max = head.at(8);
    const std::size_t states = in.at(4).size() * heads * splits_max;
    // NaN: a partial that is read must have been written.
    Array partials(Words(states * (STATE_ACCUMULATOR + head_dim), 0xffffffffu));
    Attend launch{};
    launch.q = q.as<float>();
    launch.positions = positions.as<unsigned>();
    launch.slots = slots.as<unsigned>();
    launch.tables = tables.as<unsigned>();
    launch.tiles = tiles.as<uint4>();
    launch.partials = partials.as<float>();
    launch.out = out.as<float>();
    launch.faults = faults.as<unsigned>();
    launch.kv_heads = head.at(4);
    launch.group = heads / launch.kv_heads;
    launch.scale = __int_as_float(int(head.at(5)));
    launch.slot_count = head.at(6);
    launch.table_stride = head.at(7);
    launch.splits_max = splits_max;
    const dim3 grid{splits_max, launch.kv_heads, unsigned(in.at(3).size() / 4)};
    attend_kernels(head_dim, head.at(2), launch, grid);
    return {out.words(), faults.words()};
}

} // namespace

int main(int argc, char **argv) {
    if (argc < 3) {
        std::fprintf(stderr, "usage: run CASE RESULT [LINE]\n");
        return 64;
    }
    if (argc > 3) {
        shim::skipped_line = unsigned(std::strtoul(argv[3], nullptr, 10));
    }
    const std::vector<Words> in = read_arrays(argv[1]);
    switch (in.at(0).at(0)) {
    case ATTEND:
        write_arrays(argv[2], attend_case(in));
        return 0;
    case WIDEN:
        write_arrays(argv[2], widen_case(in));
        return 0;
    case DIVERGE:
        shim::launch(dim3{}, 64, diverging_kernel);
        return 0;
    default:
        write_arrays(argv[2], slices_case(in));
        return 0;
    }
}
