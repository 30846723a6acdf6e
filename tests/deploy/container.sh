# A bare Debian that systemd has booted, as a container: for scripts that run as root and source this. Needs systemd-nspawn (package systemd-container). The
# container has a network of its own and no way out: nothing of this machine is disturbed. A machine that cannot have one skips the script (exit code 77).
#
#   make_root [ROOT.tar]   the root in $root, with systemd and a list of packages; needs a network. ROOT.tar is a bare Debian root; without it debootstrap
#                          makes one, which is kept in ~/.cache/nsa-test
#   before_boot COMMAND…   in the root, with this machine's network
#   boot                   boots it
#   inside COMMAND…        in the booted container, as root
#   ctl ARGUMENT…          nsactl there, as the coordinator's user; state_is STATE: a job has it
#   within SECONDS COMMAND…, say TEXT, die TEXT
#
# All of it is gone when the script ends.
skip() { echo "skipped: $*"; exit 77; }
[ "$(id -u)" = 0 ] || skip "not root"
command -v systemd-nspawn >/dev/null || skip "no systemd-nspawn here; the package systemd-container has it"
root=$(mktemp -d /var/tmp/nsa-container.XXXXXX)
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
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  [ -z "$container" ] || inside journalctl --no-pager -n 40 -u 'nsa-*' >&2
  exit 1
}
readonly CLEAN=(/usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LANG=C.UTF-8)
before_boot() { chroot "$root" "${CLEAN[@]}" "$@"; }
inside() { nsenter --target "$first" --all "${CLEAN[@]}" "$@"; }
ctl() { inside setpriv --reuid nsa --regid nsa --clear-groups env NSA_STATE_DIR=/var/lib/nsa HOME=/var/lib/nsa nsactl "$@"; }
state_is() { ctl list -o json | grep -q "STATE_$1"; } # any job's
# Waits until a command succeeds.
within() { # within SECONDS COMMAND…
  local end=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || die "not in time: $*"
    sleep 0.3
  done
}
# The bare root as an archive, which is made only once.
bare_root() {
  local kept=${XDG_CACHE_HOME:-$HOME/.cache}/nsa-test/root.tar
  if [ ! -f "$kept" ]; then
    command -v debootstrap >/dev/null || skip "no debootstrap here, and no root; name a ROOT.tar"
    mkdir -p "${kept%/*}" "$root/bare"
    debootstrap --variant=minbase --include=ca-certificates bookworm "$root/bare" >"$root/log" 2>&1 || skip "debootstrap made no Debian: $(tail -n 1 "$root/log")"
    tar -C "$root/bare" -cf "$root/root.tar" .
    mv "$root/root.tar" "$kept"
    rm -rf "$root/bare" "$root/log"
  fi
  tar -C "$root" -xf "$kept"
}
make_root() {
  if [ -n "${1:-}" ]; then tar -C "$root" -xf "$1"; else bare_root; fi
  chmod 755 "$root"
  cp /etc/resolv.conf "$root/etc/"
  rm -f "$root/etc/apt/sources.list"
  cp -r /etc/apt/sources.list.d /etc/apt/apt.conf.d /etc/apt/keyrings "$root/etc/apt/" 2>/dev/null || true
  before_boot apt-get -qq update
  before_boot apt-get -qq install -y --no-install-recommends systemd systemd-sysv dbus procps sudo >/dev/null
}
leader() { first=$(pgrep -P "$container" -x systemd); }
boot() {
  systemd-nspawn --quiet --register=no --keep-unit --private-network --link-journal=no --console=pipe --boot -D "$root" </dev/null >>"$root/boot.log" 2>&1 &
  container=$!
  within 30 leader
  leader
  within 60 eval 'inside systemctl is-system-running | grep -qE "running|degraded"'
}
