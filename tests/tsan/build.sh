#!/usr/bin/env bash
# Build the extensions of the agents, of ZeroMQ's transport and of fault injection with ThreadSanitizer, into build/.
# Needs g++ with libtsan, and cmake, ninja and torch installed for the `python` on PATH.
set -euo pipefail
root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
cd "$root"
packages=(packages/agents plugins/zeromq plugins/faults)
cmake -Wno-deprecated --preset tsan -DPython_EXECUTABLE="$(command -v python)"
cmake --build --preset tsan --target "${packages[@]/%//all}"
# Packages that contain the new extensions and links to all other files of the sources.
rm -rf tests/tsan/build
mkdir tests/tsan/build
for package in "${packages[@]}"; do
    source=$(dirname "$root/$package"/src/*/__init__.py)
    made=tests/tsan/build/$(basename "$source")
    cp -r "build/cpp/tsan/modules/$(basename "$source")" "$made"
    find "$source" -mindepth 1 -maxdepth 1 ! -name '*.so' ! -name __pycache__ ! -name builds -exec ln -s {} "$made/" \;
done
