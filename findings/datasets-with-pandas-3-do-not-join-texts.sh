#!/usr/bin/env bash
# Believed: A column of texts has the type `string` in datasets, whether it comes from pandas, a CSV
# or a dictionary, and `concatenate_datasets` joins them.
# Happens: With pandas 3 texts from `from_pandas` and from `load_dataset("csv")` are `large_string`,
# those from dictionaries and JSON `string`: joining them raises "The features can't be aligned". With
# pandas 2 all are `string`, with the same release of datasets.
# Advice: Call `dataset.cast(features)` with one `Features` for all before joining.
# Versions: datasets 4.0.0 and 5.2.0, pandas 2.3.3 and 3.1.1, pyarrow 26.0.1. Seen on 2026-11-28.
# Output:
#   datasets 4.0.0, pandas 2.3.3: dictionary string, pandas string, CSV string: 5 rows
#   datasets 5.2.0, pandas 2.3.3: dictionary string, pandas string, CSV string: 5 rows
#   datasets 4.0.0, pandas 3.1.1: dictionary string, pandas large_string, CSV large_string: ValueError
#   datasets 5.2.0, pandas 3.1.1: dictionary string, pandas large_string, CSV large_string: ValueError
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/join.py" <<'PYTHON'
import sys
from importlib.metadata import version
from pathlib import Path

import datasets
import pandas as pd

datasets.disable_progress_bars()
folder = Path(sys.argv[0]).parent
(folder / "texts.csv").write_text("text,label\ngood,1\nbad,0\n")
made = {
    "dictionary": datasets.Dataset.from_dict({"text": ["fine"], "label": [1]}),
    "pandas": datasets.Dataset.from_pandas(pd.read_csv(folder / "texts.csv")),
    "CSV": datasets.load_dataset(
        "csv", data_files=str(folder / "texts.csv"), split="train", cache_dir=sys.argv[1]
    ),
}
types = {name: each.features["text"].dtype for name, each in made.items()}
try:
    joined = f"{len(datasets.concatenate_datasets([*made.values()]))} rows"
except ValueError as error:
    assert "features can't be aligned" in str(error)
    joined = "ValueError"
listed = ", ".join(map(" ".join, types.items()))
print(f"datasets {version('datasets')}, pandas {pd.__version__}: {listed}: {joined}")
large = pd.__version__.startswith("3")
assert types == {"dictionary": "string"} | dict.fromkeys(("pandas", "CSV"), "large_string" if large else "string")
assert joined == ("ValueError" if large else "5 rows")
features = made["dictionary"].features
assert len(datasets.concatenate_datasets([each.cast(features) for each in made.values()])) == 5
PYTHON
for versions in "4.0.0 2.3.3" "5.2.0 2.3.3" "4.0.0 3.1.1" "5.2.0 3.1.1"; do
    read -r datasets pandas <<< "$versions"
    here="$folder/$datasets-$pandas"
    python3 -m venv "$here"
    "$here/bin/pip" install --quiet uv
    "$here/bin/uv" pip install --quiet --python "$here/bin/python" "datasets==$datasets" "pandas==$pandas" pyarrow==26.0.1
    "$here/bin/python" -W ignore "$folder/join.py" "$here/cache"
done
