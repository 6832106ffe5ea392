"""The figures and tables of the paper, in its order.

A function describes a figure, or each member of a series: its cells and its caption. A figure is drawn from
exactly the cells that it selects. Selections use roles (``roles`` of a study), and words for the ends of the
study's grid (`dpsweep.config.selections`). Defaults are the main dataset, the weak backbone, the main method,
DP-Adam, the number of epochs that most cells of the dataset have, and all values of other settings. Titles
of panels and lines, and braces in captions, are filled in from the selected cells (`dpsweep.study.captions`).

Comments marked *choice* explain our choices where the paper leaves something open.
"""

from itertools import product
from typing import Any

from dpsweep.figures.families import (
    AttackerCurves,
    ClippingCurve,
    ComparedCells,
    ComparisonTable,
    Datasets,
    ErrorDecomposition,
    GradientNormDistribution,
    GradientNormHistogram,
    Heatmap,
    HyperparameterGrid,
    Line,
    LinePanel,
    MethodComparison,
    NoiseAxes,
    NoiseCurve,
    NormTrace,
    OptimalBatchSize,
    OptimalClippingTrace,
    OptimizerTable,
    Panel,
    PerClass,
    PredictedClipping,
    PrivacyEffectsFigure,
    Selection,
    TuningImplications,
)
from dpsweep.study.descriptions import figure, table

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

# The easy problem first.
BUDGETS = [Line(epsilon="loose"), Line(epsilon="tight")]
BACKBONES = [Line(backbone="strong"), Line(backbone="weak")]


def three_difficulties(**cells: Any) -> list[Panel]:
    """Return panels from easy to hard: both backbones with a loose budget, the weak one with a tight one."""
    return [
        Panel(backbone="strong", epsilon="loose", **cells),
        Panel(backbone="weak", epsilon="loose", **cells),
        Panel(backbone="weak", epsilon="tight", **cells),
    ]


def each_epsilon(**cells: Any) -> list[Panel]:
    """Return a panel for each privacy budget, from loose to tight."""
    return [Panel(epsilon="all", each=("epsilon",), **cells)]


def two_epsilons(**cells: Any) -> list[Panel]:
    """Return a panel for a loose budget and one for a tight budget."""
    return [Panel(epsilon="loose", **cells), Panel(epsilon="tight", **cells)]


# -- Main text ---------------------------------------------------------------------------------


def heatmaps(panels: list[Panel]) -> Heatmap:
    """Accuracy over C and B, a panel for each problem."""
    return Heatmap(
        caption="Test macro accuracy over clipping bound and batch size: {dataset}, {backbone}, {method}, "
        "{optimizer}, {epochs}, a panel for each problem. Each square is the mean over {seeds} at the "
        "learning rate that was best for that square; each panel has its own colour scale. Full is the "
        "whole training set.",
        colour_scale="panel",
        panels=panels,
    )


def norms_by_epoch(panels: list[Panel]) -> GradientNormDistribution:
    """Per-example gradient norms after each epoch."""
    return GradientNormDistribution(
        caption="Norms of the per-example gradients of all training examples after each epoch at "
        "{clipping_bound}, a panel for each privacy budget, from loose to tight. {backbone} with {method} "
        "on {dataset}, {epochs}; {tuned}, seed 1. Every violin is as wide as the others: it shows the "
        "shape of a distribution.",
        panels=panels,
    )


def effects_on_classes(panels: list[Panel], **options: Any) -> PerClass:
    """Gradient weight that each class keeps under clipping, and its accuracy."""
    # *choice*: the retained weight is that of the gradient of all trainable parameters, which is clipped. The
    # paper's appendix suggests that of the classifier alone; retained_weight_of="classifier" draws it.
    return PerClass(
        caption="Classes of {dataset} from the most to the least accurately predicted, a column for each "
        "problem: {backbone}, {method}, {optimizer}, {epochs}; seed 1, {tuned} for every clipping bound. "
        "Relative retained weight: how much gradient weight a class keeps after clipping, relative to the "
        "class that keeps most at C = {baseline}. Accuracy: that of the class minus what it is at C = "
        "{baseline}.",
        panels=panels,
        **options,
    )


