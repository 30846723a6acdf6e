#!/usr/bin/env bash
# Checks that every file that takes headers from a precompiled one (NSA_PRECOMPILE, the first build of a machine without a compiler cache) is compiled
# with OpenMP exactly when that header is. Otherwise the compiler refuses the header, and the build ends.
# Run: tests/precompile_test.sh; with --self-test it proves that it can fail.
set -euo pipefail
cd "$(dirname "$0")/.."

# mismatches FILE: the source files in a compile_commands.json whose options differ from those of their precompiled header.
mismatches() {
  python3 - "$1" <<'PY'
import json, re, sys

taken = 0
for entry in json.load(open(sys.argv[1])):
    header = re.search(r"-include \S*/CMakeFiles/(nsa_precompiled_\w+)\.dir/", entry["command"])
    if header is None or entry["file"].endswith((".hxx", ".cxx")):
        continue
    taken += 1
    has, wants = "-fopenmp" in entry["command"].split(), "_openmp_" in header.group(1)
    if has != wants:
        print(f'{entry["file"]}: {"has" if has else "lacks"} -fopenmp (its headers are those of {header.group(1)}); '
              "name nsa::model among the DEPS of its target, or leave it out")
if taken == 0:
    print("no file takes precompiled headers; see nsa_precompile() in cmake/NsaTargets.cmake")
PY
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ "${1:-}" = --self-test ]; then
  entry() { printf '{"file": "/t/%s", "command": "c++ %s -include /t/CMakeFiles/%s.dir/cmake_pch.hxx -c %s"}' "$1" "$2" "$3" "$1"; }
  check() {  # NAME WANTED JSON
    printf '%s' "$3" >"$work/commands.json"
    local found; found=$(mismatches "$work/commands.json" | wc -l)
    [ "$found" = "$2" ] || { echo "precompile_test.sh: self-test: $1: $found problems ($2 wanted)"; exit 1; }
  }
  check good 0 "[$(entry a.cc -O1 nsa_precompiled_proto_light), $(entry b.cc -fopenmp nsa_precompiled_openmp_light)]"
  check missing 1 "[$(entry a.cc -O1 nsa_precompiled_openmp_fast)]"
  check unwanted 1 "[$(entry a.cc -fopenmp nsa_precompiled_grpc_light)]"
  check nothing 1 '[{"file": "/t/a.cc", "command": "c++ -c a.cc"}]'
fi

cmake -S . -B "$work/build" -G Ninja -DNSA_CUDA=OFF -DNSA_PRECOMPILE=ON -DCMAKE_EXPORT_COMPILE_COMMANDS=ON >"$work/log" 2>&1 ||
  { tail -20 "$work/log"; exit 1; }
problems=$(mismatches "$work/build/compile_commands.json")
[ -z "$problems" ] || { echo "$problems"; exit 1; }
