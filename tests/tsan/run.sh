#!/usr/bin/env bash
# ./run.sh [storms]: run calls.py, or only its storms, under ThreadSanitizer with the output of build.sh. Fails on any report.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
root=$(realpath ../..)
export PYTHONPATH=$PWD/build:$root/src:$root/packages/cli/src:$root/plugins/tensorpipe/src${PYTHONPATH:+:$PYTHONPATH}
export OMP_NUM_THREADS=1
export TSAN_OPTIONS="suppressions=$PWD/suppressions.txt history_size=5 exitcode=66 ${TSAN_OPTIONS:-}"
# setarch turns address randomization off: newer kernels use addresses that ThreadSanitizer does not support.
LD_PRELOAD=$(gcc -print-file-name=libtsan.so) setarch -R python calls.py "$@"
