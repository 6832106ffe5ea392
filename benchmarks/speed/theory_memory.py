"""Measure the peak memory of the theory stage on ViT-Tiny, with every method.

    python -m benchmarks.speed.theory_memory                    # 40 minutes on one core
    python -m benchmarks.speed.theory_memory --only "LoRA, 32"  # these settings again

For every setting a study of one cell is prepared from random images and weights, and trained. The stage
then looks at a small and at a large batch, each time in a fresh process, at the start and after the only
epoch. The peak is that of the whole process (VmHWM): interpreter, libraries, network, data.

Results go to benchmarks/results/theory_memory.json; `python -m benchmarks.tables` writes the table of
docs/theory.md.
"""

import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from benchmarks.common import RESULTS, command_line, environment
from benchmarks.speed.synthetic import PROBLEM, small_study, stage, write_images
from dpsweep.base.files import read_json, write_json

RESULT = RESULTS / "theory_memory.json"
METHODS: dict[str, dict[str, Any]] = {
    "Head": {"kind": "head"},
    "FiLM": {"kind": "film"},
    "LoRA": {"kind": "lora", "rank": 16, "target_modules": ["attn.qkv", "attn.proj"]},
    "All parameters": {"kind": "all"},
}
# Method, pixels and the two batches. Batches of 4,096 are of small images, for time: what a batch adds are
# its gradients, and they are as long with larger images. Those of all parameters are never kept, and those of
# LoRA up to a batch of about 280.
SETTINGS = {
    "Head, 32": ("Head", 32, (512, 4096)),
    "FiLM, 32": ("FiLM", 32, (512, 4096)),
    "LoRA, 32": ("LoRA", 32, (256, 4096)),
    "All parameters, 32": ("All parameters", 32, (32, 4096)),
    "FiLM, 224": ("FiLM", 224, (16, 48)),
    "All parameters, 224": ("All parameters", 224, (6, 12)),
}
CELL = "eps8_epochs1_Bfull_C1"
# Runs the stage in the process that prints its peak.
STAGE = """
import resource, sys
from pathlib import Path
from benchmarks.common import peak_bytes
from dpsweep.cli import stages
stages.theory(sys.argv[2], sys.argv[3], Path(sys.argv[1]))
print(peak_bytes())
print(resource.getrusage(resource.RUSAGE_SELF).ru_utime)
"""


def classes_of(examples: int) -> int:
    """A hundred classes, where each can have an example."""
    return 100 if examples >= 100 else 10


def measure(method: str, pixels: int, batches: tuple[int, int]) -> dict[str, Any]:
    """Train a cell whose batch is the whole data, look at its gradients; return peaks and times."""
    examples = max(batches)
    classes = classes_of(examples)
    size = {"train": examples, "test": classes, "pixels": pixels, "classes": classes}
    found: dict[str, Any] = {"method": method, "pixels": pixels, "batches": []}
    with tempfile.TemporaryDirectory() as folder:
        results, file = Path(folder) / "results", Path(folder) / "study.yaml"
        write_images(results / "data" / "synthetic", size)
        study = small_study(size, {"img_size": pixels}, METHODS[method]) | {"results": str(results)}

        def write(largest_batch: int) -> None:
            theory = {"draws": 1, "largest_batch": largest_batch}
            file.write_text(yaml.safe_dump(study | {"theory": theory}))

        write(examples)
        stage(file, "prepare-backbone", "vit")
        stage(file, "calibrate", "synthetic", "8", "1", "full")
        stage(file, "train", PROBLEM, CELL)
        for batch in batches:
            write(batch)
            printed = subprocess.run(
                [sys.executable, "-c", STAGE, str(file), PROBLEM, CELL],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            ).stdout.split()
            output = next((results / "theory").rglob("*.parquet"))
            rows = pd.read_parquet(output)
            output.unlink()
            found["trainable_parameters"] = int(rows["trainable_parameters"].iloc[0])
            found["batches"].append(
                {
                    "examples": int(rows["examples"].iloc[0]),
                    "megabytes": round(int(printed[-2]) / 1e6),
                    "processor_seconds": round(float(printed[-1])),
                }
            )
    print(found, flush=True)
    return found


def main() -> None:
    """Measure and write the result, a setting at a time."""
    parser = command_line(__doc__)
    parser.add_argument("--only", default="", help="text in the names of settings to measure again")
    only = parser.parse_args().only
    device = f"CPU, one thread, {platform.machine()}"
    pieces = read_json(RESULT)["pieces"] if RESULT.exists() and only else {}
    for name, setting in SETTINGS.items():
        if only not in name:
            continue
        pieces[name] = measure(*setting)
        result = {
            "environment": environment("torch", "timm", "numpy", device=device, load=False),
            "pieces": {each: pieces[each] for each in SETTINGS if each in pieces},
        }
        write_json(RESULT, result)


if __name__ == "__main__":
    main()
