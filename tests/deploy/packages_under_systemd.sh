#!/usr/bin/env bash
# Installs, upgrades, removes and purges the Debian packages in a bare Debian that systemd has booted, with a job that trains meanwhile, and checks
# what the units promise: notification, watchdog, restarts, limits, and that no end of a daemon ends a worker; and that jobs can do under them what they
# do elsewhere: end, resume, be read, dumped, traced, stopped and deleted, with and without allowed_roots, and go on after a reboot. It follows the page
# about certificates. As root, with a network; skipped (77) where no container can be had:
#
#   tests/deploy/packages_under_systemd.sh BUILD_DIR [--from BUILD_DIR] [--root ROOT.tar]
#
#   --from BUILD_DIR   the packages from which it upgrades, and to which it goes back, are of that build; without it of the same one, as another version
#   --root ROOT.tar    a bare Debian root (container.sh)
#
# The commands of docs/deploy.md are run as they stand there, by users that its reader has.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
docs=$here/../../docs
build=$(cd "$1" && pwd) from=$build tar=''
shift
while [ $# -gt 0 ]; do
  case $1 in
    --from) from=$(cd "$2" && pwd) ;;
    --root) tar=$2 ;;
    *) sed -n '2,12p' "$0" | cut -c3- >&2; exit 2 ;;
  esac
  shift 2
done
root='' container='' # container.sh sets them
# shellcheck source=/dev/null
. "$here/container.sh"
# The one line of a page that has this text, as a user types it.
line_of() { # line_of PAGE TEXT
  local found
  found=$(grep -F "$2" "$docs/$1" | grep '^    ' | sed 's/^ *//; s/  *#.*//')
  [ -n "$found" ] && [ "$(wc -l <<<"$found")" = 1 ] || die "docs/$1 has not one line with '$2': $found"
  echo "$found"
}
as_documented() { # as_documented COMMAND; one that line_of has not found must not pass as nothing
  echo "$ ${1:?no command}"
  inside bash -c "$1"
}
property() { inside systemctl show --value -p "$2" "nsa-$1"; }
worker() { inside pgrep -x nsa-worker; }
job_is() { ctl describe "$1" -o json | grep -q "\"state\": *\"STATE_$2\""; }
stacks_of() { ctl dump-stack "$1" | grep -q nsa::train; }
resumes() { ctl events packaged | grep -c RESUMED || true; }
newest() { compgen -G "$root/srv/out/job/checkpoints/step-*" | tail -n 1 || true; }
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

# A job for the container, as a file in /srv.
job() { # job NAME STEPS OUT_DIR
  cat >"$root/srv/$1.yaml" <<JOB
name: $1
model: {dim: 64, n_layers: 2, n_heads: 4, n_kv_groups: 2, d_k: 16, d_v: 16}
nsa: {l: 16, d: 8, l_sel: 32, n_sel: 4, w: 32}
data: {source: synthetic, tokenizer: byte}
runtime: {device: cpu, precision: fp32}
train: {steps: $2, seq_len: 128, batch_size: 8, lr: 1.0e-3, save_every: 100, eval_every: 0, out_dir: $3}
restart: {backoff_seconds: 1}
preflight: {policy: experiment, waive: {MODEL_TOO_SMALL_FOR_RUN: a test, DATA_SYNTHETIC: a test}}
JOB
}
# What a job does anywhere, it does under the units: here also a killed worker and what reads another process.
jobs_work() { # jobs_work NAME
  local before old
  job "$1" 30 "/srv/out/$1"
  ctl submit -q "/srv/$1.yaml"
  within 60 job_is "$1" SUCCEEDED
  [ -n "$(ctl logs "$1")" ] || die "the log of $1 is empty"
  ctl delete "$1" --yes >/dev/null
  [ ! -e "$root/srv/out/$1/owner.json" ] || die "$1 is deleted, and owner.json still names it"
  within 60 stacks_of packaged
  ctl profile packaged --steps 1 -o /tmp/trace.json.gz --force >/dev/null || die "no trace"
  ctl label packaged "checked=$1" >/dev/null
  old=$(newest)
  within 180 eval "[ \"\$(newest)\" != '$old' ]" # a hundred steps, on cores that may be busy
  before=$(resumes)
  inside kill -KILL "$trains"
  within 60 eval "[ \"\$(resumes)\" -gt $before ]"
  within 30 job_is packaged RUNNING
  within 20 worker
  trains=$(worker)
  echo "a job ended and was deleted; packaged: $(ctl events packaged | grep RESUMED | tail -n 1)"
}

