#!/usr/bin/env bash
# Believed: The wheel of opacus installs one package, opacus.
# Happens: It installs three: opacus, benchmarks and examples. A project's own folder benchmarks is
# hidden by it where site-packages come first, for example under pytest with `--import-
# mode=importlib`, and `import benchmarks` succeeds where it should fail.
# Advice: Give a project's own folder another name, or run it with the project first on `sys.path`.
# Versions: opacus 1.6.0. Seen on 2026-11-28.
# Output:
#   ['benchmarks', 'examples', 'opacus', 'opacus-1.6.0.dist-info'] benchmarks/__init__.py
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" opacus==1.6.0 --no-deps
export OMP_NUM_THREADS=1
"$folder/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import files
from importlib.util import find_spec

top = sorted({path.parts[0] for path in files("opacus") if len(path.parts) > 1})
print(top, find_spec("benchmarks").origin.split("site-packages/")[1])
assert top[:3] == ["benchmarks", "examples", "opacus"]
PYTHON
