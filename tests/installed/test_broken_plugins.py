"""A plugin that cannot be used harms nobody who did not ask for it; who asks gets the cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.environments import Environment
from support.samples import MakeEnvironment, backend_package

# How a package is broken, and what of the cause has to reach whoever asks for the backend.
BROKEN = {
    "missing dependency": (
        "import a_module_nobody_has",
        "No module named 'a_module_nobody_has'",
    ),
    "error at import": (
        "import ctypes\nctypes.CDLL('libpigeon.so.3')",
        "libpigeon.so.3: cannot open shared object file",
    ),
    "syntax error": ("BACKEND = (", "'(' was never closed"),
    "exit at import": ("import sys\nsys.exit('no licence')", "no licence"),
    "no such object": ("BACKENDS = None", "BACKEND"),
    "object not a backend": ("BACKEND = 'pigeon'", "'pigeon'"),
    "half a pair": ("BACKEND = (print,)", "not a backend"),
    "init handler with the wrong arguments": (
        """
        def construct(rpc_timeout, init_method, **kwargs): ...
        def init(store, name, rank, size, options): ...
        BACKEND = (construct, init)
        """,
        "init_backend_handler",
    ),
    "construct handler with the wrong arguments": (
        """
        def construct(): ...
        def init(store, name, rank, world_size, rpc_backend_options): ...
        BACKEND = (construct, init)
        """,
        "construct_rpc_backend_options_handler",
    ),
}


@pytest.fixture(scope="module")
def asked(
    core_only: Environment, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, str]]:
    """Install every broken backend and a sound one, ask for each, and return what came of it."""
    folder = tmp_path_factory.mktemp("broken")
    environment = Environment.like(core_only, folder / "environment")
    packages = [
        backend_package(
            folder, source, name=_name(kind), distribution=_distribution(kind), version="0.3"
        )
        for kind, (source, _) in BROKEN.items()
    ]
    environment.install(backend_package(folder), *packages)
    result = environment.run(
        """
        import json, sys, traceback
        import torch.distributed.rpc as rpc
        import rpc_backends_core

        # Nobody who did not ask is harmed.
        assert rpc.BackendType.PIGEON.value
        rpc.backend_registry.construct_rpc_backend_options(rpc.BackendType.PIGEON)

        found = {}
        for name in sys.argv[1:]:
            assert rpc_backends_core.record(name).state == "found"
            try:
                rpc.init_rpc("worker", backend=name, rank=0, world_size=1)
            except rpc_backends_core.BackendLoadError as error:
                text = str(error)
                report = "".join(traceback.format_exception(error))
            record = rpc_backends_core.record(name)
            assert rpc.BackendType.PIGEON.value, "asking for it broke others"
            found[name] = {
                "text": text,
                "report": report,
                "state": record.state,
                "distribution": record.distribution,
                "error": str(record.error),
            }
        print(json.dumps(found))
        """,
        *map(_name, BROKEN),
    )
    found: dict[str, dict[str, str]] = result.json
    return found


def _name(kind: str) -> str:
    return kind.replace(" ", "_").upper()


def _distribution(kind: str) -> str:
    return f"rpc-backend-{kind.replace(' ', '-')}"


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_plugin_is_recorded_and_its_cause_given_to_who_asks(
    asked: dict[str, dict[str, str]], kind: str
) -> None:
    cause = BROKEN[kind][1]
    found = asked[_name(kind)]
    assert (found["state"], found["distribution"]) == ("failed", _distribution(kind))
    assert found["error"] == found["text"]
    assert _name(kind) in found["text"]
    assert f"{_distribution(kind)} 0.3" in found["text"]
    assert cause in found["text"], "the message does not say why"
    assert "direct cause of the following exception" in found["report"], found["report"]


def test_a_broken_plugin_is_tried_once_and_fails_the_same_way_again(
    make_environment: MakeEnvironment, tmp_path: Path
) -> None:
    source = "print('tried')\nimport a_module_nobody_has"
    environment = make_environment(backend_package(tmp_path, source))

    result = environment.run(
        """
        import torch.distributed.rpc as rpc, rpc_backends_core
        texts = set()
        for attempt in range(3):
            try:
                rpc.BackendType.PIGEON.value
            except rpc_backends_core.BackendLoadError as error:
                texts.add(str(error))
        assert len(texts) == 1, texts
        """
    )

    assert result.stdout.split() == ["tried"]


def test_a_broken_replacement_of_tensorpipe_does_not_fall_back_in_silence(
    make_environment: MakeEnvironment, tmp_path: Path
) -> None:
    """A program that gets torch's own where somebody installed another would never be told."""
    broken = backend_package(tmp_path, "import a_module_nobody_has", name="TENSORPIPE")
    sound = backend_package(tmp_path, name="SOUND", distribution="rpc-backend-sound")
    environment = make_environment(broken, sound)

    result = environment.run(
        """
        import torch.distributed.rpc as rpc, rpc_backends_core
        rpc.BackendType.SOUND.value
        try:
            rpc.init_rpc("worker", rank=0, world_size=1)
        except rpc_backends_core.BackendLoadError as error:
            print(error)
        """
    )

    assert "rpc-backend-pigeon" in result.stdout
    assert "a_module_nobody_has" in result.stdout


def test_iterating_over_the_members_is_not_broken_by_a_broken_plugin(
    make_environment: MakeEnvironment, tmp_path: Path
) -> None:
    environment = make_environment(backend_package(tmp_path, "import a_module_nobody_has"))

    result = environment.run(
        """
        import json, torch.distributed.rpc as rpc
        print(json.dumps([member.name for member in rpc.BackendType]))
        """
    )

    assert "TENSORPIPE" in result.json