say "a bare root with systemd, and the packages"
make_root "$tar"
# The second sorts after the first, as a later commit does.
readonly VERSIONS=(0.2.0~9.g111111111111 0.2.0~10.g000000000000)
"$here/packages_test.sh" "$from" --keep "$root/packages-1" "${VERSIONS[0]}"
"$here/packages_test.sh" "$build" --keep "$root/packages-2" "${VERSIONS[1]}"
rm -rf "$root"/packages-*/_CPack_Packages
readonly FIRST=(/packages-1/{nsa-coordinator,nsa-agent,nsactl}_"${VERSIONS[0]}"_amd64.deb) SECOND=(/packages-2/{nsa-coordinator,nsa-agent,nsactl}_"${VERSIONS[1]}"_amd64.deb)
# What the packages of both builds depend on is fetched now; the container has no way out.
before_boot apt-get -qq install -y --no-install-recommends --download-only "${FIRST[@]}" >/dev/null
before_boot apt-get -qq install -y --no-install-recommends --download-only "${SECOND[@]}" >/dev/null

say "boot"
boot
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
  expect $daemon RestrictSUIDSGID yes
  inside grep -q "Max open files *$files " "/proc/$(property $daemon MainPID)/limits" || die "nsa-$daemon: $(inside grep 'open files' "/proc/$(property $daemon MainPID)/limits") ($files)"
done
expect coordinator Type notify
expect coordinator WatchdogUSec 30s
within 20 eval 'ctl nodes -o name | grep -q .'

say "a job trains"
inside install -d -o nsa /srv/out
job packaged 1000000 /srv/out/job
ctl submit -q /srv/packaged.yaml
within 60 state_is RUNNING
within 20 worker
trains=$(worker)

say "jobs end, resume and are read"
jobs_work everywhere
said=$(ctl doctor || true)
[[ $said == *"can be opened"* ]] || die "doctor: $said"

say "the same with allowed_roots, which lets no link out"
echo "allowed_roots: [/srv/out]" >>"$root/etc/nsa/coordinator.yaml"
inside systemctl restart nsa-coordinator
within 30 state_is RUNNING
jobs_work beneath
inside install -d -o nsa /srv/elsewhere
inside ln -s /srv/elsewhere /srv/out/link
for out_dir in /srv/elsewhere/job /srv/out/link/job; do
  job refused 30 "$out_dir"
  said=$(ctl submit -q /srv/refused.yaml 2>&1) && die "out_dir $out_dir was accepted"
  [[ $said == *"is not beneath allowed_roots, or leads through a symbolic link"* ]] || die "out_dir $out_dir: $said"
done

say "certificates as docs/security.md says; a reload with a wrong file fails, and nothing changes"
as_nsa() { inside setpriv --reuid nsa --regid nsa --clear-groups "$@"; }
by_tcp() {
  as_nsa env NSACTL_TLS_CA_FILE=/srv/ada/ca.crt NSACTL_TLS_CERTIFICATE_FILE=/srv/ada/ada.crt NSACTL_TLS_PRIVATE_KEY_FILE=/srv/ada/ada.key \
    NSACTL_TOKEN_FILE=/srv/ada/token HOME=/nonexistent nsactl --address 127.0.0.1:50951 "$@"
}
inside install -d -o nsa -g nsa -m 700 /etc/nsa/tls
as_nsa nsactl admin init-tls /etc/nsa/tls --host lab --agent gpu-02 --client ada >/dev/null
# The client's files, as ada copies them to her machine.
inside install -d -o nsa -g nsa -m 700 /srv/ada
inside sh -c 'cp -p /etc/nsa/tls/ca.crt /etc/nsa/tls/ada.crt /etc/nsa/tls/ada.key /etc/nsa/tls/token /srv/ada/'
cp "$root/etc/nsa/coordinator.yaml" "$root/srv/before.yaml"
cat >>"$root/etc/nsa/coordinator.yaml" <<'YAML'
listen_address: 0.0.0.0:50951
token_file: /etc/nsa/tls/token
tls: {certificate_file: /etc/nsa/tls/coordinator.crt, private_key_file: /etc/nsa/tls/coordinator.key, client_ca_file: /etc/nsa/tls/ca.crt}
YAML
inside systemctl reload nsa-coordinator
within 30 by_tcp nodes
old=$(property coordinator MainPID)
refused() { # refused TEXT: the reload fails with this text in the journal, and the coordinator serves as before
  ! inside systemctl reload nsa-coordinator 2>/dev/null || die "a reload with '$1' passed"
  within 10 eval "inside journalctl -u nsa-coordinator --no-pager | grep -qF '$1'"
  by_tcp nodes >/dev/null || die "after '$1' nobody is served"
  [ "$(property coordinator MainPID)" = "$old" ] || die "'$1' ended the coordinator"
  echo "refused: $1"
}
chmod 644 "$root/etc/nsa/tls/coordinator.key"
refused 'coordinator.key has mode 0644'
chmod 600 "$root/etc/nsa/tls/coordinator.key"
inside chown root: /etc/nsa/tls/token
refused 'token cannot be read (Permission denied; it belongs to root with mode 0600, and this process runs as nsa)'
inside chown nsa: /etc/nsa/tls/token
inside nsactl admin renew-tls /etc/nsa/tls >/dev/null # as root
inside systemctl reload nsa-coordinator
within 30 by_tcp nodes
# A start with a wrong file is one start: none would mend it.
mv "$root/etc/nsa/tls/token" "$root/srv/token"
inside systemctl restart nsa-coordinator || true
within 10 inside systemctl is-failed nsa-coordinator
expect coordinator ExecMainStatus 2
expect coordinator NRestarts 0
mv "$root/srv/token" "$root/etc/nsa/tls/token"
inside systemctl start nsa-coordinator
within 30 by_tcp nodes
cat "$root/srv/before.yaml" >"$root/etc/nsa/coordinator.yaml"
rm -r "$root/etc/nsa/tls"
inside systemctl reload nsa-coordinator
within 30 state_is RUNNING

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

