"""Broken packages: each gets an error that names the package, what is wrong and what to do.

All kinds are installed in one environment, together with a backend that works. `rpc-backends doctor`
runs once, and one process passes the name of each broken backend to `init_rpc`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from support.environments import Environment, free_port
from support.samples import WORKING_BACKEND, MakeEnvironment, backend_package


@dataclass(frozen=True)
class Kind:
    """A way in which a package is broken.

    :ivar words: what its error says, in `init_rpc` and in `doctor`.
    :ivar source: the source of its module; ``{name}`` is the name of the backend.
    :ivar entry_points: its ``entry_points.txt``; ``{name}`` and ``{module}`` are filled in.
    :ivar metadata: more lines of its ``METADATA``; None for an empty file.
    :ivar name: the name of the backend; None for one that is made from the kind's title.
    :ivar section: the section of doctor's report that has the error.
    :ivar unreached: why `init_rpc` does not raise the error; None if it does.
    """

    words: tuple[str, ...]
    source: str = WORKING_BACKEND
    entry_points: str | bytes = "[rpc.backends]\n{name} = {module}:BACKEND\n"
    metadata: str | None = ""
    name: str | None = None
    section: str = "backends"
    unreached: str | None = None


NO_IMPORT = "init_rpc does not read it"
ENDS = "the import ends or blocks the process"
HOOK = "a hook package is not a backend; see test_a_broken_hook_package_is_a_warning"

HANDLERS = """
    from torch.distributed import rpc
    from rpc_backends_core import Backend

    class Options(rpc.RpcBackendOptions): ...

    def construct(rpc_timeout, init_method):
        return rpc.RpcBackendOptions(rpc_timeout, init_method)

    def init(store, name, rank, world_size, rpc_backend_options):
        raise OSError("not reached")