@figure(MAIN)
def fig1_accuracy_heatmaps() -> Heatmap:
    """Figure 1: accuracy over C and B, for problems of increasing difficulty."""
    return heatmaps(three_difficulties())


@figure(MAIN)
def fig2_clipping_vs_difficulty() -> ClippingCurve:
    """Figure 2: the cost of a clipping bound, by privacy budget and by backbone."""
    return ClippingCurve(
        caption="What a clipping bound costs against the best one of the same line, for every bound anew "
        "with {tuned}. {method} on {dataset}, {epochs}; {centre} of {seeds}; {spread}. The lines of a "
        "panel differ in the privacy budget or in the backbone alone.",
        quantity="difference",
        panels=[
            LinePanel(backbone="weak", lines=BUDGETS),
            LinePanel(epsilon="tight", lines=BACKBONES),
        ],
    )


@figure(MAIN)
def fig3_gradnorm_distributions() -> GradientNormDistribution:
    """Figure 3: gradient norms after each epoch, by privacy budget."""
    return norms_by_epoch(each_epsilon(clipping_bound="baseline"))


@figure(MAIN)
def fig4_perclass_retained_accuracy() -> PerClass:
    """Figure 4: retained gradient weight and accuracy of each class."""
    return effects_on_classes(three_difficulties(clipping_bound="neighbours"))


@figure(MAIN)
def fig5_autoclip_vs_tuned() -> MethodComparison:
    """Figure 5: AUTO-S against flat clipping with a tuned bound."""
    return MethodComparison(
        caption="AUTO-S (gamma {gamma}), which has no clipping bound, beside flat clipping with a tuned "
        "bound: macro accuracy minus that of the better of the two at each ε. {backbone} with {method}, "
        "{epochs}; batch size and learning rate tuned for both. Mean of {seeds}; {spread}.",
        panels=[automatic_beside_tuned(dataset=each) for each in ("main", "large", "imbalanced")],
    )


def automatic_beside_tuned(**cells: Any) -> LinePanel:
    """Return a panel with a line for AUTO-S and one for flat clipping."""
    return LinePanel(epsilon="common", lines=[Line(clipping_bound="automatic"), Line()], **cells)


def noise_by_batch_size(cells: Selection) -> NoiseCurve:
    """Noise of one step and of all steps against the batch size."""
    return NoiseCurve(
        caption="Standard deviation of the noise in the averaged gradient of one step (left), and scaled "
        "by the square root of the number of steps (right), against batch size; a line per ε. {dataset}, "
        "{backbone} with {method}, {epochs}. The colour of a point is its accuracy minus the best at the "
        "same ε, with {tuned} for the point.",
        cells=cells,
        axes=[
            NoiseAxes(title="One step", quantity="effective", x="batch_size"),
            NoiseAxes(title="All steps", quantity="cumulative_effective", x="batch_size"),
        ],
    )


@figure(MAIN)
def fig6_effective_noise() -> NoiseCurve:
    """Figure 6: effective noise against the batch size."""
    return noise_by_batch_size(Selection(dataset="large"))


def cumulative_noise(cells: Selection) -> NoiseCurve:
    """Noise of all steps against the batch size and the number of steps."""
    return NoiseCurve(
        caption="Cumulative noise σ√T against batch size (top) and number of steps (bottom); a column per "
        "ε, a line per number of epochs. {dataset}, {backbone} with {method}, {seeds}. The colour of a "
        "point is its accuracy minus the best at the same ε and epochs, with {tuned} for the point.",
        cells=cells,
        axes=[
            NoiseAxes(title="By batch size", quantity="cumulative", x="batch_size"),
            NoiseAxes(title="By steps", quantity="cumulative", x="steps"),
        ],
        # The paper gives this number for one problem only: a vertical line in its figures.
        minimum_steps={"cifar100_vit-tiny_film": 20},
    )


@figure(MAIN)
def fig7_cumulative_noise() -> NoiseCurve:
    """Figure 7: cumulative noise, for every number of epochs."""
    return cumulative_noise(Selection(dataset="large", epochs="all"))


