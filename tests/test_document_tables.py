"""The tables of docs/*.md are those of the results beside the benchmarks."""

import pytest
from benchmarks import tables


@pytest.mark.slow
def test_tables_are_current() -> None:
    made = tables.tables()
    documents = {path.name: path.read_text(encoding="utf-8") for path in tables.DOCUMENTS}
    for name, document in documents.items():
        assert tables.filled(document, made) == document, f"{name}: python -m benchmarks.tables"
    for name in made:
        places = [document.count(tables.start(name)) for document in documents.values()]
        assert sum(places) == 1, f"the table {name!r} has {sum(places)} places in docs/"
