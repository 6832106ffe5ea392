"""Find the slowest tests of a run, from its log, and write them into CONTRIBUTING.md.

    .ci/run 2>&1 | tee run.log
    python -m benchmarks.durations run.log

The result goes to benchmarks/results/durations.json.
"""

import re
from pathlib import Path
from typing import Any

from benchmarks.common import REPOSITORY, RESULTS, command_line
from benchmarks.tables import filled, slowest_tests
from dpsweep.base.files import write_json, write_text

DOCUMENT = REPOSITORY / "CONTRIBUTING.md"
_BESIDE = re.compile("^beside: ", re.MULTILINE)
_TEST = re.compile(r"^ *([\d.]+)s (?:call|setup|teardown) +(\S+::.+?) *$", re.MULTILINE)
_RUN = re.compile(r"^=* ?(.*\d+ passed.*) in ([\d.]+)s")


def durations(log: str) -> dict[str, Any]:
    """Seconds of every listed test, slowest first, and how long each run of pytest took.

    Args:
        log: what pytest has written with ``--durations``, once or several times.
    """
    log, seconds = _BESIDE.sub("", log), dict[str, float]()
    for spent, test in _TEST.findall(log):
        seconds[test] = seconds.get(test, 0.0) + float(spent)
    runs = [match for line in log.splitlines() if (match := _RUN.match(line))]
    return {
        "tests": [
            {"test": test, "seconds": round(spent, 1)}
            for test, spent in sorted(seconds.items(), key=lambda each: -each[1])
        ],
        "runs": [{"outcome": match[1], "seconds": float(match[2])} for match in runs],
    }


def main() -> None:
    """Read the logs, keep the result, fill the table."""
    parser = command_line(__doc__)
    parser.add_argument("logs", nargs="+", type=Path, help="of .ci/run, make test or pytest")
    logs = [path.read_text(encoding="utf-8", errors="replace") for path in parser.parse_args().logs]
    result = durations("\n".join(logs))
    if not result["tests"]:
        parser.error(
            "found no durations; allowed: logs of pytest with --durations, as make test writes"
        )
    write_json(RESULTS / "durations.json", result)
    document = DOCUMENT.read_text(encoding="utf-8")
    write_text(DOCUMENT, filled(document, {"slowest tests": slowest_tests(result)}))


if __name__ == "__main__":
    main()
