import string
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

from dpsweep.data import DatasetError, Split, glyphs
from dpsweep.data.glyphs import load_glyphs
from dpsweep.study.config import GlyphsSource


def splits(characters: str, train: int, test: int, seed: int = 0) -> tuple[Split, Split]:
    """Draw images of 8 x 8 pixels, so many of each class."""
    source = GlyphsSource(
        kind="glyphs",
        characters=characters,
        train_per_class=train,
        test_per_class=test,
        seed=seed,
    )
    made = load_glyphs(source, 8)
    first, second = (
        Split(np.concatenate(list(each.inputs)), each.labels) for each in (made.train, made.test)
    )
    return first, second


def images(split: Split) -> "np.typing.NDArray[np.float64]":
    return split.inputs[..., 0].astype(float) / 255


def test_splits_have_the_declared_shape_and_balance() -> None:
    train, test = splits("07aQ", 30, 5)
    assert train.inputs.shape == (120, 8, 8, 1)
    assert train.inputs.dtype == np.uint8
    assert np.bincount(train.labels).tolist() == [30] * 4
    assert np.bincount(test.labels).tolist() == [5] * 4
    # Pixels count ink in blocks of 4 x 4.
    assert set(np.unique(train.inputs)) == {round(255 * ink / 16) for ink in range(17)}


def test_rendering_is_a_function_of_the_seed() -> None:
    first, first_test = splits("38", 40, 40, seed=3)
    np.random.seed(99)
    again, _ = splits("38", 40, 40, seed=3)
    other, _ = splits("38", 40, 40, seed=4)
    np.testing.assert_array_equal(images(first), images(again))
    assert not np.array_equal(images(first), images(other))
    assert not np.array_equal(images(first), images(first_test))


def test_glyphs_fill_the_height_and_stand_in_the_middle() -> None:
    train, _ = splits("2468", 200, 1)
    ink = images(train)
    rows = ink.max(axis=2) > 0
    # The top and bottom rows of nearly all images have ink, as in the digits.
    assert rows[:, [0, 7]].mean() > 0.8
    columns = ink.sum(axis=1)
    centre = (columns * np.arange(8)).sum(axis=1) / columns.sum(axis=1)
    assert abs(centre.mean() - 3.5) < 0.3
    # At most three quarters of the width, apart from the bends.
    assert columns[:, [0, 7]].mean() < 0.3 * columns[:, 3:5].mean()


def test_stroke_width_and_shape_vary() -> None:
    train, _ = splits("1", 300, 1)
    amount = images(train).mean(axis=(1, 2))
    assert np.quantile(amount, 0.9) > 1.5 * np.quantile(amount, 0.1)
    assert len(np.unique(images(train), axis=0)) > 295


def test_characters_can_be_told_apart_and_stand_upright() -> None:
    # The mean image of a class, from other drawings and mirrored ones.
    train, test = splits("2357", 200, 50)
    means = np.stack([images(train)[train.labels == label].mean(axis=0) for label in range(4)])

    def accuracy(candidates: "np.typing.NDArray[np.float64]") -> float:
        distance = ((images(test)[:, None] - candidates) ** 2).sum(axis=(2, 3))
        return float((distance.argmin(axis=1) == test.labels).mean())

    assert accuracy(means) > 0.7
    # A mirrored 2 looks like a 5, so mirrored means must do worse.
    assert accuracy(means[:, :, ::-1]) < 0.5
    assert accuracy(means[:, ::-1]) < 0.5


def test_all_fonts_have_all_characters() -> None:
    folder = Path(mpl.get_data_path()) / "fonts" / "ttf"
    for font in glyphs.FONTS:
        charmap = mpl.ft2font.FT2Font(str(folder / font)).get_charmap()
        assert all(ord(character) in charmap for character in string.digits + string.ascii_letters)


def test_a_missing_font_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glyphs, "FONTS", ("DejaVuSans.ttf", "Nowhere.ttf"))
    with pytest.raises(DatasetError, match=r"lacks Nowhere\.ttf.*matplotlib"):
        splits("0", 1, 1)


@pytest.mark.parametrize("characters", ["01é", "0 1", "00"])
def test_other_characters_are_refused(characters: str) -> None:
    with pytest.raises(DatasetError, match="ASCII letters and digits"):
        splits(characters, 1, 1)


def test_no_private_image_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise AssertionError("the private digits were read")

    monkeypatch.setattr("sklearn.datasets.load_digits", refuse)
    splits(string.digits, 2, 1)
