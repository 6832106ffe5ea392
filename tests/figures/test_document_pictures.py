"""Pictures of README and docs are up to date with the code, and their captions with the study."""

import re
from pathlib import Path

from benchmarks.evidence import pictures
from matplotlib.testing.compare import compare_images
from tests.tracked import tracked

ROOT = Path(__file__).parents[2]
# As in test_pictures.py.
TOLERANCE = 2.0


def test_the_picture_is_up_to_date(tmp_path: Path) -> None:
    drawn = tmp_path / "drawn.png"
    pictures.draw(drawn)
    assert compare_images(str(pictures.PICTURE), str(drawn), TOLERANCE) is None


def test_its_caption_is_up_to_date() -> None:
    document = pictures.DOCUMENT.read_text(encoding="utf-8")
    assert document.count(pictures.START) == 1
    assert pictures.filled(document) == document, "python -m benchmarks.evidence.pictures"


def test_every_picture_of_the_documents_comes_from_a_command() -> None:
    pages = tracked("README.md", "docs/*.md")
    shown = {
        (page.parent / source).resolve()
        for page in pages
        for source in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    }
    images = ROOT / "docs" / "images"
    # Other commands make these.
    others = {
        file for name in ("findings", "film", "theory") for file in (images / name).glob("*.png")
    }
    others |= {images / "price.png"}
    assert shown - others == {pictures.PICTURE}
    assert set(tracked("docs/images/**/*.png")) == shown
