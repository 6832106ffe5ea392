"""The figures and tables of the paper, in its order.

A function makes a figure, or yields a series of figures: it chooses the cells from the grids of a study
(`dpsweep.study.grid`), and writes the caption. A figure is drawn from exactly these cells. Defaults are the
main dataset, the weak backbone, the main method, DP-Adam, the number of epochs that most cells of the dataset
have, and all values of other settings. Titles of panels and lines are filled in from the chosen cells, which
also give the words of captions (`dpsweep.study.targets.Words`).

Comments marked *choice* explain our choices where the paper leaves something open.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Literal

from dpsweep import figures
from dpsweep.study.cells import number
from dpsweep.study.grid import (
    Found,
    Grid,
    Grids,
    NotDrawnError,
    baseline,
    by_dataset,
    few,
    neighbours,
    shared,
    smallest_batch,
    usual,
)
from dpsweep.study.targets import Words, figure, table

MAIN = "Main text"
IMAGES = "Image classification with LoRA"
TEXTS = "Text classification with LoRA"
SCRATCH = "Training from scratch with DP-Adam"
DPSGD = "Fine-tuning with DP-SGD"
FULL = "Full fine-tune"
NOISE = "Cumulative noise and effective noise"
THEORY = "Theory from measured gradients"

# Problems other than that of the main text.
Problem = dict[str, Any]
TEXT: Problem = {"dataset": "text", "backbone": "text", "method": "text"}
FROM_SCRATCH: Problem = {"dataset": "scratch", "backbone": "scratch", "method": "scratch"}

BOUNDS = ("clipping_bound",)
MAP = ("clipping_bound", "batch_size")
"""Axes that a figure draws: they must have two values or more."""


def by_backbone(grids: Grids, **problem: Any) -> Found:
    """Return the grids of the strong and the weak backbone."""
    return grids.each({each: {"backbone": each, **problem} for each in ("strong", "weak")})


def loose(grid: Grid) -> Grid:
    """Return a grid at its largest epsilon."""
    return grid.at(epsilon=max(grid.epsilon))


def tight(grid: Grid) -> Grid:
    """Return a grid at its smallest epsilon."""
    return grid.at(epsilon=min(grid.epsilon))


def three_difficulties(found: Found) -> list[Grid]:
    """Return grids from easy to hard: both backbones with a loose budget, the weak one with a tight one."""
    epsilon = max(shared("epsilon", found.values()))
    hard = [tight(found["weak"])] if "weak" in found else []
    return [each.at(epsilon=epsilon) for each in found.values()] + hard


def two_difficulties(found: Found) -> list[Grid]:
    """Return an easy grid (strong backbone, loose budget) and a hard one (weak backbone, tight budget)."""
    ends = {"strong": loose, "weak": tight}
    return [ends[backbone](grid) for backbone, grid in found.items()]


def each_epsilon(grid: Grid) -> list[Grid]:
    """Return a grid at each epsilon, from loose to tight."""
    return [grid.at(epsilon=epsilon) for epsilon in reversed(grid.epsilon)]


def two_epsilons(grid: Grid) -> list[Grid]:
    """Return a grid at a loose budget and at a tight one."""
    return [loose(grid), tight(grid)]


def panels(grids: Sequence[Grid]) -> list[figures.Panel]:
    """Return a panel for each grid."""
    return [figures.Panel.of(each) for each in grids]


# -- Main text ---------------------------------------------------------------------------------


def heatmaps(grids: Sequence[Grid]) -> figures.Heatmap:
    """Accuracy over C and B, a panel for each problem."""
    say = Words.of(grids)
    return figures.Heatmap(
        caption=f"Test macro accuracy over clipping bound and batch size: {say.dataset}, {say.backbone}, "
        f"{say.method}, {say.optimizer}, {say.epochs}, a panel for each problem. Each square is the mean "
        f"over {say.seeds} at the learning rate that was best for that square; each panel has its own "
        "colour scale. Full is the whole training set.",
        colour_scale="panel",
        panels=panels(grids),
    )


def norms_by_epoch(grids: Sequence[Grid]) -> figures.GradientNormDistribution:
    """Per-example gradient norms after each epoch."""
    say = Words.of(grids)
    return figures.GradientNormDistribution(
        caption="Norms of the per-example gradients of all training examples after each epoch at "
        f"{say.clipping_bound}, a panel for each privacy budget, from loose to tight. {say.backbone} with "
        f"{say.method} on {say.dataset}, {say.epochs}; {say.tuned('batch_size')}, seed 1. Every violin is "
        "as wide as the others: it shows the shape of a distribution.",
        panels=panels(grids),
    )


def effects_on_classes(
    grids: Sequence[Grid], bounds: list[Any] | None = None, **options: Any
) -> figures.PerClass:
    """Gradient weight that each class keeps under clipping, and its accuracy; by default at all bounds."""
    # *choice*: the retained weight is that of the gradient of all trainable parameters, which is clipped. The
    # paper's appendix suggests that of the classifier alone; retained_weight_of="classifier" draws it.
    shown = [each.at(clipping_bound=bounds) for each in grids] if bounds else grids
    say, reference = Words.of(shown), baseline(grids)
    return figures.PerClass(
        caption=f"Classes of {say.dataset} from the most to the least accurately predicted, a column for "
        f"each problem: {say.backbone}, {say.method}, {say.optimizer}, {say.epochs}; seed 1, "
        f"{say.tuned('batch_size')} for every clipping bound. Relative retained weight: how much gradient "
        "weight a class keeps after clipping, relative to the class that keeps most at C = "
        f"{number(reference)}. Accuracy: of the class, minus what it is at C = {number(reference)}.",
        baseline=reference,
        panels=panels(shown),
        **options,
    )


@figure(MAIN)
def fig1_accuracy_heatmaps(grids: Grids) -> figures.Heatmap:
    """Figure 1: accuracy over C and B, for problems of increasing difficulty."""
    return heatmaps(three_difficulties(by_backbone(grids, several=MAP)))


@figure(MAIN)
def fig2_clipping_vs_difficulty(grids: Grids) -> figures.ClippingCurve:
    """Figure 2: the cost of a clipping bound, by privacy budget and by backbone."""
    found = by_backbone(grids, several=BOUNDS)
    weak, epsilon = found["weak"], min(shared("epsilon", found.values()))
    by_budget = [loose(weak), weak.at(epsilon=epsilon)]
    by_model = [each.at(epsilon=epsilon) for each in found.values()]
    say = Words.of([*by_budget, *by_model])
    return figures.ClippingCurve(
        caption="What a clipping bound costs against the best one of the same line, for every bound anew "
        f"with {say.tuned('batch_size')}. {say.method} on {say.dataset}, {say.epochs}; mean of {say.seeds}; "
        f"{say.spread}. The lines of a panel differ in the privacy budget or in the backbone alone.",
        quantity="difference",
        panels=[figures.LinePanel.of(each) for each in (by_budget, by_model) if len(each) > 1],
    )


@figure(MAIN)
def fig3_gradnorm_distributions(grids: Grids) -> figures.GradientNormDistribution:
    """Figure 3: gradient norms after each epoch, by privacy budget."""
    return norms_by_epoch(
        by_dataset(each_epsilon(grids.one().at_usual_epochs()), clipping_bound=baseline)
    )


@figure(MAIN)
def fig4_perclass_retained_accuracy(grids: Grids) -> figures.PerClass:
    """Figure 4: retained gradient weight and accuracy of each class."""
    found = three_difficulties(by_backbone(grids, several=BOUNDS))
    return effects_on_classes(found, neighbours(found))


@figure(MAIN)
def fig5_autoclip_vs_tuned(grids: Grids) -> figures.MethodComparison:
    """Figure 5: AUTO-S against flat clipping with a tuned bound."""
    datasets = ("main", "large", "imbalanced")
    return automatic_comparison(
        grids, grids.parts(lambda each: automatic_beside_tuned(grids, dataset=each), datasets)
    )


def automatic_comparison(grids: Grids, panels: list[figures.LinePanel]) -> figures.MethodComparison:
    """AUTO-S beside flat clipping."""
    say = Words(grids.study, [line for panel in panels for line in panel.lines])
    gamma = number(grids.study.training.automatic_clipping_gamma)
    return figures.MethodComparison(
        caption=f"AUTO-S (gamma {gamma}), which has no clipping bound, beside flat clipping with a tuned "
        f"bound: macro accuracy minus the better one of the two at each ε. {say.backbone} with "
        f"{say.method}, {say.epochs}; batch size and learning rate tuned for both. Mean of {say.seeds}; "
        f"{say.spread}.",
        panels=panels,
    )


def automatic_beside_tuned(grids: Grids, title: str = "", **problem: str) -> figures.LinePanel:
    """Return a panel with a line for AUTO-S and one for flat clipping."""
    kinds = ("automatic", "flat")
    both = [grids.one(**problem, clipping=each, several=("epsilon",)) for each in kinds]
    both = by_dataset(both, epochs=usual, epsilon=lambda lines: shared("epsilon", lines))
    return figures.LinePanel.of(both, title)


def noise_by_batch_size(grid: Grid) -> figures.NoiseCurve:
    """Noise of one step and of all steps against the batch size."""
    say = Words.of([grid])
    return figures.NoiseCurve(
        caption="Standard deviation of the noise in the averaged gradient of one step (left), and scaled "
        "by the square root of the number of steps (right), against batch size; a line per ε. "
        f"{say.dataset}, {say.backbone} with {say.method}, {say.epochs}. The colour of a point is its "
        f"accuracy minus the best at the same ε, with {say.tuned('clipping_bound')} for the point.",
        cells=figures.Selection.of(grid),
        axes=[
            figures.NoiseAxes(title="One step", quantity="effective", x="batch_size"),
            figures.NoiseAxes(title="All steps", quantity="cumulative_effective", x="batch_size"),
        ],
    )


@figure(MAIN)
def fig6_effective_noise(grids: Grids) -> figures.NoiseCurve:
    """Figure 6: effective noise against the batch size."""
    return noise_by_batch_size(grids.one(dataset="large", several=("batch_size",)))


BY_EPOCHS = ("epochs", "batch_size")


def cumulative_noise(grid: Grid) -> figures.NoiseCurve:
    """Noise of all steps against the batch size and the number of steps."""
    say = Words.of([grid])
    return figures.NoiseCurve(
        caption="Cumulative noise σ√T against batch size (top) and number of steps (bottom); a column per "
        f"ε, a line per number of epochs. {say.dataset}, {say.backbone} with {say.method}, {say.seeds}. The "
        "colour of a point is its accuracy minus the best at the same ε and epochs, with "
        f"{say.tuned('clipping_bound')} for the point.",
        cells=figures.Selection.of(grid),
        axes=[
            figures.NoiseAxes(title="By batch size", quantity="cumulative", x="batch_size"),
            figures.NoiseAxes(title="By steps", quantity="cumulative", x="steps"),
        ],
        # The paper gives this number for one problem only: a vertical line in its figures.
        minimum_steps={"cifar100_vit-tiny_film": 20},
    )


@figure(MAIN)
def fig7_cumulative_noise(grids: Grids) -> figures.NoiseCurve:
    """Figure 7: cumulative noise, for every number of epochs."""
    return cumulative_noise(grids.one(dataset="large", several=BY_EPOCHS))


@table(MAIN)
def tab1_tuning_implications() -> figures.TuningImplications:
    """Table 1: the paper's rules, and the evidence of this study for and against each."""
    return figures.TuningImplications(
        caption="The paper's rules for tuning under differential privacy, each with what the sweeps of "
        "this study say: size of the effect with its uncertainty, number of comparisons, and a verdict."
    )


