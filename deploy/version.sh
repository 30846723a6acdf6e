#!/usr/bin/env bash
# Prints the version of this checkout. MAJOR.MINOR.PATCH stands in CMakeLists.txt; a commit with the tag vMAJOR.MINOR.PATCH has just that. Every other commit
# has a version of its own, which dpkg sorts before the release and after earlier commits: 0.2.0~1310.g4bc116db1a2c, with the number of commits and the hash.
# After the release, until CMakeLists.txt has the next number, it is 0.2.0+3.gHASH with the commits since the tag. Without Git: 0.2.0~unknown.
#
#   deploy/version.sh            for packages, the bundle and --version
#   deploy/version.sh --tag      for container images, whose tags have neither ~ nor +: 0.2.0-1310.g4bc116db1a2c
#   deploy/version.sh --self-test
set -euo pipefail

version_of() { # version_of TREE
  local tree=$1 number tag
  number=$(sed -nE 's/^project\(nsa VERSION ([0-9.]+).*/\1/p' "$tree/CMakeLists.txt")
  [ -n "$number" ] || { echo "version.sh: CMakeLists.txt has no line project(nsa VERSION …)" >&2; return 1; }
  # The tree may belong to another user, as in a container that builds a mounted checkout.
  git() { command git -c safe.directory='*' -C "$tree" "$@" 2>/dev/null; }
  if ! git rev-parse -q --verify HEAD >/dev/null; then echo "$number~unknown"; return; fi
  tag=refs/tags/v$number
  if ! git merge-base --is-ancestor "$tag" HEAD; then
    echo "$number~$(git rev-list --count HEAD).g$(git rev-parse --short=12 HEAD)"
  elif [ "$(git rev-list --count "$tag..HEAD")" = 0 ]; then
    echo "$number"
  else
    echo "$number+$(git rev-list --count "$tag..HEAD").g$(git rev-parse --short=12 HEAD)"
  fi
}

as_tag() { tr '~+' '--'; }

self_test() {
  tree=$(mktemp -d)
  trap 'rm -rf "$tree"' EXIT
  expect() { # expect WHAT PATTERN
    local found
    found=$(version_of "$tree")
    [[ $found =~ ^$2$ ]] || { echo "version.sh: $1: $found ($2)"; exit 1; }
    [ -z "${before:-}" ] || dpkg --compare-versions "$before" lt "$found" || { echo "version.sh: $1: $found is not above $before"; exit 1; }
    before=$found
  }
  commit() { command git -C "$tree" -c user.name=test -c user.email=test@localhost commit -q --allow-empty -m "$1"; }
  echo 'project(nsa VERSION 1.2.3 LANGUAGES CXX)' >"$tree/CMakeLists.txt"
  expect "without Git" '1\.2\.3~unknown'
  before=''
  command git init -q "$tree"
  command git -C "$tree" add CMakeLists.txt
  commit one
  expect "a commit" '1\.2\.3~1\.g[0-9a-f]{12}'
  for name in 2 3 4 5 6 7 8 9 10; do commit $name; done
  expect "the tenth" '1\.2\.3~10\.g[0-9a-f]{12}'
  [[ $(as_tag <<<"$before") =~ ^1\.2\.3-10\.g[0-9a-f]{12}$ ]] || { echo "version.sh: tag: $(as_tag <<<"$before")"; exit 1; }
  command git -C "$tree" tag v1.2.3
  expect "the release" '1\.2\.3'
  commit after
  expect "after the release" '1\.2\.3\+1\.g[0-9a-f]{12}'
  sed -i s/1.2.3/1.3.0/ "$tree/CMakeLists.txt"
  expect "towards the next one" '1\.3\.0~11\.g[0-9a-f]{12}'
}

case ${1:-} in
  '') version_of "$(dirname "$0")/.." ;;
  --tag) version_of "$(dirname "$0")/.." | as_tag ;;
  --self-test) self_test ;;
  *) sed -n '2,9p' "$0" | cut -c3- >&2; exit 2 ;;
esac
