"""Augmentations: views of an image, which count as one unit of privacy."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.tiny_study import assert_equal, end, stopped_after
from torch.nn import functional
from torchvision.transforms.v2 import functional as torchvision

from dpsweep.models.build import trainable_parameters
from dpsweep.study.clipping import FlatClipping
from dpsweep.study.networks import Augmentations
from dpsweep.training.context import TrialContext, Views, viewed
from dpsweep.training.gradient_norms import Trajectory, training_set_norms
from dpsweep.training.physical import PhysicalBatch
from dpsweep.training.trial import train_trial

THREE = {"count": 3, "crop": 2, "flip": True}
FILM = {"kind": "film", "augmentations": THREE}


def views(secret: bytes = b"", **settings: Any) -> Views:
    return Views(Augmentations(**(THREE | settings)), "test", "views", secret=secret)


def test_views_are_padded_crops_of_torchvision():
    choices = list(itertools.product((-2, -1, 0, 1, 2), (-2, -1, 0, 1, 2), (0, 1)))
    generator = torch.Generator().manual_seed(1)
    shape = (len(choices), 6, 5, 3)
    images = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    found = viewed(images, torch.tensor(choices))
    for image, view, (down, right, mirrored) in zip(images, found, choices, strict=True):
        padded = torchvision.pad(image.permute(2, 0, 1), [2] * 4, padding_mode="reflect")
        wanted = torchvision.crop(padded, 2 + down, 2 + right, 6, 5)
        if mirrored:
            wanted = torchvision.horizontal_flip(wanted)
        assert torch.equal(view, wanted.permute(1, 2, 0))


def test_views_have_every_shift_equally_often_and_depend_on_the_step_alone():
    drawn = views().draw(step=5, rows=10_000)
    assert drawn.shape == (30_000, 3)
    assert torch.equal(drawn, views().draw(step=5, rows=10_000))
    assert not torch.equal(drawn, views().draw(step=6, rows=10_000))
    for place, values in enumerate((5, 5, 2)):
        shares = drawn[:, place].unique(return_counts=True)[1] / len(drawn)
        assert shares.tolist() == pytest.approx([1 / values] * values, abs=0.02)
    others = (Views(Augmentations(**THREE), "other", "views"), views(b"secret"))
    assert not any(torch.equal(each.draw(5, 10_000), drawn) for each in others)
    assert set(views(flip=False).draw(0, 1000)[:, 2].tolist()) == {0}
    assert not views(crop=0).draw(0, 1000)[:, :2].any()
    # A view of an image is as good as independent of its next one.
    both = drawn.double().view(-1, 3, 3)
    assert abs(torch.corrcoef(torch.stack([both[:, 0, 0], both[:, 1, 0]]))[0, 1]) < 0.05


def test_a_step_clips_the_mean_gradient_of_the_views_of_an_image(tiny):
    made = tiny.of({}, FILM, epsilon=[float("inf")])
    bound, rate = 0.5, 0.1
    spec = replace(
        made.spec(1), optimizer="sgd", learning_rate=rate, clipping=FlatClipping(bound),
        noise_multiplier=0.0, physical_batch=7,
    )  # fmt: skip
    context = made.context()
    trial, epochs = train_trial(spec, context, None, 1e9)
    n = spec.train_size
    assert trial.steps["sampled_examples"].tolist() == [n]
    model = context.model(spec.seed)
    parameters = trainable_parameters(model)
    drawn = Views(Augmentations(**THREE), spec.key, "views").draw(1, n)
    total = [torch.zeros_like(each, dtype=torch.float64) for each in parameters.values()]
    for image in range(n):
        mine = drawn[3 * image : 3 * image + 3]
        inputs, labels = context.batch(context.train, torch.tensor([image] * 3), mine)
        loss = functional.cross_entropy(model(inputs), labels)
        gradient = [each.double() for each in torch.autograd.grad(loss, list(parameters.values()))]
        norm = torch.cat([each.flatten() for each in gradient]).norm()
        for sum_, each in zip(total, gradient, strict=True):
            sum_.add_(each * min(1 / bound, 1 / norm))
    for (name, before), sum_ in zip(parameters.items(), total, strict=True):
        wanted = before.detach() - rate * (sum_ / n).float()
        torch.testing.assert_close(torch.from_numpy(epochs[f"epoch1/{name}"]), wanted)


def test_norms_are_those_of_the_mean_over_views(tiny):
    made = tiny.of({}, FILM)
    context, spec = made.context(), made.spec(1)
    model = context.model(spec.seed)
    engine = context.engine("auto", model)
    trajectory = Trajectory(context, model, engine, False, spec, {})
    sampled = trajectory.sampled(2)
    assert sampled.rows.tolist() == np.repeat(np.arange(spec.train_size), 3).tolist()
    norms, head_norms = training_set_norms(engine, context, PhysicalBatch(100), sampled)
    assert len(norms) == spec.train_size
    of_head = [each for name, each in trainable_parameters(model).items() if "head" in name]
    for image in (0, 7, spec.train_size - 1):
        inputs, labels, *_ = context.part(sampled, slice(3 * image, 3 * image + 3))
        loss = functional.cross_entropy(model(inputs), labels)
        gradient = torch.autograd.grad(loss, of_head)
        wanted = float(torch.cat([each.flatten() for each in gradient]).norm())
        assert head_norms[image] == pytest.approx(wanted, rel=1e-4)
        assert norms[image] >= head_norms[image]


def test_only_training_images_have_views_from_the_stream_of_the_trial_with_its_secret(
    tiny, monkeypatch
):
    made = tiny.of({}, FILM)
    spec, context = made.spec(1), made.context()
    read: dict[bool, list[Any]] = {True: [], False: []}
    batch = TrialContext.batch

    def noted(self, examples, rows, views=None):
        read[examples is context.train].append(views)
        return batch(self, examples, rows, views)

    monkeypatch.setattr(TrialContext, "batch", noted)
    train_trial(spec, context, None, 1e9, b"mine")
    wanted = Views(Augmentations(**THREE), spec.key, "views", secret=b"mine")
    assert torch.equal(torch.cat(read[True]), wanted.draw(1, spec.train_size))
    assert set(read[False]) == {None}


def test_a_stopped_trial_goes_on_with_the_same_views(tiny, tmp_path):
    made = tiny.of({}, FILM, batch_size=[32])
    spec, checkpoint = made.spec(6), tmp_path / "checkpoint"
    expected = end(spec, made.context())
    with stopped_after(3):
        end(spec, made.context(), checkpoint)
    assert_equal(end(spec, made.context(), checkpoint), expected)
    others = tiny.of({}, FILM | {"augmentations": THREE | {"count": 4}}, batch_size=[32])
    assert others.spec(6).key != spec.key
    assert "augmentations" not in tiny.spec(6).method
