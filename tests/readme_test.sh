#!/usr/bin/env bash
# Checks that the files, functions, links, commands and the main path that the READMEs and docs/ name exist.
#
#   tests/readme_test.sh [BIN_DIR [TREE]]     BIN_DIR: the folder of nsactl; without it commands are not checked
#   tests/readme_test.sh --links TREE         checks only the links of the .md files in TREE, for example an unpacked bundle
#   tests/readme_test.sh --self-test          proves on a made-up tree that the checks can fail
#
# A fenced yaml block with a `train:` section is a job file, and nsactl validate --offline must accept it; blocks that begin with `# defaults` are lists.
# In backquotes, a word with a slash or a known ending is a file or folder (relative to the top of the tree or to the page's folder;
# a name without a folder may be anywhere; `a.{h,cc}` means both files), and a word that ends in () is a function. `nsactl verb --flag`
# in backquotes or in indented lines must be known to nsactl --help.
set -euo pipefail

readonly MAIN_PATH_PAGE=docs/architecture.md
# What the bundle carries of the tree (deploy/CMakeLists.txt): the pages at the top, docs/ and configs/.
readonly BUNDLED='^[^/]+\.md$|^(docs|configs)(/|$)'
complaints=0
complain() { echo "$*"; complaints=$((complaints + 1)); }

# Indexes, each made once by one pass over the tree: a process for each word would take minutes.
# names: of files, without their folders. functions: what is followed by "(". tests: Suite.Name. anchors: "page#heading", of the pages in headed.
# help: by command. places: where a path leads.
declare -A names functions tests anchors headed help places
index_tree() {
  local word more
  names=() functions=() tests=() anchors=() headed=() help=() places=()
  while read -r word; do names[$word]=1; done < <(find common kernels worker server client proto tests deploy configs -printf '%f\n' 2>/dev/null | sort -u)
  while read -r word; do functions[$word]=1; done < <(
    grep -rhoE --include='*.h' --include='*.cc' --include='*.cu' '\b[A-Za-z_]+\(' common kernels server worker client tests 2>/dev/null | tr -d '(' | sort -u)
  while read -r word more; do tests[$word.$more]=1; done < <(
    grep -rhE --include='*.cc' '^(TEST|TEST_F|TEST_P|TYPED_TEST)\(' tests 2>/dev/null | sed -nE 's/^[A-Z_]+\(([A-Za-z0-9]+), *([A-Za-z0-9]+)\).*/\1 \2/p')
}

# Sets `words` to what stands in backquotes on the page, and `folder` to the page's folder.
read_page() {
  mapfile -t words < <(grep -oE '`[^` ]+`' "$1" | sort -u)
  words=("${words[@]//'`'/}")
  folder_of "$1"
}
folder_of() { case $1 in */*) folder=${1%/*} ;; *) folder=. ;; esac; }

# Tests are written `Suite.Name`.
check_tests() {
  local readme=$1 word
  for word in "${words[@]}"; do
    [[ $word =~ ^([A-Z][A-Za-z0-9]+)\.([A-Z][A-Za-z0-9]+)$ ]] || continue
    [ -n "${tests[$word]:-}" ] || complain "$readme: no test $word"
  done
}

# True when a file that is named without its folder exists somewhere.
named_somewhere() { [[ $1 != */* && -n ${names[$1]:-} ]]; }