# -- Clipping bound against accuracy, by model and by privacy budget ---------------------------


def accuracy_against_bound(compared: str, lines: Sequence[Grid]) -> figures.ClippingCurve:
    """Accuracy against C, a line for each of two problems."""
    say = Words.of(lines)
    return figures.ClippingCurve(
        caption=compared
        + f": macro accuracy on {say.dataset} against the clipping bound. {say.method}, {say.epochs}; "
        f"{say.tuned('batch_size')} for every bound; mean of {say.seeds}; {say.spread}.",
        panels=[figures.LinePanel.of(lines)],
    )


# *choice*: as many seeds as elsewhere; the paper states the repeats of figure 2 only.
@figure(
    "Accuracy by model (fixed privacy budget)",
    name="model_{dataset}_eps{epsilon}",
    each={"dataset": ["small", "imbalanced", "large", "main"]},
)
def accuracy_by_model(grids: Grids, dataset: str) -> Iterator[figures.ClippingCurve]:
    """A strong and a weak backbone under the same privacy budget."""
    both = [grids.one(dataset, each, several=BOUNDS) for each in ("strong", "weak")]
    both = by_dataset(both, epochs=usual)
    for epsilon in shared("epsilon", both):
        yield accuracy_against_bound(
            f"A strong and a weak backbone under the same privacy budget (ε = {number(epsilon)})",
            [each.at(epsilon=epsilon) for each in both],
        )


