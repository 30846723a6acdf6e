#!/usr/bin/env bash
# Trains a job under its own coordinator and records everything that is needed to draw it, on a machine that has neither Prometheus,
# Grafana nor tmux. Needs Python 3 and the programs: from $NSA_BIN, from the bundle that contains this file, or from build/release.
#
#   deploy/plot/record_job.sh JOB_FILE OUT_DIR [nsactl submit flags…]      e.g. --set train.steps=200
#
#   OUT_DIR/metrics.om.gz   the coordinator's metrics, every $EVERY seconds (1): deploy/plot/dashboard.py --recording
#   OUT_DIR/watch.cast      a terminal with nsactl nodes and nsactl watch: deploy/plot/terminal.py draw
#   OUT_DIR/job.txt         nsactl describe and events           OUT_DIR/coordinator.log
#   OUT_DIR/training.csv    and val.csv, from the job's out_dir: deploy/plot/curve.py
#
# The job gets $LIMIT seconds (600), then it is stopped. Its out_dir and the coordinator's state are removed at the end, unless
# --set train.out_dir=… names a folder. Exit code: that of nsactl watch.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,14p' "$0" | cut -c3-; exit 2; }
job_file=$(realpath "$1") out=$(mkdir -p "$2" && realpath "$2") flags=("${@:3}")
tools=$(dirname "$(realpath "$0")")
every=${EVERY:-1} limit=${LIMIT:-600}
top=$tools/../..
for bin in "${NSA_BIN:-}" "$top/bin" "$top/build/release/bin"; do [ ! -x "$bin/nsactl" ] || break; done
[ -x "$bin/nsactl" ] || { echo "record_job.sh: no nsactl in $top/bin or $top/build/release/bin; set NSA_BIN" >&2; exit 2; }

work=$(mktemp -d)
export PATH=$bin:$PATH NSA_STATE_DIR=$work/state NSACTL_CONFIG=/dev/null
unset NSACTL_ADDRESS NSACTL_CONTEXT
coordinator='' recorder='' terminal='' job=''
finish() {
  for pid in $recorder $terminal; do
    kill "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
  if [ -n "$coordinator" ]; then
    if [ -n "$job" ] && nsactl stop "$job" --now >/dev/null 2>&1; then timeout 30 nsactl watch "$job" >/dev/null 2>&1 || true; fi
    kill "$coordinator" 2>/dev/null || true
    wait "$coordinator" 2>/dev/null || true
    # The coordinator's agent keeps running for the next coordinator. There is none here, so end the agent.
    agent=$(sed -n 's/.*local agent: .*process \([0-9]*\)$/\1/p' "$out/coordinator.log" | tail -n 1)
    if [ "$(readlink -f "/proc/${agent:-0}/exe")" = "$(readlink -f "$bin/nsa-agent")" ]; then
      kill "$agent"
      for _ in $(seq 100); do [ -d "/proc/$agent" ] || break; sleep 0.1; done
    fi
  fi
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 143' INT TERM

mkdir -p "$NSA_STATE_DIR"
nsa-coordinator --metrics 127.0.0.1:0 >"$out/coordinator.log" 2>&1 &
coordinator=$!
for _ in $(seq 150); do
  [ -z "$(nsactl nodes -o name 2>/dev/null)" ] || break
  kill -0 $coordinator 2>/dev/null || { cat "$out/coordinator.log"; exit 1; }
  sleep 0.2
done
address=$(sed -n 's/.*metrics on \([0-9.:]*\).*/\1/p' "$out/coordinator.log" | head -n 1)

run_dir=$work/out
for flag in "${flags[@]}"; do case $flag in *train.out_dir=*) run_dir=${flag##*train.out_dir=} ;; esac; done
case " ${flags[*]} " in *train.out_dir=*) ;; *) flags+=(--set "train.out_dir=$run_dir") ;; esac
nsactl submit "$job_file" "${flags[@]}"
job=$(nsactl list -o name | sed -n 1p)
job=${job#job/}

"$tools/record_metrics.py" -o "$out/metrics.om.gz" --address "$address" --every "$every" --for $((limit + 30)) --job "$job" --after 5 &
recorder=$!
# shellcheck disable=SC2016  # the recorded shell expands the variables
status=0
"$tools/terminal.py" record -o "$out/watch.cast" --columns "${COLUMNS_SHOWN:-100}" --lines 20 --for "$limit" -- \
  bash -c 'for command in "nsactl nodes" "nsactl watch $1"; do printf "\033[1m$ %s\033[0m\n" "$command"; $command; code=$?; echo; done; exit $code' \
  record "$job" &
terminal=$!
wait $terminal || status=$?
terminal=''
if [ $status -eq 130 ]; then nsactl stop "$job" || true; fi
wait $recorder || true
recorder=''
{ nsactl describe "$job"; echo; nsactl events "$job"; } >"$out/job.txt" || true
for file in training.csv val.csv; do cp "$run_dir/$file" "$out/" 2>/dev/null || true; done
echo "$out: $(ls "$out" | tr '\n' ' ')"
exit $status