check_files() {
  local readme=$1 word path paths
  for word in "${words[@]}"; do
    case $word in
      x.* | tb/ | .[a-z]* | http* | /* | ~* | *'$'* | *'<'* | *'*'* | *[A-Z][A-Z]* | out/* | build/* | out_dir/* | *:*) continue ;;
      *.cc | *.h | *.cu | *.sh | *.md | *.yaml | *.yml | *.proto | *.py | *.service | *.cmake | *.txt | *'.{'*'}' | *[a-z]/) ;;
      *) continue ;;
    esac
    paths=("$word")
    [[ $word != *'{'* ]] || eval "paths=($(printf '%q' "$word" | sed 's/\\\([{},]\)/\1/g'))"
    for path in "${paths[@]}"; do
      [ -e "$path" ] || [ -e "$folder/$path" ] || named_somewhere "$path" || complain "$readme: \`$path\` does not exist"
    done
  done
}

check_functions() {
  local readme=$1 word
  for word in "${words[@]}"; do
    [[ $word =~ ^([A-Za-z_]+::)*([A-Za-z_]+)\(\)$ ]] || continue
    [ -n "${functions[${BASH_REMATCH[2]}]:-}" ] || complain "$readme: no function ${BASH_REMATCH[2]}()"
  done
}

# Rows of the table: | N | stage | `file` `Function()` … |. The function begins with the comment `// Main path N/7: stage.`
check_main_path() {
  local number stage where file name rows=0
  while IFS='|' read -r _ number stage where _; do
    number=${number// /} file='' name=''
    read -r stage <<<"$stage"
    if [[ $where =~ '`'([^'`']+\.cc)'`' ]]; then file=${BASH_REMATCH[1]}; fi
    if [[ $where =~ '`'([A-Za-z:]+)'()`' ]]; then name=${BASH_REMATCH[1]}; fi
    rows=$((rows + 1))
    [ -f "$file" ] || { complain "README.md: main path $number: no file '$file'"; continue; }
    grep -A 12 -F "// Main path $number/7: $stage." "$file" | grep -qw "${name##*::}" ||
      complain "$file: ${name:-?}() does not begin with '// Main path $number/7: $stage.'"
  done < <(grep -E '^\| [1-7] \|' "$MAIN_PATH_PAGE")
  [ $rows -eq 7 ] || complain "$MAIN_PATH_PAGE: the main path has $rows rows (7)"
}

# Every field of a message of the job file is a row of docs/job_file.md: | `section.key` |.
check_job_keys() {
  local page=docs/job_file.md section key rows
  rows=$'\n'$(grep -oE '^\| `[^`]+` \|' "$page" || true)$'\n'
  while read -r section key; do
    [[ $rows == *$'\n'"| \`${section:+$section.}$key\` |"$'\n'* ]] || complain "$page: no row for \`${section:+$section.}$key\`"
  done < <(awk '/^message (Model|Nsa|Data|Runtime|Train|Restart|Guard|Preflight|Resource|Limit|Sweep|Sample)Spec/ {
      section = tolower($2); sub(/spec$/, "", section); if (section ~ /^(resource|limit)$/) section = section "s" }
    /^message [A-Za-z]*Spec|^}/ { if ($2 == "JobSpec") top = 1; else if (/^}/) { section = ""; top = 0 } }
    section != "" && / = [0-9]+;/ { for (i = 1; i <= NF; ++i) if ($(i + 1) == "=") { print section, $i; break } }' proto/nsa/v1/job.proto proto/nsa/v1/model.proto)
}

# The version of CMakeLists.txt is the newest one in CHANGELOG.md, stands in README.md, and is that of every archive and image that is named.
check_version() {
  local version hits
  version=$(sed -nE 's/^project\(nsa VERSION ([0-9.]+) .*/\1/p' CMakeLists.txt)
  [[ $(grep -m 1 -E '^## [0-9]' CHANGELOG.md) =~ ^"## $version"( |$) ]] || complain "CHANGELOG.md: does not begin with version $version (CMakeLists.txt)"
  grep -qF "Version $version" README.md || complain "README.md: does not name version $version (CMakeLists.txt)"
  hits=$(grep -rnE 'nsa[:-][0-9]+\.[0-9]+\.[0-9]+' README.md docs deploy 2>/dev/null | grep -vE "nsa[:-]${version//./\\.}([^0-9]|\$)" || true)
  [ -z "$hits" ] || complain "another version than $version (CMakeLists.txt):"$'\n'"$hits"
}

