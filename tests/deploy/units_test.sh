#!/usr/bin/env bash
# systemd accepts the units. The test does not need the programs and files of an installation.
set -euo pipefail
command -v systemd-analyze >/dev/null || { echo "no systemd-analyze here"; exit 77; }
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
for unit in "$(dirname "$0")"/../../deploy/systemd/*.service; do
  sed 's|^\(Exec[A-Za-z]*\)=/opt/nsa/bin/[^ ]*|\1=/bin/true|' "$unit" >"$place/$(basename "$unit")"
  grep -q '^Type=oneshot$' "$unit" || grep -q '^KillMode=process$' "$unit" || { echo "$unit: without KillMode=process a restart ends the training"; exit 1; }
done

# Exit codes of which the head of main.cc says that another start fails in the same way are not started again.
units=$(dirname "$0")/../../deploy/systemd
expect() {
  grep -qxF "$2" "$units/$1.service" || { echo "$1.service: no line $2"; exit 1; }
}
expect nsa-coordinator 'RestartPreventExitStatus=2 3 5'
expect nsa-agent RestartPreventExitStatus=2

# A backup that cannot be made fails; a unit that is skipped succeeds.
if grep -HE '^Condition' "$units"/nsa-backup.*; then echo "a condition skips backups without a word"; exit 1; fi

# A reload checks before it signals, with the arguments of the start.
start=$(sed -n 's/^ExecStart=//p' "$units/nsa-coordinator.service")
diff <(printf '%s --check-config\nkill -HUP $MAINPID\n' "$start") <(sed -n 's/^ExecReload=//p' "$units/nsa-coordinator.service")
cp "$units"/*.timer "$place"
complaints=$(systemd-analyze verify "$place"/*.service "$place"/*.timer 2>&1 | grep -F "$place" || true)
[ -z "$complaints" ] || { echo "$complaints"; exit 1; }
