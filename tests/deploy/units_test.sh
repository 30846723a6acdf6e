#!/usr/bin/env bash
# systemd accepts the units. The test does not need the programs and files of an installation.
set -euo pipefail
command -v systemd-analyze >/dev/null || { echo "no systemd-analyze here"; exit 77; }
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
for unit in "$(dirname "$0")"/../../deploy/systemd/*.service; do
  sed 's|^ExecStart=[^ ]*|ExecStart=/bin/true|' "$unit" >"$place/$(basename "$unit")"
  grep -q '^KillMode=process$' "$unit" || { echo "$unit: without KillMode=process a restart ends the training"; exit 1; }
done
complaints=$(systemd-analyze verify "$place"/*.service 2>&1 | grep -F "$place" || true)
[ -z "$complaints" ] || { echo "$complaints"; exit 1; }
