"""Parts of a dataset: what one more example does to the others."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpsweep.data import DatasetError
from dpsweep.data.examples import Split, stratified_share
from dpsweep.data.folder import load_folder
from dpsweep.study.config import FolderSource
from dpsweep.study.shares import held_out_rows, is_within


def names(split: Split) -> set[str]:
    return {name for name, _ in split.inputs.read(0)}


def source(path: Path, **keys: object) -> FolderSource:
    return FolderSource.model_validate(
        {"kind": "folder", "path": str(path), "train_folders": ["."], "test_from_train": 0.3} | keys
    )


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(60):
            Image.new("L", (2, 2)).save(tmp_path / name / f"{number:03}.png")
    return tmp_path


@pytest.mark.parametrize("new", ["000a", "030b", "zzz"])
def test_another_image_moves_none_between_training_and_testing(pets: Path, new: str) -> None:
    before = load_folder(source(pets))
    Image.new("L", (2, 2)).save(pets / "cat" / f"{new}.png")
    after = load_folder(source(pets))
    added = {f"cat/{new}.png"}
    assert names(after.train) - added == names(before.train)
    assert names(after.test) - added == names(before.test)
    assert len(names(after.train) | names(after.test)) == 121


def test_the_test_set_has_its_share_and_another_seed_has_another_one(pets: Path) -> None:
    sizes = [len(names(load_folder(source(pets, seed=seed)).test)) for seed in range(20)]
    # 120 draws at 0.3 have a standard deviation of 5, so the mean of 20 has one of 1.1.
    assert abs(np.mean(sizes) - 36) < 4
    assert (
        len({frozenset(names(load_folder(source(pets, seed=seed)).test)) for seed in (1, 2)}) == 2
    )


def test_a_cut_that_leaves_nothing_says_what_to_do(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.new("L", (2, 2)).save(tmp_path / name / "0.png")
    with pytest.raises(DatasetError, match=r"test_from_train: found 0\.01 of 2 examples.*seed"):
        load_folder(source(tmp_path, test_from_train=0.01))


def test_a_stratified_share_has_its_share_of_every_class() -> None:
    labels = np.repeat([0, 1, 2, 3], [500, 95, 10, 2])
    kept = stratified_share(labels, lambda place: [place], 0.1, seed=0)
    assert np.bincount(labels[kept]).tolist() == [50, 10, 1, 1]
    assert kept.tolist() == sorted(set(kept.tolist()))
    assert stratified_share(labels, lambda place: [place], 1.0, 0).tolist() == [*range(607)]
    other = stratified_share(labels, lambda place: [place], 0.1, seed=1)
    assert kept.tolist() != other.tolist()


def test_another_example_replaces_at_most_one_of_a_stratified_share() -> None:
    labels = np.arange(200) % 3
    called = [f"image {place}" for place in range(200)]

    def share(names: list[str], labels: np.ndarray) -> set[str]:
        return {names[each] for each in stratified_share(labels, lambda i: [names[i]], 0.25, 0)}

    replaced = []
    for place in range(0, 200, 2):  # anywhere, not only at the end
        more = [*called[:place], f"new {place}", *called[place:]]
        after = share(more, np.insert(labels, place, 1))
        replaced.append(len(share(called, labels) - after))
    assert set(replaced) == {0, 1}


def test_held_out_rows_are_known_from_their_number() -> None:
    for size in (1, 10, 1347):
        rows = held_out_rows(size, 0.1)
        assert held_out_rows(size + 1, 0.1)[: len(rows)] == rows
        assert set(rows) <= set(range(size))
    assert abs(len(held_out_rows(50_000, 0.1)) - 5000) < 4 * 67
    assert set(held_out_rows(1000, 0.1)) < set(held_out_rows(1000, 0.2))
    assert held_out_rows(1000, 0) == ()


def test_a_share_of_everything_is_everything() -> None:
    assert all(is_within(1.0, "anything", number) for number in range(1000))
