#!/usr/bin/env bash
# Installs the packages of npm that a test's package.json names, in the versions and with the hashes of its package-lock.json, into ~/.cache/nsa.
#
#   deploy/node_packages.sh FOLDER             FOLDER has both files; does nothing when they are installed already
#   deploy/node_packages.sh --where FOLDER     print the folder that gets node_modules, and exit
#
# deploy/packages.sh test calls it. No package's own script is run. Without a registry it says so after at most three minutes and fails.
set -euo pipefail

die() { printf 'node_packages.sh: %s\n' "$*" >&2; exit 1; }

readonly LIMIT_SECONDS=180
where=false
case ${1:-} in
  -h | --help) sed -n '2,8p' "$0" | cut -c3-; exit 0 ;;
  --where) where=true; shift ;;
esac
[ $# -eq 1 ] || die "one folder with package.json and package-lock.json; see --help"
[ -f "$1/package-lock.json" ] || die "$1/package-lock.json: not found; name the folder that has it"
hash=$(cat "$1/package.json" "$1/package-lock.json" | sha256sum | cut -c1-16)
target=${XDG_CACHE_HOME:-$HOME/.cache}/nsa/node-$hash
if $where; then echo "$target"; exit 0; fi
if [ -d "$target/node_modules" ]; then exit 0; fi

command -v npm >/dev/null || die "npm: not found; install nodejs and npm"
mkdir -p "$(dirname "$target")"
draft=$(mktemp -d "$target.XXXXXX")
trap 'rm -rf "$draft"' EXIT
cp "$1/package.json" "$1/package-lock.json" "$draft"
registry=$(cd "$draft" && npm config get registry 2>/dev/null)
timeout $LIMIT_SECONDS npm ci --prefix "$draft" --ignore-scripts --no-audit --no-fund --loglevel=error --fetch-retries=1 --fetch-timeout=30000 >&2 ||
  die "$registry: the packages of $1 could not be fetched, or are not what they were; repeat when the registry answers"
[ -d "$target" ] || mv -T "$draft" "$target" || [ -d "$target/node_modules" ]
