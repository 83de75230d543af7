"""Messages of a malicious member, written byte by byte, and what the workers of these tests have.

Each attack makes a folder, named as the attack, when its payload runs.
"""

# ruff: noqa: E501, PTH102  # a table of bytes is read by its rows; attacks name os.mkdir
from __future__ import annotations

import contextlib
import copyreg
import os
import time
from dataclasses import dataclass
from typing import Any

INTERNAL = "torch.distributed.rpc.internal"
ME = "guard_attacks"
#: The extension code of os.mkdir in the workers.
CODE = 241


# --- what workers have --------------------------------------------------------------------------------


def listed(value: Any = None) -> Any:
    """Return the argument; the policy lists this function."""
    return value


def listed_longer(path: str) -> None:
    """Leave a trace; the policy lists a function whose name begins as this one's."""
    os.mkdir(path)


def for_others(path: str) -> None:
    """Leave a trace; the policy lists this function for another worker."""
    os.mkdir(path)


class Traced(type):
    """A class of classes that leave a trace when an attribute is set."""

    def __setattr__(cls, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "trace":
            os.mkdir(value)


@dataclass
class Config(metaclass=Traced):
    """A class that the policy lists as a type."""

    size: int = 1


class Counter:
    """A class of which a worker may make objects, and call one method."""

    def __init__(self) -> None:
        self.count = 0

    @classmethod
    def starting_at(cls, number: int) -> int:
        """Return a count; the policy lists this method as a function."""
        return cls().add(number)

    @classmethod
    def slowly(cls, file: str) -> Counter:
        """Make an object when a file is there; the policy lists this method as a function."""
        while not os.path.exists(file):  # noqa: PTH110
            time.sleep(0.01)
        return cls()

    def add(self, number: int) -> int:
        """Count; the policy lists this method."""
        self.count += number
        return self.count

    def reset(self, path: str) -> None:
        """Leave a trace; the policy does not list this method."""
        os.mkdir(path)


def add_remotely(rref: Any, number: int) -> int:
    """Count in another worker."""
    return int(rref.rpc_sync().add(number))


class Evil:
    """A class that the policy does not list, with a constructor that leaves a trace."""

    def __new__(cls, path: str = "") -> Any:
        """Make an object."""
        os.mkdir(path)
        return super().__new__(cls)


class UnlistedError(Exception):
    """An exception that the policy does not list."""


def raise_unlisted() -> None:
    """Raise an exception of a type that the policy does not list; the policy lists this function."""
    raise UnlistedError("with this text")


def make_evil_extension() -> None:
    """Register os.mkdir under an extension code, as some library might."""
    with contextlib.suppress(ValueError):
        copyreg.add_extension(os.mkdir.__module__, "mkdir", CODE)


# --- pickles ------------------------------------------------------------------------------------------


def text(value: str) -> bytes:
    """Return the opcode of a text."""
    encoded = value.encode()
    return b"X" + len(encoded).to_bytes(4, "little") + encoded


def raw(value: bytes) -> bytes:
    """Return the opcode of bytes."""
    return b"B" + len(value).to_bytes(4, "little") + value


def name(module: str, qualname: str) -> bytes:
    """Return the opcodes of a global."""
    return text(module) + text(qualname) + b"\x93"


def made(callee: bytes, *arguments: bytes) -> bytes:
    """Return the opcodes of a call while unpickling."""
    return callee + b"(" + b"".join(arguments) + b"tR"


def call(function: bytes, *arguments: bytes, keywords: bytes = b"}") -> bytes:
    """Return the pickle of a call."""
    start = b"\x80\x04" + name(INTERNAL, "PythonUDF")
    return start + function + b"(" + b"".join(arguments) + b"t" + keywords + b"\x87\x81."


MKDIR = name("posix", "mkdir")
LISTED = name(ME, "listed")


def attacks(folder: str) -> dict[str, bytes]:
    """Return calls that make ``folder``/NAME when their payload runs."""

    def path(attack: str) -> bytes:
        return text(f"{folder}/{attack}")

    def code(attack: str) -> bytes:
        return text(f"__import__('os').mkdir({f'{folder}/{attack}'!r})")

    def shell(attack: str) -> bytes:
        return text(f"mkdir {folder}/{attack}")

    def inner(attack: str) -> bytes:
        return b"\x80\x04" + made(MKDIR, path(attack)) + b"."

    def getattr_(of: bytes, attribute: str) -> bytes:
        return made(name("builtins", "getattr"), of, text(attribute))

    head = b"\x80\x04" + name(INTERNAL, "PythonUDF")
    end = b"}\x87\x81."
    return {
        # functions that are not listed
        "mkdir": call(MKDIR, path("mkdir")),
        "os_name": call(name("os", "mkdir"), path("os_name")),
        "system": call(name("posix", "system"), shell("system")),
        "cve_2024_5480_eval": call(name("builtins", "eval"), code("cve_2024_5480_eval")),
        "exec": call(name("builtins", "exec"), code("exec")),
        "timeit": call(name("timeit", "timeit"), code("timeit"), text("pass"), keywords=b"}(" + text("number") + b"K\x01u"),
        "cprofile": call(name("cProfile", "run"), code("cprofile")),
        "subprocess": call(name("subprocess", "getoutput"), shell("subprocess")),
        "prefix": call(name(ME, "listed_longer"), path("prefix")),
        "for_others": call(name(ME, "for_others"), path("for_others")),
        "dotted": call(name(ME, "os.mkdir"), path("dotted")),
        "class": call(name(ME, "Evil"), path("class")),
        "method_unbound": call(name(ME, "Counter.reset"), b"N", path("method_unbound")),
        "run_function": call(
            name(INTERNAL, "_run_function"), call(MKDIR, path("run_function"))[2:-1]
        ),
        "operator_call": call(name("operator", "call"), MKDIR, path("operator_call")),
        "cve_2024_48063_create_module": call(
            name("torch.distributed.nn.api.remote_module", "_create_module"),
            MKDIR, b"(" + path("cve_2024_48063_create_module") + b"t", b"}", text("cpu"),
        ),
        # a job is a command line, which the head of the cluster runs for everyone who asks
        "shadowray_job": call(
            name("subprocess", "check_call"),
            b"](" + text("mkdir") + path("shadowray_job") + b"e",
        ),
        "cve_2025_32434_torch_load": call(
            name("torch.serialization", "load"),
            made(name("_io", "BytesIO"), raw(_torch_file(f"{folder}/cve_2025_32434_torch_load"))),
            keywords=b"}" + text("weights_only") + b"\x89s",
        ),
        # callables that a pickle makes
        "partial": call(made(name("functools", "partial"), MKDIR, path("partial"))),
        "methodcaller": call(
            made(name("operator", "methodcaller"), text("mkdir")),
            made(name("pathlib", "PosixPath"), path("methodcaller")),
        ),
        "bound_method": call(
            getattr_(made(name("pathlib", "PosixPath"), path("bound_method")), "mkdir")
        ),
        "globals_of_listed": call(
            made(
                getattr_(getattr_(LISTED, "__globals__"), "get"), text("for_others")
            ),
            path("globals_of_listed"),
        ),
        # calls while unpickling
        "argument": call(LISTED, made(MKDIR, path("argument"))),
        "keyword": call(LISTED, keywords=b"}(" + text("value") + made(MKDIR, path("keyword")) + b"u"),
        "before_call": b"\x80\x04" + made(MKDIR, path("before_call")) + b"0" + call(LISTED)[2:],
        "in_list": call(LISTED, b"](" + made(MKDIR, path("in_list")) + b"e"),
        "in_set": call(LISTED, b"\x8f(" + made(MKDIR, path("in_set")) + b"\x90"),
        "as_key": call(LISTED, b"}" + made(MKDIR, path("as_key")) + b"Ns"),
        "in_type": call(LISTED, made(name(ME, "Config"), made(MKDIR, path("in_type")))),
        "function_for_others": call(LISTED, made(name(ME, "for_others"), path("function_for_others"))),
        "cve_2025_32444_bare": b"\x80\x04" + made(MKDIR, path("cve_2025_32444_bare")) + b".",
        # a broker unpickles what arrives, in the form that pickle.dumps(object, 3) gives it
        "cve_2026_3059_broker": b"\x80\x03cposix\nmkdir\n(" + path("cve_2026_3059_broker") + b"tR.",
        # what is no pickle has a part that another unpickler gets
        "cve_2026_93034_forking_pickler": call(
            LISTED,
            made(
                getattr_(name("multiprocessing.reduction", "ForkingPickler"), "loads"),
                raw(inner("cve_2026_93034_forking_pickler")),
            ),
        ),
        "newobj": call(LISTED, name(ME, "Evil") + b"(" + path("newobj") + b"t\x81"),
        "newobj_ex": call(LISTED, name(ME, "Evil") + b"(" + path("newobj_ex") + b"t}\x92"),
        "newobj_of_copyreg": call(
            LISTED, made(name("copyreg", "__newobj__"), name(ME, "Evil"), path("newobj_of_copyreg"))
        ),
        "exec_in_argument": call(LISTED, made(name("builtins", "exec"), code("exec_in_argument"))),
        "map": call(LISTED, made(name("builtins", "list"), made(name("builtins", "map"), MKDIR, b"](" + path("map") + b"e"))),
        "build_on_class": call(LISTED, name(ME, "Config") + b"N}" + text("trace") + path("build_on_class") + b"s\x86b"),
        "cve_2025_66455_load_from_bytes": call(
            LISTED,
            made(name("torch.storage", "_load_from_bytes"), raw(_torch_file(f"{folder}/cve_2025_66455_load_from_bytes"))),
        ),
        "pickle_loads": call(name("_pickle", "loads"), raw(inner("pickle_loads"))),
        "pickle_in_argument": call(LISTED, made(name("_pickle", "loads"), raw(inner("pickle_in_argument")))),
        "rebuild_from_type": call(
            LISTED,
            made(
                name("torch._tensor", "_rebuild_from_type_v2"),
                MKDIR, name("torch", "Tensor"), b"(" + path("rebuild_from_type") + b"t", b"}",
            ),
        ),
        # heads that name another function than the pickle calls
        "replaced": head + LISTED + b"0" + MKDIR + b"(" + path("replaced") + b"t" + end,
        "replaced_twice": head + LISTED + b"(" + b"1" + b"0" + MKDIR + b"(" + path("replaced_twice") + b"t" + end,
        "other_class": b"\x80\x04" + name(INTERNAL, "PythonUDF") + LISTED + b"00"
        + name(INTERNAL, "PythonUDF") + MKDIR + b"(" + path("other_class") + b"t" + end,
        "getattr_head": head + getattr_(name("torch._C", "_VariableFunctionsClass"), "zeros") + b"0"
        + MKDIR + b"(" + path("getattr_head") + b"t" + end,
        # opcodes that Python does not write for a call
        "extension": call(b"\x82" + bytes([CODE]), path("extension")),
        "extension_in_argument": call(LISTED, made(b"\x82" + bytes([CODE]), path("extension_in_argument"))),
        "extension_2": call(b"\x83" + CODE.to_bytes(2, "little"), path("extension_2")),
        "old_global": call(b"cposix\nmkdir\n", path("old_global")),
        "old_instance": call(LISTED, b"(" + path("old_instance") + b"iguard_attacks\nEvil\n"),
        "old_object": call(LISTED, b"(" + name(ME, "Evil") + path("old_object") + b"o"),
        "protocol_0": b"ctorch.distributed.rpc.internal\nPythonUDF\n(cposix\nmkdir\n(" + path("protocol_0") + b"t}t\x81.",
        "dup": head + MKDIR + b"20(" + path("dup") + b"t" + end,
        "second_pickle": call(LISTED, made(MKDIR, path("second_pickle"))) + call(LISTED),
    }  # fmt: skip


def _torch_file(path: str) -> bytes:
    """Return an old file of torch.save, which torch.load unpickles."""
    return b"\x80\x02" + made(MKDIR, text(path)) + b"."


def _shared(levels: int) -> bytes:
    """Return the opcodes of a tuple of two references to such a tuple, and so on: 2**levels values."""
    opcodes = b"K\x01\x85\x94"
    for level in range(levels):
        # the memo of call() has no other entries
        opcodes += b"0" + b"h" + bytes([level]) + b"h" + bytes([level]) + b"\x86\x94"
    return opcodes


def _long(number: int) -> bytes:
    encoded = number.to_bytes(number.bit_length() // 8 + 1, "little")
    return b"\x8a" + bytes([len(encoded)]) + encoded


def _hidden_depth(levels: int) -> bytes:
    """Return the opcodes of lists in lists; each is put into the next one by its entry of the memo."""
    opcodes = b"]\x94" * levels
    for level in range(levels - 1, 0, -1):
        opcodes += b"h" + bytes([level - 1]) + b"a0"
    return opcodes + b"0h" + bytes([levels - 1])


def _gather(function: str, *arguments: bytes) -> bytes:
    return call(name("torch.distributed.rpc.api", function), *arguments)


def _names(*workers: str) -> bytes:
    return b"\x8f(" + b"".join(map(text, workers)) + b"\x90"


def gathers() -> dict[str, bytes]:
    """Return calls of worker1 that would end or falsify a gather of worker0 and worker1."""
    both = _names("worker0", "worker1")
    gather, announce = "_gather_to_leader", "_broadcast_to_followers"
    values = b"}(" + text("worker0") + b"N" + text("worker1") + b"Nu"
    return {
        "an end without the others": _gather(gather, text("worker0worker10"), text("worker1"), b"N", _names("worker1")),
        "an end by another leader": _gather(gather, text("worker10"), text("worker1"), b"N", _names("worker1")),
        "members of all names": _gather(gather, text("worker0worker10"), text("worker1"), b"N", b"N"),
        "members in a list": _gather(gather, text("worker0worker10"), text("worker1"), b"N", b"](" + text("worker0") + text("worker1") + b"e"),
        "members that are numbers": _gather(gather, text("worker0worker10"), text("worker1"), b"N", b"\x8f(K\x00" + text("worker1") + b"\x90"),
        "another worker's part": _gather(gather, text("worker0worker10"), text("worker0"), b"N", both),
        "another gather": _gather(gather, text("worker0worker20"), text("worker1"), b"N", both),
        "a gather far ahead": _gather(gather, text("worker0worker199"), text("worker1"), b"N", both),
        "a gather without a number": _gather(gather, text("worker0worker1"), text("worker1"), b"N", both),
        "a number for a gather": _gather(gather, b"K\x00", text("worker1"), b"N", both),
        "an announcement in the leader's place": _gather(announce, text("worker0worker10"), values),
        "an announcement of a list": _gather(announce, text("worker0worker10"), b"]"),
        "an announcement without this worker": _gather(announce, text("worker10"), b"}" + text("worker1") + b"Ns"),
    }  # fmt: skip


def harmful() -> dict[str, bytes]:
    """Return calls that would harm the worker that unpickles them."""
    deep = b")" + b"\x85" * 200_000
    billion = made(name("builtins", "range"), b"J\x00\xca\x9a\x3b")
    receiver = made(
        name("builtins", "getattr"), name(INTERNAL, "_InternalRPCPickler"), text("_tensor_receiver")
    )
    return {
        **gathers(),
        "shared tuples as a key": call(LISTED, b"}" + _shared(50) + b"Ns"),
        "shared tuples as keys": call(LISTED, b"}(" + _shared(50) + b"Nu"),
        "shared tuples in a set": call(LISTED, b"\x8f(" + _shared(50) + b"\x90"),
        "shared tuples in a frozenset": call(LISTED, b"(" + _shared(50) + b"\x91"),
        "shared tuples in an OrderedDict": call(
            LISTED, made(name("collections", "OrderedDict"), _shared(50) + b"N\x86\x85")
        ),
        "shared tuples as an argument of a class": call(LISTED, made(name(ME, "Config"), _shared(50))),
        "a range": call(LISTED, billion),
        "a group of a billion exceptions": call(
            LISTED, made(name("builtins", "ExceptionGroup"), text("x"), billion)
        ),
        "an exception with a billion arguments": call(
            LISTED, made(name("builtins", "ValueError")) + b"}" + text("args") + billion + b"sb"
        ),
        "keys with equal hashes": call(
            LISTED, b"}(" + b"".join(_long(i * (2**61 - 1)) + b"N" for i in range(1, 50_000)) + b"u"
        ),
        "tuples as keys": call(
            LISTED,
            b"\x8f(" + b"".join(b"M" + i.to_bytes(2, "little") + b"\x85" for i in range(50_000)) + b"\x90",
        ),
        "items for a tensor": call(LISTED, made(receiver, b"K\x00") + b"K\x00K\x01s"),
        "many items for a tensor": call(LISTED, made(receiver, b"K\x00") + b"(K\x00K\x01u"),
        "a tensor as a list": call(LISTED, made(receiver, b"K\x00") + b"(K\x00e"),
        "items for a parameter": call(
            LISTED,
            made(name("torch._utils", "_rebuild_parameter"), made(receiver, b"K\x00"), b"\x89", b"}") + b"K\x00K\x01s",
        ),
        "a number for the hooks of a parameter": call(
            LISTED, made(name("torch._utils", "_rebuild_parameter"), made(receiver, b"K\x00"), b"\x88", b"K\x05")
        ),
        "hooks for a parameter": call(
            LISTED,
            made(
                name("torch._utils", "_rebuild_parameter"), made(receiver, b"K\x00"), b"\x88",
                made(name("collections", "OrderedDict")) + b"K\x00K\x05s",
            ),
        ),
        "state of a parameter": call(
            LISTED,
            made(
                name("torch._utils", "_rebuild_parameter"), made(receiver, b"K\x00"), b"\x88",
                made(name("collections", "OrderedDict")),
            )
            + b"\x88NK\x05\x87b",
        ),
        "a parameter of what is no tensor": call(
            LISTED,
            made(
                name("torch._utils", "_rebuild_parameter"), made(name(ME, "Config")), b"\x88",
                made(name("collections", "OrderedDict")),
            ),
        ),
        "items for a tuple": call(LISTED, b"K\x01\x85K\x01a"),
        "depth in the memo": call(LISTED, _hidden_depth(250)),
        "a list that holds itself": call(LISTED, b"]\x94h\x00a"),
        "a million copies of 100 kB": call(
            LISTED,
            name("builtins", "bytearray") + b"\x94" + raw(b"x" * 100_000) + b"\x94"
            + b"0h\x00h\x01\x85R" * 100_000,
        ),
        "a million states": call(
            LISTED, b"](" + b"N" * 10_000 + b"e\x94" + made(name(ME, "Config")) + b"h\x00b" * 100_000
        ),
        "a million marks": call(LISTED, b"(" * 20_000_000),
        "persistent id": call(LISTED, text("x") + b"Q"),
        "persistent id as text": call(LISTED, b"Px\n"),
        "a memo of 16 GiB": call(LISTED, text("x") + b"r\xff\xff\xff\x7f"),
        "a deep tuple as a key": call(LISTED, b"}" + deep + b"Ns"),
        "a deep list": call(LISTED, b"]" * 5000 + b"a" * 4999),
        "a bytearray of 100 GB": call(
            LISTED, made(name("builtins", "bytearray"), b"\x8a\x05" + (10**11).to_bytes(5, "little"))
        ),
        "a set of a billion numbers": call(
            LISTED, made(name("builtins", "set"), made(name("builtins", "range"), b"J\x00\xca\x9a\x3b"))
        ),
        "a size of a billion numbers": call(
            LISTED, made(name("torch", "Size"), made(name("builtins", "range"), b"J\x00\xca\x9a\x3b"))
        ),
        "a function of pickles": call(LISTED, name("torch._utils", "_rebuild_parameter")),
        "five million lists": call(LISTED, b"](" + b"]" * 5_000_000 + b"e"),
        "a buffer": call(LISTED, b"\x97"),
        "no mark": call(LISTED)[:-2] + b"t.",
        "an empty stack": b"\x80\x04R.",
        "nothing": b"",
        "no end": call(LISTED)[:-1],
        "a long text that is not there": b"\x80\x04\x8d" + b"\xff" * 8,
        "a number of 2 GiB": b"\x80\x04\x8b\xff\xff\xff\x7f",
        "state of a tensor": call(
            LISTED,
            made(made(name("builtins", "getattr"), name(INTERNAL, "_InternalRPCPickler"), text("_tensor_receiver")), b"K\x00")
            + b"(K\x00K\x00(tNtb",
        ),
        "an RRef in another form": call(
            LISTED,
            made(made(name("builtins", "getattr"), name(INTERNAL, "_InternalRPCPickler"), text("_py_rref_receiver")), b"(K\x00t"),
        ),
        "an RRef of another type": call(
            LISTED,
            made(
                made(name("builtins", "getattr"), name(INTERNAL, "_InternalRPCPickler"), text("_py_rref_receiver")),
                b"(K\x00K\x01K\x01K\x01K\x01K\x01" + text("__import__('os').getpid()") + b"t",
            ),
        ),
        "a script module": call(
            LISTED,
            made(made(name("builtins", "getattr"), name(INTERNAL, "_InternalRPCPickler"), text("_script_module_receiver")), raw(b"PK")),
        ),
        "a function in a list": call(LISTED, b"](" + name(ME, "raise_unlisted") + b"e"),
        "arguments in a dict": b"\x80\x04" + name(INTERNAL, "PythonUDF") + LISTED + b"}}\x87\x81.",
        "a keyword that is a number": call(LISTED, keywords=b"}K\x01Ns"),
        "an exception as a call": b"\x80\x04" + name(INTERNAL, "RemoteException") + text("x") + LISTED + b"\x86\x81.",
        "a text": b"\x80\x04" + text("x") + b".",
    }  # fmt: skip


def forged_rrefs(count: int, sender: int = 1) -> dict[str, bytes]:
    """Return calls of a worker that use RRefs of worker0 that no worker creates."""
    receiver = made(
        name("builtins", "getattr"),
        name(INTERNAL, "_InternalRPCPickler"),
        text("_py_rref_receiver"),
    )

    def rref(number: int) -> bytes:
        local = b"M" + (9000 + number).to_bytes(2, "little")
        fork = b"M" + (19000 + number).to_bytes(2, "little")
        me = b"K" + bytes([sender])
        ids = b"K\x00" + me + local + me + fork + me
        return made(receiver, b"(" + ids + text("PyObject") + b"t")

    invoke = name("torch.distributed.rpc.rref_proxy", "_local_invoke")
    type_of = name("torch.distributed.rpc.api", "_rref_typeof_on_owner")
    return {
        f"forged {number}": call(invoke, rref(number), text("add"), b"K\x01\x85", b"}")
        if number % 2
        else call(type_of, rref(number), b"\x88")
        for number in range(count)
    }


def results(folder: str) -> dict[str, bytes]:
    """Return results of a malicious callee that make ``folder``/NAME when their payload runs."""

    def path(attack: str) -> bytes:
        return text(f"{folder}/{attack}")

    def error(message: bytes, kind: bytes) -> bytes:
        return b"\x80\x04" + name(INTERNAL, "RemoteException") + message + kind + b"\x86\x81."

    return {
        "result_mkdir": b"\x80\x04" + made(MKDIR, path("result_mkdir")) + b".",
        "result_in_list": b"\x80\x04](" + made(MKDIR, path("result_in_list")) + b"e.",
        "result_class": b"\x80\x04" + name(ME, "Evil") + b"(" + path("result_class") + b"t\x81.",
        "exception_mkdir": error(path("exception_mkdir"), MKDIR),
        "exception_class": error(path("exception_class"), name(ME, "Evil")),
        "exception_text": error(
            made(MKDIR, path("exception_text")), name("builtins", "ValueError")
        ),
    }
