#!/usr/bin/env bash
# Checks the hygiene of the files that git tracks, so that reviewers need not: sizes, leftover words, scripts, unused sources.
# Run: tests/repo_test.sh; with --self-test it proves in a made-up repository that each check can fail.
set -euo pipefail

readonly MAX_FILE_BYTES=1000000
# Longer sources are named and do not fail: a file ends where its topic ends. clang-tidy limits functions (.clang-tidy).
readonly LONG_SOURCE_LINES=800
# CONTRIBUTING.md, Commits. Older commits have longer subjects.
readonly SUBJECT_CHARACTERS=72 SUBJECTS_SINCE=2026-11-30T12:00:00Z

complaints=0
complain() { echo "$*"; complaints=$((complaints + 1)); }

# One program looks at many files: a program a file takes minutes on a loaded machine.
check_sizes() {
  local file size
  while read -r size file; do
    [ "$size" -le $MAX_FILE_BYTES ] || complain "$file: $size bytes ($MAX_FILE_BYTES); keep data outside the repository"
  done < <(git ls-files -z | xargs -0r stat -c '%s %n' 2>/dev/null)
}

warn_of_long_sources() {
  local file size
  while read -r size file; do
    [ "$file" = total ] || [ "$size" -le $LONG_SOURCE_LINES ] || echo "warning: $file: $size lines ($LONG_SOURCE_LINES); does it hold two topics?"
  done < <(git ls-files -z -- '*.cc' '*.h' '*.cu' '*.cuh' '*.sh' '*.py' '*.proto' | xargs -0r wc -l 2>/dev/null)
}

# Brackets in the pattern keep this file from finding itself.
check_words() {
  local hits
  hits=$(git grep -nIE 'TO[D]O|FIX[M]E|\bX[X]X\b|DISABL[E]D_|/wor[k]/|/roo[t]/' -- . || true)
  [ -z "$hits" ] || complain "words that do not belong (unfinished work, disabled tests, one machine's paths):"$'\n'"$hits"
  hits=$(git grep -nIE ' +$|'$'\r''$' -- '*.cc' '*.h' '*.sh' '*.py' '*.proto' '*.cmake' '*CMakeLists.txt' || true)
  [ -z "$hits" ] || complain "blanks or carriage returns at the end of a line:"$'\n'"$hits"
  hits=$(git grep -nE "'(nsactl|nsa-[a-z]+) -*[a-z]" -- '*.cc' '*.h' || true)
  [ -z "$hits" ] || complain "commands quoted otherwise than as \`nsactl list\`:"$'\n'"$hits"
}

check_scripts() {
  local file first scripts runnable
  scripts=$(git ls-files -z | xargs -0r awk 'FNR == 1 && /^#!/ { print FILENAME } { nextfile }' 2>/dev/null | sort)
  runnable=$(git ls-files --stage | sed -n 's/^100755 [^\t]*\t//p' | sort)
  while read -r file; do complain "$file: has a #! line and no run bit; git update-index --chmod=+x $file"; done < <(comm -23 <(echo "$scripts") <(echo "$runnable"))
  while read -r file; do complain "$file: has a run bit and no #! line; git update-index --chmod=-x $file"; done < <(comm -13 <(echo "$scripts") <(echo "$runnable"))
  while read -r file; do
    [ -n "$file" ] || continue
    read -r first <"$file"
    [[ $first == *bash* ]] || continue
    bash -n "$file" || complain "$file: does not parse"
    grep -q '^set -euo pipefail' "$file" || complain "$file: without 'set -euo pipefail'"
    ! command -v shellcheck >/dev/null || shellcheck -S warning "$file" || complain "$file: shellcheck"
  done <<<"$scripts"
}