say "reboot while it trains"
before=$(resumes)
inside systemctl reboot || true
wait "$container" || true
boot
for daemon in coordinator agent; do within 30 inside systemctl is-active nsa-$daemon; done
within 90 eval "[ \"\$(resumes)\" -gt $before ]"
within 30 job_is packaged RUNNING
within 20 worker
trains=$(worker)
ctl events packaged | grep -E 'NODE_RESTARTED|RESUMED|STOPPED' | tail -n 2
[ -n "$(ctl logs packaged --tail 1)" ] || die "no log after the reboot"

say "stop with a checkpoint, resume, and stop at once"
ctl stop packaged >/dev/null
within 60 job_is packaged STOPPED
ctl resume packaged >/dev/null
within 60 job_is packaged RUNNING
ctl stop packaged --now >/dev/null
within 30 job_is packaged STOPPED
ctl resume packaged >/dev/null
within 60 job_is packaged RUNNING
within 20 worker
trains=$(worker)

say "backup and restore, as docs/deploy.md has them"
line=$(line_of deploy.md 'sudo install -d -o nsa -m 700 /mnt/backup')
as_documented "$line"
echo secret >"$root/var/lib/nsa/smtp.password"
line=$(line_of deploy.md 'nsactl admin backup /mnt/backup/')
as_documented "$line"
backup=$(inside sh -c 'echo /mnt/backup/nsa-*')
[ -f "$root$backup/jobs.sqlite" ] || die "no backup in $backup"
[ ! -e "$root$backup/smtp.password" ] || die "a password is in the backup"
job younger 1000000 /srv/out/younger
ctl submit -q /srv/younger.yaml
within 60 job_is younger RUNNING
restore=$(line_of deploy.md 'nsactl admin restore /mnt/backup/' | sed "s|/mnt/backup/nsa-[0-9-]*|$backup|")
said=$(as_documented "$restore" 2>&1) && die "restored beside a running coordinator: $said"
[[ $said == *"is in use by process"* ]] || die "restore beside a running coordinator: $said"
line=$(line_of deploy.md 'systemctl stop nsa-coordinator')
as_documented "$line"
as_documented "$restore"
line=$(line_of deploy.md 'systemctl start nsa-coordinator')
as_documented "$line"
within 30 job_is packaged RUNNING
ctl describe younger >/dev/null 2>&1 && die "the younger job is still known"
within 60 eval '[ "$(worker)" = $trains ]'
[ "$(cat "$root/var/lib/nsa/smtp.password")" = secret ] || die "restore moved a file that is not the coordinator's"
echo "restored; worker $trains goes on, the younger job's rank has ended"

