#!/usr/bin/env bash
# Installs missing packages, builds, and runs every test that this machine can run. Can be repeated.
#
#   tests/run.sh [--fast] [--only REGEX] [--asan | --tsan] [--preset NAME] [--checks] [--sanitizers]
#
#   --fast         leave out the tests labelled slow
#   --only REGEX   only tests whose name matches
#   --asan --tsan  build and test with that sanitizer instead, with the tests that are meant for it
#   --preset NAME  another preset of CMakePresets.json; default release: what this machine can build
#   --checks       also run clang-format and clang-tidy, before the tests; on by default when CI=true
#   --sanitizers   also run the unit tests under both sanitizers, which needs two more builds; on by default when CI=true
#
# Labels: slow, over ten seconds; e2e, starts programs; gpu, needs a GPU, left out when there is none; repo, checks the source tree.
# The last ctest summary in the output is that of the whole suite.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\n== %s  [%d s]\n' "$*" "$SECONDS"; }
die() { printf 'run.sh: %s\n' "$*" >&2; exit 2; }

preset=release fast=false only='' checks=false sanitizers=false
[ "${CI:-}" = true ] && checks=true sanitizers=true
while [ $# -gt 0 ]; do
  case $1 in
    --fast) fast=true ;;
    --only) only=${2:?--only needs a regular expression}; shift ;;
    --asan) preset=asan ;;
    --tsan) preset=tsan ;;
    --preset) preset=${2:?--preset needs a name}; shift ;;
    --checks) checks=true ;;
    --sanitizers) sanitizers=true ;;
    -h | --help) sed -n '2,14p' "$0" | cut -c3-; exit 0 ;;
    *) die "unknown argument '$1'; see --help" ;;
  esac
  shift
done

# A report of a sanitizer ends the test. Neither gRPC nor Abseil is instrumented, so ThreadSanitizer checks our code only.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1:strict_string_checks=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-ignore_noninstrumented_modules=1:halt_on_error=1:second_deadlock_stack=1:suppressions=$PWD/tests/tsan.supp}
# Several tests run in parallel, so waiting threads must not occupy a core.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}

# The commit that this branch began at: of $NSA_BASE, default origin/main. Empty if there is none.
base=$(git merge-base HEAD "${NSA_BASE:-origin/main}" 2>/dev/null || true)

# So that another clone of this repository can reuse what this one compiled.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD} CCACHE_NOHASHDIR=${CCACHE_NOHASHDIR:-true}

# Where there is no compiler cache yet, the builds with sanitizers take their common headers from precompiled ones.
cold=false
[ -d "${CCACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/ccache}" ] || cold=true

# build PRESET [TARGET…]: configures and builds. The first build of a preset takes minutes, and the output says so.
build() {
  local name=$1; shift
  say "build: preset $name${*:+, targets $*}"
  [ -f "build/$name/CMakeCache.txt" ] || echo "first build of this preset: some minutes"
  local options=()
  if $cold && [ "$name" != release ]; then options=(-DNSA_PRECOMPILE=ON); fi
  cmake --preset "$name" "${options[@]}" >"/tmp/nsa-configure.$$" 2>&1 || { cat "/tmp/nsa-configure.$$"; rm -f "/tmp/nsa-configure.$$"; return 1; }
  rm -f "/tmp/nsa-configure.$$"
  local targets=()
  [ $# -eq 0 ] || targets=(--target "$@")
  cmake --build --preset "$name" "${targets[@]}"
}

# run_tests PRESET [ctest argument…]: runs the tests, without those that this machine cannot run.
run_tests() {
  local name=$1; shift
  local leave_out=()
  compgen -G '/dev/nvidia[0-9]*' >/dev/null || { leave_out+=(gpu); echo "no GPU: tests labelled gpu are left out"; }
  $fast && leave_out+=(slow)
  # Two more than there are cores, because the longest tests mostly wait. Those under the sanitizers compute.
  local parallel=$(($(nproc) + 2))
  case $name in asan | tsan) parallel=$(nproc) ;; esac
  local arguments=(--preset "$name" -j "$parallel" --no-tests=error "$@")
  [ -z "$only" ] || arguments+=(-R "$only")
  [ ${#leave_out[@]} -eq 0 ] || arguments+=(-LE "$(IFS='|'; echo "^(${leave_out[*]})$")")
  ctest "${arguments[@]}"
}

own_sources() { git ls-files -- "$@" | grep -E '\.(cc|h|cu|cuh)$' || true; }

check_format() {
  say "clang-format"
  own_sources | xargs -r clang-format --dry-run -Werror
}

# Checks the product's .cc files that differ from $NSA_BASE (default: origin/main). Where that is the commit itself, as in a fresh clone, those of its
# newest 30 commits; all of them when there is no such commit.
check_tidy() {
  local files
  files=$(own_sources common kernels server worker client | grep '\.cc$')
  local since=$base
  if [ -n "$base" ] && [ "$base" = "$(git rev-parse HEAD)" ]; then since=$(git rev-parse --verify -q HEAD~30 || true); fi
  if [ -n "$since" ]; then
    files=$(git diff --name-only --diff-filter=d "$since" -- common kernels server worker client | grep '\.cc$' || true)
  fi
  # Files that this machine does not compile (CUDA code without a toolkit) cannot be checked either.
  files=$(while read -r file; do grep -qF "/$file\"" "build/$preset/compile_commands.json" && echo "$file"; done <<<"$files" || true)
  say "clang-tidy: $(wc -w <<<"$files") files"
  [ -z "$files" ] || xargs tests/clang_tidy.py "build/$preset" <<<"$files"
}

# Runs unit tests under the sanitizers; under ThreadSanitizer only those labelled threads.
check_sanitizers() {
  build asan unit_tests
  say "tests under AddressSanitizer and UndefinedBehaviorSanitizer"
  fast=true run_tests asan -L '^unit$'
  build tsan thread_tests
  say "tests under ThreadSanitizer"
  fast=true run_tests tsan -L '^threads$'
}

sets=(build test)
$checks && sets+=(check)
deploy/packages.sh "${sets[@]}"

case $preset in
  asan) build asan unit_tests; say "tests"; run_tests asan -L '^unit$' ;;
  tsan) build tsan thread_tests; say "tests"; run_tests tsan -L '^threads$' ;;
  *)
    $checks && check_format
    build "$preset"
    if $checks; then check_tidy; fi
    if $sanitizers; then check_sanitizers; fi
    say "tests"
    run_tests "$preset"
    ;;
esac
say "done"
