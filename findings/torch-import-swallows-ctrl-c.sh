#!/usr/bin/env bash
# Believed: Ctrl-C during `import torch` raises KeyboardInterrupt and ends the program.
# Happens: While torch's C++ part imports numpy, the interrupt is swallowed: `import torch` returns,
# the program runs on, and nothing is printed. It is so at the first, the 20th and the last module of numpy,
# about a tenth of the time of the import. If numpy's core was half loaded, a later import says
# "cannot load module more than once per process".
# Advice: Let a handler of SIGINT note the interrupt before it raises, and look at the note after
# the imports.
# Versions: torch 2.15.0 (CPU), numpy 2.4.6, Python 3.11. Seen on 2026-11-28.
# Output:
#   no interrupt: torch and numpy work
#   interrupt at numpy's module 1: swallowed
#   interrupt at numpy's module 20: swallowed
#   interrupt at numpy's module 80: swallowed
#   interrupt at the import of torch.storage: KeyboardInterrupt
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy==2.4.6
cat > "$folder/interrupt.py" <<'PYTHON'
import signal
import sys

module, at = sys.argv[1], int(sys.argv[2])
signal.signal(signal.SIGINT, signal.default_int_handler)
seen = 0


def press(event, details):
    """Press Ctrl-C at one of the imports."""
    global seen
    if event == "import" and details[0].startswith(module):
        seen += 1
        if seen == at:
            signal.raise_signal(signal.SIGINT)


sys.addaudithook(press)
try:
    import torch

    assert torch.zeros(2).numpy().sum() == 0
    print("swallowed" if at else "torch and numpy work")
except KeyboardInterrupt:
    print("KeyboardInterrupt")
PYTHON
said=$(
    echo "no interrupt: $("$folder/bin/python" -W ignore "$folder/interrupt.py" numpy 0)"
    for number in 1 20 80; do
        echo "interrupt at numpy's module $number: $("$folder/bin/python" -W ignore "$folder/interrupt.py" numpy $number)"
    done
    echo "interrupt at the import of torch.storage: $("$folder/bin/python" -W ignore "$folder/interrupt.py" torch.storage 1)"
)
echo "$said"
test "$(grep -c ": swallowed$" <<<"$said")" = 3
grep -q "torch.storage: KeyboardInterrupt" <<<"$said"