@table(MAIN)
def tab1_tuning_implications() -> TuningImplications:
    """Table 1: the paper's rules, and the evidence of this study for and against each."""
    return TuningImplications(
        caption="The paper's rules for tuning under differential privacy, each with what the sweeps of "
        "this study say: size of the effect with its uncertainty, number of comparisons, and a verdict."
    )


# -- Clipping bound against accuracy, by model and by privacy budget ---------------------------


def accuracy_against_bound(compared: str, panel: LinePanel) -> ClippingCurve:
    """Accuracy against C, a line for each of two problems."""
    return ClippingCurve(
        caption=compared
        + ": macro accuracy on {dataset} against the clipping bound. {method}, {epochs}; "
        "{tuned} for every bound; {centre} of {seeds}; {spread}.",
        panels=[panel],
    )


# *choice*: as many seeds as elsewhere; the paper states the repeats of figure 2 only.
@figure(
    "Accuracy by model (fixed privacy budget)",
    name="model_{dataset}_eps{epsilon}",
    each={"dataset": ["small", "imbalanced", "large", "main"], "epsilon": "common"},
)
def accuracy_by_model(dataset: str, epsilon: Any) -> ClippingCurve:
    """A strong and a weak backbone under the same privacy budget."""
    return accuracy_against_bound(
        "A strong and a weak backbone under the same privacy budget ({epsilon})",
        LinePanel(dataset=dataset, epsilon=epsilon, lines=BACKBONES),
    )


@figure(
    "Accuracy by privacy budget (fixed model)",
    name="eps_{dataset}_{backbone}",
    each=[
        {"dataset": "small", "backbone": "residual"},
        {"dataset": ["small", "imbalanced", "large", "main"], "backbone": ["strong", "weak"]},
    ],
)
def accuracy_by_budget(dataset: str, backbone: str) -> ClippingCurve:
    """The same backbone under a loose and a tight privacy budget."""
    return accuracy_against_bound(
        "The same backbone ({backbone}) under a loose and a tight privacy budget",
        LinePanel(dataset=dataset, backbone=backbone, lines=BUDGETS),
    )


# -- Fine-tuning with LoRA ---------------------------------------------------------------------


def difference_to_best(panel: LinePanel, **options: Any) -> ClippingCurve:
    """The cost of a clipping bound, for an easy problem and a hard one."""
    return ClippingCurve(
        caption="What a clipping bound costs against the best one, for an easy problem and a hard one: "
        "{dataset}, {backbone}, {method}, {epochs}; {tuned} for every bound; {centre} of {seeds}; {spread}.",
        quantity="difference",
        panels=[panel],
        **options,
    )


@figure(IMAGES)
def lora_accuracy_difference() -> ClippingCurve:
    """The cost of a clipping bound with LoRA."""
    easy = Line(backbone="strong", epsilon="loose")
    hard = Line(backbone="weak", epsilon="tight")
    return difference_to_best(LinePanel(method="lora", lines=[easy, hard]))


@figure(IMAGES)
def lora_perclass() -> PerClass:
    """Classes with LoRA, for an easy problem and a hard one."""
    easy, _, hard = three_difficulties(method="lora", clipping_bound="neighbours")
    return effects_on_classes([easy, hard])


@figure(IMAGES)
def lora_heatmaps() -> Heatmap:
    """Accuracy over C and B with LoRA."""
    easy, _, hard = three_difficulties(method="lora")
    return heatmaps([hard, easy])


@table(IMAGES)
def tab_lora_rank() -> ComparisonTable:
    """Accuracy by the rank of the adapters."""
    ranks = ComparedCells(
        method="ranks", epsilon="common", clipping_bound="baseline", each=("method", "epsilon")
    )
    return ComparisonTable(
        caption="Macro accuracy by rank of the LoRA adapters: {backbone} on {dataset}, {epochs}, "
        "{clipping_bound}; batch size and learning rate tuned for every rank and ε; mean and range over "
        "{seeds}.",
        rows=["rank"],
        columns=["epsilon"],
        entries=[ranks],
    )


