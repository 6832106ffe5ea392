"""Put a study through random histories and compare with a fresh run of the study as it is then.

    python -m benchmarks.campaigns.histories 30    # goes on where it was stopped

A history is 3 to 6 events: an edit of the study (an axis, the seeds, a dataset's name, the pretraining,
a caption), an output or a folder deleted (`.snakemake` too), a trial store that cannot be used, a run that
is killed or interrupted, two calls at once, a disk that fills while it runs, results that are read-only, an
earlier copy of the results put back. Between events the same command may run. What it makes when it ends
with 0 must be what a fresh run of the study gives, and so it must at the end, when nothing is in its way and
what readers refuse was made again, by the command of their message.

A job of these runs is needless if it made again what was there, with the same content: these are counted.

The result goes to benchmarks/results/histories.json, a line for every history.
"""

import copy
import os
import random
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.workflow.tiny import STUDY, SWEEP, TinyChain, content, differences

from benchmarks.campaigns import campaign, surroundings
from benchmarks.campaigns.kills import wait_for_moment
from benchmarks.common import REPOSITORY, RESULTS
from dpsweep.base.files import fingerprint
from dpsweep.planning.outputs import Outputs
from dpsweep.study.paths import Paths


def more_seeds(study: dict[str, Any]) -> None:
    """One more seed."""
    study["sweeps"][SWEEP]["seeds"] = 3


def longer_axis(study: dict[str, Any]) -> None:
    """One more clipping bound."""
    study["sweeps"][SWEEP]["clipping_bound"] = [1.0, 10.0]


def renamed_dataset(study: dict[str, Any]) -> None:
    """Another name for the private dataset."""
    study["datasets"]["animals"] = study["datasets"].pop("pets")
    study["sweeps"][SWEEP]["dataset"] = "animals"
    study["roles"]["datasets"]["main"] = "animals"


def other_pretraining(study: dict[str, Any]) -> None:
    """Pretraining on half of the public images."""
    study["backbones"]["vit"]["weights"]["train_share"] = 0.5


def other_caption(study: dict[str, Any]) -> None:
    """Another caption of a figure."""
    study["figures"]["heatmap"]["caption"] = "Other words."


# Every edit goes there and back, so that few different studies have to be run afresh.
EDITS: tuple[Callable[[dict[str, Any]], None], ...] = (
    *(more_seeds, longer_axis, renamed_dataset, other_pretraining, other_caption),
)


