"""Write findings/README.md, the table of surprises, from the heads of findings/*.sh."""

import re
from pathlib import Path

from benchmarks.common import REPOSITORY, command_line
from benchmarks.tables.markdown import grid
from dpsweep.base.files import write_text

FOLDER = REPOSITORY / "findings"
HEAD = """# Surprises

Each script shows a behaviour of a library of this field that a good guess gets wrong. It is no fault
of dpsweep. A script installs pinned packages in a temporary folder, runs them without dpsweep, and
fails if the behaviour changes. `make findings-check` runs all (half an hour, and a network).
`python -m benchmarks.surprises` writes this page.
"""


def parts(script: Path) -> dict[str, str]:
    """Return the parts of a script's head (Believed, Happens, Advice, Versions, Output) by name.

    Raises:
        ValueError: a part is missing.
    """
    comments = re.findall(r"^#(?!!) ?(.*)$", script.read_text().split("set -euo")[0], re.MULTILINE)
    found: dict[str, str] = {}
    for line in comments:
        name, colon, rest = line.partition(":")
        if colon and name in {"Believed", "Happens", "Advice", "Versions", "Output"}:
            part, found[name] = name, rest.strip()
        else:
            found[part] += f" {line.strip()}"
    if len(found) != 5:
        raise ValueError(f"{script.name}: found {', '.join(found)} in its head")
    return found


def page() -> str:
    """Return the text of findings/README.md."""
    rows = []
    for script in sorted(FOLDER.glob("*.sh")):
        head = parts(script)
        versions = head["Versions"].partition(". Seen")[0]
        rows.append([f"[{script.stem}]({script.name})", head["Happens"], head["Advice"], versions])
    table = grid(["script", "what happens", "advice", "versions"], rows, numbers=False)
    return "\n".join([HEAD, *table]) + "\n"


if __name__ == "__main__":
    command_line(__doc__).parse_args()
    write_text(FOLDER / "README.md", page())