"""


def backend(changes: str, handlers: str = HANDLERS) -> str:
    """Return the source of a backend with changes to its declaration."""
    return dedent(handlers) + dedent(f"""
        BACKEND = Backend(**{{
            "construct_rpc_backend_options_handler": construct,
            "init_backend_handler": init,
            {changes}
        }})
    """)


def handler(old: str, new: str) -> str:
    """Return the source of a backend with a change to a handler."""
    assert old in HANDLERS
    return backend("", HANDLERS.replace(old, new))


def hooks(source: str) -> dict[str, Any]:
    """Return the fields of a kind of broken hook package with this source."""
    return {
        "source": "from rpc_backends_core import hookimpl\n" + dedent(source),
        "entry_points": "[rpc.backends.hooks]\n{name} = {module}\n",
        "section": "hooks",
        "unreached": HOOK,
    }


RETURNS = "return rpc.RpcBackendOptions(rpc_timeout, init_method)"
RAISES = 'raise OSError("not reached")'
CONSTRUCT_HANDLER = "construct_rpc_backend_options_handler (rpc_backend_"
INIT_HANDLER = "init_backend_handler (rpc_backend_"

KINDS = {
    # --- metadata ---
    "missing requirement": Kind(
        ("requires a-loft>=1, and it is not installed", "pip install 'a-loft>=1'"),
        metadata="Requires-Dist: a-loft>=1",
        section="requirements",
        unreached=NO_IMPORT,
    ),
    "requirement too old": Kind(
        ("requires rpc-backends-core>=2, and rpc-backends-core 0.", "is installed"),
        metadata="Requires-Dist: rpc-backends-core>=2",
        section="requirements",
        unreached=NO_IMPORT,
    ),
    "invalid requirement": Kind(
        ("has an invalid requirement, 'a loft'",),
        metadata="Requires-Dist: a loft",
        section="requirements",
        unreached=NO_IMPORT,
    ),
    "python too old": Kind(
        ("requires Python >=4", "this is Python 3."),
        metadata="Requires-Python: >=4",
        section="requirements",
        unreached=NO_IMPORT,
    ),
    "empty metadata": Kind(
        ("No module named 'no_such_module'",), "import no_such_module", metadata=None
    ),
    # --- entry points ---
    "misspelt group": Kind(
        ("in the entry-point group 'rpc.backend'", "did you mean 'rpc.backends'?"),
        entry_points="[rpc.backend]\n{name} = {module}:BACKEND\n",
        section="requirements",
    ),
    "misspelt hooks group": Kind(
        ("in the entry-point group 'rpc.backend.hooks'", "did you mean 'rpc.backends.hooks'?"),
        entry_points="[rpc.backend.hooks]\n{name} = {module}\n",
        section="requirements",
        unreached=HOOK,
    ),
    "name is no identifier": Kind(
        ("'my-backend'", "must be a Python identifier", "Its author must rename"), name="my-backend"
    ),
    "name is a keyword": Kind(("'class'", "is not a keyword"), name="class"),
    "name with an underscore": Kind(("'_PIGEON'", "no leading underscore"), name="_PIGEON"),
    "name declared twice": Kind(
        ("is declared more than once by one package", "must remove all but one"),
        entry_points="[rpc.backends]\n{name} = {module}:BACKEND\n{name} = {module}:OTHER\n",
    ),
    "name of another package": Kind(
        ("is claimed by more than one installed package", "rpc-backend-sound 0.3"), name="SOUND"
    ),
    "name of another package in lower case": Kind(
        ("is claimed by more than one installed package", "rpc-backend-other 0.3"), name="other"
    ),
    "value is no reference": Kind(
        ("value is 'a module: BACKEND'", "must have the form module:object"),
        entry_points="[rpc.backends]\n{name} = a module: BACKEND\n",
    ),
    "no such module": Kind(
        ("No module named 'rpc_backend_absent'",),
        entry_points="[rpc.backends]\n{name} = rpc_backend_absent:BACKEND\n",
    ),
    "no such object": Kind(("has no attribute 'BACKEND'",), "BACKENDS = None"),
    "entry point without an object": Kind(
        ("which is not a backend", "It must be a rpc_backends_core.Backend"),
        entry_points="[rpc.backends]\n{name} = {module}\n",
    ),
    # --- import ---
    "missing dependency": Kind(("No module named 'a_loft'",), "import a_loft"),
    "missing library": Kind(
        ("libpigeon.so.3: cannot open shared object file",),
        "import ctypes\nctypes.CDLL('libpigeon.so.3')",
    ),
    "syntax error": Kind(("SyntaxError", "'(' was never closed"), "BACKEND = ("),
    "exit at import": Kind(("SystemExit: no licence",), "import sys\nsys.exit('no licence')"),
    "error without a text": Kind(
        ("Odd: (formatting its message failed)",),
        """
        class Odd(Exception):
            def __str__(self):
                raise ValueError
        raise Odd
        """,
    ),
    "name that the core lacks": Kind(
        ("cannot import name 'Pigeon'", "pip install --upgrade rpc-backends-core rpc-backend-"),
        "from rpc_backends_core.spi import Pigeon",
    ),
    "circular import": Kind(
        ("partially initialized module",),
        "import rpc_backend_circular_import\nBACKEND = rpc_backend_circular_import.BACKEND",
    ),
    "registers a taken name": Kind(
        ("RPC backend TENSORPIPE: already registered",),
        """
        from torch.distributed.rpc.backend_registry import register_backend
        register_backend("TENSORPIPE", print, print)
        """,
    ),
    "crash at import": Kind(
        ("SIGABRT", "rpc_backend_crash_at_import.py:2"), "import os\nos.abort()", unreached=ENDS
    ),
    "end of the process at import": Kind(
        ("the process ended with status 3",), "import os\nos._exit(3)", unreached=ENDS
    ),
    "hang at import": Kind(
        ("exceeded the time limit", "rpc_backend_hang_at_import.py:2"),
        "import time\ntime.sleep(600)",
        unreached=ENDS,
    ),
    # --- the object ---
    "not a backend": Kind(("'pigeon', which is not a backend",), "BACKEND = 'pigeon'"),
    "half a pair": Kind(("which is not a backend",), "BACKEND = (print,)"),
    "function that makes the backend": Kind(
        ("which is not a backend",), "def BACKEND():\n    return (print, print)"
    ),
    "class that needs an instance": Kind(
        ("missing a required argument: 'self'",),
        """
        class BACKEND:
            def construct_rpc_backend_options_handler(self, rpc_timeout, init_method, *, a): ...
            def init_backend_handler(self, store, name, rank, world_size, rpc_backend_options): ...
        """,
    ),
    "handlers in the wrong order": Kind(
        ("init_backend_handler has the signature",), HANDLERS + "\n    BACKEND = (init, construct)"
    ),
    "init handler with other arguments": Kind(
        ("init_backend_handler has the signature (store, name, rank, size, options)",),
        handler("world_size, rpc_backend_options", "size, options"),
    ),
    "construct handler without arguments": Kind(
        ("construct_rpc_backend_options_handler has the signature ()",),
        handler("construct(rpc_timeout, init_method)", "construct()"),
    ),
    "handler is not callable": Kind(
        ("Backend.init_backend_handler is None; it must be callable",),
        backend('"init_backend_handler": None'),
    ),
    "group without a default": Kind(
        ("missing a required argument: 'group'",),
        handler("rpc_backend_options):", "rpc_backend_options, group):"),
    ),
    "unknown field": Kind(
        ("unexpected keyword argument 'option_type'",), backend('"option_type": Options')
    ),
    "options type is no options": Kind(
        ("options_type is <class 'dict'>", "subclass of torch.distributed.rpc.RpcBackendOptions"),
        backend('"options_type": dict'),
    ),
    "misspelt capability": Kind(
        ("'static-group'", "did you mean 'static-groups'?"),
        backend('"capabilities": {"static-group"}'),
    ),
    "capabilities in one string": Kind(
        ("capabilities is 'rejoin'; it must be a set of strings",),
        backend('"capabilities": "rejoin"'),
    ),
    "description is no text": Kind(
        ("description is None; it must be a string",), backend('"description": None')
    ),
    # --- versions ---
    "newer interface": Kind(
        ("needs version 99.0 of", "pip install --upgrade rpc-backends-core"),
        backend('"spi_version": (99, 0)'),
    ),
    "older interface": Kind(
        ("written for version 0.9 of", "pip install --upgrade rpc-backend-older-interface"),
        backend('"spi_version": (0, 9)'),
    ),
    "version is a text": Kind(
        ("spi_version is '1.0'; it must be a pair of numbers",), backend('"spi_version": "1.0"')
    ),
    # --- what the handlers return ---
    "options of None": Kind(
        (CONSTRUCT_HANDLER, "returned None; it must return an instance of"),
        handler(RETURNS, "rpc.RpcBackendOptions()"),
    ),
    "options in a dict": Kind(
        (CONSTRUCT_HANDLER, "returned {} of type dict; it must return an instance of"),
        handler(RETURNS, "return {}"),
    ),
    "options of another type": Kind(
        (CONSTRUCT_HANDLER, "an instance of the declared options_type, rpc_backend_options_of_an"),
        backend('"options_type": Options'),
    ),
    "agent of None": Kind(
        (INIT_HANDLER, "returned None; it must return the agent"),
        handler(RAISES, "pass"),
        section="calls",
    ),
    "agent is a coroutine": Kind(
        (INIT_HANDLER, " of type coroutine; it must return the agent"),
        handler("def init", "async def init"),
        section="calls",
    ),
    # --- hook packages ---
    "hooks that cannot be imported": Kind(("No module named 'a_loft'",), **hooks("import a_loft")),
    "hooks without a mark": Kind(
        ("mark its functions with rpc_backends_core.hookimpl",),
        **hooks("def rpc_backends_agent(agent): ..."),
    ),
    "hook of an unknown name": Kind(
        ("unknown hook 'rpc_backends_agnet'",),
        **hooks("@hookimpl\ndef rpc_backends_agnet(agent): ..."),
    ),
    "hook with an unknown argument": Kind(
        ("hook 'rpc_backends_agent'", "{'worker'}"),
        **hooks("@hookimpl\ndef rpc_backends_agent(worker): ..."),
    ),
    "wrapper without a yield": Kind(
        ("the wrapper rpc_backends_agent has no `yield`",),
        **hooks("@hookimpl(wrapper=True)\ndef rpc_backends_agent(agent): return agent"),
    ),
    "hooks for a newer core": Kind(
        ("needs version 99.0 of", "pip install --upgrade rpc-backends-core"),
        **hooks("spi_version = (99, 0)\n@hookimpl\ndef rpc_backends_agent(agent): ..."),
    ),
    "hook that fails when called": Kind(
        ("the hook rpc_backends_construct_options of", "ZeroDivisionError: division by zero"),
        **hooks("""
            @hookimpl
            def rpc_backends_construct_options(backend):
                return 1 / 0 if backend == "TENSORPIPE" else None
        """),
    ),
}
#: Kinds that also make `import torch` fail, so no program gets as far as `init_rpc`.
UNREADABLE = {
    "malformed entry points": Kind(
        ("the entry points of rpc-backend-malformed-entry-points 0.3 cannot be read: ",),
        entry_points="[rpc.backends]\n{name}\n",
        section="requirements",
    ),
    "entry points not in utf-8": Kind(
        ("cannot be read: UnicodeDecodeError",),
        entry_points=b"[rpc.backends]\nBROKEN\xff = x:y\n",
        section="requirements",
    ),
}
BACKENDS = {title: kind for title, kind in KINDS.items() if kind.unreached is None}


def distribution_of(title: str) -> str:
    """Return the name of a kind's package."""
    return f"rpc-backend-{title.replace(' ', '-').lower()}"


