#!/usr/bin/env bash
# The project's whole check: format, lints, build, every test, with a count at the end.
#
#   bash integration-tests/run.sh           what CI runs
#   bash integration-tests/run.sh --long    the tests marked as long as well
#
# It changes nothing outside target/ and the model cache. A test that cannot run here (no model, no
# Python package) prints `SKIPPED <reason>` and passes; this script counts those lines apart.
# Deliberately no installer: what is missing is named and the run ends with 64.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

long=no
for argument in "$@"; do
    case "$argument" in
        --long) long=yes ;;
        *)
            echo "unknown argument $argument: only --long is known" >&2
            exit 64
            ;;
    esac
done

# Two minutes for each target in CI, where nobody waits at a prompt.
if [[ -n "${CI:-}" ]]; then
    export OASISKV_FUZZ_SECONDS="${OASISKV_FUZZ_SECONDS:-120}"
fi

# Pinned, so that a new release of the client cannot break an old commit.
readonly OPENAI_CLIENT="openai==3.57.0"
readonly MODEL_FILE="smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf"

readonly OUT="target/test-run"
mkdir -p "$OUT"
: >"$OUT/skipped"
failed_steps=()

say() { printf '\n== %s\n' "$*"; }

# step NAME COMMAND..: runs it, shows how long it took, remembers a failure and goes on.
step() {
    local name="$1" begin=$SECONDS
    shift
    say "$name"
    if "$@"; then
        echo "   ok, $((SECONDS - begin)) s"
    else
        echo "   FAILED, $((SECONDS - begin)) s"
        failed_steps+=("$name")
        return 1
    fi
}

skip() {
    echo "   SKIPPED $*"
    echo "$*" >>"$OUT/skipped"
}

