"""A head on features, cut to seconds: every stage by the workflow, and what makes it run again."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.workflow.chain import Chain
from tests.workflow.test_text_chain import study, write_all_texts


def feature_study() -> dict[str, Any]:
    content = study()
    content["backbones"]["reader"]["features"] = {"pooling": "mean", "transformation": "unit-norm"}
    content["methods"] = {"head": {"kind": "head"}}
    (sweep,) = content["sweeps"].values()
    content["sweeps"] = {"notes_reader_head": sweep | {"method": "head", "learning_rate": [0.1]}}
    content["roles"]["methods"]["main"] = "head"
    del content["release"]  # a released model is the whole network, with its own head
    content["audit"] |= {"sweep": "notes_reader_head", "canaries": 30, "guesses": 10}
    return content


@pytest.mark.slow
def test_features_are_a_stage_like_any_other(tmp_path: Path) -> None:
    write_all_texts(tmp_path)
    chain = Chain(tmp_path, feature_study())
    chain.run()
    folder = chain.results / "features" / "notes" / "reader"
    features = np.load(folder / "train_inputs.npy")
    assert features.shape == (1000, 16)
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1, rtol=1e-5)
    (cell,) = (chain.results / "cells").glob("*/*/trials-*.parquet")
    trials = pd.read_parquet(cell)
    assert trials["trainable_parameters"].eq(2 * 17).all()
    assert trials["macro_accuracy"].max() > 0.6
    audited = json.loads((chain.results / "audit" / "eps8_epochs2_Bfull_C1.json").read_text())
    assert audited["consistent"]
    assert "Nothing to be done" in chain.run()

    # A cache that was deleted is computed again, and the trials stay.
    (folder / "train_inputs.npy").unlink()
    chain.run()
    np.testing.assert_array_equal(np.load(folder / "train_inputs.npy"), features)
    assert set(pd.read_parquet(cell)["trial_key"]) == set(trials["trial_key"])

    # Another layer gives other features, and other trials.
    chain.study["backbones"]["reader"]["features"]["pooling"] = "token"
    chain.write()
    chain.run()
    assert not np.array_equal(np.load(folder / "train_inputs.npy"), features)
    (other,) = set((chain.results / "cells").glob("*/*/trials-*.parquet")) - {cell}
    assert not set(pd.read_parquet(other)["trial_key"]) & set(trials["trial_key"])