# [text](target): a file from the page's folder, and with #anchor a heading of it. Web addresses are not followed. Pages that the bundle carries link to
# nothing else.
check_links() {
  local page=$1 target file anchor heading folder
  folder_of "$page"
  while read -r target; do
    target=${target:2:-1}
    case $target in http://* | https://* | mailto:*) continue ;; esac
    file=${target%%#*} anchor=''
    [[ $target != *#* ]] || anchor=${target#*#}
    file=${file:+$folder/$file}
    file=${file:-$page}
    [ -e "$file" ] || { complain "$page: dead link to $target"; continue; }
    if [[ $page =~ $BUNDLED ]]; then
      [ -n "${places[$file]:-}" ] || places[$file]=$(realpath --relative-to=. "$file")
      [[ ${places[$file]} =~ $BUNDLED ]] || complain "$page: links to $target, which the bundle does not carry"
    fi
    [ -n "$anchor" ] || continue
    if [ -z "${headed[$file]:-}" ]; then
      headed[$file]=1
      while read -r heading; do anchors[$file#$heading]=1; done < <(
        sed -nE 's/^#+ +//p' "$file" | tr '[:upper:]' '[:lower:]' | sed 's/[^a-z0-9 _-]//g; s/ /-/g')
    fi
    [ -n "${anchors[$file#$anchor]:-}" ] || complain "$page: $file has no heading #$anchor"
  done < <(sed 's/`[^`]*`//g' "$page" | grep -oE '\]\([^() ]+\)')
}

pages() { find . -name '*.md' -not -path './build/*' -not -path './out/*' -not -path './.git/*' | sed 's|^\./||'; }

# Sets `answer` to what nsactl says of a command, or of all without one. Each is asked once.
ask_help() {
  local nsactl=$1 command="${*:2}"
  [ -n "${help[ $command]:-}" ] || help[ $command]=$'\n'$("$nsactl" "${@:2}" --help)$'\n'
  answer=${help[ $command]}
}

# Whether a row of the help begins with this command.
lists() { [[ $1 =~ $'\n'' '+"$2"[$' \n'] ]]; }

check_commands() {
  local nsactl=$1 readme=$2 line verb sub flag all more answer
  grep -q 'nsactl [a-z]' "$readme" || return 0
  ask_help "$nsactl"
  all=$answer$'  help \n'
  while read -r line; do
    read -r _ verb sub _ <<<"$line"
    lists "$all" "$verb" || { complain "$readme: nsactl has no command '$verb'"; continue; }
    ask_help "$nsactl" "$verb"
    more=$answer
    if [[ $sub =~ ^[a-z][a-z-]*$ ]] && lists "$more" "$sub"; then
      ask_help "$nsactl" "$verb" "$sub"
      more+=$answer
    fi
    while [[ $line =~ (^|' ')(--[a-z-]+) ]]; do
      flag=${BASH_REMATCH[2]}
      line=${line#*"$flag"}
      [[ $all$more =~ $flag([ ,=]|$'\n') ]] || complain "$readme: nsactl $verb has no $flag"
    done
  done < <({ grep -E '^    ' "$readme"; grep -oE '`nsactl [^`]+`' "$readme"; } | grep -oE 'nsactl [a-z][a-z-]+( [^ `·|#,;()]+)*' | sort -u)
}

# Job files: ```yaml blocks with a section train. The files that they name under data are made up; a tokenizer or a checkpoint cannot be.
check_jobs() {
  local nsactl=$1 page=$2 folder block file hits
  grep -q '^```yaml' "$page" || return 0
  folder=$(mktemp -d)
  awk -v to="$folder/job" '/^```yaml/ { ++n; inside = 1; next } /^```/ { inside = 0 } inside { print >(to n ".yaml") }' "$page"
  for block in "$folder"/job*.yaml; do
    grep -q '^train:' "$block" && ! head -n 1 "$block" | grep -q '^# defaults' || continue
    for file in $(grep -oE '[A-Za-z0-9_./-]+\.(txt|jsonl|gz|zst)\b' "$block"); do
      mkdir -p "$(dirname "$folder/$file")"
      case $file in
        *.jsonl) awk 'BEGIN { while (++n <= 40000) printf "{\"prompt\": \"What is %d + 1?\", \"completion\": \"%d\"}\n", n, n + 1 }' ;;
        *) echo "$file"; head -c 4000000 /dev/zero ;;
      esac >"$folder/$file"
    done
    (cd "$folder" && "$nsactl" validate --offline "$block") >"$folder/verdict" 2>&1 && continue
    grep ' error ' "$folder/verdict" >"$folder/errors" || cp "$folder/verdict" "$folder/errors"
    hits=$(grep -vE 'error (TOKENIZER_MISSING|INIT_INVALID):' "$folder/errors" || true)
    [ -z "$hits" ] || complain "$page: nsactl validate --offline refuses a job: $hits"
  done
  rm -rf "$folder"
}

check_all() {
  local readme words folder nsactl=${1:+$(realpath -m "$1")/nsactl}
  if [ -n "$nsactl" ] && [ ! -x "$nsactl" ]; then
    complain "$nsactl: is not built, so commands and job files are not checked; cmake --build --preset release --target programs"
    nsactl=''
  fi
  index_tree
  while read -r readme; do
    read_page "$readme"
    check_files "$readme"
    check_functions "$readme"
    [ "$readme" != tests/README.md ] || check_tests "$readme"
    [ -z "$nsactl" ] || check_commands "$nsactl" "$readme"
    [ -z "$nsactl" ] || check_jobs "$nsactl" "$readme"
    check_links "$readme"
  done < <(pages)
  check_main_path
  check_version
  [ ! -f proto/nsa/v1/job.proto ] || check_job_keys
  [ $complaints -eq 0 ] || { echo "complaints: $complaints"; return 1; }
}

self_test() {
  tree=$(mktemp -d)
  trap 'rm -rf "$tree"' EXIT
  cd "$tree"
  mkdir -p server bin docs proto/nsa/v1
  printf 'message TrainSpec {\n  // Steps.\n  optional int64 steps = 1;\n}\n' >proto/nsa/v1/job.proto
  printf 'message ModelSpec {\n  // Width.\n  optional int32 dim = 1;\n}\n' >proto/nsa/v1/model.proto
  printf '#!/bin/sh\n[ "$1" = list ] && echo "  --all  all of them"\necho "  list  jobs"\n[ "$1" != validate ] || ! grep -q bad "$3"\n' >bin/nsactl
  chmod +x bin/nsactl
  good() {
    rm -f server/x.cc README.md docs/*.md
    local i
    for i in 1 2 3 4 5 6 7; do
      printf '// Main path %s/7: stage%s.\nvoid F%s() {}\n' "$i" "$i" "$i" >>server/x.cc
      printf '| %s | stage%s | `server/x.cc` `F%s()` | |\n' "$i" "$i" "$i" >>docs/architecture.md
    done
    printf '| `train.steps` | steps |\n| `model.dim` | width |\n' >docs/job_file.md
    printf '# Where to go\n[main path](docs/architecture.md) [there](#where-to-go) [paper](https://example.org/x)\n' >README.md
    printf '`server/x.cc` `server/` `nsactl list --all`\nVersion 1.2.3\n' >>README.md
    echo 'project(nsa VERSION 1.2.3 LANGUAGES CXX)' >CMakeLists.txt
    printf '## 1.2.3 (not released yet)\n\n## 1.2.2\n' >CHANGELOG.md
    echo 'tar -xf nsa-1.2.3-linux.tar' >docs/deploy.md
    complaints=0
  }
  good; check_all bin || { echo "self test: a good tree does not pass"; exit 1; }
  expect_complaint() { if check_all bin >/dev/null; then echo "self test: passes in spite of $1"; exit 1; fi; good; }
  chmod -x bin/nsactl; expect_complaint "an nsactl that is not built"; chmod +x bin/nsactl
  echo '`server/gone.cc`' >>README.md; expect_complaint "a file that is gone"
  echo '`server/x.{h,cc}`' >>README.md; expect_complaint "a header that is gone"
  echo '`Gone()`' >>README.md; expect_complaint "a function that is gone"
  echo '    nsactl explode' >>README.md; expect_complaint "an unknown command"
  echo '    nsactl list --none' >>README.md; expect_complaint "an unknown flag"
  sed -i 's/Main path 3/Main way 3/' server/x.cc; expect_complaint "a missing main path comment"
  sed -i '/^| 7/d' docs/architecture.md; expect_complaint "six rows"
  echo '`server/gone.cc`' >>docs/job_file.md; expect_complaint "a file that is gone, in docs/"
  echo '[gone](docs/gone.md)' >>README.md; expect_complaint "a dead link"
  echo '[code](../server/x.cc)' >>docs/job_file.md; expect_complaint "a link out of the bundle"
  echo '[main path](architecture.md#gone)' >>docs/job_file.md; expect_complaint "a link to a heading that is gone"
  printf '```yaml\ntrain: {steps: bad}\n```\n' >>README.md; expect_complaint "a job that preflight refuses"
  sed -i 's/1.2.3/1.2.4/' CMakeLists.txt CHANGELOG.md docs/deploy.md; expect_complaint "a README.md of another version"
  sed -i 's/1.2.3/1.2.4/' CMakeLists.txt README.md docs/deploy.md; expect_complaint "a CHANGELOG.md without the version"
  echo 'image: registry.example.org/nsa:1.2.2' >>docs/deploy.md; expect_complaint "an image of another version"
  sed -i '/train.steps/d' docs/job_file.md; expect_complaint "a key of the job file without a row"
}

if [ "${1:-}" = --self-test ]; then
  self_test
elif [ "${1:-}" = --links ]; then
  cd "${2:?--links needs a folder}"
  while read -r page; do check_links "$page"; done < <(pages)
  [ $complaints -eq 0 ] || { echo "dead links: $complaints"; exit 1; }
else
  bin=${1:+$(realpath -m "$1")}
  cd "${2:-$(dirname "$0")/..}"
  check_all "$bin"
fi
