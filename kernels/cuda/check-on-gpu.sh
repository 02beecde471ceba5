#!/usr/bin/env bash
# Checks the CUDA kernels on a GPU against the host device, bit by bit, and times them. For a machine
# with NVIDIA's driver, a Rust toolchain and a C compiler; NVRTC is taken from the CUDA toolkit where
# the loader finds it, else fetched. Takes under 5 minutes, most of it the build.
#
#   bash kernels/cuda/check-on-gpu.sh [GPU]
#
# Ends with 0 if everything agreed, 1 if something did not, 64 if a tool is missing. Nothing in the
# checkout is changed outside target/.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
readonly GPU="${1:-0}"
failed=0

for tool in cargo cc; do
    command -v "$tool" >/dev/null || {
        echo "not on PATH: $tool (a Rust toolchain from rustup.rs, a C compiler)" >&2
        exit 64
    }
done

say() { printf '\n== %s\n' "$*"; }

say "Build"
cargo build --release --quiet -p oasiskv --bin oasiskv || exit 1

nvrtc=()
if ! ldconfig -p 2>/dev/null | grep -q 'libnvrtc\.so\.12'; then
    say "NVRTC"
    folder="$(bash kernels/cuda/fetch-nvrtc.sh target/nvrtc)" || {
        echo "no NVRTC: install the CUDA toolkit, or python3 with pip and a network" >&2
        exit 64
    }
    nvrtc=(--nvrtc "$folder")
    export OASISKV_TEST_NVRTC="$folder"
    echo "$folder"
fi

say "GPU"
command -v nvidia-smi >/dev/null &&
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.memory --format=csv

# Every width of heads; groups of 1, 2, 3, 4, 7 and 12; a context behind one split, one of several
# with an open block. Each is compared with the host before it is timed.
say "Every width and group, compared with the host"
target/release/oasiskv bench kernels --device cuda --gpu "$GPU" "${nvrtc[@]}" --runs 2 \
    --shapes 9x3x64,14x2x64,8x1x80,2x2x96,8x2x128,24x2x128,4x2x256,4x4x48 \
    --contexts 1,17,1024,1025,5003 --sequences 1,5 || failed=1

say "Times"
target/release/oasiskv bench kernels --device cuda --gpu "$GPU" "${nvrtc[@]}" --runs 50 \
    --shapes 9x3x64,32x8x128 --contexts 1024,8192 --sequences 1,8,32 || failed=1

say "The same on the host"
target/release/oasiskv bench kernels --device host --runs 3 --shapes 9x3x64 \
    --contexts 8192 --sequences 8 || failed=1

say "Registers and spills"
cargo test --release --quiet -p kernels --test cuda nvrtc -- --show-output || failed=1

say "Result"
((failed == 0)) && echo "all agree" || echo "FAILED, see above"
exit "$failed"
