#!/usr/bin/env bash
# Installs, upgrades, removes and purges the Debian packages in a bare Debian that systemd has booted, with a job that trains meanwhile, and checks
# what the units promise: notification, watchdog, restarts, limits, and that no end of a daemon ends a worker. Run by hand, as root, with a network:
#
#   tests/deploy/packages_under_systemd.sh BUILD_DIR [ROOT.tar]     ROOT.tar: a bare Debian root; without it debootstrap makes one
#
# Needs systemd-nspawn (package systemd-container). The container has a network of its own: nothing of this machine is disturbed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
root=$(mktemp -d /var/tmp/nsa-packages.XXXXXX)
container=''
finish() {
  local status=$?
  set +e
  [ -z "$container" ] || { kill "$container"; wait "$container"; }
  rm -rf --one-file-system "$root"
  exit $status
}
trap finish EXIT
say() { printf '\n== %s  [%d s]\n' "$*" "$SECONDS"; }
die() {
  printf 'packages_under_systemd.sh: %s\n' "$*" >&2
  [ -z "$container" ] || inside journalctl --no-pager -n 40 -u 'nsa-*' >&2
  exit 1
}
readonly CLEAN=(/usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LANG=C.UTF-8)
before_boot() { chroot "$root" "${CLEAN[@]}" "$@"; }
inside() { nsenter --target "$first" --all "${CLEAN[@]}" "$@"; }
ctl() { inside setpriv --reuid nsa --regid nsa --clear-groups env NSA_STATE_DIR=/var/lib/nsa HOME=/var/lib/nsa nsactl "$@"; }
property() { inside systemctl show --value -p "$2" "nsa-$1"; }
worker() { inside pgrep -x nsa-worker; }
# Waits until a command succeeds.
within() { # within SECONDS COMMAND…
  local end=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || die "not in time: $*"
    sleep 0.3
  done
}
state_is() { ctl list -o json | grep -q "STATE_$1"; }
expect() { # expect DAEMON PROPERTY VALUE
  [ "$(property "$1" "$2")" = "$3" ] || die "nsa-$1: $2 is $(property "$1" "$2") ($3)"
}
# After a daemon has ended in some way, systemd has a new one, and the worker is the one from before.
goes_on() { # goes_on DAEMON OLD_PID
  within 60 eval "[ \"\$(property $1 MainPID)\" != $2 ] && [ \"\$(property $1 MainPID)\" != 0 ] && inside systemctl is-active nsa-$1"
  within 30 state_is RUNNING
  [ "$(worker)" = "$trains" ] || die "the worker $trains did not survive: $(worker)"
  echo "nsa-$1: process $2, now $(property "$1" MainPID); worker $trains goes on"
}

