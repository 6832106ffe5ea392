"""The figure of docs/recommend.md shows the committed regrets."""

import pandas as pd
from benchmarks.evidence import recommend


def test_the_numbers_beside_the_figure_are_those_of_the_result() -> None:
    written = pd.read_csv(recommend.IMAGE.with_suffix(".csv"))
    pd.testing.assert_frame_equal(written, recommend.regret_numbers(), check_dtype=False)
