#!/usr/bin/env bash
# Runs the first command of CONTRIBUTING.md as it is written there, where the build that it uses is there already (build/asan). It must pass, and run a test.
# Run: tests/contributing_test.sh; with --self-test it proves that it finds a page without a command.
set -euo pipefail
cd "$(dirname "$0")/.."

# The command on the first indented line of a page; what it does stands behind it, after some blanks. Empty if there is none.
first_command() { sed -nE '/^    [^ ]/ { s/^    //; s/ {2,}.*//; p; q }' "$1"; }

if [ "${1:-}" = --self-test ]; then
  page=$(mktemp)
  trap 'rm -f "$page"' EXIT
  [ -z "$(first_command "$page")" ] || { echo "self test: a command on an empty page"; exit 1; }
  printf 'Text.\n\n    tests/run.sh --only a/b     build it\n    other\n' >"$page"
  [ "$(first_command "$page")" = 'tests/run.sh --only a/b' ] || { echo "self test: $(first_command "$page")"; exit 1; }
  exit 0
fi

command=$(first_command CONTRIBUTING.md)
[[ $command == tests/run.sh\ * ]] || { echo "CONTRIBUTING.md: its first command is '$command' (tests/run.sh …); say how to run one test first"; exit 1; }
# As in a new clone: the test's program is not built yet. It is named after the test's folder.
test=${command##* }
rm -f "build/asan/tests/$(dirname "$test" | tr / _)_tests"
# As a person runs it, not CI.
said=$(env -u CI bash -c "$command" 2>&1) || { echo "$said"; echo "CONTRIBUTING.md: '$command' fails"; exit 1; }
grep -q '100% tests passed, 0 tests failed out of [1-9]' <<<"$said" || { echo "$said"; echo "CONTRIBUTING.md: '$command' runs no test"; exit 1; }
