"""Measure the discovery of backends among 10, 100 and 1000 installed distributions.

The distributions are folders as pip installs them (METADATA, entry_points.txt and so on), on a sys.path
with nothing else but the standard library. Three of them declare backends, and one declares hooks. Each
value is from a new process, because results are cached. The process has imported the modules of the
standard library that torch imports, because RPC backends are used only with torch. The processes of a
round run in random order. These calls are compared with `importlib_metadata.entry_points()`:

- *first scan*: the first `rpc_backends_core.records()`, with our modules and `importlib_metadata` already
  imported. Modules that `importlib_metadata` imports late are imported during the scan.
- *first scan, with imports*: the same with all imports, as in the first use of `rpc.BackendType.NAME`.
- *refresh*: `rpc_backends_core.refresh()`, against `entry_points()` with its caches cleared too.
- *repeated*: a later call of `records()`.

Times are processor time unless --clock says otherwise; the files are in the system's cache. Two more
rows compare `importlib.metadata` of the standard library with `importlib_metadata`.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from _report import Bar, Report, parser, run
from _scanner import FIRST, OURS, PROGRAMS, REFERENCE, STDLIB

from rpc_backends_bench.process_set import shuffled
from rpc_backends_bench.progress import Progress

SIZES = (10, 100, 1000)
BARS = {FIRST: Bar(1.2)}
_STDLIB = sys.stdlib_module_names - {"__main__"}

Times = dict[str, float]


def make_distributions(folder: Path, count: int) -> None:
    """Write ``count`` installed distributions, four of which have our entry points."""
    folder.mkdir()
    ours = {count // 5: "ALPHA", count // 2: "BETA", count - 1: "GAMMA"}
    for number in range(count):
        name = f"made_up_package_{number:04}"
        (folder / name).mkdir()
        (folder / name / "__init__.py").touch()
        info = folder / f"{name}-1.{number}.dist-info"
        info.mkdir()
        files = {"METADATA": _metadata(name, number), "INSTALLER": "pip\n", "WHEEL": _WHEEL}
        points = _entry_points(name, number, ours.get(number))
        if points:
            files["entry_points.txt"] = points
        files["RECORD"] = "".join(
            f"{info.name}/{file},sha256=,{len(text)}\n" for file, text in files.items()
        )
        for file, text in files.items():
            (info / file).write_text(text)


def _metadata(name: str, number: int) -> str:
    """Return a METADATA file of typical size, 3 KB to 9 KB, with a README in it."""
    fields = [
        "Metadata-Version: 2.4",
        f"Name: {name.replace('_', '-')}",
        f"Version: 1.{number}",
        "Summary: A package that does something or other",
        "License-Expression: BSD-3-Clause",
        "Requires-Python: >=3.9",
        *(f"Classifier: Programming Language :: Python :: 3.{minor}" for minor in range(9, 15)),
        *(f"Requires-Dist: dependency-{other}>=1.0" for other in range(number % 8)),
        "Description-Content-Type: text/markdown",
    ]
    line = "A line of the description, which is as long as such lines are in a README.\n"
    return "\n".join(fields) + "\n\n" + line * (40 + number % 80)


def _entry_points(name: str, number: int, backend: str | None) -> str:
    """Return the text of an entry_points.txt; empty for three quarters of the packages."""
    if backend is not None:
        return f"[rpc.backends]\n{backend} = {name}:BACKEND\n"
    if number == 1:
        return f"[rpc.backends.hooks]\n{name} = {name}:hooks\n"
    if number % 4:
        return ""
    commands = "".join(f"{name}-{word} = {name}.cli:{word}\n" for word in ("run", "show"))
    return f"[console_scripts]\n{commands}\n[pytest11]\n{name} = {name}.plugin\n"


_WHEEL = "Wheel-Version: 1.0\nGenerator: benchmark\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def make_code(folder: Path) -> None:
    """Link all installed packages into ``folder``, without the metadata of their distributions."""
    folder.mkdir()
    core = find_spec("rpc_backends_core")
    library = find_spec("importlib_metadata")
    assert core is not None and core.origin is not None
    assert library is not None and library.origin is not None
    for child in Path(library.origin).parents[1].iterdir():
        if child.suffix not in (".dist-info", ".egg-info", ".pth"):
            (folder / child.name).symlink_to(child)
    if not (folder / "rpc_backends_core").exists():  # an editable installation is elsewhere
        (folder / "rpc_backends_core").symlink_to(Path(core.origin).parent)


class Scanner:
    """Runs the programs of `_scanner` in new processes.

    :param code: the folder to import packages from.
    :param some: a folder with distributions, some of which declare backends.
    :param clock: ``cpu`` or ``wall``.
    """

    def __init__(self, code: Path, some: Path, clock: str) -> None:
        self._code = str(code)
        torchs = self._imported_by("import torch", [self._code])
        records = "import rpc_backends_core; assert rpc_backends_core.records()"
        ours = self._imported_by(records, [str(some), self._code])
        self._settings = {
            "clock": clock,
            # Discovery runs after torch's import; of that, only the standard library's modules matter.
            "before": [name for name in torchs if name.partition(".")[0] in _STDLIB],
            "ours": [name for name in ours if name.partition(".")[0] == "rpc_backends_core"],
        }

    def run(self, situation: str, side: str, folder: Path) -> Times:
        """Run one program with the distributions in ``folder``.

        :raises RuntimeError: it failed, or did not find exactly the declared backends.
        """
        settings = {
            **self._settings,
            "situation": situation,
            "side": side,
            "folders": [str(folder), self._code],
        }
        program = str(Path(__file__).with_name("_scanner.py"))
        times, names = json.loads(self._python(program, json.dumps(settings)))
        if names != ["ALPHA", "BETA", "GAMMA"]:
            raise RuntimeError(f"{situation} of {side} found {names} in {folder}")
        result: Times = times
        return result

    def _imported_by(self, code: str, folders: list[str]) -> list[str]:
        """Return the modules that ``code`` imports, in the order of import."""
        lines = (
            f"import sys; sys.path += {folders}; before = set(sys.modules)",
            code,
            "import json; print(json.dumps([name for name in sys.modules if name not in before]))",
        )
        names: list[str] = json.loads(self._python("-c", "\n".join(lines)))
        return names

    @staticmethod
    def _python(*arguments: str) -> str:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("RPC_BACKENDS_")}
        done = subprocess.run(
            [sys.executable, "-I", "-S", *arguments],
            env={**environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"a measured program failed:\n{done.stderr}")
        return done.stdout


def measure(
    folder: Path, rounds: int, seed: int, clock: str, report: Report, progress: Progress
) -> None:
    """Run all rounds; the first only fills the system's file cache and is not counted."""
    progress.describe("writing the distributions")
    make_code(folder / "code")
    for size in SIZES:
        make_distributions(folder / str(size), size)
    rng = random.Random(seed)
    scanner = Scanner(folder / "code", folder / str(SIZES[0]), clock)
    for turn in range(rounds + 1):
        for size in SIZES:
            progress.describe(f"{size} distributions")
            for situation, sides in PROGRAMS.items():
                times = {
                    side: scanner.run(situation, side, folder / str(size))
                    for side in shuffled(list(sides), rng)
                }
                if turn:
                    _add(report, f"{size:4} distributions", turn, times)
        progress.advance(1)