@figure(
    "Accuracy by privacy budget (fixed model)",
    name="eps_{dataset}_{backbone}",
    each=[
        {"dataset": "small", "backbone": "residual"},
        {"dataset": ["small", "imbalanced", "large", "main"], "backbone": ["strong", "weak"]},
    ],
)
def accuracy_by_budget(grids: Grids, dataset: str, backbone: str) -> figures.ClippingCurve:
    """The same backbone under a loose and a tight privacy budget."""
    lines = two_epsilons(grids.one(dataset, backbone, several=BOUNDS).at_usual_epochs())
    return accuracy_against_bound(
        f"The same backbone ({Words.of(lines).backbone}) under a loose and a tight privacy budget",
        lines,
    )


# -- Fine-tuning with LoRA ---------------------------------------------------------------------


def difference_to_best(
    lines: Sequence[Grid], centre: Literal["mean", "median"] = "mean"
) -> figures.ClippingCurve:
    """The cost of a clipping bound, for an easy problem and a hard one."""
    say = Words.of(lines)
    return figures.ClippingCurve(
        caption="What a clipping bound costs against the best one, for an easy problem and a hard one: "
        f"{say.dataset}, {say.backbone}, {say.method}, {say.epochs}; {say.tuned('batch_size')} for every "
        f"bound; {centre} of {say.seeds}; {say.spread}.",
        quantity="difference",
        centre=centre,
        panels=[figures.LinePanel.of(lines)],
    )


