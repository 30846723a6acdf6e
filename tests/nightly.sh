#!/usr/bin/env bash
# Reads tests/nightly.txt: which long tests a change needs.
#
#   git diff --name-only BASE | tests/nightly.sh    the tests that guard one of the files on standard input
#   tests/nightly.sh --all                          every test of the table
#   tests/nightly.sh --check BUILD_FOLDER           compares the table with the tests labelled nightly, and its paths with the tree
#   tests/nightly.sh --self-test                    shows that it chooses, and that the check can fail
set -euo pipefail
cd "$(dirname "$0")/.."

rows() { grep -vE '^(#|$)' "$1"; }

# due TABLE: the tests of the rows that have the beginning of a path on standard input.
due() {
  awk 'NR == FNR { if (!/^#/ && NF) for (i = 2; i <= NF; ++i) guard[++n] = $1 " " $i; next }
       { for (i = 1; i <= n; ++i) { split(guard[i], word, " "); if (index($0, word[2]) == 1) due[word[1]] = 1 } }
       END { for (test in due) print test }' "$1" - | sort
}

# check TABLE LABELLED TREE: complains of rows without a test, tests without a row, and paths that no file of the tree begins with.
check() {
  local bad=0 test paths path
  while read -r test; do echo "$test: has the label nightly and no row in tests/nightly.txt"; bad=1; done < <(comm -13 <(rows "$1" | awk '{print $1}' | sort) <(sort "$2"))
  while read -r test; do echo "$test: in tests/nightly.txt, but no test of that name has the label nightly"; bad=1; done < <(comm -23 <(rows "$1" | awk '{print $1}' | sort) <(sort "$2"))
  while read -r test paths; do
    for path in $paths; do
      grep -q "^${path//./\\.}" "$3" || { echo "$test: tests/nightly.txt: no file begins with $path"; bad=1; }
    done
  done < <(rows "$1")
  return $bad
}

self_test() {
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  printf '# comment\na/long  x/ y/z.cc\nb/long  w/\n' >"$work/table"
  expect() { [ "$2" = "$3" ] || { echo "self test: $1: '$2' ('$3' wanted)"; exit 1; }; }
  expect "a file of a folder" "$(echo x/1.cc | due "$work/table")" a/long
  expect "both" "$(printf 'y/z.cc\nw/q\n' | due "$work/table" | paste -sd ,)" a/long,b/long
  expect "neither" "$(echo v/x/1.cc | due "$work/table")" ''
  printf 'x/1\ny/z.cc\nw/2\n' >"$work/tree"
  printf 'b/long\na/long\n' >"$work/labelled"
  check "$work/table" "$work/labelled" "$work/tree" >/dev/null || { echo "self test: a good table does not pass"; exit 1; }
  echo c/long >>"$work/labelled"
  ! check "$work/table" "$work/labelled" "$work/tree" >/dev/null || { echo "self test: a test without a row passes"; exit 1; }
  echo a/long >"$work/labelled"
  ! check "$work/table" "$work/labelled" "$work/tree" >/dev/null || { echo "self test: a row without a test passes"; exit 1; }
  printf 'b/long\na/long\n' >"$work/labelled"
  echo x/1 >"$work/tree"
  ! check "$work/table" "$work/labelled" "$work/tree" >/dev/null || { echo "self test: a path that is not there passes"; exit 1; }
}

case ${1:-} in
  --all) rows tests/nightly.txt | awk '{print $1}' ;;
  --check)
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    ctest --test-dir "$2" -N -L '^nightly$' | sed -nE 's/^ *Test +#[0-9]+: //p' >"$work/labelled"
    git ls-files >"$work/tree"
    check tests/nightly.txt "$work/labelled" "$work/tree"
    ;;
  --self-test) self_test ;;
  '') due tests/nightly.txt ;;
  *) echo "usage: see the top of tests/nightly.sh" >&2; exit 2 ;;
esac
