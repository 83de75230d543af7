#!/usr/bin/env bash
# Fuzz the parsers of input from outside: ./run.sh TARGET|all [INPUTS] [PROCESSES]; defaults: all, ten million, one.
# With FUZZ_SECONDS=60, each target stops after a minute at the latest.
# decode, handshake, stream, pieces, incoming, calls and policy need clang with libFuzzer (Debian: apt install clang libclang-rt-14-dev). All need the project
# installed for the `python` on PATH.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
target=${1:-all}
inputs=${2:-10000000}
processes=${3:-1}
work=${FUZZ_FOLDER:-build}
seconds=${FUZZ_SECONDS:-0}
agents=../../packages/agents/csrc
zeromq=../../plugins/zeromq/csrc
ucx=../../plugins/ucx/csrc
headers=../../packages/agents/src/rpc_backends_agents/include
common=(-std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined -fno-sanitize=vptr
    -I $agents -I $headers)
torch=$(python -c 'import torch, pathlib; print(pathlib.Path(torch.__file__).parent)')
with_torch=(-D_GLIBCXX_USE_CXX11_ABI=1 -I $agents/narrow -isystem "$torch/include" -isystem "$torch/include/torch/csrc/api/include"
    -L "$torch/lib" -Wl,-rpath,"$torch/lib" -ltorch -ltorch_cpu -lc10)
case $target in
all)
    status=0
    for each in decode handshake stream pieces incoming calls policy records group publications members; do
        echo "==> $each"
        ./run.sh "$each" "$inputs" "$processes" || status=$?
    done
    exit $status
    ;;
records | group | publications | members)
    mkdir -p "$work"
    pids=()
    for ((i = 0; i < processes; ++i)); do
        # Each process of each run has its own seed.
        timeout "$seconds" python store.py "$target" $((inputs / processes)) "$RANDOM$i" >"$work/$target-$i.log" 2>&1 &
        pids+=($!)
    done
    status=0
    for pid in "${pids[@]}"; do
        wait "$pid" || { code=$?; [ $code = 124 ] || status=$code; }  # 124: the time is over
    done
    tail -q -n 1 "$work/$target"-[0-9]*.log
    exit $status
    ;;
decode)
    sources=(decode.cpp $agents/base/log.cpp $agents/wire/{codec,devices,frame,pieces,tensors}.cpp)
    flags=("${with_torch[@]}")
    length=10000
    ;;
handshake)
    sources=(handshake.cpp $zeromq/{channel,keys,records,tls}.cpp $headers/rpc_backends_agents/openssl/{certificates,crypto}.cpp)
    flags=(-I $zeromq -I $zeromq/../tests/unit -I ../support/cpp -lssl -lcrypto)
    length=6000
    ;;
stream)
    sources=(stream.cpp $zeromq/{assembly,channel,message_reader}.cpp)
    flags=()
    length=6000
    ;;
pieces)
    sources=(pieces.cpp $zeromq/{assembly,channel,message_reader}.cpp)
    flags=()
    length=6000
    ;;
incoming)
    sources=(incoming.cpp $ucx/incoming.cpp $ucx/outgoing.cpp)
    flags=()
    length=6000
    ;;
calls)
    sources=(calls.cpp $agents/inspect/pickled_call.cpp)
    flags=()
    length=2000
    ;;
policy)
    sources=(policy.cpp $agents/agent/request_policy.cpp $agents/base/text.cpp $agents/inspect/{pickle_limits,pickled_call,script_call,torch_pickle,wrapper}.cpp)
    flags=("${with_torch[@]}")
    export FUZZ_PICKLES="$work/policy-pickles"
    python policy_pickles.py "$FUZZ_PICKLES"
    length=2000
    ;;
*)
    echo "error: unknown target '$target'. Choose decode, handshake, stream, pieces, incoming, calls, policy, records, group, publications, members or all." >&2
    exit 2
    ;;
esac
mkdir -p "$work/$target-corpus"
program=$work/$target
if [ ! "$program" -nt "$target.cpp" ] || [ -n "$(find $agents $zeromq $ucx $headers seeds.h ../support/cpp $zeromq/../tests/unit -newer "$program" -name '*.[ch]*')" ]; then
    echo "==> building (a minute)"
    clang++ "${common[@]}" "${sources[@]}" "${flags[@]}" -o "$program"
fi
# Leak detection is off: it would report torch's static objects. OpenMP has one thread: more would busy-wait.
export OMP_NUM_THREADS=1
export ASAN_OPTIONS=detect_leaks=0:malloc_context_size=6:quarantine_size_mb=16
[ "$target" != policy ] || ASAN_OPTIONS+=:max_allocation_size_mb=1024
FUZZ_WRITE_SEEDS="$work/$target-corpus" "$program"
pids=()
for ((i = 0; i < processes; ++i)); do
    "$program" -runs=$((inputs / processes)) -max_total_time="$seconds" -max_len=$length -rss_limit_mb=4096 -timeout=20 -entropic=0 \
        -artifact_prefix="$work/" -print_final_stats=1 "$work/$target-corpus" >"$work/$target-$i.log" 2>&1 &
    pids+=($!)
done
status=0
for pid in "${pids[@]}"; do
    wait "$pid" || status=$?
done
grep -h -E '^(stat::number_of_executed_units|stat::average_exec|ERROR|SUMMARY|.*ERROR:|.*runtime error)' "$work/$target"-[0-9]*.log || true
exit $status