@figure(IMAGES)
def lora_accuracy_difference(grids: Grids) -> figures.ClippingCurve:
    """The cost of a clipping bound with LoRA."""
    both = [grids.one(backbone=each, method="lora", several=BOUNDS) for each in ("strong", "weak")]
    strong, weak = by_dataset(both, epochs=usual)
    return difference_to_best([loose(strong), tight(weak)])


@figure(IMAGES)
def lora_perclass(grids: Grids) -> figures.PerClass:
    """Classes with LoRA, for an easy problem and a hard one."""
    found = two_difficulties(by_backbone(grids, method="lora", several=BOUNDS))
    return effects_on_classes(found, neighbours(found))


@figure(IMAGES)
def lora_heatmaps(grids: Grids) -> figures.Heatmap:
    """Accuracy over C and B with LoRA."""
    return heatmaps(two_difficulties(by_backbone(grids, method="lora", several=MAP))[::-1])


@table(IMAGES)
def tab_lora_rank(grids: Grids) -> figures.ComparisonTable:
    """Accuracy by the rank of the adapters."""
    ranks = grids.each({each: {"method": each} for each in grids.names("method", "ranks")})
    epsilons = shared("epsilon", ranks.values())
    entries = by_dataset(
        [each.at(epsilon=epsilon) for each in ranks.values() for epsilon in epsilons],
        clipping_bound=baseline,
    )
    say = Words.of(entries)
    return figures.ComparisonTable(
        caption=f"Macro accuracy by rank of the LoRA adapters: {say.backbone} on {say.dataset}, "
        f"{say.epochs}, {say.clipping_bound}; batch size and learning rate tuned for every rank and ε; mean "
        f"and range over {say.seeds}.",
        rows=["rank"],
        columns=["epsilon"],
        entries=[figures.Selection.of(each) for each in entries],
    )


