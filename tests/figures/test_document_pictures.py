"""Pictures of README and docs are what the code draws, and their words say what the study found."""

import re
from pathlib import Path

import pandas as pd
import pytest
from benchmarks.evidence import pictures
from matplotlib.testing.compare import compare_images
from tests.tracked import tracked

ROOT = Path(__file__).parents[2]
PICTURES = pictures.PICTURES
# As in test_pictures.py.
TOLERANCE = 2.0


@pytest.mark.parametrize("picture", PICTURES, ids=lambda each: each.figure)
def test_the_picture_is_what_the_code_draws(picture, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    drawn = tmp_path / "drawn.png"
    pictures.draw(picture, drawn)
    assert compare_images(str(picture.stem.with_suffix(".png")), str(drawn), TOLERANCE) is None


@pytest.mark.parametrize("picture", PICTURES, ids=lambda each: each.figure)
def test_its_words_are_current(picture) -> None:  # type: ignore[no-untyped-def]
    document = (ROOT / picture.document).read_text(encoding="utf-8")
    assert document.count(picture.start) == 1
    assert pictures.filled(picture, document) == document, "python -m benchmarks.evidence.pictures"


def test_every_picture_of_the_documents_is_made_by_the_command() -> None:
    pages = tracked("README.md", "docs/*.md")
    shown = {
        (page.parent / source).resolve()
        for page in pages
        for source in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    }
    images = ROOT / "docs" / "images"
    # These come from other commands.
    others = {
        file for name in ("findings", "film", "theory") for file in (images / name).glob("*.png")
    }
    others |= {images / "price.png", images / "regret.png"}
    assert shown - others == {picture.stem.with_suffix(".png") for picture in PICTURES}
    assert set(tracked("docs/images/**/*.png")) == shown


def test_words_name_only_what_the_table_decides() -> None:
    rules = pd.DataFrame(
        {"condition": ["Lower ε"] * 2, "implication": ["Increase C", "Decrease B"]}
    )
    nothing = pictures.said_of_rules(rules.assign(verdict="not resolved"))
    assert "too small to confirm or reject any of the paper's 2 tuning rules" in nothing
    one = pictures.said_of_rules(rules.assign(verdict=["not resolved", "contradicted here"]))
    assert "decides 1: Lower ε: Decrease B (contradicted here)." in one
    assert "Increase C" not in one
