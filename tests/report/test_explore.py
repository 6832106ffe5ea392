"""The interactive page of a study: its numbers, and its use by mouse and keyboard."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.browser import CHROMIUM, chromium
from tests.described import study_of
from tests.synthetic import make_study, write_cells

from dpsweep.analysis.frames import REPORT_COLUMNS, present_trials
from dpsweep.report import explore, write_explore
from dpsweep.study import Cell
from dpsweep.study.paths import Paths

STUDY_FILE = Path("studies/small.yaml")
READ = [*REPORT_COLUMNS, "steps", "noise_multiplier", "mean_gradient_norm", "clipped_fraction"]

GRID = {"batch_size": [50, "full"], "learning_rate": [0.01, 0.1], "seeds": 3}
STUDY = make_study(
    {
        "film": GRID | {"epsilon": [1.0, 8.0], "clipping_bound": [0.1, 1.0, 10.0]},
        "autos": GRID | {"epsilon": [8.0], "clipping_bound": "automatic", "epochs": [4]},
        "lora": GRID | {"method": "lora", "backbone": "large", "clipping_bound": [1.0]},
    }
)
PARTIAL = "Partial results of an unfinished study"


def outcome(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
    best = cell.clipping_bound == 1.0 and cell.batch_size == 50
    return {
        "macro_accuracy": (0.7 if best else 0.5) + 0.01 * seed - (rate == 0.1) * 0.05,
        "mean_gradient_norm": 2.0 + seed,
        "clipped_fraction": 0.25,
        "noise_multiplier": 3.0,
    }


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    """Trials of every cell, and their page."""
    paths = Paths(tmp_path_factory.mktemp("explore") / "results")
    write_cells(STUDY, paths, outcome)
    write_explore(STUDY, STUDY_FILE, paths)
    return paths


def test_cells_are_means_over_the_seeds_of_the_best_rate(paths: Paths) -> None:
    film, lora = explore.problems(STUDY, present_trials(STUDY, paths, READ))
    assert (film["dataset"], film["backbone"], film["method"]) == ("Digits", "ViT small", "FiLM")
    assert lora["name"] == "digits_large_lora"
    cells = pd.DataFrame(film["cells"]).set_index("cell")
    assert len(cells) == 14
    row = cells.loc["eps8_epochs2_B50_C1"]
    assert row["accuracy"] == pytest.approx(0.72)
    assert (row["lowest"], row["highest"]) == pytest.approx((0.71, 0.73))
    found = row[["rate", "seeds", "norm", "clipped", "steps"]]
    assert found.tolist() == [0.01, 3, 4.0, 0.25, 40]
    assert row["noise"] == pytest.approx(3 * math.sqrt(40), rel=1e-4)
    # One choice for every epsilon and epochs: C = 1 and B = 50, or the smaller B in a tie.
    assert list(cells.index[cells["best"] == 1]) == [
        "eps1_epochs2_B50_C1", "eps8_epochs2_B50_C1", "eps8_epochs4_B50_Cautomatic",
    ]  # fmt: skip
    assert cells.loc["eps8_epochs4_Bfull_Cautomatic", ["C", "B"]].tolist() == [
        "AUTO-S", "full (1,000)",
    ]  # fmt: skip


def test_equal_results_give_equal_bytes_and_name_no_folder(paths: Paths) -> None:
    first = paths.explore.read_text()
    assert "dpsweep run studies/small.yaml" in first and PARTIAL not in first
    write_explore(STUDY, paths.results / "small.yaml", Paths(paths.results, partial=True))
    partial = Paths(paths.results, partial=True).explore.read_text()
    assert "dpsweep run small.yaml" in partial and PARTIAL in partial
    write_explore(STUDY, STUDY_FILE, paths)
    assert paths.explore.read_text() == first


def test_texts_of_a_study_are_escaped(paths: Paths) -> None:
    words = "</script><script>alert(1)</script><!--"
    content = STUDY.model_dump(exclude_none=True)
    content["title"] = content["datasets"]["digits"]["title"] = words
    hostile = study_of(content)
    text = explore.page(hostile, STUDY_FILE, present_trials(STUDY, paths, READ))
    assert words not in text
    (stored,) = re.findall(r'id="content">(.*?)</script>', text, flags=re.DOTALL)
    assert json.loads(stored)["problems"][0]["dataset"] == words


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium or google-chrome on the PATH")
@pytest.mark.slow
class TestInABrowser:
    @pytest.mark.parametrize("width", [390, 1400])
    def test_selecting_pointing_and_clicking(self, paths: Paths, width: int) -> None:
        with chromium(width, 1000) as page:
            fetched: list[str] = []
            page.on("request", lambda request: fetched.append(request.url))
            page.goto(paths.explore.as_uri())
            page.select_option("select[name=epsilon]", "8")
            assert page.locator("#plot").get_attribute("data-cells") == "6"
            # The square of C = 10 and the full batch is at the top right.
            marks = page.locator("#plot .mark")
            boxes = [(mark.bounding_box() or {}) for mark in marks.all()]
            square = max(range(6), key=lambda i: boxes[i]["x"] - boxes[i]["y"])
            assert boxes[square]["x"] == max(box["x"] for box in boxes)
            assert boxes[square]["y"] == min(box["y"] for box in boxes)
            marks.nth(square).hover()
            pointed = page.locator("#pointed").inner_text()
            assert pointed == marks.nth(square).get_attribute("aria-label")
            assert "accuracy 52.0 %, from 51.0 % to 53.0 %" in pointed
            assert "learning rate 0.01, 3 seeds" in pointed
            marks.nth(square).click()
            clicked = page.locator("#cell")
            clicked.get_by_role("heading").wait_for()
            rows = [each.split() for each in clicked.locator("tbody tr").all_inner_texts()]
            assert len(rows) == 4 and rows[0][:4] == ["0.01", "1", "51.0", "%"]
            assert clicked.locator("pre").inner_text() == (
                "dpsweep run studies/small.yaml digits_small_film/eps8_epochs2_Bfull_C10"
            )
            # The keyboard does the same.
            page.locator("select[name=view]").focus()
            page.keyboard.press("Tab")
            first = marks.nth(0).get_attribute("data-cell")
            assert page.locator("#pointed").inner_text() == marks.nth(0).get_attribute("aria-label")
            page.keyboard.press("Enter")
            page.get_by_role("heading", name=f"digits_small_film/{first}").wait_for()
            as_good = page.locator("#plot .as-good").get_attribute("data-cell")
            assert as_good == "eps8_epochs2_B50_C1"
            # Curves, and their points.
            for view, lines in (("C", 2), ("B", 3), ("steps", 3), ("noise", 3)):
                page.select_option("select[name=view]", view)
                assert page.locator("#plot .curve").count() == lines
                assert page.locator("#plot .legend li").count() == lines
                assert page.locator("#plot circle.mark").count() == 6
                higher, lower = (
                    page.locator(f"#plot [data-cell=eps8_epochs2_B{size}_C1]").bounding_box() or {}
                    for size in ("50", "full")
                )
                assert higher["y"] < lower["y"] - 20
                assert "NaN" not in page.locator("#plot").inner_html()
            page.select_option("select[name=backbone]", "ViT large")
            assert page.locator("#plot circle.mark").count() == 2
            assert page.locator("select[name=method]").input_value() == "LoRA"
            assert page.evaluate("document.documentElement.scrollWidth") == width
        assert fetched == [paths.explore.as_uri()]