@figure(TEXTS)
def text_accuracy_difference() -> ClippingCurve:
    """The cost of a clipping bound on texts."""
    return difference_to_best(LinePanel(**TEXT, lines=BUDGETS), centre="median")


@figure(TEXTS)
def text_perclass() -> PerClass:
    """Classes of texts."""
    return effects_on_classes(two_epsilons(**TEXT, clipping_bound="neighbours"))


@figure(TEXTS)
def text_heatmaps() -> Heatmap:
    """Accuracy over C and B on texts."""
    return heatmaps(two_epsilons(**TEXT))


@figure("Optimal batch size")
def optimal_batch_size() -> OptimalBatchSize:
    """The best batch size against the number of epochs."""
    return OptimalBatchSize(
        caption="The best batch size against the number of epochs, a line per ε: that with the highest "
        "macro accuracy, in the mean over {seeds}, each of which chooses alone; {spread}. {backbone} with "
        "{method}; {tuned} for every batch size. Below: what goes with the batch size that all seeds "
        "choose together.",
        panels=[Panel(dataset=each, epochs="all") for each in ("large", "main")],
    )


# -- Other training methods --------------------------------------------------------------------


@figure(SCRATCH)
def scratch_perclass() -> PerClass:
    """Retained weight of classes when a network trains from scratch."""
    return effects_on_classes(each_epsilon(**FROM_SCRATCH), rows=["retained_weight"])


@figure(SCRATCH)
def scratch_heatmaps() -> Heatmap:
    """Accuracy over ε and C when a network trains from scratch."""
    return Heatmap(
        caption="Test macro accuracy over ε and clipping bound when {backbone} trains on {dataset} from "
        "random weights for {epochs}. Each square is the mean over {seeds} at its own best batch size and "
        "learning rate.",
        x="epsilon",
        y="clipping_bound",
        panels=[Panel(**FROM_SCRATCH)],
    )


@figure(DPSGD)
def dpsgd_perclass() -> PerClass:
    """Retained weight of classes with DP-SGD."""
    return effects_on_classes(each_epsilon(optimizer="sgd"), rows=["retained_weight"])


@figure(DPSGD)
def dpsgd_heatmaps() -> Heatmap:
    """Accuracy over C and B with DP-SGD."""
    return heatmaps(each_epsilon(optimizer="sgd"))


@figure(FULL)
def full_perclass() -> PerClass:
    """Classes when every parameter trains."""
    return effects_on_classes(three_difficulties(method="all", clipping_bound="neighbours"))


@figure(FULL)
def full_heatmaps() -> Heatmap:
    """Accuracy over C and B when every parameter trains."""
    return heatmaps(three_difficulties(method="all"))


@figure(FULL, name="full_gradnorm_hist_C{clipping_bound}", each={"clipping_bound": "neighbours"})
def norms_after_training(clipping_bound: Any) -> GradientNormHistogram:
    """Gradient norms after training every parameter."""
    return GradientNormHistogram(
        caption="Norms of the per-example gradients after {epochs} of training every parameter at "
        "{clipping_bound}, over all training examples of {dataset}, a panel for each problem. With "
        "{tuned}; seed 1.",
        panels=three_difficulties(method="all", clipping_bound=clipping_bound),
    )


# -- Gradient norms during training ------------------------------------------------------------


@figure(
    "Gradient norm distributions for small and large C",
    name="gradnorm_distributions_C{clipping_bound}",
    each={"clipping_bound": ["small", "large"]},
)
def norms_by_bound(clipping_bound: Any) -> GradientNormDistribution:
    """Gradient norms after each epoch, for small and large C."""
    return norms_by_epoch(each_epsilon(clipping_bound=clipping_bound))


@figure(
    "Per-class effects of gradient clipping",
    name="perclass_{dataset}",
    each={"dataset": ["imbalanced", "large"]},
)
def perclass_by_dataset(dataset: str) -> PerClass:
    """Classes of other datasets, after few epochs."""
    return effects_on_classes(
        three_difficulties(dataset=dataset, clipping_bound="neighbours", epochs="few")
    )


