#!/usr/bin/env bash
# Believed: `class_encode_column`, which a stratified split asks for, keeps labels that are already
# 0 to K - 1.
# Happens: It sorts the labels as text. With 11 classes or more, 10 comes after 1: label 10 becomes
# 2, label 2 becomes 3. A network whose head knows the old numbers, and a test set of fewer classes
# that is encoded apart, silently get other classes.
# Advice: Use `cast_column(name, ClassLabel(names=[...]))`, which keeps the numbers.
# Versions: datasets 4.0.0 with pyarrow 20.0.0, datasets 5.2.0 with pyarrow 24.0.0, numpy 2.4.6. Seen on 2026-11-28.
# Output:
#   datasets 4.0.0: class_encode_column of 0 to 10: 0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 2; cast_column keeps them
#   datasets 5.2.0: class_encode_column of 0 to 10: 0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 2; cast_column keeps them
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" datasets==4.0.0 pyarrow==20.0.0 pandas==2.3.3 numpy==2.4.6
export HF_HOME="$folder/home" HF_DATASETS_DISABLE_PROGRESS_BARS=1
cat > "$folder/labels.py" <<'PYTHON'
import datasets

numbers = list(range(11))
rows = datasets.Dataset.from_dict({"label": numbers})
encoded = [row["label"] for row in rows.class_encode_column("label")]
names = datasets.ClassLabel(names=[str(each) for each in numbers])
cast = [row["label"] for row in rows.cast_column("label", names)]
assert cast == numbers and encoded == [0, 1, *range(3, 11), 2]
found = ", ".join(map(str, encoded))
print(f"datasets {datasets.__version__}: class_encode_column of 0 to 10: {found}; cast_column keeps them")
PYTHON
"$folder/bin/python" -W ignore "$folder/labels.py" 2>/dev/null
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" datasets==5.2.0 pyarrow==24.0.0
"$folder/bin/python" -W ignore "$folder/labels.py" 2>/dev/null
