#!/usr/bin/env bash
# Runs the commands of docs/first_day.md as they stand there, in one shell, as a user with sudo, in a Debian that systemd has booted; then checks what the page
# promises, and that it holds after a reboot. As root, with a network; skipped (77) where no container can be had:
#
#   tests/deploy/first_day_under_systemd.sh BUILD_DIR [ROOT.tar]      ROOT.tar: a bare Debian root (container.sh)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
root='' container='' # container.sh sets them
# shellcheck source=/dev/null
. "$here/container.sh"
page=$here/../../docs/first_day.md

say "a bare root, a user with sudo, and the packages in her folder"
make_root "${2:-}"
before_boot useradd --create-home --shell /bin/bash ada
echo 'ada ALL=(ALL) NOPASSWD: ALL' >"$root/etc/sudoers.d/ada"
echo lab >"$root/etc/hostname"
printf '127.0.0.1 localhost\n127.0.1.1 lab\n' >"$root/etc/hosts"
"$here/packages_test.sh" "$build" --keep "$root/home/ada/packages" 0.2.0
rm -rf "$root/home/ada/packages/_CPack_Packages"
# What the page installs is fetched now; the container has no way out.
before_boot bash -c 'apt-get -qq install -y --no-install-recommends --download-only prometheus curl /home/ada/packages/*.deb' >/dev/null

say "boot"
boot
# systemd-nspawn puts a boot id of its own there, which a unit with ProtectKernelTunables does not see: on a machine both are one.
inside umount /proc/sys/kernel/random/boot_id

say "the page"
awk '/^```sh$/ {on = 1; next} /^```$/ {on = 0} on' "$page" >"$root/home/ada/page.sh"
[ "$(grep -c '^```sh$' "$page")" -ge 11 ] || die "$page has fewer blocks of commands"
inside runuser -l ada -c 'cd packages && exec bash -eux -o pipefail ../page.sh' >"$root/said" 2>&1 || { cat "$root/said"; die "a command of the page failed"; }
cat "$root/said"

say "what it promises"
for word in RANK_KILLED RESUMED 'ada .*SubmitJob' 'prometheus'; do grep -qE "$word" "$root/said" || die "nothing says $word"; done
[ "$(ctl list -o json | grep -c STATE_SUCCEEDED)" = 2 ] || die "not two jobs have succeeded: $(ctl list)"
[ "$(inside stat -c %a /home/ada/.nsa/token)" = 600 ] || die "others may read ada's token"
[ "$(inside sh -c 'ls -d /var/backups/nsa/nsa-*Z' | wc -l)" = 1 ] || die "not one backup"
inside curl -s 'http://localhost:9090/api/v1/query?query=up' | grep -q '"value":\[[0-9.]*,"1"\]' || die "Prometheus: $(inside curl -s 'http://localhost:9090/api/v1/targets')"
inside curl -s 'http://localhost:9090/api/v1/rules' | grep -q NsaFlood || die "Prometheus has not the rules of the package"
as_ada() { inside runuser -l ada -c "$*"; }
for n in 1 2 3; do said=$(as_ada "nsactl submit job.yaml --set name=more-$n --set train.steps=3000" 2>&1) || break; done
[[ $n == 3 && $said == *"ada has 2 jobs"* ]] || die "the quota of two jobs: submit $n: $said"

say "after a reboot"
within 120 as_ada 'nsactl checkpoint list more-1 -o name | grep -q .'
inside systemctl reboot || true
wait "$container" || true
boot
within 120 as_ada 'nsactl events more-1 | grep -q RESUMED'
within 60 state_is RUNNING
within 60 inside sh -c "curl -s 'http://localhost:9090/api/v1/query?query=up' | grep -q '\"value\":\[[0-9.]*,\"1\"\]'"
as_ada 'nsactl stop --state active --yes' >/dev/null
within 60 eval '! state_is RUNNING'
say "ok: the first day as it stands"
