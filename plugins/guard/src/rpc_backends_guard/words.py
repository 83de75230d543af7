"""Explains a policy in words, and finds entries that give everything away."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable
from importlib.machinery import PathFinder
from pathlib import Path

from rpc_backends_guard.policy import Policy, Rule

#: Modules of which no function belongs in a policy: each runs, loads or changes what its caller chooses.
_GIVE_AWAY = frozenset(
    [
        "os",
        "posix",
        "subprocess",
        "sys",
        "importlib",
        "pickle",
        "_pickle",
        "cloudpickle",
        "dill",
        "marshal",
        "shelve",
        "ctypes",
        "code",
        "codeop",
        "runpy",
        "pty",
        "shutil",
        "socket",
        "cProfile",
        "profile",
        "functools",
        "operator",
        "multiprocessing",
        "pdb",
        "timeit",
        "types",
        "webbrowser",
        "platform",
        "tempfile",
        "pathlib",
        "io",
        "copyreg",
        "inspect",
        "_posixsubprocess",
        "concurrent",
        "joblib",
        "pkgutil",
    ]
)
#: Modules inside packages of which no function belongs in a policy either.
_ALSO_GIVE_AWAY = frozenset(
    ("logging.config", "torch.multiprocessing", "torch.multiprocessing.spawn", "torch.package")
)
#: The functions of RPC. The module is that of the package or the one that defines them.
_RPC = re.compile(r"torch\.distributed\.rpc(\.api)?:(rpc_sync|rpc_async|remote)")
#: Functions of Python that do so; its others do not.
_OF_PYTHON = frozenset(
    f"builtins:{name}"
    for name in (
        "__import__",
        "breakpoint",
        "compile",
        "delattr",
        "eval",
        "exec",
        "filter",
        "getattr",
        "map",
        "open",
        "setattr",
        "type",
    )
)
#: Functions of torch that do so, too.
_OF_TORCH = frozenset(
    (
        "torch:load",
        "torch.serialization:load",
        "torch.jit:load",
        "torch.jit._serialization:load",
        "torch.package.package_importer:PackageImporter",
        "numpy:load",
        "numpy.lib.npyio:load",
        "numpy.lib._npyio_impl:load",
        "torch.hub:load",
        "torch.storage:_load_from_bytes",
        "torch.distributed.nn.api.remote_module:_instantiate_template",
        "torch.distributed.rpc.internal:_InternalRPCPickler._script_module_receiver",
        "torch.distributed.rpc.internal:_run_function",
        "torch.distributed.rpc.internal:deserialize",
        "torch.utils.cpp_extension:load",
        "torch.utils.cpp_extension:load_inline",
    )
)
#: Functions of torch that call what they get.
_CALL_ANYTHING = frozenset(
    (
        "torch.distributed.rpc.rref_proxy:_local_invoke",
        "torch.distributed.rpc.rref_proxy:_local_invoke_async_execution",
        "_remote_module_non_scriptable:_remote_forward",
    )
)
#: Classes whose objects are, or copy, more than their pickles hold.
_OF_ANY_SIZE = frozenset(("builtins:range", "builtins:ExceptionGroup"))
_FILES = "reads and writes files that its caller chooses"
_CALLS = "calls other workers in the name of this one"
#: What operators do that no policy should permit.
_OPERATORS = {
    "aten::from_file": _FILES,
    "aten::save": _FILES,
    "aten::set_": "changes which memory a tensor uses",
    "prim::rpc_sync": _CALLS,
    "prim::rpc_async": _CALLS,
    "prim::rpc_remote": _CALLS,
}
#: The methods that run when a pickle makes an object, or when it ends.
_STATE = ("__setstate__", "__reduce__", "__reduce_ex__", "__del__")


def explain(policy: Policy) -> list[str]:
    """Return the policy in words, a line for each statement."""
    lines = [
        "What is not listed is refused."
        if policy.enforces
        else "What is not listed is logged and let through (mode = 'warn')."
    ]
    if policy.require_guard:
        which = "this policy" if policy.same_policy else "a guard"
        lines.append(f"A group forms only if all its members have {which}.")
    for rule in policy.rules:
        lines += _explain_rule(rule)
    lines.append(
        "Arguments and results consist of tensors, plain values, and objects of "
        + (f"these classes: {', '.join(policy.types)}." if policy.types else "no other classes.")
    )
    return lines


def _explain_rule(rule: Rule) -> Iterable[str]:
    who = "Every worker" if "*" in rule.peers else f"Workers {', '.join(rule.peers)}"
    verbs = {
        "functions": "may call",
        "methods": "may call through RRefs",
        "references": "may pass as arguments",
        "operators": "may run the operators",
        "scripts": "may run the TorchScript functions",
    }
    for kind, verb in verbs.items():
        if entries := getattr(rule, kind):
            yield f"{who} {verb}: {', '.join(entries)}."
    requests = {
        "fetch": "may fetch values of RRefs",
        "autograd": "may call inside contexts of distributed autograd, and run backward passes",
        "profiling": "may switch a profiler on for their calls",
    }
    for request in rule.requests:
        yield f"{who} {requests[request]}."


def warnings(policy: Policy) -> list[str]:
    """Return the entries that give everything away, or more than they seem to."""
    texts = []
    for rule in policy.rules:
        for name in (*rule.functions, *rule.references, *rule.methods):
            if _gives_away(name):
                texts.append(f"{name} lets its caller run anything. Remove it.")
            elif _RPC.fullmatch(name):
                texts.append(f"{name} {_CALLS}. Remove it.")
        for name in rule.operators:
            if harm := _OPERATORS.get(name.partition(".")[0]):
                texts.append(f"{name} {harm}. Remove it.")
        if "*" in rule.peers and (rule.functions or rule.methods):
            texts.append("a rule for '*' holds for every member; name the workers that need it.")
    for name in policy.types:
        if name in _OF_ANY_SIZE:
            texts.append(f"{name} in `types` lets a message make values of any size. Remove it.")
        elif _gives_away(name):
            texts.append(f"{name} in `types` lets a message run anything. Remove it.")
        elif reason := _reduces(name):
            texts.append(f"{name} {reason}. Check what it does with values that a peer chooses.")
    if not policy.enforces:
        texts.append("mode is 'warn': nothing is refused.")
    return list(dict.fromkeys(texts))


def _gives_away(name: str) -> bool:
    module = name.partition(":")[0]
    return (
        module.partition(".")[0] in _GIVE_AWAY
        or module in _ALSO_GIVE_AWAY
        or name in _OF_PYTHON
        or name in _OF_TORCH
        or name in _CALL_ANYTHING
    )


def _reduces(name: str) -> str:
    """Return what a class does when it is unpickled; imports nothing."""
    module, _, qualname = name.partition(":")
    value = sys.modules.get(module)
    if value is None:
        own = _written_methods(module, qualname)
        return f"has a {' and a '.join(own)} of its own" if own else ""
    for part in qualname.split("."):
        value = getattr(value, part, None)
    if value is None:
        return ""
    if not isinstance(value, type):
        return "is a function, which a message may call with any arguments"
    own = [
        method
        for method in _STATE
        if any(method in vars(base) for base in value.__mro__ if base.__module__ != "builtins")
    ]
    return f"has a {' and a '.join(own)} of its own" if own else ""


def _written_methods(module: str, qualname: str) -> list[str]:
    """Return which of the methods for pickle the source of a class defines, without its bases."""
    places: list[str] | None = [str(Path.cwd()), *sys.path]
    spec = None
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:count]), places)
        if spec is None:
            return []
        places = spec.submodule_search_locations
        if places is None and count < len(parts):
            return []
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return []
    try:
        body = ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError):
        return []
    for part in qualname.split("."):
        classes = [
            each.body for each in body if isinstance(each, ast.ClassDef) and each.name == part
        ]
        if not classes:
            return []
        body = classes[-1]
    defined = {each.name for each in body if isinstance(each, ast.FunctionDef)}
    return [method for method in _STATE if method in defined]
