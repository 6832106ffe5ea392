"""The ledger of releases: it grows, and edited or removed lines are found."""

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


def test_releases_are_found_by_data_and_source(file):
    ledger = Ledger(file)

    def found(data: str, *origins: list[str]) -> list[float]:
        return [each.epsilon for each in ledger.released(data, list(origins))]

    assert found("a", ["glyphs"]) == [1]
    assert found("z", *CATS) == found("z", *PETS) == [1, 3]
    assert found("z", ["path", "data", "pets", "dogs"]) == [1]
    assert found("z", ["path", "data", "pet"]) == []
    assert found("b", *PETS) == [1, 2, 3]
    first, _, third = ledger._lines
    before = [[each.epsilon for each in ledger.before(line)] for line in (first, third)]
    assert before == [[], [1]]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_edited_and_removed_lines_are_found(number, file):
    lines = file.read_text().splitlines(keepends=True)
    edited = lines[number].replace(f'"epsilon": {number + 1}', '"epsilon": 0')
    file.write_text("".join([*lines[:number], edited, *lines[number + 1 :]]))
    with pytest.raises(ReleaseError, match=f"line {number + 1}: damaged or edited"):
        Ledger(file)
    if number < 2:  # removing the last line leaves no trace
        file.write_text("".join(lines[:number] + lines[number + 1 :]))
        said = f"line {number + 1}: .* a line was edited or taken out"
        with pytest.raises(ReleaseError, match=said), open_ledger(file):
            pass


@pytest.mark.parametrize("half", ['{"data": ', '{"data": "d\x00', "\x00\x00"])
def test_an_incomplete_line_is_moved_to_another_file(half, file):
    """Such a line is from a call that was killed before it made its model."""
    whole = file.read_text()
    file.write_text(whole + half)
    assert len(Ledger(file).released("z", CATS)) == 2
    assert file.read_text() == whole + half  # reading changes nothing
    with open_ledger(file) as ledger:
        ledger.add("d", DOGS, model(4.0))
    assert file.read_text().startswith(whole)
    assert len(file.read_text().splitlines()) == len(whole.splitlines()) + 1
    assert file.with_name(f"{file.name}.unfinished").read_text() == f"{half}\n"
    assert [each.epsilon for each in Ledger(file).released("d", [])] == [4]


def test_a_last_line_without_its_line_break_counts(file):
    file.write_text(file.read_text().rstrip())
    assert len(Ledger(file).released("z", CATS)) == 2
    with open_ledger(file) as ledger:
        assert file.read_text().endswith("\n")
        ledger.add("d", DOGS, model(4.0))
    assert [each.epsilon for each in Ledger(file).released("d", [])] == [4]