require() {
    local missing=()
    for tool in cargo rustc cc git; do
        command -v "$tool" >/dev/null || missing+=("$tool")
    done
    if ((${#missing[@]})); then
        echo "not on PATH: ${missing[*]} (a Rust toolchain from rustup.rs, a C compiler, git)" >&2
        exit 64
    fi
    local wanted have
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    have=$(rustc --version | cut -d' ' -f2)
    if [[ "$(printf '%s\n' "$wanted" "$have" | sort -V | head -n1)" != "$wanted" ]]; then
        echo "rustc $have is older than $wanted: rustup update stable" >&2
        exit 64
    fi
    for component in cargo-fmt cargo-clippy; do
        command -v "$component" >/dev/null || {
            echo "no $component: rustup component add rustfmt clippy" >&2
            exit 64
        }
    done
    echo "rustc $have, $(nproc) cores"
}

# The default model, from the cache or fetched by the product itself.
model() {
    if [[ -n "${OASISKV_TEST_MODEL:-}" ]]; then
        echo "   OASISKV_TEST_MODEL names $OASISKV_TEST_MODEL"
        return
    fi
    local cache="${XDG_CACHE_HOME:-$HOME/.cache}/oasiskv/models/$MODEL_FILE"
    if target/release/oasiskv models fetch >"$OUT/fetch.log" 2>&1 && [[ -f "$cache" ]]; then
        export OASISKV_TEST_MODEL="$cache"
        echo "   $cache"
    else
        tail -n 20 "$OUT/fetch.log"
        skip "no model: it could not be fetched, see $OUT/fetch.log"
    fi
}

# The larger model of the long tests, which the product never ships or fetches.
qwen() {
    local file="$PWD/target/test-models/qwen2.5-coder-0.5b.gguf"
    if [[ -n "${OASISKV_TEST_QWEN:-}" ]]; then
        echo "   OASISKV_TEST_QWEN names $OASISKV_TEST_QWEN"
        return
    fi
    mkdir -p "${file%/*}"
    if bash integration-tests/fetch-qwen.sh "$file" >"$OUT/qwen.log" 2>&1; then
        export OASISKV_TEST_QWEN="$file"
        echo "   $file"
    else
        tail -n 5 "$OUT/qwen.log"
        skip "no qwen2.5-coder-0.5b: it could not be fetched, see $OUT/qwen.log"
    fi
}

# A Python with the openai client, for the one test that needs it.
python_client() {
    local env="target/python-client"
    if [[ -n "${OASISKV_TEST_PYTHON:-}" ]]; then
        echo "   OASISKV_TEST_PYTHON names $OASISKV_TEST_PYTHON"
        return
    fi
    if ! command -v python3 >/dev/null; then
        echo "   no python3; the test that needs it will say so"
        return
    fi
    if ! "$env/bin/python" -c 'import openai' 2>/dev/null; then
        if ! { python3 -m venv "$env" &&
            "$env/bin/python" -m pip install --quiet --disable-pip-version-check \
                "$OPENAI_CLIENT"; } >"$OUT/python.log" 2>&1; then
            echo "   $OPENAI_CLIENT cannot be installed, see $OUT/python.log"
            return
        fi
    fi
    export OASISKV_TEST_PYTHON="$PWD/$env/bin/python"
    echo "   $OPENAI_CLIENT in $env"
}

# NVRTC, for the one test that compiles the CUDA kernels (no GPU is needed for that).
nvrtc() {
    local folder python="${OASISKV_TEST_PYTHON:-python3}"
    if [[ -n "${OASISKV_TEST_NVRTC:-}" ]]; then
        echo "   OASISKV_TEST_NVRTC names $OASISKV_TEST_NVRTC"
        return
    fi
    if folder="$(PYTHON="$python" bash kernels/cuda/fetch-nvrtc.sh target/nvrtc \
        2>"$OUT/nvrtc.log")"; then
        export OASISKV_TEST_NVRTC="$folder"
        echo "   $folder"
    else
        echo "   it cannot be fetched, see $OUT/nvrtc.log; the test that needs it will say so"
    fi
}

tests() {
    local ignored=()
    [[ "$long" == yes ]] && ignored=(--include-ignored)
    cargo test --release --workspace --no-fail-fast -- --show-output "${ignored[@]}" \
        2>&1 | tee "$OUT/tests.log" | grep -E '^(test result|test .* FAILED|error|     Running|SKIPPED)'
    return "${PIPESTATUS[0]}"
}

# Adds up libtest's summaries. A test that printed SKIPPED has passed for libtest: move it over.
count() {
    local passed=0 failed=0 ignored=0 skipped
    if [[ -f "$OUT/tests.log" ]]; then
        read -r passed failed ignored < <(awk '
            /^test result:/ { for (i = 1; i < NF; i++) {
                if ($(i + 1) == "passed;") p += $i
                if ($(i + 1) == "failed;") f += $i
                if ($(i + 1) == "ignored;") g += $i } }
            END { print p + 0, f + 0, g + 0 }' "$OUT/tests.log")
        grep -a '^SKIPPED ' "$OUT/tests.log" | sed 's/^SKIPPED //' >"$OUT/skipped-tests"
        passed=$((passed - $(wc -l <"$OUT/skipped-tests")))
        cat "$OUT/skipped-tests" >>"$OUT/skipped"
        for ((i = 0; i < ignored; i++)); do
            echo "long test, run with --long" >>"$OUT/skipped"
        done
    fi
    skipped=$(wc -l <"$OUT/skipped")
    # A failed test step counts by its tests, or once if it did not get that far.
    for name in "${failed_steps[@]}"; do
        [[ "$name" == Tests ]] && ((failed > 0)) || failed=$((failed + 1))
    done
    say "Result"
    ((${#failed_steps[@]} == 0)) || printf '   failed step: %s\n' "${failed_steps[@]}"
    sort "$OUT/skipped" | uniq -c | sed 's/^ *\([0-9]*\) /   skipped \1: /'
    echo "   $SECONDS s, full output in $OUT/tests.log"
    echo "$passed passed, $failed failed, $skipped skipped"
    ((failed == 0))
}

export CARGO_TERM_COLOR=never
rm -f "$OUT/tests.log"
say "Toolchain"
require
step "Format" cargo fmt --all --check
# In the release profile like everything else: build scripts and macros are then built once.
step "Lints" cargo clippy --release --workspace --all-targets --quiet -- -D warnings
if step "Build" cargo build --release --workspace --quiet; then
    say "Model"
    model
    if [[ "$long" == yes ]]; then
        say "Model of the long tests"
        qwen
    fi
    say "Python client"
    python_client
    say "CUDA compiler"
    nvrtc
    step "Tests" tests
    # The tests run each target over inputs and mutations anyway; 0 seconds would be for ever.
    if ((10#${OASISKV_FUZZ_SECONDS:-0} > 0)); then
        step "Fuzz" bash integration-tests/fuzz.sh
    fi
fi
count
