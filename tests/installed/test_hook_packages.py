"""Installed hook packages: what they see, change and break."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.environments import program
from support.samples import (
    FAULTY_TENSORPIPE,
    MakeEnvironment,
    backend_package,
    hooks_package,
    old_style_package,
)

# Records every call and changes nothing.
TRACING = """
    from rpc_backends_core import hookimpl

    seen = []

    @hookimpl(wrapper=True)
    def rpc_backends_construct_options(backend):
        options = yield
        seen.append(f"options {backend} {type(options).__name__}")
        return options

    @hookimpl(wrapper=True)
    def rpc_backends_init_backend(backend, kwargs):
        seen.append(f"init {backend} {kwargs['name']}")
        agent = yield
        seen.append(f"up {backend} {type(agent).__name__}")
        return agent

    @hookimpl(wrapper=True)
    def rpc_backends_agent(backend, agent):
        agent = yield
        kinds = [kind.__name__ for kind in type(agent).__mro__]
        seen.append(f"agent {backend} {'FaultyTensorPipeAgent' in kinds}")
        return agent

    @hookimpl
    def rpc_backends_loaded(record):
        seen.append(f"loaded {record.name} {record.distribution}")

    @hookimpl
    def rpc_backends_failed(record):
        seen.append(f"failed {record.name} {record.distribution}")
"""

# Starts a backend in a group of one, makes a call and shuts down.
START = """
    import json, os, sys, torch, torch.distributed.rpc as rpc
    import rpc_backends_core
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")

    def start(backend):
        options = rpc.backend_registry.construct_rpc_backend_options(rpc.BackendType[backend])
        rpc.init_rpc("worker", rpc.BackendType[backend], 0, 1, options)
        result = rpc.rpc_sync("worker", torch.add, args=(torch.ones(1), 1)).item()
        rpc.shutdown()
        return result
