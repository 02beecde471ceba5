#!/usr/bin/env bash
# Times the engine and llama.cpp in turns on this machine and prints the ratios of the medians.
#
#   bash integration-tests/bench-llama.sh [options] LLAMA_BIN_FOLDER THEIR.gguf [OUR_MODEL]
#     --threads N    for both (2)
#     --rounds N     each round runs every measurement once of both, one after the other (3)
#     --only WHAT    prefill, decode or batch: one part alone
#
# LLAMA_BIN_FOLDER holds llama-bench and llama-batched-bench. OUR_MODEL is an alias or a .gguf file
# (the default model). Flash attention is off for llama.cpp, which is faster on CPUs; its 8
# sequences share their prompt (-pps), for which it keeps one copy of the KV: that is in its favour.
# Nothing is asserted, and nothing else should run meanwhile: the numbers are this machine's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
    sed -n 's/^#   \{0,3\}//p' "${BASH_SOURCE[0]}" | head -5 >&2
    exit 64
}

threads=2 rounds=3 only=all
while (($# > 0)); do
    case "$1" in
        --threads) threads="${2:?}" && shift 2 ;;
        --rounds) rounds="${2:?}" && shift 2 ;;
        --only) only="${2:?}" && shift 2 ;;
        -*) usage ;;
        *) break ;;
    esac
done
(($# == 2 || $# == 3)) || usage
readonly LLAMA="$1" THEIRS="$2" OURS="${3:-smollm2-135m}"
readonly ENGINE="${OASISKV:-target/release/oasiskv}"
[[ -x "$ENGINE" ]] || {
    echo "$ENGINE is missing: cargo build --release -p oasiskv, or name one in OASISKV" >&2
    exit 64
}
results="$(mktemp -d)"
trap 'rm -rf "$results"' EXIT

# A name for the next result. Not in the redirection itself: of an external command that is worked
# out in a child, where counting would be forgotten.
next() { result="$results/$1.$((++count)).$2"; }
part() { [[ "$only" == all || "$only" == "$1" ]]; }
ours() {
    next ours json
    "$ENGINE" bench engine --json --runs 1 --model "$OURS" --threads "$threads" "$@" \
        >"$result"
}
theirs() {
    next theirs json
    "$LLAMA/llama-bench" -m "$THEIRS" -t "$threads" -fa 0 -r 1 -o json "$@" \
        >"$result" 2>"$results/log"
}
theirs_batch() {
    next batch jsonl
    "$LLAMA/llama-batched-bench" -m "$THEIRS" -t "$threads" -tb "$threads" -fa off -c 59392 \
        -npp 7168 -ntg 32 -npl 8 -pps --output-format jsonl \
        >"$result" 2>"$results/log"
}

count=0
for ((round = 1; round <= rounds; round++)); do
    echo "round $round of $rounds" >&2
    if part prefill; then
        # bench engine decodes at one context at least; 0 is the cheapest.
        ours --prefill 512,4096 --contexts 0 --sequences 1
        theirs -p 512,4096 -n 0
    fi
    if part decode; then
        ours --prefill 1 --contexts 0,7168 --sequences 1
        theirs -p 0 -n 32 -d 0
        theirs -p 0 -n 32 -d 7168
    fi
    if part batch; then
        ours --prefill 1 --contexts 7168 --sequences 8
        theirs_batch
    fi
done

python3 - "$results" <<'PYTHON'
import collections, json, pathlib, statistics, sys

folder = pathlib.Path(sys.argv[1])
ours, theirs = collections.defaultdict(list), collections.defaultdict(list)
for file in folder.glob("ours.*.json"):
    for row in json.loads(file.read_text())["rows"]:
        if (row["phase"], row["context"]) != ("prefill", 1):
            key = (row["phase"], row["sequences"], row["context"])
            ours[key].append(row["tokens_per_s"])
for file in folder.glob("theirs.*.json"):
    for row in json.loads(file.read_text()):
        phase, context = ("prefill", row["n_prompt"]) if row["n_prompt"] else ("decode", row["n_depth"])
        theirs[phase, 1, context].append(row["avg_ts"])
for file in folder.glob("batch.*.jsonl"):
    for line in file.read_text().splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            theirs["decode", row["pl"], row["pp"]].append(row["speed_tg"])
print("| phase | sequences | context | ours, tokens/s | llama.cpp, tokens/s | ratio | runs |")
print("|---|---|---|---|---|---|---|")
for key in sorted(ours.keys() & theirs.keys(), key=lambda key: (key[0] == "decode", *key)):
    mine, other = statistics.median(ours[key]), statistics.median(theirs[key])
    runs = " ".join(f"{a:.1f}/{b:.1f}" for a, b in zip(sorted(ours[key]), sorted(theirs[key])))
    print(f"| {key[0]} | {key[1]} | {key[2]} | {mine:.1f} | {other:.1f} | {mine / other:.2f} | {runs} |")
PYTHON
