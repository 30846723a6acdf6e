#!/usr/bin/env bash
# Runs the tests labelled gpu on a machine that has a GPU and no compiler, from the bundle of tests
# (cmake --build --preset release --target gpu_test_bundle), and prints one line per test. No other program should use the GPU, because
# tests measure its memory.
#
#   ./run_gpu.sh [--sm80] [--least-shared] [--sanitize] [--only REGEX] [--log DIR]
#
#   --sm80        run the programs with kernels for sm_80 only, whose PTX the driver of a newer GPU translates
#   --least-shared  run only the tests of kernels for sm_80, with the 99 KiB of shared memory per thread block that an RTX 4090 or an
#                 L40S has; heads wider than 64 are left out, as preflight refuses them there
#   --sanitize    run only the small shapes, under compute-sanitizer's memcheck and racecheck; racecheck leaves out the
#                 matrix products: all their kernels are cuBLASLt's, and it misinterprets their asynchronous barriers
#   --only REGEX  only tests whose name matches
#   --log DIR     folder for the outputs; default /tmp/nsa-gpu-tests
#
# Exit: 0 all passed, 1 one failed, 2 wrong use.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
log=/tmp/nsa-gpu-tests only='' sanitize=false least=false programs=bin
while [ $# -gt 0 ]; do
  case $1 in
    --sm80) programs=sm80 ;;
    --least-shared) least=true programs=sm80 ;;
    --sanitize) sanitize=true ;;
    --only) only=${2:?--only needs a regular expression}; shift ;;
    --log) log=${2:?--log needs a folder}; shift ;;
    -h | --help) sed -n '2,16p' "$0" | cut -c3-; exit 0 ;;
    *) echo "run_gpu.sh: unknown argument '$1'; see --help" >&2; exit 2 ;;
  esac
  shift
done
mkdir -p "$log"
export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} OMP_WAIT_POLICY=passive
nvidia-smi --query-gpu=name,driver_version,memory.used,memory.total --format=csv,noheader || { echo "run_gpu.sh: no GPU here" >&2; exit 2; }

failed=0
# report NAME COMMAND…: runs it for at most ten minutes.
report() {
  local name=$1 began=$SECONDS code=0 verdict=passed; shift
  [[ $name =~ $only ]] || return 0
  timeout 600 "$@" >"$log/$name.log" 2>&1 || code=$?
  case $code in
    0) grep -q '\[  SKIPPED \]' "$log/$name.log" && ! grep -q '\[       OK \]' "$log/$name.log" && verdict=skipped ;;
    77) verdict=skipped ;;
    124) verdict="FAILED (ten minutes)" ;;
    *) verdict="FAILED (exit $code)" ;;
  esac
  printf '%-44s %-20s %4d s  %s\n' "$name" "$verdict" $((SECONDS - began)) \
    "$(grep -hE '^\[  PASSED  \]|^========= (ERROR SUMMARY|RACECHECK SUMMARY)' "$log/$name.log" | tail -2 | paste -sd' ')"
  [[ $verdict != FAILED* ]] || { failed=1; grep -hE -A6 'Failure$|^E |Error|\[  FAILED  \]' "$log/$name.log" | tail -30 || true; }
}

if $sanitize; then
  for tool in memcheck racecheck; do
    for test in "$here/tests/$programs"/kernels_cuda_*; do
      [ "$tool/$(basename "$test")" != racecheck/kernels_cuda_matmul_gpu_test ] || continue
      report "$tool.$(basename "$test")" compute-sanitizer --tool $tool --error-exitcode 9 "$test" --gtest_filter='-*m7c*:*wide_heads*:*narrow_heads*:*blocks_of_128*:*long_lists*:*S___65_536*' --gtest_brief=1
    done
  done
elif $least; then
  export NSA_TEST_LEAST_SHARED=1
  for test in "$here"/tests/sm80/kernels_cuda_*_gpu_test; do
    report "$(basename "$test")" "$test"
  done
else
  for test in "$here/tests/$programs"/*_gpu*_test; do report "$(basename "$test")" "$test"; done
  [ $programs = sm80 ] || report wait_first "$here/tests/kernels/cuda/wait_first.py" "$here/bin/nsa-bench"
  [ $programs = sm80 ] || for test in "$here"/tests/{faults,e2e}/gpu/*_gpu_test.py; do report "$(basename "$test")" python3 "$test" "$here/bin"; done
fi
echo "logs in $log"
exit $failed
