#!/usr/bin/env bash
# Believed: Ctrl-C during `torch.save` raises KeyboardInterrupt, whatever file it writes to.
# Happens: For a path and for `io.BytesIO` it does, each time. For a file object written in Python
# (`gzip.open`, as a stand-in for fsspec and cloud storage) more than half of the interrupts arrive
# as RuntimeError "unexpected pos": the writer's clean-up fails and hides KeyboardInterrupt, which
# is only its context.
# Advice: Save to memory and write the bytes, or look for KeyboardInterrupt in `__context__` before
# an error is reported or retried.
# Versions: torch 2.15.0 (CPU), Python 3.11. Seen on 2026-11-28.
# Output:
#   path: {'KeyboardInterrupt': 20}
#   memory: {'KeyboardInterrupt': 20}
#   gzip: {'KeyboardInterrupt': 7, 'RuntimeError': 13}
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy==2.4.6
cd "$folder"
cat > save.py <<'PYTHON'
import collections
import gzip
import io
import signal

import torch

state = {str(number): torch.zeros(10) for number in range(500)}
torch.save(state, io.BytesIO())


def interrupted(make):
    """Return how 20 interrupts arrive. A timer has the handler of Ctrl-C; a lost one is repeated."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    came = collections.Counter()
    for number in range(20):
        signal.setitimer(signal.ITIMER_REAL, 0.05 + number / 1000, 2)
        try:
            while True:
                torch.save(state, make())
        except (KeyboardInterrupt, RuntimeError) as error:
            signal.setitimer(signal.ITIMER_REAL, 0)
            came[type(error).__name__] += 1
            if isinstance(error, RuntimeError):
                assert isinstance(error.__context__, KeyboardInterrupt)
    return came


path = interrupted(lambda: "state.pt")
memory = interrupted(io.BytesIO)
packed = interrupted(lambda: gzip.open("state.gz", "wb"))
for name, came in (("path", path), ("memory", memory), ("gzip", packed)):
    print(f"{name}: {dict(came)}")
assert path == memory == {"KeyboardInterrupt": 20}
assert packed["RuntimeError"] > 5
PYTHON
bin/python -W ignore save.py