class History:
    """A study and what happens to it."""

    def __init__(self, scratch: Path, seed: int) -> None:
        self._draw = random.Random(seed)
        self._fresh = scratch / "fresh"
        self._earlier = scratch / "earlier"
        folder = scratch / "run"
        for each in (folder, self._earlier):
            shutil.rmtree(each, ignore_errors=True)
        shutil.copytree(self.fresh(STUDY).parent, folder)
        self.chain = TinyChain(folder)
        self._edited: set[Callable[[dict[str, Any]], None]] = set()
        self.events: list[str] = []
        self.wrong: list[str] = []
        """Differences from fresh runs where a run ended with 0, and the output of runs that had to."""
        self.jobs = self.needless = 0
        """Jobs that made an output, and those of them that found the same content there."""

    def fresh(self, study: dict[str, Any]) -> Path:
        """The results of a run of a study in a folder where nothing is."""
        folder = self._fresh / fingerprint(study)[:16]
        if not (folder / "done").exists():
            shutil.rmtree(folder, ignore_errors=True)
            chain = TinyChain(folder, study)
            assert campaign.start(chain).wait() == 0, chain.said
            (folder / "done").touch()
        return folder / "results"

    def happen(self) -> None:
        """Let one event happen."""
        event = self._draw.choice(
            [
                *(self._edit, self._edit, self._delete, self._delete_folder, self._call_twice),
                *(self._break_store, self._kill, self._put_back),
                *([self._fill_disk, self._make_read_only] if surroundings.can_mount() else []),
            ]
        )
        self.events.append(f"{event.__name__.strip('_')}: {event()}")

    def run(self, must_succeed: bool = False) -> int:
        """Call the command, and compare what it made; the lock of a run that was killed is removed first."""
        campaign.unlock(self.chain)
        before = self._outputs()
        status = self._finished(campaign.start(self.chain))
        self.events.append(f"run: exit {status}")
        for files, (made, found) in self._outputs().items():
            earlier, there = before.get(files, (None, None))
            self.jobs += made != earlier
            self.needless += made != earlier and found == there
        if status != 0 and must_succeed:
            self.wrong.append(self._plain(self.chain.said)[-4000:])
        return status

    def _plain(self, said: str) -> str:
        """What a run said, without folders of this machine."""
        places = {self.chain.folder: "RUN", REPOSITORY: "DPSWEEP", Path.home(): "~"}
        for place, name in places.items():
            said = said.replace(str(place), name)
        return said

    def follow_messages(self) -> None:
        """Make again what readers refuse, by the commands that their messages end with."""
        refused = set(re.findall(r"To make it again:\n +snakemake .* -- (\S+)", self.chain.logs()))
        for file in sorted(refused):
            status = self.chain.fork(file, options=("--force",)).wait()
            self.events.append(f"refused and made again: {file}, exit {status}")

    def _finished(self, run: campaign.Run) -> int:
        """Wait for the end of a run; where it is 0, compare what it made."""
        status = campaign.wait(run, self.chain.folder)
        left = campaign.left_in(self.chain.folder)
        assert status is not None and not left, left
        if status == 0:
            expected = self.fresh(self.chain.study)
            self.wrong += differences(self.chain.parsed, self.chain.results, expected)
        return status

    def clear(self) -> None:
        """Take away what keeps a run from its end."""
        store = self.chain.results / "trials"
        if store.is_file():
            store.unlink()
            self.events.append("the store is usable again")

    def _edit(self) -> str:
        change = self._draw.choice(EDITS)
        self._edited ^= {change}
        self.chain.study = copy.deepcopy(STUDY)
        for each in EDITS:
            if each in self._edited:
                each(self.chain.study)
        self.chain.write()
        return f"{change.__name__} {'on' if change in self._edited else 'off'}"

    def _outputs(self) -> dict[tuple[Path, ...], tuple[list[int], list[Any]]]:
        """Times and content of the outputs of the study as it is now that are complete."""
        outputs = Outputs(self.chain.parsed, Paths(self.chain.results)).every()
        return {
            tuple(files): ([file.stat().st_mtime_ns for file in files], list(map(content, files)))
            for files in (output.files for output in outputs)
            if all(file.exists() for file in files)
        }

    def _delete(self) -> str:
        outputs = Outputs(self.chain.parsed, Paths(self.chain.results)).every()
        files = [file for output in outputs for file in output.files if file.exists()]
        if not files:
            return "no output"
        file = self._draw.choice(files)
        file.unlink()
        return str(file.relative_to(self.chain.folder))

    def _delete_folder(self) -> str:
        places = [path for path in self.chain.results.iterdir() if path.is_dir()]
        place = self._draw.choice([*places, self.chain.folder / ".snakemake"])
        shutil.rmtree(place, ignore_errors=True)
        return str(place.relative_to(self.chain.folder))

    def _call_twice(self) -> str:
        """Call the command while it runs: one of the two does the work."""
        runs = [campaign.start(self.chain), campaign.start(self.chain)]
        statuses = [campaign.wait(run, self.chain.folder) for run in runs]
        left = campaign.left_in(self.chain.folder)
        assert None not in statuses and not left, (statuses, left)
        return f"exits {statuses[0]} and {statuses[1]}"

    def _fill_disk(self) -> str:
        """Run on a disk that is nearly full."""
        if not self.chain.results.is_dir():
            return "no results"
        spare = self._draw.choice([0, 20_000, 100_000, 400_000])
        with surroundings.small_disk(self.chain.results, spare):
            status = self._finished(campaign.start(self.chain))
        return f"{spare} bytes left, exit {status}"

    def _make_read_only(self) -> str:
        """Run where results cannot be written."""
        if not self.chain.results.is_dir():
            return "no results"
        with surroundings.read_only(self.chain.results):
            status = self._finished(campaign.start(self.chain))
        return f"exit {status}"

    def _break_store(self) -> str:
        store = self.chain.results / "trials"
        if store.is_dir():
            shutil.rmtree(store)
        if not store.exists():
            store.parent.mkdir(exist_ok=True)
            store.touch()
        return "a file in its place"

    def _kill(self) -> str:
        run = campaign.start(self.chain)
        number = self._draw.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
        moment = wait_for_moment(run, self.chain.results, self._draw)
        if moment is not None:
            os.killpg(run.pid, number)
        status = campaign.wait(run, self.chain.folder)
        left = campaign.left_in(self.chain.folder)
        assert status is not None and not left, (number, moment, left)
        return f"{number.name} after {moment}, exit {status}"

    def _put_back(self) -> str:
        if self._earlier.exists() and self._draw.random() < 0.7:
            shutil.rmtree(self.chain.results, ignore_errors=True)
            shutil.copytree(self._earlier, self.chain.results, symlinks=True)
            return "an earlier copy"
        shutil.rmtree(self._earlier, ignore_errors=True)
        if self.chain.results.exists():
            shutil.copytree(self.chain.results, self._earlier, symlinks=True)
        return "a copy is kept for later"


def live(scratch: Path, seed: int) -> dict[str, Any]:
    """Live through one history."""
    draw = random.Random(-seed)
    history = History(scratch, seed)
    for _ in range(draw.randint(3, 6)):
        history.happen()
        if draw.random() < 0.5:
            history.run()
    history.clear()
    if history.run() != 0:
        history.follow_messages()
        history.run(must_succeed=True)
    return {
        **{"events": history.events, "wrong": history.wrong},
        **{"jobs": history.jobs, "needless": history.needless},
    }


if __name__ == "__main__":
    campaign.grow(
        RESULTS / "histories.json",
        "histories",
        live,
        size=lambda _: 1,
        is_good=lambda result: not result["wrong"],
    )