# A source is built if a CMakeLists.txt names it, or if its folder is one of which all sources are built (FOLDER, nsa_tests). A header without a guard
# breaks when it is included twice.
check_sources() {
  local file lists name path whole
  lists=$(git ls-files -z -- '*CMakeLists.txt' | xargs -0r cat)
  whole=$(git ls-files -z -- '*CMakeLists.txt' | xargs -0r awk '
    { folder = FILENAME; if (!sub(/\/[^\/]*$/, "/", folder)) folder = "" }
    match($0, /FOLDER [^ )]+/) { name = substr($0, RSTART + 7, RLENGTH - 7); print folder (name == "." ? "" : name "/") ".*\\.cc" }
    match($0, /^ *nsa_tests\([^ )]+/) {
      name = substr($0, RSTART, RLENGTH); sub(/.*\(/, "", name)
      if (!/FILES/) print "tests/" name "/.*_test\\.cc"
      else for (i = 2; i <= NF && $i != "DEPS"; ++i) print "tests/" name "/" $i "\\.cc" }')
  while read -r file; do
    name=${file##*/} path=${file#tests/}
    [[ $lists == *"$name"* || $lists == *"${path%.*}"* ]] || grep -qsw "${name%.*}" "$(dirname "$file")/CMakeLists.txt" ||
      complain "$file: no CMakeLists.txt builds it"
  done < <(git ls-files -- '*.cc' '*.cu' | grep -vxE "$(paste -sd '|' <<<"${whole:-^$}")")
  while read -r file; do complain "$file: no #pragma once"; done < <(git ls-files -z -- '*.h' '*.cuh' | xargs -0r grep -L '^#pragma once')
}

# Kernels wait for the one in front of them only if Launch() launches them (kernels/cuda/begin.cuh).
# Brackets in the pattern keep this file from finding itself.
check_launches() {
  local hits
  hits=$(git grep -nE '<<[<]|cudaLaunchKerne[l]' -- '*.cu' '*.cuh' '*.cc' '*.h' ':!kernels/cuda/launch.h' || true)
  [ -z "$hits" ] || complain "kernels launched past Launch() (kernels/cuda/launch.h):"$'\n'"$hits"
}

# The files of others are what their README says they are.
check_third_party() {
  local readme
  while read -r readme; do
    (cd "$(dirname "$readme")" && sed -n 's/^    //p' README.md | sha256sum --check --status) ||
      complain "$(dirname "$readme")/: differs from the hashes in its README.md; restore the files or write down the new hashes"
  done < <(git ls-files -- 'third_party/*/README.md')
}

# Of the commits that origin/main does not have; where there is no origin, of the newest 50. Git writes the subject of a merge.
check_subjects() {
  local LC_ALL=C.UTF-8 commit subject which=(-50 "--since=$SUBJECTS_SINCE" HEAD)
  git rev-parse --quiet --verify HEAD >/dev/null || return 0
  if git rev-parse --quiet --verify origin/main >/dev/null; then which=(origin/main..HEAD); fi
  while read -r commit subject; do
    [ ${#subject} -le $SUBJECT_CHARACTERS ] || complain "commit $commit: a subject of ${#subject} characters ($SUBJECT_CHARACTERS); git commit --amend: $subject"
  done < <(git log --no-merges --format='%h %s' "${which[@]}")
}

check_all() {
  check_subjects
  check_third_party
  check_sizes
  check_words
  check_scripts
  check_sources
  check_launches
  warn_of_long_sources
  [ $complaints -eq 0 ] || { echo "complaints: $complaints"; return 1; }
}

self_test() {
  local tidy
  tidy=$(cd "$(dirname "$0")/.." && pwd)/.clang-tidy
  tree=$(mktemp -d)
  trap 'rm -rf "$tree"' EXIT
  git -C "$tree" init -q
  cd "$tree"
  expect_complaint() { # expect_complaint WHAT: the current tree must not pass; then the tree is emptied
    git add -A
    complaints=0
    if check_all >/dev/null 2>&1; then echo "self test: passes in spite of $1"; exit 1; fi
    git rm -rqf . && git clean -fdq
  }
  complaints=0
  check_all >/dev/null || { echo "self test: an empty tree does not pass"; exit 1; }
  head -c $((MAX_FILE_BYTES + 1)) /dev/zero >big.bin; expect_complaint "a large file"
  printf '%s%s later\n' TO DO >a.md; expect_complaint "unfinished work"
  printf '#!/usr/bin/env bash\nset -euo pipefail\n' >a.sh; expect_complaint "a script without a run bit"
  printf 'x = 1 \n' >a.py; expect_complaint "blanks at the end of a line"
  printf '#pragma once\n// See %snsactl list%s.\n' "'" "'" >a.h; expect_complaint "a command in other quotes"
  printf '#!/usr/bin/env bash\nset -euo pipefail\nif\n' >a.sh; chmod +x a.sh; expect_complaint "a script that does not parse"
  if command -v shellcheck >/dev/null; then
    printf '#!/usr/bin/env bash\nset -euo pipefail\nunused=1\n' >a.sh; chmod +x a.sh; expect_complaint "a script with a finding of shellcheck"
  fi
  printf '#!/usr/bin/env bash\necho\n' >a.sh; chmod +x a.sh; expect_complaint "a script that ignores errors"
  mkdir -p third_party/a; echo >third_party/a/a.js; printf '    %064d  a.js\n' 0 >third_party/a/README.md; expect_complaint "a changed file of others"
  echo echo >a.txt; chmod +x a.txt; expect_complaint "a run bit without a #! line"
  printf 'int main() {}\n' >dead.cc; expect_complaint "a source that nobody builds"
  printf 'int x;\n' >a.h; expect_complaint "a header without a guard"
  printf '#pragma once\nvoid f() { K%s>>>(); }\n' '<<<1, 1' >a.cuh; expect_complaint "a launch past Launch()"

  yes '' | head -n $((LONG_SOURCE_LINES + 1)) >long.py || true
  yes '' | head -n $LONG_SOURCE_LINES >short.py || true
  git add -A
  complaints=0
  check_all >warnings || { echo "self test: a long source fails"; exit 1; }
  grep -q '^warning: long.py: ' warnings || { echo "self test: no warning of a long source"; exit 1; }
  ! grep -q 'short.py' warnings || { echo "self test: a warning of a source that is not long"; exit 1; }

  subject_of() { # subject_of CHARACTERS DATE: the newest commit has such a subject
    GIT_COMMITTER_DATE=$2 git -c user.name=a -c user.email=a@a commit --quiet --allow-empty -m "$(printf "%$1s" | sed 's/ /ä/g')"
    complaints=0
    check_subjects >/dev/null
    [ $complaints -eq 0 ]
  }
  subject_of $SUBJECT_CHARACTERS 2027-01-01T00:00:00Z || { echo "self test: a commit's subject of $SUBJECT_CHARACTERS characters fails"; exit 1; }
  subject_of $((SUBJECT_CHARACTERS + 1)) 2026-11-29T00:00:00Z || { echo "self test: the long subject of an old commit fails"; exit 1; }
  git update-ref refs/remotes/origin/main HEAD
  ! subject_of $((SUBJECT_CHARACTERS + 1)) 2027-01-01T00:00:00Z || { echo "self test: passes in spite of a commit's long subject"; exit 1; }
  git update-ref refs/remotes/origin/main HEAD
  subject_of 1 2027-01-01T00:00:00Z || { echo "self test: the long subject of a commit that origin/main has fails"; exit 1; }
  git update-ref -d refs/remotes/origin/main
  ! subject_of 1 2027-01-01T00:00:00Z || { echo "self test: without an origin passes in spite of a commit's long subject"; exit 1; }

  command -v clang-tidy >/dev/null || { echo "no clang-tidy here: its limit of a function's lines is not tested"; return; }
  has_function() { { echo 'void F(int* i) {'; yes '  ++*i;' | head -n "$1"; echo '}'; } >function.cc || true; }
  passes_tidy() { clang-tidy --quiet --config-file="$tidy" function.cc -- -std=c++20 >tidy.log 2>&1; }
  has_function 59; passes_tidy || { cat tidy.log; echo "self test: clang-tidy refuses a function of 60 lines"; exit 1; }
  has_function 60
  if passes_tidy || ! grep -q readability-function-size tidy.log; then echo "self test: clang-tidy accepts a function of 61 lines"; exit 1; fi
}

if [ "${1:-}" = --self-test ]; then
  self_test
else
  cd "$(dirname "$0")/.."
  git rev-parse --is-inside-work-tree >/dev/null 2>&1 || { echo "not a git checkout: nothing to look at"; exit 77; }
  check_all
fi
