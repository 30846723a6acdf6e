#!/usr/bin/env bash
# Writes one source made of several test files, which compiles in a fraction of the time of the files one by one.
#
#   together.sh OUT FILE...      paths from the top of the tree, where it is called
#
# The unnamed namespace of a file gets a name of its own, so files may use the same names. Messages and gtest see the lines of the files.
set -euo pipefail
out=$1
shift
number=0
for file in "$@"; do
  number=$((number + 1))
  printf '#line 1 "%s"\n' "$file"
  sed "s/^namespace {\$/namespace file_$number {/" "$file"
done >"$out"