# *choice*: C = 1, as in the figures of gradient norms. All lines have one batch size, so that a step is the
# same share of training: the smallest with at most 100 steps an epoch.
@figure(
    "Mean gradient norm over iterations",
    name="mean_gradnorm_{epochs}epochs",
    each={"epochs": "all"},
)
def mean_norm_by_step(epochs: Any) -> NormTrace:
    """The mean gradient norm at each step, a line per ε."""
    return NormTrace(
        caption="Mean norm of the per-example gradients that were sampled at each optimizer step, before "
        "clipping, over {epochs}; a line per ε. {dataset}, {backbone} with {method}, {clipping_bound}, "
        "expected batch size {batch_size}, learning rate tuned, seed 1.",
        panels=[Panel(clipping_bound="baseline", batch_size="small", epochs=epochs)],
    )


# -- Cumulative noise and effective noise ------------------------------------------------------


@figure(NOISE, name="effective_noise_{dataset}", each={"dataset": ["large", "main"]})
def effective_noise(dataset: str, backbone: str = "weak") -> NoiseCurve:
    """Noise of one step against the batch size and the number of steps."""
    return NoiseCurve(
        caption="Noise in the averaged gradient of one step, σ/B, against batch size (top) and number of "
        "steps (bottom); a column per ε, a line per number of epochs. {dataset}, {backbone} with {method}, "
        "{seeds}. The colour of a point is its accuracy minus the best at the same ε and epochs, with "
        "{tuned} for the point.",
        cells=Selection(dataset=dataset, backbone=backbone, epochs="all"),
        axes=[
            NoiseAxes(title="By batch size", quantity="effective", x="batch_size"),
            NoiseAxes(title="By steps", quantity="effective", x="steps"),
        ],
    )


@figure(NOISE, name="cumulative_noise_{dataset}", each={"dataset": "main"})
def cumulative_noise_of(dataset: str) -> NoiseCurve:
    """Cumulative noise of other datasets than that of figure 7."""
    return cumulative_noise(Selection(dataset=dataset, epochs="all"))


# -- What an attacker can tell -----------------------------------------------------------------


# *choice*: a sampled batch, as in the figures of gradient norms. Noise does not depend on C.
@figure("What an attacker can tell about one person")
def attacker_curves() -> AttackerCurves:
    """The power of the best attacker, by ε."""
    return AttackerCurves(
        caption="The largest share of present people that any attacker recognises, by the share of absent "
        "people that they wrongly take for present; a line per ε, for a person with one record and for one "
        "with ten. On the grey line an attacker does no better than a coin. From the noise, the sampling "
        "rate and the steps of one training run: {dataset}, {backbone} with {method}, {epochs}, expected "
        "batch size {batch_size}. What was chosen among many runs tells more.",
        records=[1, 10],
        panels=[Panel(clipping_bound="baseline", batch_size="small")],
    )


# -- Theory from measured gradients ------------------------------------------------------------
# *choice*: section 4 of the paper has theorems, but no figures. Gradients are those of trials at one batch
# size, so that only clipping bounds and learning rates are tuned. The numbers are not private, as every
# caption states at its end.

ONE_BATCH_SIZE: dict[str, Any] = {"clipping_bound": "baseline", "batch_size": "small"}
BY_BACKBONE = [Panel(backbone=each, **ONE_BATCH_SIZE) for each in ("strong", "weak")]


@figure(THEORY)
def theory_error_decomposition() -> ErrorDecomposition:
    """The error of a private gradient sum, split into bias and noise."""
    return ErrorDecomposition(
        caption="The mean squared error of a private gradient sum (Theorem 4.1) against the clipping "
        "bound, split into what clipping takes away (bias) and what noise adds, at the start, in the "
        "middle and at the end of training. {backbone} with {method} on {dataset}, {epochs}, "
        "{clipping_bound}, expected batch size {batch_size}; {theory_seeds}, mean over draws of a batch.",
        panels=two_epsilons(**ONE_BATCH_SIZE),
    )