@figure(TEXTS)
def text_accuracy_difference(grids: Grids) -> figures.ClippingCurve:
    """The cost of a clipping bound on texts."""
    lines = two_epsilons(grids.one(**TEXT, several=BOUNDS).at_usual_epochs())
    return difference_to_best(lines, centre="median")


@figure(TEXTS)
def text_perclass(grids: Grids) -> figures.PerClass:
    """Classes of texts."""
    found = two_epsilons(grids.one(**TEXT, several=BOUNDS).at_usual_epochs())
    return effects_on_classes(found, neighbours(found))


@figure(TEXTS)
def text_heatmaps(grids: Grids) -> figures.Heatmap:
    """Accuracy over C and B on texts."""
    return heatmaps(two_epsilons(grids.one(**TEXT, several=MAP).at_usual_epochs()))


@figure("Optimal batch size")
def optimal_batch_size(grids: Grids) -> figures.OptimalBatchSize:
    """The best batch size against the number of epochs."""
    return best_batch_sizes(
        grids,
        grids.parts(
            lambda each: figures.Panel.of(grids.one(dataset=each, several=BY_EPOCHS)),
            ("large", "main"),
        ),
    )


def best_batch_sizes(grids: Grids, panels: list[figures.Panel]) -> figures.OptimalBatchSize:
    """The best batch size against the number of epochs, a panel for each problem."""
    say = Words(grids.study, panels)
    return figures.OptimalBatchSize(
        caption="The best batch size against the number of epochs, a line per ε: that with the highest "
        f"macro accuracy, in the mean over {say.seeds}, each of which chooses alone; {say.spread}. "
        f"{say.backbone} with {say.method}; {say.tuned('clipping_bound')} for every batch size. Below: what "
        "goes with the batch size that all seeds choose together.",
        panels=panels,
    )


# -- Other training methods --------------------------------------------------------------------


@figure(SCRATCH)
def scratch_perclass(grids: Grids) -> figures.PerClass:
    """Retained weight of classes when a network trains from scratch."""
    found = each_epsilon(grids.one(**FROM_SCRATCH, several=BOUNDS).at_usual_epochs())
    return effects_on_classes(found, rows=["retained_weight"])


@figure(SCRATCH)
def scratch_heatmaps(grids: Grids) -> figures.Heatmap:
    """Accuracy over ε and C when a network trains from scratch."""
    grid = grids.one(**FROM_SCRATCH, several=("epsilon", "clipping_bound"))
    say = Words.of([grid])
    return figures.Heatmap(
        caption=f"Test macro accuracy over ε and clipping bound when {say.backbone} trains on {say.dataset} "
        f"from random weights for {say.epochs}. Each square is the mean over {say.seeds} at its own best "
        "batch size and learning rate.",
        x="epsilon",
        y="clipping_bound",
        panels=panels([grid]),
    )


@figure(DPSGD)
def dpsgd_perclass(grids: Grids) -> figures.PerClass:
    """Retained weight of classes with DP-SGD."""
    found = each_epsilon(grids.one(optimizer="sgd", several=BOUNDS).at_usual_epochs())
    return effects_on_classes(found, rows=["retained_weight"])


@figure(DPSGD)
def dpsgd_heatmaps(grids: Grids) -> figures.Heatmap:
    """Accuracy over C and B with DP-SGD."""
    return heatmaps(each_epsilon(grids.one(optimizer="sgd", several=MAP).at_usual_epochs()))


@figure(FULL)
def full_perclass(grids: Grids) -> figures.PerClass:
    """Classes when every parameter trains."""
    found = three_difficulties(by_backbone(grids, method="all", several=BOUNDS))
    return effects_on_classes(found, neighbours(found))


@figure(FULL)
def full_heatmaps(grids: Grids) -> figures.Heatmap:
    """Accuracy over C and B when every parameter trains."""
    return heatmaps(three_difficulties(by_backbone(grids, method="all", several=MAP)))


