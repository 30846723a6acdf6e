#!/usr/bin/env bash
# Installs missing packages, builds, and runs every test that this machine can run. Can be repeated.
#
#   tests/run.sh [--fast] [--only REGEX] [--asan | --tsan | --tree] [--preset NAME] [--nightly] [--checks] [--sanitizers]
#
#   --fast         leave out the tests labelled slow
#   --only REGEX   only tests whose name matches; builds nothing else where they are unit tests
#   --asan --tsan  only the unit tests, with that sanitizer
#   --tree         only clang-format, clang-tidy and the tests labelled repo, before a commit; builds the programs, but no test
#   --preset NAME  another preset of CMakePresets.json; default release: what this machine can build
#   --nightly      also the tests labelled nightly, which take many minutes; tests/nightly.txt says what each guards
#   --checks       also run clang-format and clang-tidy, before the tests; on by default when CI=true
#   --sanitizers   also run the unit tests of rooms with threads under ThreadSanitizer, which needs one more build; on by default when CI=true
#
# Unit tests run under AddressSanitizer and UndefinedBehaviorSanitizer, everything else as it is delivered. Labels: unit; slow, over ten seconds; e2e,
# starts programs; gpu, needs a GPU, left out when there is none; nightly; repo, checks the source tree. When CI=true, a nightly test runs if a file that
# it guards has changed since the last commit that passed here. The last ctest summary in the output is that of the tests without a sanitizer.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\n== %s  [%d s]\n' "$*" "$SECONDS"; }
die() { printf 'run.sh: %s\n' "$*" >&2; exit 2; }

preset=release fast=false only='' checks=false sanitizers=false nightly=false tree=false
[ "${CI:-}" = true ] && checks=true sanitizers=true
while [ $# -gt 0 ]; do
  case $1 in
    --fast) fast=true ;;
    --only) only=${2:?--only needs a regular expression}; shift ;;
    --asan) preset=asan ;;
    --tsan) preset=tsan ;;
    --tree) tree=true checks=true fast=true ;;
    --preset) preset=${2:?--preset needs a name}; shift ;;
    --nightly) nightly=true ;;
    --checks) checks=true ;;
    --sanitizers) sanitizers=true ;;
    -h | --help) sed -n '2,18p' "$0" | cut -c3-; exit 0 ;;
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

# The commits that CI has passed on this machine, newest last.
readonly PASSED=${XDG_CACHE_HOME:-$HOME/.cache}/nsa-ci/passed

# The commit since which a change is looked for: $NSA_BASE, where this branch began, the newest ancestor that CI has passed here, or the newest one that is
# four hours older than this commit. Empty if there is none: everything counts as changed.
find_base() {
  local head found
  head=$(git rev-parse HEAD)
  found=$(git merge-base HEAD "${NSA_BASE:-origin/main}" 2>/dev/null || true)
  if [ -z "$found" ] || [ "$found" = "$head" ]; then found=$(git rev-list HEAD~1 2>/dev/null | grep -m1 -xFf "$PASSED" 2>/dev/null || true); fi
  [ -n "$found" ] || found=$(git rev-list -1 --before="$(($(git log -1 --format=%ct) - 4 * 3600))" HEAD)
  echo "$found"
}
base=$(find_base)

# So that another clone of this repository can reuse what this one compiled.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD} CCACHE_NOHASHDIR=${CCACHE_NOHASHDIR:-true}

# configure PRESET: prints what CMake says only if it fails.
configure() {
  cmake --preset "$1" >"/tmp/nsa-configure.$$" 2>&1 || { cat "/tmp/nsa-configure.$$"; rm -f "/tmp/nsa-configure.$$"; return 1; }
  rm -f "/tmp/nsa-configure.$$"
}

