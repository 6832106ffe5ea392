#!/usr/bin/env bash
# Believed: The same tensors and metadata give the same safetensors file, byte for byte: the format
# sorts its header.
# Happens: Tensors are sorted, metadata is not: with several entries their order changes with each
# process, and with it the checksum of the file. With one entry, as transformers writes, files are
# equal. It is so in 0.6.1 and 0.8.0.
# Advice: Put all metadata into one entry as JSON, or compare tensors in the place of files.
# Versions: safetensors 0.6.1 and 0.8.0, numpy 2.4.6. Seen on 2026-11-28.
# Output:
#   safetensors 0.6.1, 1 entries: 1 different files from 6 processes
#   safetensors 0.6.1, 6 entries: 6 different files from 6 processes
#   safetensors 0.8.0, 1 entries: 1 different files from 6 processes
#   safetensors 0.8.0, 6 entries: 6 different files from 6 processes
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/write.py" <<'PYTHON'
import hashlib
import sys

import numpy as np
from safetensors.numpy import save

metadata = {f"entry {i}": str(i) for i in range(int(sys.argv[1]))}
tensors = {name: np.arange(6.0) for name in ("weight", "bias", "scale")}
print(hashlib.sha256(save(tensors, metadata)).hexdigest())
PYTHON
for version in 0.6.1 0.8.0; do
    python3 -m venv "$folder/$version"
    "$folder/$version/bin/pip" install --quiet "safetensors==$version" numpy==2.4.6
    for entries in 1 6; do
        count=$(for _ in 1 2 3 4 5 6; do "$folder/$version/bin/python" "$folder/write.py" $entries; done | sort -u | wc -l)
        echo "safetensors $version, $entries entries: $count different files from 6 processes"
        [ $entries = 1 ] && [ "$count" = 1 ] || { [ $entries = 6 ] && [ "$count" -gt 1 ]; }
    done
done