@figure(FULL, name="full_gradnorm_hist_C{clipping_bound}")
def norms_after_training(grids: Grids) -> Iterator[figures.GradientNormHistogram]:
    """Gradient norms after training every parameter."""
    found = three_difficulties(by_backbone(grids, method="all"))
    for bound in neighbours(found):
        shown = [each.at(clipping_bound=bound) for each in found]
        say = Words.of(shown)
        yield figures.GradientNormHistogram(
            caption=f"Norms of the per-example gradients after {say.epochs} of training every parameter at "
            f"{say.clipping_bound}, over all training examples of {say.dataset}, a panel for each problem. "
            f"With {say.tuned('batch_size')}; seed 1.",
            panels=panels(shown),
        )


# -- Gradient norms during training ------------------------------------------------------------


@figure(
    "Gradient norm distributions for small and large C",
    name="gradnorm_distributions_C{clipping_bound}",
)
def norms_by_bound(grids: Grids) -> Iterator[figures.GradientNormDistribution]:
    """Gradient norms after each epoch, for small and large C."""
    found = each_epsilon(grids.one().at_usual_epochs())
    bounds = shared("clipping_bound", found)
    ends = {min(bounds), max(bounds)} - {baseline(found)}  # figure 3 has the baseline
    if not ends:
        raise NotDrawnError(f"fig3_gradnorm_distributions has the only C, {number(bounds[0])}")
    for bound in sorted(ends):
        yield norms_by_epoch([each.at(clipping_bound=bound) for each in found])


@figure(
    "Per-class effects of gradient clipping",
    name="perclass_{dataset}",
    each={"dataset": ["imbalanced", "large"]},
)
def perclass_by_dataset(grids: Grids, dataset: str) -> figures.PerClass:
    """Classes of other datasets, after few epochs."""
    both = {each: {"dataset": dataset, "backbone": each} for each in ("strong", "weak")}
    found = three_difficulties(grids.each(both, epochs=few))
    return effects_on_classes(found, neighbours(found))


# *choice*: C = 1, as in the figures of gradient norms. All lines have one batch size, so that a step is the
# same share of training: the smallest with at most 100 steps an epoch.
@figure("Mean gradient norm over iterations", name="mean_gradnorm_{epochs}epochs")
def mean_norm_by_step(grids: Grids) -> Iterator[figures.NormTrace]:
    """The mean gradient norm at each step, a line per ε."""
    grid = grids.one()
    for epochs in grid.epochs:
        shown = at_one_batch_size([grid.at(epochs=epochs)])
        say = Words.of(shown)
        yield figures.NormTrace(
            caption="Mean norm of the per-example gradients that were sampled at each optimizer step, "
            f"before clipping, over {say.epochs}; a line per ε. {say.dataset}, {say.backbone} with "
            f"{say.method}, {say.clipping_bound}, expected batch size {say.batch_size}, learning rate "
            "tuned, seed 1.",
            panels=panels(shown),
        )


def at_one_batch_size(grids: Sequence[Grid]) -> list[Grid]:
    """Return grids at the baseline C and a small batch size, by default at every epsilon."""
    every = [each.at(epsilon=each.epsilon) for each in grids]
    return by_dataset(every, clipping_bound=baseline, batch_size=smallest_batch)


# -- Cumulative noise and effective noise ------------------------------------------------------


@figure(NOISE, name="effective_noise_{dataset}", each={"dataset": ["large", "main"]})
def effective_noise(grids: Grids, dataset: str, backbone: str = "weak") -> figures.NoiseCurve:
    """Noise of one step against the batch size and the number of steps."""
    grid = grids.one(dataset, backbone, several=BY_EPOCHS)
    say = Words.of([grid])
    return figures.NoiseCurve(
        caption="Noise in the averaged gradient of one step, σ/B, against batch size (top) and number of "
        f"steps (bottom); a column per ε, a line per number of epochs. {say.dataset}, {say.backbone} with "
        f"{say.method}, {say.seeds}. The colour of a point is its accuracy minus the best at the same ε and "
        f"epochs, with {say.tuned('clipping_bound')} for the point.",
        cells=figures.Selection.of(grid),
        axes=[
            figures.NoiseAxes(title="By batch size", quantity="effective", x="batch_size"),
            figures.NoiseAxes(title="By steps", quantity="effective", x="steps"),
        ],
    )