def name_of(title: str) -> str:
    """Return the name of a kind's backend."""
    return KINDS[title].name or title.replace(" ", "_").replace("-", "_").upper()


def install(folder: Path, distribution: str, name: str, kind: Kind) -> None:
    """Put a package into a folder as pip would."""
    module = distribution.replace("-", "_")
    info = folder / f"{module}-0.3.dist-info"
    info.mkdir(parents=True)
    text = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.3\n{kind.metadata}\n"
    (info / "METADATA").write_text("" if kind.metadata is None else text)
    entry_points = kind.entry_points
    if isinstance(entry_points, str):
        entry_points = entry_points.format(name=name, module=module).encode()
    (info / "entry_points.txt").write_bytes(entry_points)
    (folder / f"{module}.py").write_text(dedent(kind.source))


@pytest.fixture(scope="module")
def environment(installed: Environment, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Make an environment with a package of each kind, and three that are sound."""
    place = tmp_path_factory.mktemp("broken")
    environment = Environment.like(installed, place / "environment")
    folder = place / "packages"
    for title, kind in KINDS.items():
        install(folder, distribution_of(title), name_of(title), kind)
    for name in ("SOUND", "OTHER", "PIGEON"):
        install(folder, f"rpc-backend-{name.lower()}", name, Kind(()))
    environment.add_path(folder)
    return environment


@pytest.fixture(scope="module")
def asked(environment: Environment) -> dict[str, str]:
    """Pass each name to `init_rpc`, and return the errors."""
    result = environment.run(
        """
        import json, sys, traceback, warnings
        import torch.distributed.rpc as rpc

        warnings.simplefilter("ignore")  # of the broken hook packages
        found = {}
        for name in json.loads(sys.argv[1]):
            try:
                rpc.init_rpc("worker", backend=name, rank=0, world_size=1)
            except Exception as error:
                found[name] = "".join(traceback.format_exception_only(error))
        rpc.init_rpc("worker", backend="PIGEON", rank=0, world_size=1)  # which works all the same
        rpc.shutdown()
        print(json.dumps(found))
        """,
        json.dumps([name_of(title) for title in BACKENDS]),
        env={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())},
    )
    answers: dict[str, str] = result.json
    return answers


@pytest.fixture(scope="module")
def report(environment: Environment) -> dict[str, list[dict[str, Any]]]:
    """Run doctor, and return the findings of each section."""
    names = sorted({name_of(title) for title, kind in KINDS.items() if kind.section != "hooks"})
    ended = environment.command(
        "rpc-backends", "doctor", "--json", "--timeout", "20", *names, check=False, timeout=500
    )
    assert ended.returncode == 1, ended
    sections: dict[str, list[dict[str, Any]]] = json.loads(ended.stdout)["sections"]
    return sections


def check(text: str, title: str, kind: Kind) -> None:
    """Check that an error names the package, what is wrong and what to do."""
    package = distribution_of(title)
    if kind.metadata is None:
        package = package.replace("-", "_")  # without metadata, the name is that of the folder
    for part in (f"{package} 0.3", *kind.words):
        assert part in text
    assert any(remedy in text for remedy in ("pip install", "pip uninstall", "Its author must"))


@pytest.mark.parametrize("title", BACKENDS)
def test_init_rpc_says_how_a_package_is_broken(asked: dict[str, str], title: str) -> None:
    check(asked[name_of(title)], title, KINDS[title])


@pytest.mark.parametrize("title", KINDS)
def test_doctor_says_how_a_package_is_broken(
    report: dict[str, list[dict[str, Any]]], title: str
) -> None:
    package = distribution_of(title)
    problems = [
        finding["text"] for finding in report[KINDS[title].section] if finding["level"] == "problem"
    ]
    names = (f"{package} 0.3", f"{package.replace('-', '_')} 0.3")
    own = [text for text in problems if any(name in text for name in names)]
    assert own, problems
    check(own[0], title, KINDS[title])


@pytest.mark.parametrize("title", UNREADABLE)
def test_doctor_names_a_package_that_breaks_torch(
    installed: Environment, tmp_path: Path, title: str
) -> None:
    install(tmp_path, distribution_of(title), "BROKEN", UNREADABLE[title])
    ended = installed.command(
        "rpc-backends", "doctor", "--json", env={"PYTHONPATH": str(tmp_path)}, check=False
    )
    sections = json.loads(ended.stdout)["sections"]
    (torch,) = (section for section in sections["versions"] if section["about"] == "torch")
    assert torch["level"] == "problem"
    (text,) = (
        section["text"] for section in sections["requirements"] if section["level"] == "problem"
    )
    check(text, title, UNREADABLE[title])


def test_a_broken_hook_package_is_a_warning(environment: Environment) -> None:
    """A program that sets no variable of the package runs without it."""
    titles = [title for title, kind in KINDS.items() if kind.section == "hooks"]
    result = environment.run(
        """
        import json, warnings
        import torch.distributed.rpc as rpc

        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            rpc.backend_registry.construct_rpc_backend_options("PIGEON")
            try:
                rpc.backend_registry.construct_rpc_backend_options("TENSORPIPE")
            except Exception as error:
                warned.append(error)
        print(json.dumps([str(getattr(one, "message", one)) for one in warned]))
        """
    )
    for title in titles:
        (text,) = (warning for warning in result.json if distribution_of(title) in warning)
        check(text, title, KINDS[title])


def test_a_broken_plugin_is_imported_once_and_fails_the_same_way(
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


def test_a_broken_replacement_of_tensorpipe_is_an_error(
    make_environment: MakeEnvironment, tmp_path: Path
) -> None:
    """Torch's own TENSORPIPE is not used silently in its place."""
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


def test_a_broken_plugin_does_not_break_iteration_over_members(
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
