"""Tests that a release has the tokenizer that its network was prepared with."""

from types import SimpleNamespace
from typing import Any

import pytest
from tests.data.test_tokenizer import PIECES, bert
from tests.models.networks import DISTILBERT, make_backbone

from dpsweep.release import ReleaseError
from dpsweep.release.train import _tokenizer
from dpsweep.study.paths import Paths

PLAN: Any = SimpleNamespace(sweep=SimpleNamespace(backbone="reader"))


def test_another_tokenizer_than_that_of_the_network_is_refused(tmp_path):
    """Two vocabularies of one size give a network other texts to read, without any error."""
    paths = Paths(tmp_path / "results")
    own = bert(tmp_path)
    facts = {"library": "transformers", "kind": "text", "mean": (), "std": ()}
    folder = paths.backbone("reader")
    make_backbone(folder, "distilbert", DISTILBERT, tokenizer=own.identity, **facts)
    file = paths.tokenizer("reader")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes((tmp_path / "out.json").read_bytes())
    found = _tokenizer(PLAN, paths)
    assert found is not None and found.identity == own.identity
    other = bert(tmp_path, [*PIECES[:-2], *PIECES[:-3:-1]])
    assert other.identity.vocabulary == own.identity.vocabulary
    file.write_bytes((tmp_path / "out.json").read_bytes())
    with pytest.raises(ReleaseError, match="is not the tokenizer of"):
        _tokenizer(PLAN, paths)
