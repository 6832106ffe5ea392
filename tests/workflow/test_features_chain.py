"""A head on features: all stages of the workflow, and the changes that make them run again."""

import copy
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.workflow import tiny

HEAD = {"epsilon": 8.0, "clipping_bound": 1.0, "learning_rate": 0.01, "sweep": "pets"}


@pytest.mark.slow
def test_features_are_computed_by_the_workflow(tmp_path: Path) -> None:
    content = copy.deepcopy(tiny.STUDY) | {"methods": {"head": {"kind": "head"}}}
    content["backbones"]["vit"]["features"] = {"pooling": "mean", "transformation": "unit-norm"}
    content["sweeps"] = {"pets": content["sweeps"][tiny.SWEEP] | {"method": "head"}}
    content["roles"]["methods"]["main"] = "head"
    content["audit"] = {
        **HEAD,
        **{"epsilon": [8.0], "epochs": 2, "batch_size": ["full"], "canaries": 30, "guesses": 10},
    }
    content.pop("release", None)  # a released model is the whole network, with its own head
    chain = tiny.TinyChain(tmp_path, content)
    chain.run()
    folder = chain.results / "features" / "pets" / "vit"
    features = np.load(folder / "train_inputs.npy")
    assert features.shape == (96, 16)
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1, rtol=1e-5)
    cells = set((chain.results / "cells").glob("*/*/trials-*.parquet"))
    trials = pd.concat(map(pd.read_parquet, cells))
    assert trials["trainable_parameters"].eq(tiny.CLASSES * 17).all()
    audited = json.loads((chain.results / "audit" / "eps8_epochs2_Bfull_C1.json").read_text())
    assert audited["consistent"]

    # Deleted features are computed again, and the trials stay.
    stored, table = chain.stored_trials(), "results/problems/pets_vit_head.parquet"
    (folder / "train_inputs.npy").unlink()
    chain.run("results/features/pets/vit/train_inputs.npy", table)
    np.testing.assert_array_equal(np.load(folder / "train_inputs.npy"), features)
    assert chain.stored_trials() == stored

    # Another pooling gives other features, and other trials.
    chain.study["backbones"]["vit"]["features"]["pooling"] = "token"
    chain.write()
    chain.run(table)
    assert not np.array_equal(np.load(folder / "train_inputs.npy"), features)
    others = set((chain.results / "cells").glob("*/*/trials-*.parquet")) - cells
    assert len(others) == len(cells)
    keys = set(pd.concat(map(pd.read_parquet, others))["trial_key"])
    assert not keys & set(trials["trial_key"])
