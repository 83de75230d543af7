"""A mistake of a backend's handler is an error that names backend, package and handler."""

from __future__ import annotations

import pytest

from core.kit import Children, Site

MODULE = """
    from torch.distributed import rpc
    from rpc_backends_core.spi import Backend

    class Options(rpc.RpcBackendOptions):
        pass

    def construct(rpc_timeout, init_method):
        {construct}

    def init(store, name, rank, world_size, rpc_backend_options):
        {init}

    BACKEND = Backend(construct_rpc_backend_options_handler=construct, init_backend_handler=init,
                      options_type={options_type})
"""
CONSTRUCT = "return Options(rpc_timeout, 'file://' + __file__ + '.store')"
INIT = "raise OSError('not reached')"
TENSORPIPE = """
        options = rpc.TensorPipeRpcBackendOptions(_transports=["uv"])
        agent = rpc.TensorPipeAgent(store, name, rank, world_size, options, {}, [])
        rpc.api._init_rpc_states(agent)
"""

START = """
import traceback
from torch.distributed import rpc
from rpc_backends_core import _patches as patches
patches.install()
try:
    rpc.init_rpc("w", {backend}, 0, 1)
except Exception as error:
    print("".join(traceback.format_exception_only(error)))
from rpc_backends_core.spi import current_session
assert current_session() is None
"""

BACKEND = "RPC backend 'PIGEON' (rpc-backend-pigeon 1.0)"
CONSTRUCT_HANDLER = (
    f"construct_rpc_backend_options_handler (sample_backend_pigeon.construct) of {BACKEND}"
)
INIT_HANDLER = f"init_backend_handler (sample_backend_pigeon.init) of {BACKEND}"
FIX = "pip install --upgrade rpc-backend-pigeon"


def started(
    site: Site,
    children: Children,
    *,
    construct: str = CONSTRUCT,
    init: str = INIT,
    options_type: str = "None",
) -> str:
    """Start a backend with these handlers, and return the error."""
    source = MODULE.format(construct=construct, init=init, options_type=options_type)
    site.add_backend("PIGEON", source)
    return children.run(START.format(backend="'PIGEON'"), site=site)


@pytest.mark.parametrize("returned", ["None", "'agent'", "store"])
def test_a_result_that_is_no_agent_is_refused(
    site: Site, children: Children, returned: str
) -> None:
    error = started(site, children, init=f"return {returned}")
    assert error.startswith(f"rpc_backends_core._errors.BackendContractError: the {INIT_HANDLER}")
    for part in (f"returned {returned[:4]}" if returned != "store" else "Store", "RpcAgent", FIX):
        assert part in error


@pytest.mark.parametrize("returned", ["None", "{}", "rpc_timeout"])
def test_a_result_that_is_no_options_object_is_refused(
    site: Site, children: Children, returned: str
) -> None:
    error = started(site, children, construct=f"return {returned}")
    assert error.startswith(
        f"rpc_backends_core._errors.BackendContractError: the {CONSTRUCT_HANDLER}"
    )
    for part in (" returned ", "an instance of torch.distributed.rpc.RpcBackendOptions", FIX):
        assert part in error


def test_options_of_another_type_than_declared_are_refused(site: Site, children: Children) -> None:
    construct = "return rpc.RpcBackendOptions(rpc_timeout, init_method)"
    error = started(site, children, construct=construct, options_type="Options")
    assert error.startswith(
        f"rpc_backends_core._errors.BackendContractError: the {CONSTRUCT_HANDLER}"
    )
    assert "the declared options_type, sample_backend_pigeon.Options" in error


def test_an_object_that_mimics_an_agent_is_refused(site: Site, children: Children) -> None:
    """Torch installs agents that are implemented in C++ only."""
    lookalike = "class Agent:\n            def get_worker_infos(self): return []\n        "
    error = started(site, children, init=f"{lookalike}rpc.api._init_rpc_states(Agent())")
    assert error.startswith(f"rpc_backends_core._errors.BackendContractError: the {INIT_HANDLER}")
    assert "Agent object at" in error


