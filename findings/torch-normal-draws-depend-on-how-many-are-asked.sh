#!/usr/bin/env bash
# Believed: With one seed, `torch.randn(17)` is the beginning of `torch.randn(1000)`, and five calls
# of 20 give what one call of 100 gives.
# Happens: On the CPU, fewer than 16 numbers, a size that is no multiple of 16, and chunks give
# other numbers. Noise that is drawn layer by layer is other noise than noise that is drawn
# at once.
# Advice: Noise repeats only if it is drawn in the same sizes: fix the sizes, or use a counter-based
# stream.
# Versions: torch 2.15.0 (CPU). Seen on 2026-11-28.
# Output:
#   prefix of 1000: {15: False, 16: True, 17: False, 24: False, 32: True, 100: False, 160: True}
#   chunks equal one call of 160: {16: True, 20: False, 32: True}
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy==2.4.6
export OMP_NUM_THREADS=1
"$folder/bin/python" -W ignore - <<'PYTHON'
import torch


def draw(*sizes):
    generator = torch.Generator().manual_seed(1)
    return torch.cat([torch.randn(size, generator=generator) for size in sizes])


whole = draw(1000)
same = {size: torch.equal(draw(size), whole[:size]) for size in (15, 16, 17, 24, 32, 100, 160)}
chunks = {size: torch.equal(draw(*[size] * (160 // size)), draw(160)) for size in (16, 20, 32)}
print("prefix of 1000:", same)
print("chunks equal one call of 160:", chunks)
assert not same[15] and same[16] and not same[17] and not same[24] and same[32] and not same[100]
assert chunks[16] and not chunks[20]
PYTHON
