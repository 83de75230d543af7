"""Lets a worker run only the functions of the modules in RPC_MODULES, a comma-separated list."""

import os

from rpc_backends_agents import CallInterceptor, intercept
from rpc_backends_core import RefusedError, hookimpl


class Policy(CallInterceptor):
    def on_incoming(self, call):
        modules = os.environ["RPC_MODULES"].split(",")
        if not call.function.startswith(tuple(f"{module}." for module in modules)):
            raise RefusedError(f"{call.worker} does not run {call.function!r} for {call.peer}")


@hookimpl(wrapper=True)
def rpc_backends_agent():
    return intercept((yield), Policy(), name="policy")
