#!/usr/bin/env bash
# Build the extensions of the agents, of ZeroMQ's transport and of fault injection with ThreadSanitizer, into build/.
# Needs g++ with libtsan, and torch installed for the `python` on PATH.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
torch=$(python -c 'import torch, pathlib; print(pathlib.Path(torch.__file__).parent)')
pybind11=$(python -c 'import pybind11; print(pybind11.get_include())')
python=$(python -c 'import sysconfig; print(sysconfig.get_path("include"))')
suffix=$(python -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
common=(-std=c++20 -O1 -g -fsanitize=thread -fno-omit-frame-pointer -fPIC -shared -fvisibility=hidden -fwrapv
    -I ../../packages/agents/src/rpc_backends_agents/include -isystem "$python")
# Packages that contain the new extension and links to all other files of the sources.
rm -rf build
mkdir -p build/rpc_backends_agents build/rpc_backend_zeromq build/rpc_backends_faults
g++ "${common[@]}" -I ../../packages/agents/csrc/narrow -I ../../packages/agents/csrc -isystem "$torch/include" -isystem "$torch/include/torch/csrc/api/include" -D_GLIBCXX_USE_CXX11_ABI=1 -DTORCH_EXTENSION_NAME=_C \
    ../../packages/agents/csrc/unit_*.cc -L "$torch/lib" -Wl,-rpath,"$torch/lib" -ltorch_python -ltorch -ltorch_cpu -lc10 \
    -o "build/rpc_backends_agents/_C$suffix"
g++ "${common[@]}" -isystem "$pybind11" ../../plugins/zeromq/csrc/*.cpp -ldl -o "build/rpc_backend_zeromq/_native$suffix"
g++ "${common[@]}" -isystem "$pybind11" ../../plugins/faults/csrc/*.cpp -o "build/rpc_backends_faults/_native$suffix"
for package in rpc_backends_agents:../../packages/agents rpc_backend_zeromq:../../plugins/zeromq rpc_backends_faults:../../plugins/faults; do
    name=${package%%:*}
    from=$PWD/${package#*:}/src/$name
    find "$from" -mindepth 1 -maxdepth 1 ! -name '*.so' ! -name __pycache__ -exec ln -s {} "build/$name/" \;
done