# build PRESET [TARGET…]: configures and builds. The first build of a preset takes minutes, and the output says so.
build() {
  local name=$1; shift
  say "build: preset $name${*:+, targets $*}"
  [ -f "build/$name/CMakeCache.txt" ] || echo "first build of this preset: some minutes"
  configure "$name"
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
  # Two more than there are cores, because tests that start programs mostly wait. Those under the sanitizers compute.
  local parallel=$(($(nproc) + 2))
  case $name in asan | tsan) parallel=$(nproc) ;; esac
  local arguments=(--preset "$name" -j "$parallel" --no-tests=error "$@")
  [ -z "$only" ] || arguments+=(-R "$only")
  if ! $nightly && [ "$name" != asan ] && [ "$name" != tsan ]; then leave_out_nightly; fi
  [ ${#leave_out[@]} -eq 0 ] || arguments+=(-LE "$(IFS='|'; echo "^(${leave_out[*]})$")")
  ctest "${arguments[@]}"
}

# Leaves out the nightly tests, but for those that guard a file that has changed, when CI=true.
leave_out_nightly() {
  local due=''
  if [ "${CI:-}" = true ]; then due=$(changed_files | tests/nightly.sh); fi
  [ -z "$due" ] || echo "nightly tests of changed files: ${due//$'\n'/ }"
  arguments+=(-E "^($({ tests/nightly.sh --all | grep -vxF "$due" || true; } | paste -sd '|'))$")
}

# The files that differ from $base, one a line; all of them if there is no base.
changed_files() { if [ -n "$base" ]; then git diff --name-only "$base"; else git ls-files; fi; }

existing() { local file; while read -r file; do [ ! -f "$file" ] || echo "$file"; done; }
own_sources() { git ls-files | grep -E '\.(cc|h|cu|cuh)$' | existing; }

check_format() {
  git ls-files --others --exclude-standard | sed 's/.*/&: not checked, because git does not track it; git add &/'
  say "clang-format"
  own_sources | xargs -r clang-format --dry-run -Werror
}

# Checks the product's .cc files that have changed.
check_tidy() {
  local files
  files=$(changed_files | existing | grep -E '^(common|kernels|server|worker|client)/.*\.cc$' || true)
  say "clang-tidy: $(wc -w <<<"$files") files"
  [ -z "$files" ] || xargs tests/clang_tidy.py "build/$preset" <<<"$files"
}

# unit_tests asan|tsan: builds and runs the unit tests with a sanitizer; with --only, just the programs that have a test of that name.
unit_tests() {
  local targets=(unit_tests)
  if [ -n "$only" ]; then
    configure "$1"
    mapfile -t targets < <(ctest --preset "$1" -L '^unit$' -R "$only" --show-only=json-v1 | programs_of_tests)
    if [ ${#targets[@]} -eq 0 ]; then
      [ "$preset" != "$1" ] || die "--only $only: no unit test has such a name; ctest --preset $1 -N lists them"
      echo "no unit test has a name that matches $only"
      return
    fi
  fi
  build "$1" "${targets[@]}"
  say "unit tests under $([ "$1" = asan ] && echo 'AddressSanitizer and UndefinedBehaviorSanitizer' || echo ThreadSanitizer)"
  fast=true run_tests "$1" -L '^unit$'
}

# Reads what `ctest --show-only=json-v1` prints, and prints the names of the programs that the tests run, built or not (nsa_tests).
programs_of_tests() {
  python3 -c 'import json, os, sys
print(*sorted({os.path.basename(file) for test in json.load(sys.stdin)["tests"] for one in test["properties"] if one["name"] == "REQUIRED_FILES"
               for file in one["value"]}), sep="\n")' | sed '/^$/d'
}

sets=(build test)
$checks && sets+=(check)
deploy/packages.sh "${sets[@]}"

case $preset in
  asan | tsan) unit_tests "$preset" ;;
  *)
    $checks && check_format
    if $tree; then build "$preset" programs; else build "$preset"; fi
    if $checks; then check_tidy; fi
    if $tree; then say "tests of the tree"; run_tests "$preset" -L '^repo$'; exit; fi
    unit_tests asan
    if $sanitizers; then unit_tests tsan; fi
    say "tests"
    run_tests "$preset"
    ;;
esac
if [ "${CI:-}" = true ] && [ -z "$only" ] && ! $fast; then
  mkdir -p "$(dirname "$PASSED")"
  git rev-parse HEAD >>"$PASSED"
fi
say "done"