@figure(NOISE, name="cumulative_noise_{dataset}", each={"dataset": "main"})
def cumulative_noise_of(grids: Grids, dataset: str) -> figures.NoiseCurve:
    """Cumulative noise of other datasets than that of figure 7."""
    return cumulative_noise(grids.one(dataset, several=BY_EPOCHS))


# -- What an attacker can tell -----------------------------------------------------------------


# *choice*: a sampled batch, as in the figures of gradient norms. Noise does not depend on C.
@figure("What an attacker can tell about one person")
def attacker_curves(grids: Grids) -> figures.AttackerCurves:
    """The power of the best attacker, by ε."""
    shown = at_one_batch_size([grids.one().at_usual_epochs()])
    say = Words.of(shown)
    return figures.AttackerCurves(
        caption="The largest share of present people that any attacker recognises, by the share of absent "
        "people that they wrongly take for present; a line per ε, for a person with one record and for one "
        "with ten. On the grey line an attacker does no better than a coin. From the noise, the sampling "
        f"rate and the steps of one training run: {say.dataset}, {say.backbone} with {say.method}, "
        f"{say.epochs}, expected batch size {say.batch_size}. What was chosen among many runs tells more.",
        records=[1, 10],
        panels=panels(shown),
    )


# -- Theory from measured gradients ------------------------------------------------------------
# *choice*: section 4 of the paper has theorems, but no figures. Gradients are those of trials at one batch
# size, so that only clipping bounds and learning rates are tuned. The numbers are not private, as every
# caption states at its end.


@figure(THEORY)
def theory_error_decomposition(grids: Grids) -> figures.ErrorDecomposition:
    """The error of a private gradient sum, split into bias and noise."""
    shown = at_one_batch_size(two_epsilons(grids.one().at_usual_epochs()))
    say = Words.of(shown)
    return figures.ErrorDecomposition(
        caption="The mean squared error of a private gradient sum (Theorem 4.1) against the clipping "
        "bound, split into what clipping takes away (bias) and what noise adds, at the start, in the "
        f"middle and at the end of training. {say.backbone} with {say.method} on {say.dataset}, "
        f"{say.epochs}, {say.clipping_bound}, expected batch size {say.batch_size}; {say.theory_seeds}, "
        "mean over draws of a batch.",
        panels=panels(shown),
    )


@figure(THEORY)
def theory_optimal_clipping(grids: Grids) -> figures.OptimalClippingTrace:
    """The clipping bound with the smallest error, after each epoch."""
    shown = at_one_batch_size([*by_backbone(grids).values()])
    say = Words.of(shown)
    return figures.OptimalClippingTrace(
        caption="The clipping bound C* with the smallest error (Theorem 4.1) and the median gradient norm "
        f"after every epoch, a line for each ε, a panel for each backbone. {say.method} on {say.dataset}, "
        f"{say.epochs}, trained with {say.clipping_bound} and expected batch size {say.batch_size}; "
        f"{say.theory_seeds}. A bar spans all draws of a batch.",
        panels=panels(shown),
    )


@figure(THEORY)
def theory_privacy_effects(grids: Grids) -> figures.PrivacyEffectsFigure:
    """Effects of less ε on the best clipping bound: direct, and through the gradients."""
    shown = at_one_batch_size([*by_backbone(grids, several=("epsilon",)).values()])
    say = Words.of(shown)
    return figures.PrivacyEffectsFigure(
        caption="Why the best clipping bound changes with ε, after the last epoch. Less ε means more noise "
        "(the direct effect), and other gradients at the end of training (the indirect effect). One line "
        "has both; the two others change one of them alone and keep the other at the largest ε. Of these, "
        "the one that follows the first line is the cause. Above, the bound with the smallest error (C*, "
        f"Theorem 4.1); below, the bound with the best direction (scale-free C). {say.method} on "
        f"{say.dataset}, {say.epochs}, {say.clipping_bound}, expected batch size {say.batch_size}; "
        f"{say.theory_seeds}.",
        panels=panels(shown),
    )