say "the timer of backups, as docs/deploy.md has it"
line=$(line_of deploy.md 'systemctl enable --now nsa-backup.timer')
as_documented "$line"
within 5 inside systemctl is-active nsa-backup.timer
for _ in 1 2; do
  inside systemctl start nsa-backup || { inside journalctl --no-pager -u nsa-backup; die "the backup of the timer failed"; }
  sleep 1.1 # their names have whole seconds
done
[ "$(inside sh -c 'ls -d /var/backups/nsa/nsa-*Z' | wc -l)" = 2 ] || die "not two backups in /var/backups/nsa"
[ "$(inside stat -c '%U %a' /var/backups/nsa)" = "nsa 700" ] || die "others may read the backups"
inside sh -c 'sudo -u nsa nsactl admin verify $(ls -d /var/backups/nsa/nsa-*Z | tail -n 1)'
for text in 'install -d -o nsa -m 700 /mnt/nightly/nsa' 'mkdir -p /etc/systemd/system/nsa-backup.service.d' NSA_BACKUP_DIR=/mnt/nightly/nsa; do
  line=$(line_of deploy.md "$text")
  as_documented "$line"
done
inside systemctl daemon-reload
inside systemctl start nsa-backup
inside sh -c 'sudo -u nsa nsactl admin verify /mnt/nightly/nsa/nsa-*Z'
inside mv /mnt/nightly /mnt/elsewhere # the disk is not mounted
inside systemctl start nsa-backup 2>/dev/null && die "a backup of a disk that is not mounted succeeded"
[ ! -e "$root/mnt/nightly" ] || die "the backup made a folder where the disk is to be mounted"
inside mv /mnt/elsewhere /mnt/nightly
inside rm -r /etc/systemd/system/nsa-backup.service.d
inside systemctl daemon-reload

say "the store is lost: the start is refused once, and the backup put back"
inside systemctl stop nsa-coordinator
rm -f "$root"/var/lib/nsa/jobs.sqlite*
inside systemctl start nsa-coordinator 2>/dev/null && die "the coordinator started without its store"
inside systemctl start nsa-backup 2>/dev/null && die "a backup of no store succeeded"
inside journalctl --no-pager -u nsa-backup | grep -qF 'state_dir: /var/lib/nsa has no jobs.sqlite' || die "the journal does not say why there is no backup"
within 10 inside systemctl is-failed nsa-coordinator
expect coordinator ExecMainStatus 3
expect coordinator NRestarts 0
[ ! -e "$root/var/lib/nsa/jobs.sqlite" ] || die "a lost store was replaced"
[ "$(worker)" = "$trains" ] || die "the worker $trains went with the store"
as_documented "$restore"
line=$(line_of deploy.md 'systemctl start nsa-coordinator')
as_documented "$line"
within 30 job_is packaged RUNNING
[ "$(worker)" = "$trains" ] || die "the worker $trains did not survive a lost store"
echo "restored; worker $trains goes on"

say "upgrade while it trains"
echo "# kept" >>"$root/etc/nsa/coordinator.yaml"
before=$(property coordinator MainPID) agent_before=$(property agent MainPID)
inside apt-get -qq install -y --no-install-recommends "${SECOND[@]}" >/dev/null
installed() { [ "$(inside dpkg-query -W -f='${Version}' nsa-agent)" = "$1" ] || die "nsa-agent is $(inside dpkg-query -W -f='${Version}' nsa-agent) ($1)"; }
installed "${VERSIONS[1]}"
goes_on coordinator "$before"
goes_on agent "$agent_before"
grep -q '# kept' "$root/etc/nsa/coordinator.yaml" || die "the upgrade replaced the configuration"

say "and back"
before=$(property coordinator MainPID) agent_before=$(property agent MainPID)
inside apt-get -qq install -y --no-install-recommends --allow-downgrades "${FIRST[@]}" >/dev/null
installed "${VERSIONS[0]}"
goes_on coordinator "$before"
goes_on agent "$agent_before"
inside systemd-analyze security --no-pager nsa-coordinator nsa-agent 2>/dev/null | grep Overall || true

say "purge of the coordinator alone: the agent's state stays"
inside apt-get -qq purge -y nsa-coordinator >/dev/null
[ -f "$root/var/lib/nsa/agent/node.secret" ] || die "the agent's secret went with the coordinator"
[ ! -e "$root/var/lib/nsa/jobs.sqlite" ] || die "purge left the store"
[ "$(worker)" = "$trains" ] || die "the worker went with the coordinator"
inside apt-get -qq install -y --no-install-recommends "${FIRST[0]}" >/dev/null