@figure(THEORY)
def theory_optimal_clipping() -> OptimalClippingTrace:
    """The clipping bound with the smallest error, after each epoch."""
    return OptimalClippingTrace(
        caption="The clipping bound C* with the smallest error (Theorem 4.1) and the median gradient norm "
        "after every epoch, a line for each ε, a panel for each backbone. {method} on {dataset}, {epochs}, "
        "trained with {clipping_bound} and expected batch size {batch_size}; {theory_seeds}. A bar spans "
        "all draws of a batch.",
        panels=BY_BACKBONE,
    )


@figure(THEORY)
def theory_privacy_effects() -> PrivacyEffectsFigure:
    """Effects of less ε on the best clipping bound: direct, and through the gradients."""
    return PrivacyEffectsFigure(
        caption="Why the best clipping bound changes with ε, after the last epoch. Less ε means more noise "
        "(the direct effect), and other gradients at the end of training (the indirect effect). One line has "
        "both; the two others change one of them alone and keep the other as it is at the largest ε. Of "
        "these, the one that follows the first line is the cause. Above, the bound with the smallest error "
        "(C*, Theorem 4.1); below, the bound with the best direction (scale-free C). {method} on {dataset}, "
        "{epochs}, {clipping_bound}, expected batch size {batch_size}; {theory_seeds}.",
        panels=BY_BACKBONE,
    )


@figure(THEORY)
def theory_predictions() -> PredictedClipping:
    """Best clipping bounds that gradients predict, against the measured ones."""
    datasets = ("main", "large", "small", "imbalanced")
    images = [
        {"dataset": dataset, "backbone": backbone}
        for dataset, backbone in product(datasets, ("strong", "weak"))
    ]
    problems: list[Problem] = [
        *images,
        *({"backbone": each, "method": "lora"} for each in ("strong", "weak")),
        TEXT,
        {**FROM_SCRATCH, "epochs": "many"},
        {"optimizer": "sgd"},
        *({**each, "clipping_bound": "automatic"} for each in (*images, TEXT)),
    ]
    return PredictedClipping(
        caption="Whether the theory predicts the best clipping bound. Above, the predicted bound against the "
        "measured one, a point for each problem, ε and batch size: C* of Theorem 4.1, C* with the noise of "
        "the largest ε, and the bound with the best direction. A good prediction lies on the line, or at "
        "least orders the settings (rank correlation). Below, the accuracy that each rule loses against the "
        "best bound of its setting, beside rules without a theory. {epochs}; learning rate tuned, {seeds}.",
        panels=[Panel(**each, batch_size="small") for each in problems],
    )


# -- Tables ------------------------------------------------------------------------------------


@table("Hyperparameter grids")
def taba1_hyperparameter_grid() -> HyperparameterGrid:
    """Table A1: the grids."""
    return HyperparameterGrid(caption="The grid of every sweep, as configured.")


@table("Datasets")
def taba2_datasets() -> Datasets:
    """Table A2: the datasets."""
    return Datasets(
        caption="The datasets as they were prepared, with their sizes, classes, balance and source."
    )


@table("Automatic clipping comparison")
def tab_autoclip() -> ComparisonTable:
    """AUTO-S and flat clipping with a tuned bound."""
    rows = [
        ComparedCells(dataset=each, epsilon="common", each=("epsilon",), clipping_bound=bound)
        for bound in ("automatic", None)
        for each in ("main", "imbalanced", "large")
    ]
    return ComparisonTable(
        caption="Macro accuracy of AUTO-S (gamma {gamma}) and of flat clipping with a tuned bound: "
        "{backbone} with {method}, {epochs}; batch size and learning rate tuned for both; mean and range "
        "over {seeds}.",
        rows=["dataset", "epsilon"],
        columns=["clipping"],
        entries=rows,
    )


@table("Optimizers")
def tab_optimizers() -> OptimizerTable:
    """Gains of other optimizers over DP-Adam."""
    return OptimizerTable(
        caption="What other optimizers gain over DP-Adam at the same ε: {backbone} with {method} on "
        "{dataset}; each optimizer has the batch size, clipping bound and learning rate that are best for "
        "it on its grid."
    )
