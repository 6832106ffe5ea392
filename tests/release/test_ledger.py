"""The ledger of releases: it grows, and a line that was edited or taken out is found."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dpsweep.release import ReleaseError
from dpsweep.release.certificate import ReleasedModel
from dpsweep.release.ledger import Ledger, open_ledger

PETS, CATS, DOGS = (
    [["path", "data", "pets"]],
    [["path", "data", "pets", "cats"]],
    [["hub", "a/dogs"]],
)


def model(epsilon: float) -> ReleasedModel:
    return ReleasedModel(certificate="0" * 64, epsilon=epsilon, delta=1e-5, noise=None)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "new" / "releases.jsonl"
    for epsilon, data, origins in ((1.0, "a", PETS), (2.0, "b", DOGS), (3.0, "c", CATS)):
        with open_ledger(file) as ledger:
            ledger.add(data, origins, model(epsilon))
    return file


def test_releases_are_found_by_data_and_by_where_it_comes_from(file: Path) -> None:
    ledger = Ledger(file)

    def found(data: str, *origins: list[str]) -> list[float]:
        return [each.epsilon for each in ledger.released(data, list(origins))]

    assert found("a", ["glyphs"]) == [1]
    assert found("z", *CATS) == found("z", *PETS) == [1, 3]
    assert found("z", ["path", "data", "pets", "dogs"]) == [1]
    assert found("z", ["path", "data", "pet"]) == []
    assert found("b", *PETS) == [1, 2, 3]


@pytest.mark.parametrize("number", [0, 1])
def test_lines_that_were_taken_out_are_found(number: int, file: Path) -> None:
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:number] + lines[number + 1 :]))
    with (
        pytest.raises(ReleaseError, match=f"line {number + 1}: .* a line was edited or taken out"),
        open_ledger(file),
    ):
        pass


@pytest.mark.parametrize("number", [0, 1, 2])
def test_lines_that_were_edited_are_found(number: int, file: Path) -> None:
    lines = file.read_text().splitlines(keepends=True)
    lines[number] = lines[number].replace(f'"epsilon": {number + 1}', '"epsilon": 0')
    file.write_text("".join(lines))
    with pytest.raises(ReleaseError, match=f"line {number + 1}: damaged or edited"):
        Ledger(file)


def test_half_a_line_is_found(file: Path) -> None:
    file.write_text(file.read_text() + '{"data": ')
    with pytest.raises(ReleaseError, match="line 4: damaged"):
        Ledger(file)


def test_lines_are_added_one_after_the_other(tmp_path: Path) -> None:
    file = tmp_path / "releases.jsonl"

    def add(epsilon: int) -> None:
        with open_ledger(file) as ledger:
            ledger.add("a", PETS, model(epsilon + 1))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(20)))
    assert len(Ledger(file).released("a", [])) == 20
