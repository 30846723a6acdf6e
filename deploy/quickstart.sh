#!/usr/bin/env bash
# Goes from a fresh checkout to a trained model: installs missing packages, builds, starts a coordinator, trains the demo job,
# prints its results and the next commands. Works with and without a GPU, with and without a terminal, and can be repeated.
#
#   deploy/quickstart.sh [JOB_FILE]     default: configs/jobs/demo.yaml; on a machine with a GPU configs/jobs/demo_gpu.yaml
#
# The coordinator keeps its state in $NSA_STATE_DIR (default ~/.local/state/nsa) and keeps running afterwards; one that already runs
# there is used. Every run trains into a new folder under out/quickstart/. The sample continues the text in $SAMPLE_PROMPT.
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,8p' "$0" | cut -c3-; exit 0 ;; esac
JOB_FILE=${1:+$(realpath "$1")}
cd "$(dirname "$0")/.."

readonly BIN=$PWD/build/release/bin
export NSA_STATE_DIR=${NSA_STATE_DIR:-$HOME/.local/state/nsa}
# The coordinator of this folder, whichever one nsactl has been set up for.
unset NSACTL_CONTEXT
export NSACTL_ADDRESS=unix:$NSA_STATE_DIR/coordinator.sock
export PATH=$BIN:$PATH

say() { printf '\n== %s  [%d s]\n' "$*" "$SECONDS"; }
die() { printf 'quickstart.sh: %s\n' "$*" >&2; exit 1; }

build_programs() {
  local log=build/configure.log
  [ -f build/release/CMakeCache.txt ] || echo "first build: some minutes on two cores; a repeated one takes seconds"
  mkdir -p build
  cmake --preset release >$log 2>&1 || { cat $log; die "cmake could not configure; see above"; }
  cmake --build --preset release --target programs
}

coordinator_answers() { nsactl list --timeout 5s >/dev/null 2>&1; }

# True when there is a GPU, and a worker that was built for it and finds its driver and libraries.
gpu_works() { compgen -G '/dev/nvidia[0-9]*' >/dev/null && [ -x "$BIN/nsa-worker-cuda" ] && nsa-worker-cuda --check-gpu; }

choose_job() {
  [ -z "$JOB_FILE" ] || return 0
  if gpu_works; then
    JOB_FILE=configs/jobs/demo_gpu.yaml
    echo "training on the GPU: 24 million parameters, sized for less than a minute"
  else
    JOB_FILE=configs/jobs/demo.yaml
    echo "training on the CPU: half a million parameters, about a minute on two cores"
  fi
}

# launch [FLAG…]: starts a coordinator in its own session, so that closing this terminal does not end it. Fails with its exit status.
launch() {
  local log=$NSA_STATE_DIR/coordinator.log
  setsid nohup nsa-coordinator "$@" >>"$log" 2>&1 </dev/null &
  local pid=$!
  for _ in $(seq 150); do
    if coordinator_answers; then
      echo $pid >"$NSA_STATE_DIR/quickstart.pid"
      echo "coordinator is running: process $pid, state in $NSA_STATE_DIR, log $log"
      return 0
    fi
    kill -0 $pid 2>/dev/null || break
    sleep 0.1
  done
  tail -n 5 "$log"
  kill -0 $pid 2>/dev/null && return 1 # it runs and does not answer
  local status=0
  wait $pid || status=$?
  return $status
}

start_coordinator() {
  if coordinator_answers; then
    echo "a coordinator is already running in $NSA_STATE_DIR; using it"
    return
  fi
  mkdir -p "$NSA_STATE_DIR"
  local status=0
  launch || status=$?
  if [ $status -eq 4 ]; then
    echo "another program uses the default port; using free ports"
    launch --metrics 127.0.0.1:0 || status=$?
  fi
  [ $status -eq 0 ] || coordinator_answers || die "the coordinator did not start (exit $status); see $NSA_STATE_DIR/coordinator.log"
}

show_results() {
  local checkpoint=$RUN_DIR/checkpoints/latest.ckpt
  say "validation loss, nats per byte ($RUN_DIR/val.csv)"
  head -n 1 "$RUN_DIR/val.csv"
  tail -n 5 "$RUN_DIR/val.csv"
  say "the losses, nats per byte"
  nsactl plot "$job"
  say "a sample of the trained model"
  nsa-worker sample "$checkpoint" --prompt "$SAMPLE_PROMPT" --bytes 700 --temperature 0.7 --seed 1 |
    tr -s ' \n' ' ' | fold -s -w 100
  echo
}

next() { printf '%-60s %s\n' "$1" "$2"; }

show_next_commands() {
  say "next"
  echo "export PATH=$BIN:\$PATH NSA_STATE_DIR=$NSA_STATE_DIR NSACTL_ADDRESS=$NSACTL_ADDRESS"
  echo "nsactl submit $JOB_FILE --set name=second --set train.lr=1e-3 --set train.out_dir=$RUN_DIR-second --watch"
  next "nsactl compare $job second" "that second job beside this one; plot draws both"
  next "nsactl top" "all jobs and machines, live"
  next "nsactl describe $job" "one job, and where its files are"
  next "nsactl metrics $job" "its step records"
  next "nsactl report $job -o report.html" "everything about it in one file"
  next "nsactl checkpoint list $job" "its checkpoints"
  next "nsactl validate configs/jobs/train_showcase.yaml --offline" "check a job file"
  next "nsactl init YOUR_TEXT.txt" "write job.yaml, a job on your own text; docs/tutorial.md goes on from there"
  next "nsactl submit YOUR_JOB.yaml --watch" "docs/job_file.md explains every key"
  next "nsactl version" "where the page and /metrics are; docs/deploy.md adds Prometheus and Grafana"
  local pid
  pid=$(cat "$NSA_STATE_DIR/quickstart.pid" 2>/dev/null || true)
  if [ -n "$pid" ] && kill -0 "$pid" 2>/dev/null; then
    next "kill $pid" "stop the coordinator; running jobs continue and are found again"
  fi
  local page
  page=$(nsactl version 2>/dev/null | sed -nE 's/.* page on (http:[^,]*),.*/\1/p')
  [ -z "$page" ] || say "the live page of this job: ${page}#/job/$job"
}

# On a terminal nsactl draws a progress bar itself; otherwise this adds one to each of its lines.
train() {
  if [ -t 1 ]; then
    nsactl submit "$JOB_FILE" --set "train.out_dir=$RUN_DIR" --watch
    return
  fi
  nsactl submit "$JOB_FILE" --set "train.out_dir=$RUN_DIR" --watch | awk '
    match($0, / step [0-9]+\/[0-9]+ /) {
      split(substr($0, RSTART + 6, RLENGTH - 7), at, "/"); done = int(30 * at[1] / at[2])
      bar = ""; for (i = 1; i <= 30; ++i) bar = bar (i <= done ? "#" : ".")
      sub(/^[^ ]+ [^ ]+ /, ""); print "[" bar "] " $0; fflush(); next
    }
    { print; fflush() }'
}

readonly SAMPLE_PROMPT=${SAMPLE_PROMPT:-"The Program "}
say "1/4 packages"; deploy/packages.sh build
say "2/4 build"; build_programs
say "3/4 coordinator"; start_coordinator
choose_job
say "4/4 training $JOB_FILE"
# A folder belongs to one job, so each run has its own.
RUN_DIR=$PWD/out/quickstart/$(date -u +%Y%m%d-%H%M%S)-$$
train || die "the job did not succeed (exit $?); nsactl events and nsactl logs say why"
job=$(nsactl list -o name | sed -n 1p)
show_results
show_next_commands
