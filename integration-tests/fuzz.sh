#!/usr/bin/env bash
# Fuzzing: hostile input for every loader and wire, guided by coverage (libFuzzer on stable Rust).
#
#   bash integration-tests/fuzz.sh                 every target, two at a time
#   bash integration-tests/fuzz.sh gguf            one target
#   bash integration-tests/fuzz.sh gguf FILE..     replay inputs
#   bash integration-tests/fuzz.sh --merge gguf    what was found goes to the committed corpus
#
# OASISKV_FUZZ_SECONDS is the time of each target, 120 without it. What libFuzzer finds interesting
# is kept below target/fuzz-corpus and is where the next run begins. An input that breaks a target is
# copied to target/test-run, its path and content printed, and this ends with 1. Without a C++
# compiler the same targets run on mutations that nothing guides. It changes nothing outside of
# target/, but --merge.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly SECONDS_EACH="${OASISKV_FUZZ_SECONDS:-120}"
readonly OUT="target/test-run"
readonly HERE="integration-tests/fuzz"
# One run may take so long and hold so much, beside the bound on the heap that each target has.
readonly TIMEOUT_S=20 RSS_MIB=1024
# Targets run on a thread of this size in the product.
readonly STACK_KIB=2048
mkdir -p "$OUT"

# Everything is counted but std: edges, and what is compared with what. Debug assertions find more.
readonly COVERAGE="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions --cfg fuzzing"

targets() { find "$HERE/corpus" -mindepth 1 -maxdepth 1 -type d -printf '%f\n' | sort; }

# A line of results from libFuzzer's log: executions, features, inputs.
summary() {
    awk -v name="$1" '
        /cov: [0-9]+ ft:/ { for (i = 1; i < NF; i++) {
            if ($i == "cov:") cov = $(i + 1)
            if ($i == "ft:") ft = $(i + 1)
            if ($i == "corp:") { split($(i + 1), c, "/"); corp = c[1] } } }
        /^stat::number_of_executed_units:/ { runs = $2 }
        /^stat::average_exec_per_sec:/ { rate = $2 }
        END { printf "   %-16s %9d executions, %6d a second, %6d edges, %6d features, %5d inputs\n",
              name, runs, rate, cov, ft, corp }' "$2"
}

# guided TARGET: libFuzzer for the configured time. Its log is kept, failures are told.
guided() {
    local name="$1" log="$OUT/fuzz-$1.log" corpus="target/fuzz-corpus/$1" known=()
    mkdir -p "$corpus"
    for folder in "$HERE/corpus/$name" "$HERE/regressions/$name"; do
        [[ -d "$folder" ]] && known+=("$folder")
    done
    (
        ulimit -s "$STACK_KIB"
        exec env RUST_BACKTRACE=0 "$program" "--target=$name" "$corpus" "${known[@]}" \
            -max_total_time="$SECONDS_EACH" -timeout="$TIMEOUT_S" -rss_limit_mb="$RSS_MIB" \
            -max_len=4096 -use_value_profile=0 -print_final_stats=1 -verbosity=1 \
            -artifact_prefix="$OUT/fuzz-$name-"
    ) >"$log" 2>&1
    local code=$?
    summary "$name" "$log"
    ((code == 0)) && return 0
    grep -aE 'panicked at|overflowed its stack|memory allocation of|ERROR: libFuzzer' "$log" |
        head -n 4 | sed 's/^/      /'
    local input
    input=$(sed -n 's/^.*Test unit written to //p' "$log" | tail -n 1)
    echo "   FAILED $name, log in $log${input:+, replay with:}"
    [[ -z "$input" ]] || echo "      cargo run --release -p fuzz -- $name $input"
    # Where the folder is gone afterwards, as in CI: what is printed is enough.
    if [[ -f "$input" ]]; then
        echo "      which is: base64 -d >$input <<<$(base64 -w0 "$input")"
    fi
    return 1
}

# blind TARGET: the same function on mutations without a guide.
blind() {
    local log="$OUT/fuzz-$1.log" began="$OUT/fuzz-$1.began"
    touch "$began"
    if target/release/fuzz "$1" --seconds "$SECONDS_EACH" >"$log" 2>&1; then
        sed 's/^/   /' "$log"
    else
        tail -n 5 "$log" | sed 's/^/      /'
        echo "   FAILED $1, log in $log"
        # The input at work stays where it broke the target.
        find "$OUT/fuzz" -name "$1-*" -newer "$began" -printf '      %p is: ' \
            -exec base64 -w0 {} \; -printf '\n'
        return 1
    fi
}

build() {
    if ! command -v "${CXX:-c++}" >/dev/null; then
        echo "   no C++ compiler: mutations without a guide"
        driver=blind
        cargo build --release --quiet -p fuzz || exit 1
        return
    fi
    local host
    host=$(rustc -vV | sed -n 's/^host: //p')
    # With a target of its own, build scripts and macros are built without the flags.
    RUSTFLAGS="$COVERAGE" CARGO_PROFILE_RELEASE_DEBUG=false CARGO_PROFILE_RELEASE_OPT_LEVEL=1 \
        cargo build --release --quiet -p fuzz --features libfuzzer \
        --bin fuzz-guided --target "$host" || exit 1
    program="${CARGO_TARGET_DIR:-target}/$host/release/fuzz-guided"
    driver=guided
}

case "${1:-}" in
    --merge)
        name="${2:?which target}"
        build
        [[ "$driver" == guided ]] || exit 64
        # Only what adds coverage to the committed inputs, and only small ones.
        "$program" "--target=$name" -merge=1 -max_len=512 "$HERE/corpus/$name" \
            "target/fuzz-corpus/$name" 2>&1 | tail -n 1
        exit
        ;;
    "") mapfile -t chosen < <(targets) ;;
    *)
        if (($# > 1)); then
            exec cargo run --release --quiet -p fuzz -- "$@"
        fi
        chosen=("$1")
        ;;
esac

begin=$SECONDS
build
echo "   built in $((SECONDS - begin)) s; ${#chosen[@]} targets, $SECONDS_EACH s each, two at a time"
failed=0 running=0
for name in "${chosen[@]}"; do
    if ((running == 2)); then
        wait -n || failed=1
        running=$((running - 1))
    fi
    "$driver" "$name" &
    running=$((running + 1))
done
for ((; running > 0; running--)); do
    wait -n || failed=1
done
exit "$failed"