"""


def test_import_torch_imports_no_hook_package(
    make_environment: MakeEnvironment, tmp_path: Path
) -> None:
    environment = make_environment(hooks_package(tmp_path, "raise SystemExit('imported')"))

    environment.run("import torch, sys; assert 'rpc_tracing' not in sys.modules")


@pytest.mark.parametrize(
    ("backend", "faulty"),
    [
        pytest.param("TENSORPIPE", False, id="torch's own"),
        pytest.param("CARRIER", False, id="old-style"),
        pytest.param("FAULTY_TENSORPIPE", True, id="plugin"),
    ],
)
def test_hooks_wrap_every_backend(
    make_environment: MakeEnvironment, tmp_path: Path, backend: str, faulty: bool
) -> None:
    environment = make_environment(
        FAULTY_TENSORPIPE, old_style_package(tmp_path), hooks_package(tmp_path, TRACING)
    )

    result = environment.run(
        program(
            START,
            """
            assert start(sys.argv[1]) == 2
            import rpc_tracing
            print(json.dumps(rpc_tracing.seen))
            """,
        ),
        backend,
    )

    seen = result.json
    passed = [line for line in seen if not line.startswith("loaded")]
    assert [line.split()[:2] for line in passed] == [
        ["options", backend],
        ["init", backend],
        ["agent", backend],
        ["up", backend],
    ], result
    assert f"init {backend} worker" in seen
    assert f"agent {backend} {faulty}" in seen
    if backend == "FAULTY_TENSORPIPE":
        assert "loaded FAULTY_TENSORPIPE rpc-backend-faulty-tensorpipe" in seen


def test_a_hook_sees_a_backend_fail_to_load(
    make_environment: MakeEnvironment, tmp_path: Path
) -> None:
    environment = make_environment(
        backend_package(tmp_path, "import a_module_nobody_has"), hooks_package(tmp_path, TRACING)
    )

    result = environment.run(
        """
        import json, torch.distributed.rpc as rpc, rpc_backends_core
        # Hook packages take part from the first call that is hooked.
        rpc.backend_registry.construct_rpc_backend_options(rpc.BackendType.TENSORPIPE)
        try:
            rpc.backend_registry.construct_rpc_backend_options(rpc.BackendType.PIGEON)
        except rpc_backends_core.BackendLoadError:
            pass
        import rpc_tracing
        print(json.dumps(rpc_tracing.seen))
        """
    )

    assert "failed PIGEON rpc-backend-pigeon" in result.json


def test_a_hook_sees_the_first_backend_loaded(
    make_environment: MakeEnvironment, tmp_path: Path
) -> None:
    environment = make_environment(backend_package(tmp_path), hooks_package(tmp_path, TRACING))

    result = environment.run(
        """
        import json, torch.distributed.rpc as rpc
        rpc.BackendType.PIGEON.value
        import rpc_tracing
        print(json.dumps(rpc_tracing.seen))
        """
    )

    assert result.json == ["loaded PIGEON rpc-backend-pigeon"]


def test_a_hook_may_replace_options_and_see_the_agent(
    make_environment: MakeEnvironment, tmp_path: Path
) -> None:
    replacing = """
        import torch.distributed.rpc as rpc
        from rpc_backends_core import hookimpl

        replaced = []

        @hookimpl
        def rpc_backends_construct_options(backend, options):
            return rpc.TensorPipeRpcBackendOptions(num_worker_threads=3)

        @hookimpl(wrapper=True)
        def rpc_backends_agent(agent):
            agent = yield
            replaced.append(agent)
            return agent
        """
    environment = make_environment(hooks_package(tmp_path, replacing))

    result = environment.run(
        program(
            START,
            """
            options = rpc.backend_registry.construct_rpc_backend_options(
                rpc.BackendType.TENSORPIPE, num_worker_threads=9)
            start("TENSORPIPE")
            import rpc_tracing
            print(json.dumps([options.num_worker_threads, len(rpc_tracing.replaced)]))
            """,
        )
    )

    assert result.json == [3, 1]


def test_the_program_gets_a_hooks_refusal(
    make_environment: MakeEnvironment, tmp_path: Path
) -> None:
    policy = """
        from rpc_backends_core import RefusedError, hookimpl

        @hookimpl(wrapper=True)
        def rpc_backends_init_backend(backend):
            if backend == "TENSORPIPE":
                raise RefusedError("not in this building")
            return (yield)
        """
    environment = make_environment(hooks_package(tmp_path, policy, distribution="rpc-site-policy"))

    result = environment.run(
        program(
            START,
            """
            try:
                start("TENSORPIPE")
            except rpc_backends_core.RefusedError as error:
                print(error)
            """,
        )
    )

    assert result.stdout.strip() == "not in this building"
    assert result.stderr == ""


# Tries to start TENSORPIPE, and prints the error.
FAILING_START = program(
    START,
    """
    try:
        start("TENSORPIPE")
    except RuntimeError as error:
        running = rpc.api._is_current_rpc_agent_set()
        kind = type(error).__name__
        print(json.dumps({"type": kind, "text": str(error), "running": running}))
    """,
)

UNLOADABLE = {
    "cannot be imported": "import a_module_nobody_has",
    "exits at import": "raise SystemExit('no licence')",
    "has a hook with unknown arguments": """
        from rpc_backends_core import hookimpl

        @hookimpl
        def rpc_backends_init_backend(backend, colour):
            return None
        """,
    "has a hook of an unknown name": """
        from rpc_backends_core import hookimpl

        @hookimpl
        def rpc_backends_no_such_hook(backend):
            return None
        """,
    "is for a newer core": """
        spi_version = (99, 0)
        """,
}


@pytest.mark.parametrize("kind", UNLOADABLE)
def test_an_unloadable_package_is_reported_and_left_out(
    make_environment: MakeEnvironment, tmp_path: Path, kind: str
) -> None:
    environment = make_environment(
        hooks_package(tmp_path, UNLOADABLE[kind], distribution="rpc-broken-hooks", version="0.9"),
        hooks_package(tmp_path, TRACING),
    )

    result = environment.run(
        program(
            START,
            """
            assert start("TENSORPIPE") == 2, "the start failed"
            import rpc_tracing
            assert any(line.startswith("up ") for line in rpc_tracing.seen), "others were left out"
            print("second", file=sys.stderr)
            assert start("TENSORPIPE") == 2
            """,
        )
    )

    first, _, second = result.stderr.partition("second\n")
    assert first.count("HookWarning") == 1, result
    assert "rpc-broken-hooks 0.9" in first, result
    assert "pip uninstall rpc-broken-hooks" in first, result
    assert "rpc-broken-hooks" not in second, "the broken package was not left out"
    assert "rpc-tracing" not in result.stderr, "another package was blamed"


@pytest.mark.parametrize("kind", UNLOADABLE)
def test_its_variable_makes_an_unloadable_package_an_error(
    make_environment: MakeEnvironment, tmp_path: Path, kind: str
) -> None:
    environment = make_environment(
        hooks_package(tmp_path, UNLOADABLE[kind], distribution="rpc-broken-hooks", version="0.9")
    )
    variable = "RPC_BACKENDS_RPC_BROKEN_HOOKS_FILE"

    result = environment.run(FAILING_START, env={variable: "/some/file"})

    assert result.json["type"] == "HookError", result
    assert f"{variable} is set" in result.json["text"]
    assert "rpc-broken-hooks 0.9" in result.json["text"]
    assert f"Unset {variable} to run without it." in result.json["text"]
    assert "HookWarning" not in result.stderr, result


FAILING = {
    "raises before it goes on": """
        from rpc_backends_core import hookimpl

        @hookimpl(wrapper=True)
        def rpc_backends_init_backend(backend):
            1 / 0
            return (yield)
        """,
    "raises after it has gone on": """
        from rpc_backends_core import hookimpl

        @hookimpl(wrapper=True)
        def rpc_backends_init_backend(backend):
            agent = yield
            1 / 0
            return agent
        """,
    "raises in a function it calls": """
        from rpc_backends_core import hookimpl

        def helper():
            return {}["absent"]

        @hookimpl
        def rpc_backends_agent(agent):
            helper()
        """,
    "raises on the agent": """
        from rpc_backends_core import hookimpl

        @hookimpl(wrapper=True)
        def rpc_backends_agent(agent):
            agent = yield
            raise ValueError("no")
        """,
    "forgets to yield": """
        from rpc_backends_core import hookimpl

        @hookimpl(wrapper=True)
        def rpc_backends_init_backend(backend):
            return
            yield
        """,
    "forgets to return the agent": """
        from rpc_backends_core import hookimpl

        @hookimpl(wrapper=True)
        def rpc_backends_init_backend(backend):
            yield
        """,
}


@pytest.mark.parametrize("kind", FAILING)
def test_the_error_of_a_failing_hook_names_its_package(
    make_environment: MakeEnvironment, tmp_path: Path, kind: str
) -> None:
    """The start fails, and no agent runs."""
    environment = make_environment(
        hooks_package(tmp_path, FAILING[kind], distribution="rpc-broken-hooks", version="0.9"),
        hooks_package(tmp_path, TRACING),
    )

    result = environment.run(FAILING_START)

    assert result.json["type"] == "HookError", result
    assert "rpc-broken-hooks 0.9" in result.json["text"]
    assert "pip uninstall rpc-broken-hooks" in result.json["text"]
    assert "rpc-tracing" not in result.json["text"], "another package was blamed"
    assert result.json["running"] is False
    assert "HookWarning" not in result.stderr, result


def test_a_backends_own_error_names_no_hook_package(
    make_environment: MakeEnvironment, tmp_path: Path
) -> None:
    failing = """
        def construct(rpc_timeout, init_method, **kwargs):
            raise ValueError("no pigeons today")

        def init(store, name, rank, world_size, rpc_backend_options):
            raise AssertionError("not reached")

        BACKEND = (construct, init)
        """
    environment = make_environment(
        backend_package(tmp_path, failing), hooks_package(tmp_path, TRACING)
    )

    result = environment.run(
        """
        import torch.distributed.rpc as rpc
        try:
            rpc.backend_registry.construct_rpc_backend_options(rpc.BackendType.PIGEON)
        except ValueError as error:
            print(error)
        """
    )

    assert result.stdout.strip() == "no pigeons today"
    assert result.stderr == ""
