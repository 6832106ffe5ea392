#!/usr/bin/env bash
# Believed: A column of a table that is written to Parquet with `partition_cols` comes back with its numbers:
# epsilons 0.5, 1, 8 and 10 as floats.
# Happens: The numbers become names of folders, and are read as texts unless all are whole: "0.5", "1",
# "10", "8", in this order. A filter `("epsilon", "==", 8.0)` raises ArrowNotImplementedError. If all are
# whole they are integers, but a category whose order is that of texts: sorting gives 1, 10, 2, 8. Keys of
# digits such as "001" become the integer 1.
# Advice: Partition by nothing that is sorted, filtered or joined, or give pyarrow's `dataset` a
# `partitioning` with a schema.
# Versions: pandas 3.1.1, pyarrow 26.0.1, numpy 2.4.6. Seen on 2026-11-28.
# Output:
#   [0.5, 1.0, 8.0, 10.0] come back sorted as ['0.5', '1', '10', '8']; filter by 8.0: ArrowNotImplementedError
#   [1.0, 2.0, 8.0, 10.0] come back sorted as [1, 10, 2, 8]; filter by 8.0: 1
#   ['001', '002', '100', '0'] come back sorted as [0, 1, 2, 100]; filter by '100': ArrowNotImplementedError
#   with a schema: [0.5, 1.0, 8.0, 10.0]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" pandas==3.1.1 pyarrow==26.0.1 numpy==2.4.6
export OMP_NUM_THREADS=1
"$folder/bin/python" -W ignore - "$folder" <<'PYTHON'
import sys

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds

for name, values in (("halves", [0.5, 1.0, 8.0, 10.0]), ("whole", [1.0, 2.0, 8.0, 10.0]),
                     ("keys", ["001", "002", "100", "0"])):
    path = f"{sys.argv[1]}/{name}"
    pd.DataFrame({"epsilon": values, "accuracy": [1, 2, 3, 4]}).to_parquet(path, partition_cols=["epsilon"])
    back = pd.read_parquet(path).sort_values("epsilon")["epsilon"].tolist()
    try:
        found = len(pd.read_parquet(path, filters=[("epsilon", "==", values[2])]))
    except pa.ArrowNotImplementedError as error:
        found = type(error).__name__
    print(f"{values} come back sorted as {back}; filter by {values[2]!r}: {found}")
    right = {"halves": ["0.5", "1", "10", "8"], "whole": [1, 10, 2, 8], "keys": [0, 1, 2, 100]}
    assert sorted(map(str, back)) == sorted(map(str, right[name])) and (name == "keys" or back == right[name])
    assert found == 1 if name == "whole" else found == "ArrowNotImplementedError"
schema = ds.partitioning(pa.schema([("epsilon", pa.float64())]), flavor="hive")
table = ds.dataset(f"{sys.argv[1]}/halves", partitioning=schema).to_table().to_pandas()
back = sorted(table["epsilon"])
print(f"with a schema: {back}")
assert back == [0.5, 1.0, 8.0, 10.0]
PYTHON
