"""The files of the repository, without untracked files beside them; and the sentences of its pages."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def tracked(*patterns: str) -> list[Path]:
    """Return the files that match a pattern and that git tracks, sorted.

    In an unpacked archive, which has no git, return all files that match.
    """
    found = sorted({file for pattern in patterns for file in ROOT.glob(pattern)})
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=False
    )
    if listed.returncode:
        return found
    known = {ROOT / name for name in listed.stdout.split("\0")}
    return [file for file in found if file in known]


def prose(page: Path) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)
