#!/usr/bin/env bash
# The Debian packages have what their names say, and systemd accepts their units. Nothing is installed.
#
#   tests/deploy/packages_test.sh BUILD_DIR
#   tests/deploy/packages_test.sh BUILD_DIR --keep FOLDER VERSION      only builds them, with this version, into FOLDER
set -euo pipefail
command -v dpkg-shlibdeps >/dev/null || { echo "no dpkg-shlibdeps here; dpkg-dev has it"; exit 77; }
build=$(cd "$1" && pwd)
# The worker for GPUs takes minutes to pack and has nothing but its program.
readonly PACKAGES='nsa-coordinator;nsa-agent;nsactl'
pack() { # pack FOLDER VERSION
  cpack --config "$build/CPackConfig.cmake" -B "$1" -R "$2" -D CPACK_COMPONENTS_ALL="$PACKAGES" >"$1/cpack.log" 2>&1 || { cat "$1/cpack.log"; exit 1; }
}
if [ "${2:-}" = --keep ]; then mkdir -p "$3"; pack "$3" "$4"; exit; fi
version=$(sed -nE 's/^set\(CPACK_PACKAGE_VERSION "(.*)"\)/\1/p' "$build/CPackConfig.cmake")
[[ $("$build/bin/nsactl" --version) == *"$version"* ]] || { echo "packages are of version $version, nsactl of $("$build/bin/nsactl" --version)"; exit 1; }

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
complaints=0
complain() { echo "$*"; complaints=$((complaints + 1)); }
pack "$place" 9.8.7
root=$place/root
mkdir "$root"
expect() { # expect PACKAGE FILE…: the package has these files and no other
  local package=$1 deb
  shift
  deb=$(ls "$place/$package"_9.8.7_*.deb) || { complain "$package: no package"; return; }
  dpkg-deb --fsys-tarfile "$deb" | tar -C "$root" -xf -
  diff <(printf './%s\n' "$@" | sort) <(dpkg-deb --fsys-tarfile "$deb" | tar -tf - | grep -v '/$' | sort) ||
    complain "$package: other files than expected"
  [ "$(dpkg-deb -f "$deb" Package)" = "$package" ] || complain "$package: is called $(dpkg-deb -f "$deb" Package)"
  dpkg-deb -f "$deb" Depends | grep -q 'libc6' || complain "$package: does not depend on the libraries that it needs"
}
source=$(cd "$(dirname "$0")/../.." && pwd)
"$source/deploy/man_pages.py" "$build"/bin/{nsactl,nsa-coordinator,nsa-agent} "$place/man"
pages() { (cd "$place" && find man -name "$1" | sed 's|^|usr/share/|'); }
mapfile -t coordinator_pages < <(pages 'nsa-coordinator*')
mapfile -t agent_pages < <(pages 'nsa-agent*')
mapfile -t client_pages < <(pages 'nsactl*')
mapfile -t documents < <(cd "$source" && find docs -type f | sed 's|^|usr/share/doc/nsa-coordinator/|')
expect nsa-coordinator usr/bin/nsa-coordinator usr/lib/systemd/system/nsa-coordinator.service \
  usr/lib/systemd/system/nsa-backup.service usr/lib/systemd/system/nsa-backup.timer usr/share/doc/nsa-coordinator/{README,CHANGELOG}.md "${documents[@]}" \
  usr/share/nsa/coordinator.yaml usr/share/nsa/prometheus/{prometheus,nsa.rules}.yml usr/share/nsa/grafana/nsa.json "${coordinator_pages[@]}"
expect nsa-agent usr/bin/nsa-agent usr/bin/nsa-worker usr/lib/systemd/system/nsa-agent.service usr/share/doc/nsa-agent/README.md \
  usr/share/nsa/{agent.yaml,nsa-agent-unix-users.conf} \
  "${agent_pages[@]}"
expect nsactl usr/bin/nsactl usr/share/bash-completion/completions/nsactl usr/share/zsh/vendor-completions/_nsactl \
  usr/share/fish/vendor_completions.d/nsactl.fish "${client_pages[@]}"
[ "${#client_pages[@]}" -ge 40 ] || complain "nsactl: fewer manual pages than commands"
bash -n "$root/usr/share/bash-completion/completions/nsactl" || complain "nsactl: completion for bash is no script"
if command -v man >/dev/null; then
  for each in nsactl.1 nsactl-stop.1 nsa-coordinator.8; do
    found=$(MANWIDTH=100 man --warnings -l "$root/usr/share/man/man${each##*.}/$each.gz" 2>&1 >/dev/null)
    [ -z "$found" ] || complain "$each: $found"
  done
fi

for package in nsa-coordinator nsa-agent; do
  dpkg-deb --ctrl-tarfile "$(ls "$place/$package"_*.deb)" | tar -C "$root" -xf -
  for script in postinst prerm postrm; do
    { [ -x "$root/$script" ] && sh -n "$root/$script"; } || complain "$package: $script cannot be run"
    rm -f "$root/$script"
  done
  unit=$root/usr/lib/systemd/system/$package.service
  for line in KillMode=process "ExecStart=/usr/bin/$package --config /etc/nsa/${package#nsa-}.yaml" NoNewPrivileges=yes; do
    grep -qxF "$line" "$unit" || complain "$package: its unit has no line $line"
  done
done
for line in Type=notify WatchdogSec=30 LimitNOFILE=65536; do
  grep -qxF "$line" "$root/usr/lib/systemd/system/nsa-coordinator.service" || complain "nsa-coordinator: its unit has no line $line"
done
for daemon in coordinator agent; do
  grep -q '^state_dir: /var/lib/nsa' "$root/usr/share/nsa/$daemon.yaml" || complain "$daemon.yaml does not name the state folder of its unit"
done
grep -q '^local_agent: false' "$root/usr/share/nsa/coordinator.yaml" || complain "the coordinator would start a second agent beside the unit"

# The programs run from their packages, with what the packages say of themselves.
for program in nsa-coordinator nsa-agent nsa-worker nsactl; do
  "$root/usr/bin/$program" --version >/dev/null || complain "$program does not start"
done
"$root/usr/bin/nsa-coordinator" --config "$root/usr/share/nsa/coordinator.yaml" --help >/dev/null || complain "nsa-coordinator: --config"

if command -v systemd-analyze >/dev/null; then
  # verify looks for the programs in this machine's /usr/bin.
  sed -i "s|^\(Exec[A-Za-z]*\)=/usr/bin/|\1=$root/usr/bin/|" "$root"/usr/lib/systemd/system/*.service
  wrong=$(systemd-analyze verify "$root"/usr/lib/systemd/system/*.service 2>&1 | grep -F "nsa-" || true)
  [ -z "$wrong" ] || complain "$wrong"
  for package in nsa-coordinator nsa-agent; do
    exposure=$(systemd-analyze security --offline=true "$root/usr/lib/systemd/system/$package.service" | sed -n 's/.*Overall exposure level[^:]*: \([0-9.]*\).*/\1/p')
    echo "$package.service: exposure $exposure"
    awk -v e="${exposure:-10}" 'BEGIN { exit !(e <= 5.0) }' || complain "$package.service: exposure $exposure (5.0)"
  done
fi
[ $complaints -eq 0 ] || { echo "$complaints complaints"; exit 1; }
