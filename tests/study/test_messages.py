"""Messages about mistakes in a study: the key, the value found, and the allowed values."""

import copy
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.study.small import HERE, SMALL, complaints, dumped, mistakes

from dpsweep.study import StudyError, load_study

MISTAKES: dict[str, Any] = yaml.safe_load((HERE / "mistakes.yaml").read_text(encoding="utf-8"))
del MISTAKES["shared"]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_message_names_key_value_and_what_is_allowed(tmp_path: Path, mistake: str) -> None:
    case = MISTAKES[mistake]
    found = "\n".join(complaints(tmp_path, case["edits"]))
    if "part" in case:
        assert case["part"] in found
    else:
        said = re.escape(case["said"].rstrip("\n"))
        assert re.fullmatch(said.replace(r"\.\.\.", ".*"), found), found


@pytest.mark.parametrize("section", ["datasets", "backbones", "methods", "sweeps"])
def test_names_unsafe_for_paths_or_shells_are_refused(tmp_path: Path, section: str) -> None:
    names = ["../x", "a b;rm", "", ".hidden", "-rf", "a/b", "a\n", "$(x)", "ä", "{x}", "a*"]
    copied = copy.deepcopy(next(iter(SMALL[section].values())))
    found = complaints(tmp_path, {section: SMALL[section] | dict.fromkeys(names, copied)})
    for name in names:
        shown = name.replace("\n", "\\n")
        said = f'{section}."{shown}": found "{shown}"; allowed: letters, digits'
        assert any(line.startswith(said) for line in found), name


def test_many_mistakes_fit_one_screen_and_are_counted(tmp_path: Path) -> None:
    sweeps = {f"sweep{i}": SMALL["sweeps"]["flat"] | {"dataset": "none"} for i in range(60)}
    *shown, rest = complaints(tmp_path, {"sweeps": sweeps, "figures": {}, "tables": {}})
    assert len(shown) == 20
    assert rest == f"... and {60 - len(shown)} more"


def key_paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all keys and places in a value."""
    children: Any = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        children = enumerate(value)
    below = [each for key, child in children for each in key_paths(child, (*path, key))]
    return [path, *below] if path else below


PLAIN = {key: value for key, value in SMALL.items() if key not in ("figures", "tables")}
JUNK = st.sampled_from(
    [
        *(None, True, -1, 0, 1.5, float("nan"), float("inf"), "", "x", "../x", "full", "none"),
        *("automatic", "~", "{", "1e400"),
        *([], [[]], [None], ["x", 1], {}, {"x": 1}, {8: 1}, {True: 1}, {None: 1}, {0.5: 1}),
    ]
)
VALUES = JUNK | st.recursive(
    st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(key_paths(PLAIN)), VALUES, st.sampled_from(["replace", "add", "drop"])
        ),
        min_size=1,
        max_size=4,
    )
)
def test_messages_about_random_mistakes_fit_one_screen(
    changes: list[tuple[tuple[Any, ...], Any, str]],
) -> None:
    study = copy.deepcopy(PLAIN)
    for (*above, last), junk, action in changes:
        place: Any = study
        try:
            for key in above:
                place = place[key]
            if action == "drop":
                del place[last]
            elif action == "add" and isinstance(place[last], dict):
                place[last] |= junk if isinstance(junk, dict) else {"extra": junk}
            else:
                place[last] = copy.deepcopy(junk)
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change removed this key
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "study.yaml"
        path.write_text(dumped(study))
        try:
            load_study(path)
        except StudyError as error:
            assert mistakes(error)