def _add(report: Report, section: str, turn: int, times: dict[str, Times]) -> None:
    # Each value is from new processes, so each round is a process set of one round.
    at, reference = (turn, 0), times[REFERENCE]
    for name, ours in times[OURS].items():
        report.add_pair(section, name, at, (ours, reference[name]), BARS.get(name))
    for name, stdlib in times[STDLIB].items():
        report.add_pair(section, f"{name}: {STDLIB}", at, (stdlib, reference[name]))


def main() -> int:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=30, help="processes of each kind (30)")
    options.add_argument(
        "--clock",
        choices=("cpu", "wall"),
        default="cpu",
        help="processor time, which other programs hardly affect, or wall-clock time (cpu)",
    )
    arguments = options.parse_args()
    if arguments.quick:
        arguments.rounds = 4
    if arguments.rounds < 1:
        options.error("--rounds must be at least 1")
    title = f"Discovery ({arguments.clock} time)"
    report = Report(title, "ours", "entry_points()", "importlib-metadata")

    with tempfile.TemporaryDirectory(prefix="rpc-bench-") as folder:

        def measure_all(progress: Progress) -> None:
            given = arguments.rounds, arguments.seed, arguments.clock
            measure(Path(folder), *given, report, progress)

        return run(report, arguments, arguments.rounds + 1, measure_all)


if __name__ == "__main__":
    sys.exit(main())
