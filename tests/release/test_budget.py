"""A study's budget limits all releases on its data; the report shows the rest of it."""

import shutil
from pathlib import Path

import pytest
from tests.release.releases import FIXED, PRIVATE, Content, release
from tests.release.releases import study as study_of

from dpsweep.privacy.calibration import calibrate
from dpsweep.release import ReleaseError
from dpsweep.release.budget import account, refuse_beyond_budget
from dpsweep.release.certificate import ReleasedModel, released_together
from dpsweep.report import write
from dpsweep.study import Study
from dpsweep.study.paths import Paths

DELTA = 1e-5


def study(section: Content, epsilon: float, delta: float) -> Study:
    return study_of(section, budget={"epsilon": epsilon, "delta": delta})


def test_a_second_model_beyond_the_budget_is_refused_before_it_is_trained(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = study(FIXED, epsilon=8.0, delta=2 * DELTA)
    first = release(allowed, paths)
    shutil.move(first, first.with_name("published"))
    monkeypatch.setattr("dpsweep.release.write.train_release", lambda *_: pytest.fail("it trains"))
    with pytest.raises(
        ReleaseError, match=r"release.epsilon: found 8, which and 1 earlier .*budget of 8"
    ):
        release(allowed, paths)
    assert not paths.release.exists()


def test_the_budget_counts_what_the_certificate_counts() -> None:
    noise = calibrate(2.0, DELTA, 200, 200, 4)
    earlier = [ReleasedModel(certificate="0" * 64, epsilon=2.0, delta=DELTA, noise=noise)] * 2
    joint = released_together(earlier, noise, 2.0, DELTA).joint_epsilon
    for share, refused in ((1.001, False), (0.999, True)):
        made = study(FIXED | {"epsilon": 2.0}, epsilon=share * joint, delta=3 * DELTA)
        if refused:
            with pytest.raises(ReleaseError, match="budget"):
                refuse_beyond_budget(made, made.release, earlier, noise)
        else:
            refuse_beyond_budget(made, made.release, earlier, noise)


@pytest.mark.parametrize("delta", [0.9 * DELTA, 0.5 * DELTA])
def test_a_delta_above_that_of_the_budget_is_beyond_it(delta: float) -> None:
    """The epsilon of a choice among trials is not known at a smaller delta."""
    made = study(PRIVATE, epsilon=100.0, delta=delta)
    with pytest.raises(ReleaseError, match="makes epsilon inf"):
        refuse_beyond_budget(made, made.release, [], None)


def test_the_rest_of_the_budget_may_be_spent_and_is_in_the_report(paths: Paths) -> None:
    small = study(FIXED | {"epsilon": 2.0}, epsilon=5.0, delta=2 * DELTA)
    before = account(small, paths)
    assert before is not None
    assert (before.lines, before.epsilon, before.left) == ([], 0, 5.0)
    release(small, paths)
    after = account(small, paths)
    assert after is not None and after.left is not None
    assert (after.epsilon, len(after.lines)) == (2.0, 1)
    assert after.left == pytest.approx(3.0)
    # A release with the whole rest stays within the budget, because composition is tighter than the sum.
    (line,) = after.lines
    assert line.day > "2020" and line.model.noise is not None
    following = study(FIXED | {"epsilon": after.left}, epsilon=5.0, delta=2 * DELTA)
    noise = calibrate(after.left, DELTA, 269, 269, 2)
    models = [line.model.model_copy(update={"noise": None})]
    refuse_beyond_budget(following, following.release, models, noise)
    write(small, Path("study.yaml"), paths)
    page = paths.report.read_text()
    assert "1 model was released" in page
    assert "budget is ε = 5 at δ = 2e-05" in page
    assert "a next model may have at least ε = 3 at" in page
