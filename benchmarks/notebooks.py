"""Run the notebooks of examples/ from top to bottom, and store what they print and draw.

python -m benchmarks.notebooks
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def run(notebook: Path, folder: Path) -> NotebookNode:
    """Return a notebook with its outputs; it runs in a folder of its own.

    Raises:
        CellExecutionError: a cell failed.
    """
    made = nbformat.read(notebook, as_version=4)
    # The commands of the environment that runs this program.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    client = NotebookClient(
        made, timeout=1200, coalesce_streams=True, resources={"metadata": {"path": str(folder)}}
    )
    client.execute(env=os.environ | {"PATH": path})
    for cell in made.cells:
        cell.metadata.pop("execution", None)
    return made


def main() -> None:
    """Write all notebooks anew."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    for notebook in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(run(notebook, Path(folder)), notebook)


if __name__ == "__main__":
    main()