@pytest.mark.parametrize(
    ("handlers", "named"),
    [
        ({"construct": "raise LookupError('mine')"}, CONSTRUCT_HANDLER),
        ({"init": "raise LookupError('mine')"}, INIT_HANDLER),
    ],
    ids=["construct", "init"],
)
def test_an_exception_of_a_handler_keeps_its_type(
    site: Site, children: Children, handlers: dict[str, str], named: str
) -> None:
    error = started(site, children, **handlers)
    assert error == f"LookupError: mine\nRaised by {named}."


def test_an_error_of_this_project_ends_with_its_message(site: Site, children: Children) -> None:
    raising = "from rpc_backends_core.spi import GroupError; raise GroupError('say it once')"
    error = started(site, children, init=raising)
    assert error == "rpc_backends_core._errors.GroupError: say it once"


TRACEBACK = """
import traceback
from torch.distributed import rpc
from rpc_backends_core import _patches as patches
patches.install()
try:
    rpc.init_rpc("w", "PIGEON", 0, 1)
except Exception as error:
    trail = traceback.TracebackException.from_exception(error)
    while trail is not None:
        print(trail.exc_type.__name__, [frame.name for frame in trail.stack])
        trail = trail.__cause__
"""


def test_a_failed_starts_traceback_has_no_frames_of_hooks(site: Site, children: Children) -> None:
    """Only the program's frames, `init_rpc`, and those of the backend are shown, in causes too."""
    init = (
        "try: helper()\n        except KeyError as error: raise ValueError('it fails') from error"
    )
    source = MODULE.format(construct=CONSTRUCT, init=init, options_type="None")
    site.add_backend("PIGEON", f"{source}\n    def helper():\n        raise KeyError('cause')\n")
    shown = children.run(TRACEBACK, site=site)
    assert shown.splitlines() == [
        "ValueError ['<module>', 'init_rpc', 'init_rpc', 'init']",
        "KeyError ['init', 'helper']",
    ]


def test_an_error_of_a_lookup_is_shown_once(site: Site, children: Children) -> None:
    site.add_backend("PIGEON")
    shown = children.run(TRACEBACK, site=site, env={"RPC_BACKENDS_OVERRIDE": "PIGOEN"})
    assert shown.splitlines() == ["SettingError ['<module>', 'init_rpc', 'init_rpc']"]


def test_an_unknown_option_is_refused_with_the_nearest_name(site: Site, children: Children) -> None:
    source = MODULE.format(construct=CONSTRUCT, init=INIT, options_type="None")
    site.add_backend("PIGEON", source.replace("init_method):", "init_method, num_lofts=1):"))
    error = children.run(
        """
        from rpc_backends_core import construct_rpc_backend_options
        try:
            construct_rpc_backend_options("PIGEON", num_loft=2)
        except TypeError as error:
            print(error)
        """,
        site=site,
    )
    assert error == (
        "PIGEON has no option 'num_loft'. Did you mean 'num_lofts'? "
        "Its options: rpc_timeout, init_method, num_lofts."
    )


def test_a_registered_backend_is_named_by_its_module(site: Site, children: Children) -> None:
    register = """
from rpc_backends_core import register_backend
register_backend("MINE", lambda rpc_timeout, init_method: None, lambda **arguments: None)
"""
    error = children.run(register + START.format(backend="'MINE'"), site=site)
    assert "RPC backend 'MINE' (__main__)" in error
    assert "Fix the handler, or use another backend" in error


@pytest.mark.parametrize(
    ("hook", "handlers"),
    [
        ("rpc_backends_construct_options", {}),
        ("rpc_backends_init_backend", {}),
        ("rpc_backends_agent", {"init": TENSORPIPE}),
    ],
)
def test_a_hook_that_returns_something_else_is_named(
    site: Site, children: Children, hook: str, handlers: dict[str, str]
) -> None:
    site.add_hooks("odd", f"@hookimpl\ndef {hook}(): return 'theirs'\n")
    error = started(site, children, **handlers)
    assert error.startswith("rpc_backends_core._errors.HookError: ")
    for part in ("'theirs'", hook, "rpc-hooks-odd 1.0 (odd)"):
        assert part in error
