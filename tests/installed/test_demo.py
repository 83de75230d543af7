"""Which backends the demo trains over if some packages are not installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.environments import ChildFailedError, Environment
from support.samples import MakeEnvironment, backend_package

EXAMPLES = {"PYTHONPATH": str(Path(__file__).parents[2] / "examples")}
CHOOSE = """
    import json, sys
    from demo.backends import choose
    choice = choose(sys.argv[1:])
    parts = {origin.backend: faults.by for origin, faults in choice.parts if faults}
    print(json.dumps([[origin.backend for origin, _ in choice.parts], parts, choice.notes]))
"""


def test_a_missing_backend_is_skipped_with_a_note(installed: Environment) -> None:
    assert installed.run(CHOOSE, env=EXAMPLES).json == [
        ["TENSORPIPE", "FAULTY_TENSORPIPE"],
        {"FAULTY_TENSORPIPE": ""},
        [
            "ZEROMQ is skipped: it is not installed. To add it: pip install rpc-backend-zeromq",
        ],
    ]


def test_a_missing_backend_given_by_name_is_an_error(installed: Environment) -> None:
    with pytest.raises(ChildFailedError, match=r"UnknownBackendError: .*ZEROMQ"):
        installed.run(CHOOSE, "TENSORPIPE", "ZEROMQ", env=EXAMPLES)


def test_without_the_faults_package_a_note_says_so(
    make_environment: MakeEnvironment, tmp_path: Path
) -> None:
    zeromq = backend_package(tmp_path, name="ZEROMQ", distribution="rpc-backend-zeromq")
    environment = make_environment(
        "rpc-backend-tensorpipe", "rpc-backend-faulty-tensorpipe", zeromq
    )

    backends, faults, notes = environment.run(CHOOSE, env=EXAMPLES).json

    assert backends == ["TENSORPIPE", "FAULTY_TENSORPIPE", "ZEROMQ"]
    assert faults == {"FAULTY_TENSORPIPE": ""}
    assert notes == [
        "No faults on ZEROMQ: rpc-backends-faults is not installed. To add them: "
        "pip install rpc-backends-faults"
    ]
