#!/usr/bin/env bash
# Believed: seaborn 0.13.1 asks for pandas 1.2 or newer without an upper limit, so with pandas 3 it draws
# the same lines, or fails.
# Happens: `lineplot` with `hue` gives an empty axis: its lines have no points. Nothing is raised and no
# warning appears. A line without `hue`, and `scatterplot`, are drawn. seaborn 0.13.2 draws all.
# Advice: Ask for seaborn 0.13.2 or newer beside pandas 3.
# Versions: seaborn 0.13.0, 0.13.1 and 0.13.2, pandas 3.1.1, matplotlib 3.11.0, numpy 2.4.6. Seen on 2026-11-28.
# Output:
#   seaborn 0.13.0, pandas 3.1.1: 1 line without hue, 0 of 2 lines with hue, 6 points
#   seaborn 0.13.1, pandas 3.1.1: 1 line without hue, 0 of 2 lines with hue, 6 points
#   seaborn 0.13.2, pandas 3.1.1: 1 line without hue, 2 of 2 lines with hue, 6 points
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet pandas==3.1.1 matplotlib==3.11.0 numpy==2.4.6 seaborn==0.13.0
cat > "$folder/lines.py" <<'PYTHON'
import warnings

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns

warnings.simplefilter("error", UserWarning)
plt.switch_backend("Agg")
trials = pd.DataFrame(
    {"step": [1, 2, 3] * 2, "norm": [3.0, 2.0, 1.0, 2.0, 1.5, 1.0], "rate": ["low"] * 3 + ["high"] * 3}
)


def drawn(**options):
    axes = plt.figure().subplots()
    sns.lineplot(trials, x="step", y="norm", estimator=None, legend=False, ax=axes, **options)
    return sum(len(line.get_xdata()) > 0 for line in axes.lines)


plain, coloured = drawn(), drawn(hue="rate")
points = len(sns.scatterplot(trials, x="step", y="norm", hue="rate").collections[0].get_offsets())
assert (plain, coloured, points) == (1, 2 if sns.__version__ == "0.13.2" else 0, 6)
print(
    f"seaborn {sns.__version__}, pandas {pd.__version__}: {plain} line without hue, {coloured} of 2 lines "
    f"with hue, {points} points"
)
PYTHON
for version in 0.13.0 0.13.1 0.13.2; do
    "$folder/bin/pip" install --quiet --no-deps "seaborn==$version"
    "$folder/bin/python" "$folder/lines.py"
done
