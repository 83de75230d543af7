"""Explains a policy in words, and finds entries that give everything away."""

from __future__ import annotations

import sys
from collections.abc import Iterable

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
        "builtins",
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
    ]
)
#: Functions of torch that do so, too.
_OF_TORCH = frozenset(
    (
        "torch:load",
        "torch.serialization:load",
        "torch.jit:load",
        "torch.hub:load",
        "torch.storage:_load_from_bytes",
        "torch.distributed.nn.api.remote_module:_instantiate_template",
        "torch.distributed.rpc.internal:_InternalRPCPickler._script_module_receiver",
        "torch.distributed.rpc.internal:_run_function",
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
#: Operators that read or write files.
_FILES = frozenset(("aten::from_file", "aten::save"))


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
    many = f"{len(policy.types)} more" if policy.types else "no other"
    lines.append(
        f"Arguments and results consist of tensors, plain values, and objects of {many} classes"
        + (f": {', '.join(policy.types)}." if policy.types else ".")
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
    found = []
    for rule in policy.rules:
        for name in (*rule.functions, *rule.references, *rule.methods):
            if _gives_away(name):
                found.append(f"{name} lets its caller run anything. Remove it.")
        for name in rule.operators:
            if name.partition(".")[0] in _FILES:
                found.append(f"{name} reads and writes files that its caller chooses. Remove it.")
        if "*" in rule.peers and (rule.functions or rule.methods):
            found.append("a rule for '*' holds for every member; name the workers that need it.")
    for name in policy.types:
        if name in _OF_ANY_SIZE:
            found.append(f"{name} in `types` lets a message make values of any size. Remove it.")
        elif _gives_away(name):
            found.append(f"{name} in `types` lets a message run anything. Remove it.")
        elif reason := _reduces(name):
            found.append(f"{name} {reason}. Check what it does with values that a peer chooses.")
    if not policy.enforces:
        found.append("mode is 'warn': nothing is refused.")
    return list(dict.fromkeys(found))


def _gives_away(name: str) -> bool:
    module = name.partition(":")[0]
    is_exception = module == "builtins" and name.endswith(("Error", "Exception", "Warning"))
    return (
        (module.partition(".")[0] in _GIVE_AWAY and not is_exception)
        or name in _OF_TORCH
        or name in _CALL_ANYTHING
    )


def _reduces(name: str) -> str:
    """Return what a class does when it is unpickled; looks only at modules that are imported."""
    module, _, qualname = name.partition(":")
    value = sys.modules.get(module)
    for part in qualname.split("."):
        value = getattr(value, part, None)
    if value is None:
        return ""
    if not isinstance(value, type):
        return "is a function, which a message may call with any arguments"
    own = [
        method
        for method in ("__setstate__", "__reduce__", "__reduce_ex__", "__del__")
        if any(method in vars(base) for base in value.__mro__ if base.__module__ != "builtins")
    ]
    return f"has a {' and a '.join(own)} of its own" if own else ""
