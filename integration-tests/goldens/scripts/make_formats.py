"""One small matrix of every storage format, as stored and as the `gguf` package dequantises it.

Usage: python make_formats.py

Writes ../formats/NAME.stored (the bytes of the file, 4 rows of 512) and ../formats/NAME.f32 (the
values, little-endian). Formats that the package can quantise hold quantised random values; of the
others, the k-quants, all bits are random but the units, which are half-precision numbers of either
sign and of very different sizes. Comes out byte for byte the same with the same versions.
"""

import pathlib
import warnings

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize

ROWS, COLUMNS = 4, 512
FOLDER = pathlib.Path(__file__).resolve().parent.parent / "formats"
QUANTISED = [Type.F32, Type.F16, Type.BF16, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0]
# Where the half-precision units lie within a block.
UNITS = {Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208]}


def random_blocks(kind, random):
    values, size = GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (ROWS * COLUMNS // values, size), dtype=np.uint8)
    for at in UNITS[kind]:
        count = len(blocks)
        units = random.choice([-1.0, 1.0], count) * np.exp2(random.uniform(-20, 4, count))
        blocks[:, at : at + 2] = units.astype("<f2").view(np.uint8).reshape(count, 2)
    return blocks.reshape(ROWS, -1)


def main():
    FOLDER.mkdir(exist_ok=True)
    random = np.random.default_rng(3)
    for kind in [*QUANTISED, *UNITS]:
        if kind in UNITS:
            stored = random_blocks(kind, random)
        else:
            size = np.exp2(random.uniform(-12, 4, (ROWS, COLUMNS // 32))).repeat(32, axis=1)
            values = (random.standard_normal((ROWS, COLUMNS)) * size).astype(np.float32)
            stored = quantize(values, kind)
        values = dequantize(np.ascontiguousarray(stored), kind).astype("<f4")
        assert values.shape == (ROWS, COLUMNS) and np.isfinite(values).all()
        (FOLDER / f"{kind.name}.stored").write_bytes(np.ascontiguousarray(stored).tobytes())
        (FOLDER / f"{kind.name}.f32").write_bytes(values.tobytes())
        print(kind.name, stored.nbytes, "bytes")


if __name__ == "__main__":
    warnings.simplefilter("error")
    main()
