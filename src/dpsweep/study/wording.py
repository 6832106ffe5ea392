"""Words of captions for how things were chosen; the rule itself is `dpsweep.study.choice`."""

from dpsweep.study.study import Study
from dpsweep.study.target import Target


def how_chosen(study: Study, target: Target) -> str:
    """End a caption with how settings were chosen; empty where nothing was chosen."""
    where = "the test set" if study.training.select_on == "test" else "held-out training examples"
    said = []
    if target.tunes:
        said.append(
            f"What is tuned was chosen by mean accuracy over all seeds on {where} (learning rates: "
            "first seed)."
        )
    if target.shows_means:
        said.append(
            "Accuracies are means over the seeds that chose, and so optimistic; the CSV has beside "
            "them (cross_fitted) what seeds measured that did not choose."
        )
    if target.tuning_note:
        said.append(target.tuning_note)
    return " ".join(said)
