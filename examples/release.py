"""Choose the setting of a release by a formula, train the model under ε = 2, and verify what came out.

python examples/release.py notes.yaml             # as examples/embeddings.py writes it
python examples/release.py notes.yaml --cores 2   # what follows is for `dpsweep run`
"""

import subprocess
import sys
from pathlib import Path

import dpsweep
from dpsweep.release import ReleaseError
from dpsweep.study import load_study

EPSILON, EPOCHS = 2, 8


def called(*words: object) -> str:
    """Call dpsweep, and return what it prints."""
    command = [sys.executable, "-m", "dpsweep.cli", *map(str, words)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def main(study: Path, *options: str) -> None:
    """Go from a study to a model that others may have."""
    sweep = next(iter(load_study(study).sweeps))
    # The formula reads N, ε and the like: it looks at no data, so ε covers the choice.
    advice = called("recommend", sweep, "--study", study, "--epsilon", EPSILON, "--epochs", EPOCHS)
    print(advice)
    with study.open("a") as stream:
        stream.write("\n" + advice[advice.index("release:") :])
    called("run", study, "release", *options)

    folder = Path("results") / study.stem / "release"
    certificate = dpsweep.verify(folder)
    print(f"ε = {certificate.certified_epsilon:.3f}, accuracy {certificate.test_accuracy:.3f}")
    # Who receives the folder finds what was changed in it.
    card = folder / "README.md"
    text = card.read_text(encoding="utf-8")
    card.write_text(text.replace(f"{EPSILON}", "1"), encoding="utf-8")
    try:
        dpsweep.verify(folder)
    except ReleaseError as error:
        print(f"with ε = 1 on its card: {error}")
    card.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
