"""Run a study through random histories, and compare its outputs with a fresh run of the final study.

    python -m benchmarks.campaigns.histories 30    # resumes after a stop

A history has 3 to 6 events: an edit of the study (an axis, the seeds, a dataset's name, the pretraining,
a caption), a deleted output or folder (also `.snakemake`), an unusable trial store, a killed or interrupted
run, two calls at once, a disk that becomes full during a run, read-only results, a restored copy of earlier
results. The same command may run between events. If a run ends with 0, its outputs must be those of a fresh
run. This must also hold at the end, without obstacles, after outputs that readers refuse were made again by
the command in the message.

A job is needless if it made an existing output again with the same content. Needless jobs are counted.

The result goes to benchmarks/results/histories.json, with one line for every history.
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

from tests.workflow.tiny import STUDY, SWEEP, TinyChain

from benchmarks.campaigns import campaign, surroundings
from benchmarks.campaigns.kills import wait_for_moment
from benchmarks.common import REPOSITORY, RESULTS
from dpsweep.base.files import fingerprint
from dpsweep.planning.outputs import Outputs
from dpsweep.study import Paths


def more_seeds(study: dict[str, Any]) -> None:
    """Add a seed."""
    study["sweeps"][SWEEP]["seeds"] = 3


def longer_axis(study: dict[str, Any]) -> None:
    """Add a clipping bound."""
    study["sweeps"][SWEEP]["clipping_bound"] = [1.0, 10.0]


def renamed_dataset(study: dict[str, Any]) -> None:
    """Rename the private dataset."""
    study["datasets"]["animals"] = study["datasets"].pop("pets")
    study["sweeps"][SWEEP]["dataset"] = "animals"
    study["roles"]["datasets"]["main"] = "animals"


def other_pretraining(study: dict[str, Any]) -> None:
    """Pretrain on half of the public images."""
    study["backbones"]["vit"]["weights"]["train_share"] = 0.5


def other_caption(study: dict[str, Any]) -> None:
    """Change the caption of a figure."""
    study["figures"]["heatmap"]["caption"] = "Other words."


# Every edit can be undone, so only few different studies need a fresh run.
EDITS: tuple[Callable[[dict[str, Any]], None], ...] = (
    *(more_seeds, longer_axis, renamed_dataset, other_pretraining, other_caption),
)


class History:
    """A study and its events."""

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
        """Differences of successful runs from fresh runs, and the messages of runs that had to succeed."""
        self.jobs = self.needless = 0
        """Number of jobs that made an output, and of those that made the same content again."""

    def fresh(self, study: dict[str, Any]) -> Path:
        """Return the results of a run of a study in an empty folder."""
        folder = self._fresh / fingerprint(study)[:16]
        if not (folder / "done").exists():
            shutil.rmtree(folder, ignore_errors=True)
            chain = TinyChain(folder, study)
            assert campaign.start(chain).wait() == 0, chain.said
            (folder / "done").touch()
        return folder / "results"

    def add_event(self) -> None:
        """Let one random event happen."""
        event = self._draw.choice(
            [
                *(self._edit, self._edit, self._delete, self._delete_folder, self._call_twice),
                *(self._break_store, self._kill, self._put_back),
                *([self._fill_disk, self._make_read_only] if surroundings.can_mount() else []),
            ]
        )
        self.events.append(f"{event.__name__.strip('_')}: {event()}")

    def run(self, must_succeed: bool = False) -> int:
        """Remove the lock of a killed run, call the command, and compare its outputs."""
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
        """Return the output of a run without folders of this machine."""
        places = {self.chain.folder: "RUN", REPOSITORY: "DPSWEEP", Path.home(): "~"}
        for place, name in places.items():
            said = said.replace(str(place), name)
        return said

    def remake_refused(self) -> None:
        """Make outputs that readers refuse again, by the commands in the messages."""
        refused = set(re.findall(r"To make it again:\n +snakemake .* -- (\S+)", self.chain.logs()))
        for file in sorted(refused):
            status = self.chain.fork(file, options=("--force",)).wait()
            self.events.append(f"refused and made again: {file}, exit {status}")

    def _finished(self, run: campaign.Run) -> int:
        """Wait for the end of a run; if its status is 0, compare its outputs."""
        status = campaign.wait(run, self.chain.folder)
        left = campaign.left_in(self.chain.folder)
        assert status is not None and not left, left
        if status == 0:
            expected = self.fresh(self.chain.study)
            self.wrong += campaign.differences(self.chain.parsed, self.chain.results, expected)
        return status

    def clear(self) -> None:
        """Remove obstacles to a successful run."""
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
        """Return times and content of the complete outputs of the present study."""
        outputs = Outputs(self.chain.parsed, Paths(self.chain.results)).every()
        return {
            tuple(files): (
                [file.stat().st_mtime_ns for file in files],
                list(map(campaign.content, files)),
            )
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
        """Call the command twice at once; one of the calls does the work."""
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
        """Run with read-only results."""
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


def run_history(scratch: Path, seed: int) -> dict[str, Any]:
    """Run one history."""
    draw = random.Random(-seed)
    history = History(scratch, seed)
    for _ in range(draw.randint(3, 6)):
        history.add_event()
        if draw.random() < 0.5:
            history.run()
    history.clear()
    if history.run() != 0:
        history.remake_refused()
        history.run(must_succeed=True)
    return {
        **{"events": history.events, "wrong": history.wrong},
        **{"jobs": history.jobs, "needless": history.needless},
    }


if __name__ == "__main__":
    campaign.grow(
        RESULTS / "histories.json",
        "histories",
        run_history,
        size=lambda _: 1,
        is_good=lambda result: not result["wrong"],
    )
