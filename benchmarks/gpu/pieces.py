"""The pieces of the GPU kit, and the function that runs one."""

import logging
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import right, speed, trials
from benchmarks.gpu.kit import Kit
from benchmarks.speed.steps import REHEARSAL, ROWS
from dpsweep.base.files import write_json, write_text

_LONG = 240


@dataclass(frozen=True)
class Piece:
    """A check or a measurement."""

    name: str
    run: Callable[[Kit], dict[str, Any]]
    needs: tuple[str, ...] = ()
    """files of the inputs"""
    least_seconds: float = 60
    """Time that must be left to start it."""


def all_pieces(kit: Kit) -> list[Piece]:
    """Return all pieces, ordered by their value for their time."""
    rows = REHEARSAL if kit.rehearse else ROWS
    first, second, *rest = (
        Piece(name, partial(trials.train, cells=cells), needs)
        for name, cells, needs in trials.groups(kit)
    )
    networks = {row.name: partial(right.network_problem, row) for row in rows}
    # Compilation takes minutes.
    first_compiled, *compiled = (
        [
            Piece(f"{name}_{row.name}_compiled", run, least_seconds=_LONG)
            for name, run in (
                ("right", partial(right.check_engines, make=networks[row.name], compiled=True)),
                ("step", partial(speed.measure_step, row=row, compiled=True)),
            )
            if name == "step" or row.compiles
        ]
        for row in rows
    )
    return [
        *(
            Piece(f"right_{name}", partial(right.check_engines, make=networks[name]))
            for name in networks
        ),
        Piece("right_linear", partial(right.check_engines, make=right.linear_problem)),
        Piece("right_noise", right.check_noise),
        Piece("right_resume", right.check_resume),
        first,
        *(Piece(f"step_{row.name}", partial(speed.measure_step, row=row)) for row in rows),
        Piece("noise_cost", speed.measure_noise),
        Piece("processes", speed.measure_processes),
        Piece("cell", speed.measure_cell, least_seconds=_LONG),
        *first_compiled,
        second,
        *(piece for both in compiled for piece in both),
        *rest,
        Piece("cell_compiled", partial(speed.measure_cell, compiled=True), least_seconds=_LONG),
    ]


def run(kit: Kit, name: str, results: Path) -> None:
    """Run one piece in this process, and write its result or its error."""
    os.setpgrp()  # its child processes end with it
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # shows the chosen engines
    if kit.rehearse:
        torch.set_num_threads(1)
        torch.compiler.set_stance("force_eager")  # the tests of the engines compile
    failed, started = results / f"{name}.failed", time.monotonic()
    try:
        piece = next(piece for piece in all_pieces(kit) if piece.name == name)
        content = {"piece": name, "environment": kit.environment()} | piece.run(kit)
        content["piece_seconds"] = round(time.monotonic() - started, 1)
        write_json(results / f"{name}.json", content)
    except Exception:
        write_text(failed, traceback.format_exc())
        raise
    failed.unlink(missing_ok=True)
