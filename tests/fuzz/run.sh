#!/usr/bin/env bash
# Fuzzes the loader and preflight for a bounded time with libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer.
#
#   tests/fuzz/run.sh [SECONDS]     default 60
#
# Needs clang with its libFuzzer runtime. Starts from configs/ and tests/fuzz/corpus/; what it finds new is kept in
# build/fuzz/corpus. A crash is written to build/fuzz/crashes; put it into tests/fuzz/corpus once it is mended.
set -euo pipefail
cd "$(dirname "$0")/../.."

seconds=${1:-60}
cmake --preset fuzz >/dev/null
cmake --build --preset fuzz --target load_fuzz
mkdir -p build/fuzz/corpus/load build/fuzz/crashes
build/fuzz/fuzz/load_fuzz -max_total_time="$seconds" -timeout=2 -rss_limit_mb=1024 -max_len=65536 -print_final_stats=1 \
  -dict=tests/fuzz/load.dict -artifact_prefix=build/fuzz/crashes/ \
  build/fuzz/corpus/load tests/fuzz/corpus/load configs/jobs configs/jobs/legacy tests/common/preflight/data
