"""The tables of docs/*.md are those of the results beside the benchmarks."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_tables_are_current() -> None:
    module = runpy.run_path(str(ROOT / "benchmarks" / "tables.py"))
    tables = module["tables"]()
    documents = {path.name: path.read_text(encoding="utf-8") for path in module["DOCUMENTS"]}
    for name, document in documents.items():
        assert module["filled"](document, tables) == document, f"{name}: run benchmarks/tables.py"
    for name in tables:
        places = [document.count(module["start"](name)) for document in documents.values()]
        assert sum(places) == 1, f"the table {name!r} has {sum(places)} places in docs/"
