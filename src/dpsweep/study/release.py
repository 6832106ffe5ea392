"""The sections `audit`, `release` and `budget`: training beside the sweeps, and its limit."""

import itertools
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, PositiveInt, model_validator

from dpsweep.base.formatting import count
from dpsweep.study import section
from dpsweep.study.cells import Cell
from dpsweep.study.clipping import PrivateRule
from dpsweep.study.sweeps import bounds_or_rule

MOST_TRIALS = 1e6
"""Largest mean number of trials of a release."""


class Budget(section.Section):
    """The joint (epsilon, delta) that all releases on the same data may spend; others are refused."""

    epsilon: section.PositiveFloat
    """the joint ε of all releases on the data"""
    delta: Annotated[float, Field(gt=0, lt=1)]
    """the joint δ of all releases on the data"""


class Audit(section.Section):
    """An audit with canaries: a measured lower bound on epsilon beside the claimed epsilon."""

    sweep: section.Name
    """the sweep with the audited dataset, backbone, method and optimizer"""
    epsilon: section.Grid
    """claimed privacy budgets; each is audited at each batch size"""
    epochs: PositiveInt
    """E; T = round(E N / B) steps"""
    batch_size: section.BatchSizes
    """expected batch sizes; full is the training set with its canaries"""
    clipping_bound: section.PositiveFloat | PrivateRule
    """C, or automatic (AUTO-S)"""
    learning_rate: section.LearningRate
    """of every audited training"""
    randomness: Literal["public", "secret"] = "public"
    """of sampling, noise and canaries: public is derived from the setting, as in sweeps; secret is
    drawn from the system and never stored, as in a release"""
    canaries: PositiveInt = 1000
    """examples with a known gradient; at most one for each trainable parameter"""
    guesses: PositiveInt | None = None
    """even: half of the guesses are 'included', half 'excluded'; by default chosen by simulation before the
    run"""

    @model_validator(mode="after")
    def _guesses_are_about_canaries(self) -> Self:
        if self.guesses and (self.guesses % 2 or self.guesses > self.canaries):
            raise ValueError(
                f"guesses: found {self.guesses}; allowed: an even number up to the canaries, which "
                f"are {self.canaries}"
            )
        return self


class Release(section.Section):
    """A model trained with secret randomness, on one setting or on the best of several."""

    sweep: section.Name
    """the sweep with the dataset, backbone, method and optimizer to train"""
    selection: Literal["fixed", "private"] = "fixed"
    """fixed trains the one setting; private trains a secret random number of settings from the lists
    and keeps the best, and epsilon covers this selection"""
    epsilon: section.PositiveFloat
    """of the released model, tuning included"""
    epochs: Annotated[
        list[PositiveInt], Field(min_length=1), AfterValidator(section.strictly_increasing)
    ]
    """values of E; one if fixed"""
    batch_size: section.BatchSizes
    """expected batch sizes; one if fixed; full is the whole training set"""
    clipping_bound: section.Grid | PrivateRule
    """values of C, one if fixed; or automatic (AUTO-S)"""
    learning_rate: section.LearningRates
    """one if fixed"""
    mean_trials: Annotated[float, Field(gt=1, le=MOST_TRIALS, allow_inf_nan=False)] = 3.0
    """expected number of trials; private"""
    shape: Annotated[float, Field(gt=-1, allow_inf_nan=False)] = 1.0
    """shape of the distribution of their number: 1 is geometric; private"""
    holdout_share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """share of the training set that trials are scored on; private"""

    gpus: section.Gpus | None = None
    """GPUs of the training; by default those of the sweep's problem"""

    @model_validator(mode="after")
    def _lists_fit_the_selection(self) -> Self:
        size = len(self.candidates(""))
        if (self.selection == "private") == (size == 1):
            raise ValueError(
                f"selection: found {self.selection} with {count(size, 'setting')}; allowed: fixed with one "
                "value in each of epochs, batch_size, clipping_bound and learning_rate, or private with more "
                "(a choice costs privacy)"
            )
        return self

    @property
    def held_out(self) -> float:
        """The share of the training set that is not used for training."""
        return self.holdout_share if self.selection == "private" else 0.0

    def candidates(self, problem: str) -> list[tuple[Cell, float]]:
        """Return the settings, each a cell of a problem and a learning rate."""
        return [
            (Cell(problem, self.epsilon, epochs, batch_size, bound), rate)
            for epochs, batch_size, bound, rate in itertools.product(
                self.epochs,
                self.batch_size,
                bounds_or_rule(self.clipping_bound),
                self.learning_rate,
            )
        ]
