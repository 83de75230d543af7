"""The examples of hooks are installed as packages, and print what the page shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rpc_backends_core._hookspecs import Specs
from support.environments import clean_environ

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to" / "write-a-hook.md").read_text()
#: The source and the output of each example.
EXAMPLES = {
    name: (source, output)
    for name, source, output in re.findall(
        r"<!-- hook: (\w+) -->\n\n```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL
    )
}
HOOKS = [name for name in vars(Specs) if name.startswith("rpc_backends_")]

PROGRAM = """
import torch.distributed.rpc as rpc
from rpc_backends_core import BackendLoadError, RefusedError
make = rpc.backend_registry.construct_rpc_backend_options
options = make("TENSORPIPE", rpc_timeout=0, init_method="file://{store}", num_worker_threads=4)
try:
    rpc.BackendType.BROKEN.value
except BackendLoadError:
    pass
try:
    rpc.init_rpc("doctor0", backend="TENSORPIPE", rank=0, rpc_backend_options=options)
except RefusedError as error:
    print(error)
rpc.init_rpc(
    "doctor0", backend="TENSORPIPE", rank=0, world_size=1, rpc_backend_options=options
)
rpc.shutdown()
"""


def install(folder: Path, distribution: str, entry_points: str, source: str) -> None:
    """Put a package of one module into a folder, as pip would."""
    module = distribution.replace("-", "_")
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points.format(module=module))
    (folder / f"{module}.py").write_text(source)


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Run a program with all examples installed; return what it prints."""
    place = tmp_path_factory.mktemp("hooks")
    for number, (source, _) in enumerate(EXAMPLES.values()):
        group = f"[rpc.backends.hooks]\nexample{number} = {{module}}\n"
        install(place / "site", f"rpc-hooks-example{number}", group, source)
    group = "[rpc.backends]\nBROKEN = {module}:BACKEND\n"
    install(place / "site", "rpc-backend-broken", group, "import no_such_library")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(store=place / "store")],
        env=clean_environ({"PYTHONPATH": str(place / "site")}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", [*HOOKS, "refuse"])
def test_hook_examples_print_the_output_on_the_page(printed: str, name: str) -> None:
    output = EXAMPLES[name][1]
    assert output in printed


@pytest.mark.parametrize("name", HOOKS)
def test_the_page_describes_each_argument_of_a_hook(name: str) -> None:
    page = (DOCS / "reference" / "hooks.md").read_text()
    (row,) = re.findall(rf"^\| `{name}` \| `(.*?)` \|", page, re.MULTILINE)
    function = vars(Specs)[name]
    code = function.__code__
    arguments = set(code.co_varnames[1 : code.co_argcount]) - {"proceed"}
    assert set(row.split(", ")) == arguments
    for argument in arguments:
        assert re.search(
            rf"^\| .*`{argument}`.* \|", page.partition("## Arguments")[2], re.MULTILINE
        )
