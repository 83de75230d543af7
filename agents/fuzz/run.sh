#!/usr/bin/env bash
# Fuzz what reads frames: ./run.sh [INPUTS], ten million by default. Needs clang with libFuzzer
# (Debian: apt install clang libclang-rt-14-dev) and torch in the Python that is on the path.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
inputs=${1:-10000000}
work=${FUZZ_FOLDER:-build}
mkdir -p "$work/corpus"
torch=$(python -c 'import torch, pathlib; print(pathlib.Path(torch.__file__).parent)')
if [ ! "$work/decode" -nt decode.cpp ] || [ -n "$(find ../csrc -newer "$work/decode" -name '*.[ch]*')" ]; then
    echo "==> building (minutes)"
    clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
        -fno-sanitize=vptr -D_GLIBCXX_USE_CXX11_ABI=1 -I ../src/rpc_backends_agents/include \
        -isystem "$torch/include" -isystem "$torch/include/torch/csrc/api/include" \
        decode.cpp ../csrc/codec.cpp ../csrc/frame.cpp ../csrc/tensors.cpp \
        -L "$torch/lib" -Wl,-rpath,"$torch/lib" -ltorch -ltorch_cpu -lc10 -o "$work/decode"
fi
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 # torch's own statics are no leaks of ours
FUZZ_WRITE_SEEDS="$work/corpus" "$work/decode"
"$work/decode" -runs="$inputs" -max_len=20000 -rss_limit_mb=4096 -print_final_stats=1 "$work/corpus"
