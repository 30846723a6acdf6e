#!/bin/sh
# The first process of a container that trains:
#
#   run_daemon.sh /opt/nsa/bin/nsa-agent --config FILE          or nsa-coordinator, which starts an agent of its own
#
# A daemon that ends by itself is started again and finds its workers. When the container stops (SIGTERM), the daemon ends first and then every agent, so
# that nothing is started any more. Then each worker is asked to stop, which saves a checkpoint; all of them together have STOP_SECONDS for it (300). The
# container's time to stop must be longer: terminationGracePeriodSeconds in Kubernetes, stop_grace_period in Compose. A daemon whose exit code says that no
# restart mends it (configuration, damage, state of another version) ends the container with that code.
set -eu

# of PROGRAM…: the processes that run one of these.
of() {
  for process in /proc/[0-9]*; do
    name=$(readlink "$process/exe" 2>/dev/null || true)
    for program; do [ "${name##*/}" != "$program" ] || echo "${process#/proc/}"; done
  done
}
# end SECONDS PROGRAM…: asks them to end and waits.
end() {
  left=$1
  shift
  for pid in $(of "$@"); do kill -TERM "$pid" 2>/dev/null || true; done
  while [ "$left" -gt 0 ] && [ -n "$(of "$@")" ]; do
    sleep 1
    left=$((left - 1))
  done
}

stopping=false daemon='' code=0
trap 'stopping=true; [ -z "$daemon" ] || kill -TERM "$daemon" 2>/dev/null || true' TERM INT
until $stopping; do
  "$@" &
  daemon=$!
  while kill -0 "$daemon" 2>/dev/null; do wait "$daemon" && code=0 || code=$?; done
  daemon=''
  ! $stopping || break
  case $code in 2 | 3 | 5) exit $code ;; esac
  sleep 2
done
end 15 nsa-coordinator nsa-agent
end "${STOP_SECONDS:-300}" nsa-worker nsa-worker-cuda
