#!/usr/bin/env bash
# Believed: `load_dataset("imagefolder")` takes each folder of images as a class, as torchvision's
# `ImageFolder` does, and a folder `train` as a split only where it holds folders of classes.
# Happens: A class `train` (Pascal VOC has one), `dev`, `test` or `steam_train` beside others is read as a
# split. The images of the other classes are left out without a word, and no label is made. Below a
# folder `train` a class `test` is read twice: in the split `train`, and as a test set that consists of
# training images.
# Advice: Give `data_files={"train": "photos/train/**", ...}` for each split, or pictures and labels as a
# table, and count the rows of each class.
# Versions: datasets 4.0.0 and 5.2.0, pyarrow 24.0.0, pillow 12.0.0. Seen on 2026-11-28.
# Output:
#   datasets 4.0.0, plane ship train: train 2 of 6 images, labels none
#   datasets 4.0.0, plane steam_train: train 2 of 4 images, labels none
#   datasets 4.0.0, train/plane train/ship train/test: train 6 and test 2 of 6 images, both hold 2
#   datasets 5.2.0, plane ship train: train 2 of 6 images, labels none
#   datasets 5.2.0, plane steam_train: train 2 of 4 images, labels none
#   datasets 5.2.0, train/plane train/ship train/test: train 6 and test 2 of 6 images, both hold 2
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
cat > "$folder/read.py" <<'PYTHON'
import sys
from pathlib import Path

import datasets
from PIL import Image

datasets.disable_progress_bars()
root = Path(sys.argv[1])


def read(*classes):
    """Return the files of each split of a folder with two images in each class, and its features."""
    data = root / "_".join(classes).replace("/", "-")
    for number, name in enumerate(classes):
        (data / name).mkdir(parents=True)
        for image in range(2):
            Image.new("RGB", (4, 4), (number * 40, image * 40, 0)).save(data / name / f"{image}.png")
    splits = datasets.load_dataset("imagefolder", data_dir=str(data), cache_dir=str(root / "cache"))
    files = {split: {picture.tobytes() for picture in rows["image"]} for split, rows in splits.items()}
    labels = {split: "label" in rows.features for split, rows in splits.items()}
    count = " and ".join(f"{split} {len(found)}" for split, found in files.items())
    total = f"{count} of {2 * len(classes)} images"
    print(f"datasets {datasets.__version__}, {' '.join(classes)}: {total}, ", end="")
    return files, labels


for classes in (("plane", "ship", "train"), ("plane", "steam_train")):
    files, labels = read(*classes)
    assert list(files) == ["train"] and len(files["train"]) == 2 and not labels["train"]
    print("labels none")
files, labels = read("train/plane", "train/ship", "train/test")
assert len(files["train"]) == 6 and len(files["test"]) == 2 and files["test"] < files["train"]
print(f"both hold {len(files['test'])}")
PYTHON
for version in 4.0.0 5.2.0; do
    "$folder/bin/uv" pip install --quiet --python "$folder/bin/python" "datasets==$version" pyarrow==24.0.0 pillow==12.0.0 numpy==2.4.6
    HF_HOME="$folder/home-$version" HF_HUB_OFFLINE=1 "$folder/bin/python" -W ignore "$folder/read.py" "$folder/data-$version"
done