inside systemctl enable --now --quiet nsa-backup.timer # purged with the coordinator

say "remove while it trains: the worker saves a checkpoint and ends"
inside apt-get -qq remove -y nsa-coordinator nsa-agent nsactl >/dev/null
[ -z "$(worker || true)" ] || die "remove left the worker $(worker)"
[ ! -e "$root/usr/bin/nsa-agent" ] || die "remove left the programs"
[ -f "$root/var/lib/nsa/jobs.sqlite" ] || die "remove took the state"
compgen -G "$root/srv/out/job/checkpoints/step-*" >/dev/null || die "no checkpoint"

say "installed again: what ran runs"
inside apt-get -qq install -y --no-install-recommends "${FIRST[@]}" >/dev/null
for unit in nsa-coordinator nsa-agent nsa-backup.timer; do
  within 30 inside systemctl is-active --quiet $unit || die "$unit does not run"
  inside systemctl is-enabled --quiet $unit || die "$unit is not enabled"
done

say "ranks as Unix users, as docs/deploy.md has them"
inside useradd --create-home ada
inside install -d -o ada /srv/out/ada
line=$(line_of deploy.md 'mkdir -p /etc/systemd/system/nsa-agent.service.d')
as_documented "$line"
line=$(line_of deploy.md 'nsa-agent-unix-users.conf /etc/systemd' | sed 's|/opt/nsa/deploy/systemd/|/usr/share/nsa/|')
as_documented "$line"
for text in 's|^state_dir: ' 'unix_users: true\ncoordinator_address' 'systemctl daemon-reload && sudo systemctl restart nsa-agent'; do
  line=$(line_of deploy.md "$text")
  as_documented "$line"
done
expect agent User root
within 30 test -f "$root/var/lib/nsa-agent/node.secret"
echo 'listen_address: 127.0.0.1:50951' >>"$root/etc/nsa/coordinator.yaml"
inside systemctl reload nsa-coordinator
within 30 ctl nodes
ctl token create ada --role submitter --unix-user ada >"$root/home/ada/token"
inside chown ada: /home/ada/token
chmod 600 "$root/home/ada/token"
ada() { inside setpriv --reuid ada --regid ada --init-groups env HOME=/home/ada NSACTL_TOKEN_FILE=/home/ada/token nsactl --address 127.0.0.1:50951 "$@"; }
job hers 30 /srv/out/ada/job
ada submit -q /srv/hers.yaml
within 60 job_is hers SUCCEEDED
[ "$(stat -c %u "$root/srv/out/ada/job/training.csv")" = "$(inside id -u ada)" ] || die "the rank did not run as ada: $(ls -ln "$root/srv/out/ada/job")"
echo "the agent runs as root, with its state in /var/lib/nsa-agent; the rank ran as ada"
inside rm -r /etc/systemd/system/nsa-agent.service.d

say "purge"
inside apt-get -qq purge -y nsa-coordinator nsa-agent nsactl >/dev/null
for path in /var/lib/nsa /var/lib/nsa-agent /etc/nsa /usr/share/nsa /usr/lib/systemd/system/nsa-agent.service; do [ ! -e "$root$path" ] || die "purge left $path"; done
[ -z "$(inside pgrep nsa- || true)" ] || die "a process is left: $(inside pgrep -l nsa-)"
compgen -G "$root/srv/out/job/checkpoints/step-*" >/dev/null || die "purge took what a job wrote"

say "the backup on a machine with another name"
inside hostname lab-2
inside apt-get -qq install -y --no-install-recommends "${FIRST[@]}" >/dev/null
printf '%s\n' 'node_unknown_seconds: 2' 'node_lost_seconds: 5' >>"$root/etc/nsa/coordinator.yaml"
line=$(line_of deploy.md 'systemctl stop nsa-coordinator')
as_documented "$line"
as_documented "$restore"
line=$(line_of deploy.md 'systemctl start nsa-coordinator')
as_documented "$line"
before=$(resumes)
within 90 eval "[ \"\$(resumes)\" -gt $before ]"
within 30 job_is packaged RUNNING
ctl describe packaged | grep -qw lab-2 || die "it does not run on the machine with the new name: $(ctl describe packaged)"
ctl events packaged | tail -n 4
say "ok: under systemd installed, killed, hung, rebooted, upgraded with a worker that went on, removed, purged; jobs ended, resumed and were read; a lost store came back, here and under another name"
