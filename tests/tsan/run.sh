#!/usr/bin/env bash
# ./run.sh [storms]: runs calls.py, or the storms of it, under ThreadSanitizer with what build.sh has built. Fails if anything is reported.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
root=$(realpath ../..)
export PYTHONPATH=$PWD/build:$root/src:$root/packages/cli/src:$root/plugins/tensorpipe/src${PYTHONPATH:+:$PYTHONPATH}
export OMP_NUM_THREADS=1
export TSAN_OPTIONS="suppressions=$PWD/suppressions.txt history_size=5 exitcode=66 ${TSAN_OPTIONS:-}"
# Without random addresses, which newer kernels spread further than ThreadSanitizer knows.
LD_PRELOAD=$(gcc -print-file-name=libtsan.so) setarch -R python calls.py "$@"
