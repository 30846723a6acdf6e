#!/usr/bin/env bash
# Fuzzes every reader of outside bytes with libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer, each for a bounded time.
#
#   tests/fuzz/run.sh [--seconds N] [--at-once N] [TARGET…]     default: 600 seconds each, two at once, all targets
#
# Needs clang with its libFuzzer runtime (deploy/packages.sh fuzz). A target is NAME of tests/fuzz/NAME_fuzz.cc. It starts from tests/fuzz/corpus/NAME
# and the job files; what it finds new is kept in build/fuzz/corpus/NAME, and tests/fuzz/keep.py chooses from that what is worth to be kept in the tree.
# A finding is written to build/fuzz/crashes/NAME-…; once it is mended, put it into tests/fuzz/corpus/NAME. Prints a line for each target.
set -euo pipefail
cd "$(dirname "$0")/../.."

seconds=600 at_once=2 targets=()
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) seconds=${2:?--seconds needs a number}; shift ;;
    --at-once) at_once=${2:?--at-once needs a number}; shift ;;
    -h | --help) sed -n '2,9p' "$0" | cut -c3-; exit 0 ;;
    *) targets+=("$1") ;;
  esac
  shift
done
[ ${#targets[@]} -gt 0 ] || while read -r file; do targets+=("$(basename "$file" _fuzz.cc)"); done < <(ls tests/fuzz/*_fuzz.cc)

cmake --preset fuzz >/dev/null
cmake --build --preset fuzz --target "${targets[@]/%/_fuzz}"

# fuzz NAME: one line with what was run and found.
fuzz() {
  local name=$1 log=build/fuzz/$1.log more=() status=0
  mkdir -p "build/fuzz/corpus/$name" build/fuzz/crashes
  [ ! -f "tests/fuzz/$name.dict" ] || more+=("-dict=tests/fuzz/$name.dict")
  [ "$name" != job_file ] || more+=(configs/jobs configs/jobs/legacy tests/common/preflight/data)
  "build/fuzz/fuzz/${name}_fuzz" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/crashes/$name-" "build/fuzz/corpus/$name" "tests/fuzz/corpus/$name" "${more[@]}" >"$log" 2>&1 || status=$?
  printf '%-16s %10s runs  coverage %6s  features %6s  corpus %5s  %s\n' "$name" "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" \
    "$(grep -o 'cov: [0-9]*' "$log" | tail -n 1 | cut -c6-)" "$(grep -o 'ft: [0-9]*' "$log" | tail -n 1 | cut -c5-)" \
    "$(find "build/fuzz/corpus/$name" -type f | wc -l)" "$([ $status -eq 0 ] && echo 'no finding' || echo "FINDING, see $log")"
  return $status
}

failed=0 running=0
for name in "${targets[@]}"; do
  if [ $running -ge "$at_once" ]; then wait -n || failed=1; running=$((running - 1)); fi
  fuzz "$name" &
  running=$((running + 1))
done
while [ $running -gt 0 ]; do wait -n || failed=1; running=$((running - 1)); done
exit $failed
