"""The site of `make docs`: its gallery, and its interactive pages of the findings."""

import gzip
import json
import re
from base64 import b64decode
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from benchmarks import site
from benchmarks.common import REPOSITORY, RESULTS

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "pages"
    site.write(folder)
    return folder


def test_the_gallery_has_every_picture_once(pages: Path) -> None:
    shown = Counter(re.findall(r"\]\((images/[^)]+)\)", (pages / "gallery.md").read_text()))
    folder = REPOSITORY / "docs"
    kept = {str(file.relative_to(folder)) for file in folder.glob("images/**/*.png")}
    assert shown == Counter(kept)


@pytest.mark.parametrize("name", site.EXPLORED)
def test_a_page_to_explore_has_every_committed_trial(pages: Path, name: str) -> None:
    text = (pages / f"explore-{name}.html").read_text()
    found = re.findall(r'<script type="application/gzip"[^>]*>([^<]+)</script>', text)
    unpacked = [json.loads(gzip.decompress(b64decode(each))) for each in found]
    files, about = site.EXPLORED[name]
    kept = pd.concat(map(pd.read_parquet, RESULTS.glob(files))).drop_duplicates("trial_key")
    assert sum(len(each["seed"]) for each in unpacked) == len(kept) > 0
    assert sum(sum(each["macro_accuracy"]) for each in unpacked) == pytest.approx(
        kept["macro_accuracy"].sum(), rel=1e-4
    )
    assert f'href="{about}/"' in text
    assert (pages / f"{about}.md").exists()


def test_every_page_is_in_the_navigation(pages: Path) -> None:
    named = set(re.findall(r"[\w-]+\.md", (REPOSITORY / "mkdocs.yml").read_text()))
    assert {file.name for file in pages.glob("*.md")} == named - {"README.md"}