say "a bare root with systemd, and the packages"
if [ $# -gt 1 ]; then tar -C "$root" -xf "$2"; else debootstrap --variant=minbase --include=ca-certificates bookworm "$root" >/dev/null; fi
chmod 755 "$root"
cp /etc/resolv.conf "$root/etc/"
rm -f "$root/etc/apt/sources.list"
cp -r /etc/apt/sources.list.d /etc/apt/apt.conf.d /etc/apt/keyrings "$root/etc/apt/" 2>/dev/null || true
for version in 0.1.0 0.2.0; do "$here/packages_test.sh" "$build" --keep "$root/packages-$version" $version; done
rm -rf "$root"/packages-*/_CPack_Packages
readonly FIRST=(/packages-0.1.0/{nsa-coordinator,nsa-agent,nsactl}_0.1.0_amd64.deb) SECOND=(/packages-0.2.0/{nsa-coordinator,nsa-agent,nsactl}_0.2.0_amd64.deb)
before_boot apt-get -qq update
before_boot apt-get -qq install -y --no-install-recommends systemd systemd-sysv dbus procps >/dev/null
# What the packages depend on is fetched now; the container has no way out.
before_boot apt-get -qq install -y --no-install-recommends --download-only "${FIRST[@]}" >/dev/null

say "boot"
systemd-nspawn --quiet --register=no --keep-unit --private-network --link-journal=no --console=pipe --boot -D "$root" </dev/null >"$root/boot.log" 2>&1 &
container=$!
leader() { first=$(pgrep -P "$container" -x systemd); }
within 30 leader
leader
within 60 eval 'inside systemctl is-system-running | grep -qE "running|degraded"'
inside systemctl --version | head -1

say "install: both units start"
# The unit's LimitNOFILE, or as many as systemd has here: a container may not raise them.
files=$(printf '%s\n' 65536 "$(inside sed -n 's/^Max open files  *[0-9]*  *\([0-9]*\).*/\1/p' /proc/1/limits)" | sort -n | head -1)
inside apt-get -qq install -y --no-install-recommends "${FIRST[@]}" >/dev/null
[ "$(inside stat -c '%U %a' /var/lib/nsa)" = "nsa 700" ] || die "/var/lib/nsa: $(inside stat -c '%U %a' /var/lib/nsa)"
for daemon in coordinator agent; do
  within 30 inside systemctl is-active nsa-$daemon
  within 5 inside systemctl is-enabled nsa-$daemon
  expect $daemon User nsa
  expect $daemon KillMode process
  expect $daemon NoNewPrivileges yes
  inside grep -q "Max open files *$files " "/proc/$(property $daemon MainPID)/limits" || die "nsa-$daemon: $(inside grep 'open files' "/proc/$(property $daemon MainPID)/limits") ($files)"
done
expect coordinator Type notify
expect coordinator WatchdogUSec 30s
within 20 eval 'ctl nodes -o name | grep -q .'

say "a job trains"
inside install -d -o nsa /srv/out
cat >"$root/srv/job.yaml" <<'JOB'
name: packaged
model: {dim: 64, n_layers: 2, n_heads: 4, n_kv_groups: 2, d_k: 16, d_v: 16}
nsa: {l: 16, d: 8, l_sel: 32, n_sel: 4, w: 32}
data: {source: synthetic, tokenizer: byte}
runtime: {device: cpu, precision: fp32}
train: {steps: 100000, seq_len: 128, batch_size: 8, lr: 1.0e-3, save_every: 100, eval_every: 0, out_dir: /srv/out/job}
preflight: {policy: experiment, waive: {MODEL_TOO_SMALL_FOR_RUN: a test, DATA_SYNTHETIC: a test}}
JOB
ctl submit -q /srv/job.yaml
within 60 state_is RUNNING
within 20 worker
trains=$(worker)

say "a daemon that is killed, restarted or hangs costs no worker"
for daemon in coordinator agent; do
  old=$(property $daemon MainPID)
  inside kill -KILL "$old"
  goes_on $daemon "$old"
  old=$(property $daemon MainPID)
  inside systemctl restart nsa-$daemon
  goes_on $daemon "$old"
done
old=$(property coordinator MainPID)
inside kill -STOP "$old"
goes_on coordinator "$old"
inside journalctl -u nsa-coordinator --no-pager | grep -q 'Watchdog timeout' || die "it was not the watchdog that ended the stopped coordinator"

say "upgrade while it trains"
echo "# kept" >>"$root/etc/nsa/coordinator.yaml"
before=$(property coordinator MainPID) agent_before=$(property agent MainPID)
inside apt-get -qq install -y --no-install-recommends "${SECOND[@]}" >/dev/null
inside dpkg -l nsa-agent | grep -q 0.2.0 || die "it was not upgraded"
goes_on coordinator "$before"
goes_on agent "$agent_before"
grep -q '# kept' "$root/etc/nsa/coordinator.yaml" || die "the upgrade replaced the configuration"
inside systemd-analyze security --no-pager nsa-coordinator nsa-agent 2>/dev/null | grep Overall || true

say "remove while it trains: the worker saves a checkpoint and ends"
inside apt-get -qq remove -y nsa-coordinator nsa-agent nsactl >/dev/null
[ -z "$(worker || true)" ] || die "remove left the worker $(worker)"
[ ! -e "$root/usr/bin/nsa-agent" ] || die "remove left the programs"
[ -f "$root/var/lib/nsa/jobs.sqlite" ] || die "remove took the state"
compgen -G "$root/srv/out/job/checkpoints/step-*" >/dev/null || die "no checkpoint"

say "purge"
inside apt-get -qq purge -y nsa-coordinator nsa-agent nsactl >/dev/null
for path in /var/lib/nsa /etc/nsa /usr/share/nsa /usr/lib/systemd/system/nsa-agent.service; do [ ! -e "$root$path" ] || die "purge left $path"; done
[ -z "$(inside pgrep nsa- || true)" ] || die "a process is left: $(inside pgrep -l nsa-)"
compgen -G "$root/srv/out/job/checkpoints/step-*" >/dev/null || die "purge took what a job wrote"
say "ok: under systemd installed, killed, hung, upgraded with a worker that went on, removed, purged"