@figure(THEORY)
def theory_predictions(grids: Grids) -> figures.PredictedClipping:
    """Best clipping bounds that gradients predict, against the measured ones."""
    datasets = ("main", "large", "small", "imbalanced")
    images: list[Problem] = [
        {"dataset": dataset, "backbone": backbone}
        for dataset, backbone in product(datasets, ("strong", "weak"))
    ]
    problems: list[Problem] = [
        *images,
        *({"backbone": each, "method": "lora"} for each in ("strong", "weak")),
        TEXT,
        FROM_SCRATCH,
        {"optimizer": "sgd"},
        *({**each, "clipping": "automatic"} for each in (*images, TEXT)),
    ]
    found = grids.each({str(each): {**each, "several": BOUNDS} for each in problems}, epochs=None)
    if (scratch := str(FROM_SCRATCH)) in found:
        found[scratch] = found[scratch].at(epochs=max(found[scratch].epochs))
    chosen = by_dataset([*found.values()], epochs=usual)
    every = [each.at(epsilon=each.epsilon) for each in chosen]
    every = [each.at(clipping_bound=each.clipping_bound) for each in every]
    shown = by_dataset(every, batch_size=smallest_batch)
    say = Words.of(shown)
    return figures.PredictedClipping(
        caption="Whether the theory predicts the best clipping bound. Above, the predicted bound against "
        "the measured one, a point for each problem, ε and batch size: C* of Theorem 4.1, C* with the "
        "noise of the largest ε, and the bound with the best direction. A good prediction lies on the "
        "line, or at least orders the settings (rank correlation). Below, the accuracy that each rule "
        f"loses against the best bound of its setting, beside rules without a theory. {say.epochs}; "
        f"learning rate tuned, {say.seeds}.",
        panels=panels(shown),
    )


# -- Tables ------------------------------------------------------------------------------------


@table("Hyperparameter grids")
def taba1_hyperparameter_grid() -> figures.HyperparameterGrid:
    """Table A1: the grids."""
    return figures.HyperparameterGrid(caption="The grid of every sweep, as configured.")


@table("Datasets")
def taba2_datasets() -> figures.Datasets:
    """Table A2: the datasets."""
    return figures.Datasets(
        caption="The datasets as they were prepared, with their sizes, classes, balance and source."
    )


@table("Automatic clipping comparison")
def tab_autoclip(grids: Grids) -> figures.ComparisonTable:
    """AUTO-S and flat clipping with a tuned bound."""
    datasets = ("main", "imbalanced", "large")
    grids.each(
        {each: {"clipping": "automatic", "dataset": each} for each in datasets}
    )  # at least one
    problems = product(("automatic", "flat"), datasets)
    found = grids.each({each: {"clipping": each[0], "dataset": each[1]} for each in problems})
    rows = by_dataset([*found.values()], epsilon=lambda rows: shared("epsilon", rows))
    entries = [each.at(epsilon=epsilon) for each in rows for epsilon in each.epsilon]
    say, gamma = Words.of(entries), number(grids.study.training.automatic_clipping_gamma)
    return figures.ComparisonTable(
        caption=f"Macro accuracy of AUTO-S (gamma {gamma}) and of flat clipping with a tuned bound: "
        f"{say.backbone} with {say.method}, {say.epochs}; batch size and learning rate tuned for both; mean "
        f"and range over {say.seeds}.",
        rows=["dataset", "epsilon"],
        columns=["clipping"],
        entries=[figures.Selection.of(each) for each in entries],
    )


@table("Optimizers")
def tab_optimizers() -> figures.OptimizerTable:
    """Gains of other optimizers over DP-Adam."""
    return figures.OptimizerTable(
        caption="What other optimizers gain over DP-Adam at the same ε; each optimizer has the batch size, "
        "clipping bound and learning rate that are best for it on its grid."
    )
