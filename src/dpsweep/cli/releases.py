"""Commands for a released model: recommend a setting, explain a guarantee, train, verify."""

import contextlib
import shlex
from pathlib import Path
from typing import Annotated

import typer

from dpsweep.base.formatting import rounded_up
from dpsweep.cli.options import FoundStudy, StudyFile, find_study, open_study, path, training
from dpsweep.release import FROZEN, budget_in_words
from dpsweep.study.load import DEFAULT_STUDY, split_study
from dpsweep.study.messages import pick

app = typer.Typer()

_LEDGER = "compared only with the ledger of where it was made (--ledger FILE)"


@app.command()
def recommend(
    epsilon: Annotated[float, typer.Option(help="of one training run")],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STUDY] [SWEEP]",
            help="the study, as in the other commands; a sweep of it, for its dataset, method and optimizer "
            "(without it, the only one)",
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000,
            help="of one training run; without it, several numbers are compared",
        ),
    ] = None,
    study_file: FoundStudy = None,
) -> None:
    """Recommend batch size, clipping bound and learning rate, as a section for a release.

    It reads the study and no data. Without --epochs, it compares 1, 4, 16 and 64 epochs.
    """
    from dpsweep.recommend.rule import compared_epochs, recommendation

    named, sweeps = split_study(words or [])
    _, study, paths = find_study(named or study_file)
    sweep = " ".join(sweeps or (study.sweeps if len(study.sweeps) == 1 else ()))
    pick("sweep", sweep, study.sweeps)
    lines = (
        compared_epochs(study, sweep, epsilon, paths)
        if epochs is None
        else recommendation(study, sweep, epsilon, epochs, paths)
    )
    typer.echo("\n".join(lines))


@app.command()
def explain(
    epsilon: Annotated[float, typer.Argument(help="of the guarantee")],
    delta: Annotated[float, typer.Argument(help="of the guarantee")],
    train_size: Annotated[
        int | None, typer.Option(min=1, help="N, for training with the noise of this guarantee")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="expected batch size B; by default the full batch")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="T")] = None,
    unit: Annotated[
        str | None,
        typer.Option(help="what N counts, if it has several rows: 'one patient with all images'"),
    ] = None,
) -> None:
    """Explain in words and rates what a guarantee means for one person.

    With --train-size and --steps, the rates are those of this training. (EPSILON, DELTA) alone do not
    determine the mechanism: then the rates are for the worst mechanism and for a Gaussian one.
    """
    from dpsweep.privacy.trade_off import explanation

    typer.echo("\n".join(explanation(epsilon, delta, train_size, batch_size, steps, unit)))


@app.command()
def release(study_file: StudyFile = DEFAULT_STUDY) -> None:
    """Train a model that may be released, and write its folder with certificate and card.

    SIGTERM and SIGUSR1 end it between two steps. Nothing is saved: the next call starts again.
    """
    from dpsweep.release.certificate import ReleasePlan
    from dpsweep.release.files import sentences
    from dpsweep.release.train import write_release

    study, paths = open_study(study_file)
    with training(study.release_gpus(ReleasePlan(study).release)):
        folder = write_release(study, paths)
    for sentence in sentences(folder):
        typer.echo(sentence)
    typer.echo(f"{folder}: to check it, run: dpsweep verify {shlex.quote(str(folder))}")


@app.command()
def verify(
    folder: Annotated[Path, typer.Argument(parser=path, help="the folder of a release")],
    backbone: Annotated[
        Path | None,
        typer.Option(
            parser=path,
            help="folder of the prepared backbone, to compare frozen parameters with its weights",
        ),
    ] = None,
    study_file: Annotated[
        Path | None,
        typer.Option(
            "--study",
            parser=path,
            help="a study, to compare its section release with the certificate",
        ),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(
            parser=path,
            help="the ledger of releases where it was made; by default the one beside the results",
        ),
    ] = None,
    no_ledger: Annotated[
        bool,
        typer.Option("--no-ledger", help="for a release made elsewhere: compare with no ledger"),
    ] = False,
) -> None:
    """Prove a release's certificate again, and list what the folder alone cannot prove."""
    from dpsweep.release import verify as verification
    from dpsweep.release.certificate import FORGEABLE_CLAIMS
    from dpsweep.release.files import accuracy_in_words, advice_if_no_better, printable

    with_ledger: Path | verification.LedgerWord = ledger or ("none" if no_ledger else "beside")
    found = verification.verify(folder, backbone, with_ledger)
    compared = verification.ledger_of(folder, with_ledger)
    budget = ""
    if study_file is not None:
        # Without figures: a study from elsewhere may name Python files, which must not run here.
        released, ledger_file = folder.resolve(), compared and compared.resolve()
        with contextlib.chdir("."):
            _, study, paths = find_study(study_file, figures=False)
            verification.compare(released, study, paths, ledger_file)
            budget = budget_in_words(study, paths)
    if said := advice_if_no_better(found):
        typer.echo(said)
    typer.echo(
        f"{folder}: ({rounded_up(found.epsilon)}, {rounded_up(found.delta)})-differentially private, "
        f"{found.adjacency}; epsilon {rounded_up(found.certified_epsilon)} proven, "
        f"{rounded_up(found.second_opinion[1])} by {found.second_opinion[0]}"
    )
    if found.adjacency == "add or remove one unit":
        typer.echo(
            f"protected: {printable(found.protected)}; N = {found.split.train_size} of them; epsilon of rows "
            "is another guarantee, and not comparable"
        )
    if found.tuning:
        typer.echo(
            f"tuned by the noisy score of {found.split.held_out} {found.split.counted} that were held out; "
            "epsilon covers the choice"
        )
    typer.echo(f"accuracy {accuracy_in_words(found)}")
    together = found.releases
    typer.echo(
        f"released before on these data, as far as the ledger goes: {len(together.earlier)}; all together "
        f"({rounded_up(together.joint_epsilon)}, {rounded_up(together.joint_delta)})-differentially private"
    )
    if budget:
        typer.echo(budget)
    for name in found.earlier_sweeps:
        typer.echo(f"not covered: choices made by looking at the sweep {printable(name)}")
    if found.earlier_trials:
        typer.echo(f"not covered: choices made by looking at {found.earlier_trials} earlier trials")
    typer.echo("not verified (the folder alone does not show it):")
    for name, why in verification.unverifiable_claims(found).items():
        typer.echo(f"  {name}: {why}")
    if compared is None:
        typer.echo(f"  earlier releases, and whether this is the model that was made: {_LEDGER}")
    else:
        typer.echo(f"the ledger {compared} has this certificate, and the same earlier releases")
    for name, why in FORGEABLE_CLAIMS.items():
        typer.echo(f"  {name} (a forger could recompute it): {why}")
    if backbone is None:
        typer.echo(f"  numbers in {FROZEN}: compared only with --backbone")
