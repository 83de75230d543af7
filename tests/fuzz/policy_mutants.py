"""Show that `policy` finds a policy with a check left out: build it with each change below, and run it.

    python policy_mutants.py [INPUTS]

It needs g++ with the sanitizers and torch. Exits with status 1 if one is not found.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
AGENTS = HERE.parents[1] / "packages/agents"
#: What is left out: file, its text, and the text in its place.
MUTANTS = {
    "a function is listed": (
        "agent/request_policy.cpp",
        "rules->functions.count(function) != 0 || rules->conditional.count(function) != 0);",
        "!function.empty());",
    ),
    "a call that its bytes decide is listed": (
        "agent/request_policy.cpp",
        "permitted(peer)->functions.count(report.function) != 0;",
        "!peer.empty();",
    ),
    "an operator is listed": (
        "agent/request_policy.cpp",
        "rules->operators.count(callee->name) != 0 || rules->operators.count(any_overload) != 0);",
        "rules->operators.count(callee->name) != 0 || !any_overload.empty());",
    ),
    "rules are for a peer": (
        "agent/request_policy.cpp",
        "applies = applies || matches(pattern, peer);",
        "applies = true;",
    ),
    "the schema of an operator decides": (
        "inspect/script_call.cpp",
        "before.text.substr(0, bracket)",
        '"aten::" + std::string(name.substr(kOperators.size()))',
    ),
    "autograd and profiling are listed": (
        "agent/request_policy.cpp",
        "is_autograd ? rules->autograd : rules->profiling",
        "true",
    ),
    "the memo is numbered in order": (
        "inspect/torch_pickle.cpp",
        "number != memo_.size() || stack_.empty()",
        "stack_.empty()",
    ),
    "a text lies in its pickle": (
        "inspect/torch_pickle.cpp",
        "if (pickle_.size() - at_ < size) {",
        "if (size < 1000 && pickle_.size() - at_ < size) {",
    ),
    "a plain call names one function only": (
        "inspect/pickle_limits.cpp",
        "names_others_ > (value.kind == Kind::kWholeCall ? 1 : 0)",
        "names_others_ > 100",
    ),
}
SOURCES = (
    "agent/request_policy.cpp",
    "base/text.cpp",
    *(f"inspect/{name}.cpp" for name in ("pickle_limits", "pickled_call", "script_call")),
    *(f"inspect/{name}.cpp" for name in ("torch_pickle", "wrapper")),
)


def build(sources: Path, objects: Path, names: tuple[str, ...]) -> None:
    """Compile files, given by their path in the sources of the agents or in this folder."""
    torchs = Path(torch.__file__).parent
    flags = ["-std=c++20", "-O1", "-fsanitize=address,undefined"]
    flags += ["-fno-sanitize-recover=undefined", "-fno-sanitize=vptr"]
    include = [f"-I{sources}", f"-I{sources}/narrow", f"-I{AGENTS}/src/rpc_backends_agents/include"]
    include += [
        "-isystem",
        f"{torchs}/include",
        "-isystem",
        f"{torchs}/include/torch/csrc/api/include",
    ]
    for name in names:
        file = HERE / name if "/" not in name else sources / name
        target = objects / f"{file.stem}.o"
        subprocess.run(["g++", *flags, *include, "-c", file, "-o", target], check=True)
    libraries = [f"-L{torchs}/lib", f"-Wl,-rpath,{torchs}/lib", "-ltorch", "-ltorch_cpu", "-lc10"]
    subprocess.run(
        ["g++", *flags, *objects.glob("*.o"), *libraries, "-o", objects / "policy"], check=True
    )


def finds(program: Path, folder: Path, inputs: int) -> bool:
    """Return whether the program ends with a failure."""
    limits = "abort_on_error=1:detect_leaks=0:max_allocation_size_mb=1024"
    env = {
        **os.environ,
        "ASAN_OPTIONS": limits,
        "UBSAN_OPTIONS": "abort_on_error=1",
        "OMP_NUM_THREADS": "1",
    }
    seeds = {
        **env,
        "FUZZ_WRITE_SEEDS": str(folder / "seeds"),
        "FUZZ_PICKLES": str(folder / "pickles"),
    }
    subprocess.run([program], env=seeds, check=True)
    run = subprocess.run(
        [program, "seeds", str(inputs), "1"], cwd=folder, env=env, capture_output=True, check=False
    )
    return run.returncode != 0


def main() -> int:
    """Build and run each."""
    inputs = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    missed = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pickles = [sys.executable, HERE / "policy_pickles.py", folder / "pickles"]
        subprocess.run(pickles, check=True, stderr=subprocess.DEVNULL)
        sources, objects = folder / "csrc", folder / "objects"
        shutil.copytree(AGENTS / "csrc", sources)
        objects.mkdir()
        build(sources, objects, ("policy.cpp", "alone.cpp", *SOURCES))
        if finds(objects / "policy", folder, inputs // 10):
            print("it fails without a change; see crash-alone", file=sys.stderr)
            return 1
        for what, (file, old, new) in MUTANTS.items():
            text = (AGENTS / "csrc" / file).read_text()
            assert text.count(old) == 1, (what, text.count(old))
            (sources / file).write_text(text.replace(old, new))
            build(sources, objects, (file,))
            is_found = finds(objects / "policy", folder, inputs)
            print(
                f"{'found' if is_found else 'NOT FOUND'}: without the check that {what}", flush=True
            )
            missed += [] if is_found else [what]
            (sources / file).write_text(text)
            build(sources, objects, (file,))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
