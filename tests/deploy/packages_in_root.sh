#!/usr/bin/env bash
# Installs, upgrades, removes and purges the Debian packages in a bare root, with a job that trains meanwhile. Run by hand, as root, with a network:
#
#   tests/deploy/packages_in_root.sh BUILD_DIR [ROOT.tar]     ROOT.tar: a bare Debian root; without it debootstrap makes one
#
# systemd does not run in the root. The daemons are started with the command, the user and the environment of their units, and an upgrade ends
# and starts the main process only, as KillMode=process does.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
root=$(mktemp -d)
finish() {
  local status=$?
  set +e
  for pid in $(in_root); do kill -9 "$pid"; done
  for place in dev/shm dev proc; do mountpoint -q "$root/$place" && umount -l "$root/$place"; done
  rm -rf --one-file-system "$root"
  exit $status
}
# The processes whose root is this one.
in_root() { for link in /proc/[0-9]*/root; do [ "$(readlink "$link")" != "$root" ] || basename "${link%/root}"; done 2>/dev/null; }
trap finish EXIT
say() { printf '\n== %s  [%d s]\n' "$*" "$SECONDS"; }
die() { printf 'packages_in_root.sh: %s\n' "$*" >&2; exit 1; }
inside() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LANG=C.UTF-8 "$@"; }
as_nsa() { inside setpriv --reuid nsa --regid nsa --clear-groups env NSA_STATE_DIR=/var/lib/nsa HOME=/var/lib/nsa "$@"; }
ctl() { as_nsa nsactl "$@"; }
# The command of a unit, as its user.
start() {
  local command
  read -ra command < <(sed -n 's/^ExecStart=//p' "$root/usr/lib/systemd/system/nsa-$1.service")
  as_nsa "${command[@]}" >>"$root/var/log/$1.log" 2>&1 &
}
# Process ids of a program of this root.
pids() { for pid in $(in_root); do [ "$(cat "/proc/$pid/comm" 2>/dev/null)" != "$1" ] || echo "$pid"; done; }
# Waits until a command succeeds.
within() { # within SECONDS COMMAND…
  local end=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || { tail -n 20 "$root"/var/log/{coordinator,agent}.log; die "not in time: $*"; }
    sleep 0.3
  done
}
gone() { [ -z "$(pids "$1")" ]; }
end_main() { kill "$(pids "$1")"; within 30 gone "$1"; }

say "a bare root"
if [ $# -gt 1 ]; then tar -C "$root" -xf "$2"; else debootstrap --variant=minbase --include=ca-certificates bookworm "$root" >/dev/null; fi
chmod 755 "$root"
cp /etc/resolv.conf "$root/etc/"
rm -f "$root/etc/apt/sources.list"
cp -r /etc/apt/sources.list.d /etc/apt/apt.conf.d /etc/apt/keyrings "$root/etc/apt/" 2>/dev/null || true
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
for version in 0.1.0 0.2.0; do "$here/packages_test.sh" "$build" --keep "$root/packages-$version" $version; done
rm -rf "$root"/packages-*/_CPack_Packages

say "install"
inside apt-get -qq update
inside apt-get -qq install -y --no-install-recommends /packages-0.1.0/{nsa-coordinator,nsa-agent,nsactl}_0.1.0_amd64.deb >/dev/null
[ "$(inside stat -c '%U %a' /var/lib/nsa)" = "nsa 700" ] || die "/var/lib/nsa: $(inside stat -c '%U %a' /var/lib/nsa)"
for daemon in coordinator agent; do [ -f "$root/etc/nsa/$daemon.yaml" ] || die "no /etc/nsa/$daemon.yaml"; done

say "a job trains"
inside install -d -o nsa /srv/out
start coordinator
within 20 ctl list
start agent
within 20 eval 'ctl nodes -o name | grep -q .'
cat >"$root/tmp/job.yaml" <<'JOB'
name: packaged
model: {dim: 64, n_layers: 2, n_heads: 4, n_kv_groups: 2, d_k: 16, d_v: 16}
nsa: {l: 16, d: 8, l_sel: 32, n_sel: 4, w: 32}
data: {source: synthetic, tokenizer: byte}
runtime: {device: cpu, precision: fp32}
train: {steps: 100000, seq_len: 128, batch_size: 8, lr: 1.0e-3, save_every: 100, eval_every: 0, out_dir: /srv/out/job}
preflight: {policy: experiment, waive: {MODEL_TOO_SMALL_FOR_RUN: a test, DATA_SYNTHETIC: a test}}
JOB
ctl submit -q /tmp/job.yaml
within 60 eval 'ctl list -o json | grep -q RUNNING'
worker=$(pids nsa-worker)
[ -n "$worker" ] || die "no worker"

say "upgrade while it trains"
echo "# kept" >>"$root/etc/nsa/coordinator.yaml"
inside apt-get -qq install -y --no-install-recommends /packages-0.2.0/{nsa-coordinator,nsa-agent,nsactl}_0.2.0_amd64.deb >/dev/null
inside dpkg -l nsa-agent | grep -q 0.2.0 || die "it was not upgraded"
for daemon in coordinator agent; do end_main nsa-$daemon; start $daemon; done
within 20 ctl list
within 20 eval 'ctl list -o json | grep -q RUNNING'
sleep 3
[ "$(pids nsa-worker)" = "$worker" ] || die "the worker $worker did not survive the upgrade: $(pids nsa-worker)"
grep -q '# kept' "$root/etc/nsa/coordinator.yaml" || die "the upgrade replaced the configuration"
ctl stop -q packaged
within 60 eval 'ctl list -o json | grep -q STOPPED'

say "remove and purge"
for daemon in agent coordinator; do end_main nsa-$daemon; done
inside apt-get -qq remove -y nsa-coordinator nsa-agent nsactl >/dev/null
[ ! -e "$root/usr/bin/nsa-agent" ] || die "remove left the programs"
[ -f "$root/var/lib/nsa/jobs.sqlite" ] || die "remove took the state"
inside apt-get -qq purge -y nsa-coordinator nsa-agent nsactl >/dev/null
for path in /var/lib/nsa /etc/nsa /usr/share/nsa /usr/lib/systemd/system/nsa-agent.service; do [ ! -e "$root$path" ] || die "purge left $path"; done
[ -z "$(pids nsa-worker)$(pids nsa-agent)$(pids nsa-coordinator)" ] || die "a process is left"
say "ok: installed, upgraded under a job whose worker went on, removed, purged"
