#!/usr/bin/env bash
# deploy/plot/record_job.sh writes everything that the pictures need, returns the job's exit code and leaves no process running.
#
#   tests/deploy/record_job_test.sh BIN_DIR
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
export NSA_BIN=$1 TMPDIR=$work/tmp EVERY=0.5
mkdir "$TMPDIR"
cat >"$work/job.yaml" <<'YAML'
name: recorded
model: {dim: 64, n_layers: 2, n_heads: 4, n_kv_groups: 2, d_k: 16, d_v: 16}
nsa: {l: 8, d: 4, l_sel: 16, n_sel: 4, w: 16}
data: {source: synthetic, tokenizer: byte}
runtime: {device: cpu, precision: fp32}
train: {steps: 60, seq_len: 64, batch_size: 4, lr: 1.0e-3, eval_every: 20, eval_batches: 1, save_every: 20, out_dir: out}
resources: {gpus: 1}
preflight: {waive: {MODEL_TOO_SMALL_FOR_RUN: a test, THROUGHPUT_GUARD_OFF: a test, DATA_SYNTHETIC: a test, LOST_WORK: a test}}
YAML
fail() { echo "FAIL: $*"; exit 1; }
processes() { for exe in /proc/[0-9]*/exe; do tr '\0' ' ' 2>/dev/null <"${exe%exe}cmdline" | grep -F "$TMPDIR/" || true; done; }

deploy/plot/record_job.sh "$work/job.yaml" "$work/shots"
for file in metrics.om.gz watch.cast job.txt training.csv val.csv coordinator.log; do [ -s "$work/shots/$file" ] || fail "no $file"; done
metrics=$(gunzip -c "$work/shots/metrics.om.gz")
[ "$(tail -n 1 <<<"$metrics")" = "# EOF" ] || fail "the recording has no end"
grep -q '^nsa_job_state{job_id="[a-z0-9]*",state="SUCCEEDED",.*} 1 ' <<<"$metrics" || fail "the recording does not show the job's end"
deploy/plot/terminal.py draw "$work/shots/watch.cast" -o "$work/watch.svg" >/dev/null
grep -q 'nsactl watch' "$work/watch.svg" && grep -q SUCCEEDED "$work/watch.svg" || fail "the terminal does not show the job's end"
[ -z "$(processes)" ] || fail "left running: $(processes)"
[ -z "$(ls "$TMPDIR")" ] || fail "left in $TMPDIR: $(ls "$TMPDIR")"

status=0
deploy/plot/record_job.sh "$work/job.yaml" "$work/short" --set train.steps=1000000 --set train.save_every=100000 --set name=long >"$work/out" 2>&1 &
recorder=$!
for _ in $(seq 100); do ! grep -q RUNNING "$work/short/watch.cast" 2>/dev/null || break; sleep 0.2; done
kill $recorder
wait $recorder || status=$?
[ $status -ne 0 ] || fail "a recording that was broken off succeeds"
for _ in $(seq 100); do [ -n "$(processes)" ] || break; sleep 0.2; done
[ -z "$(processes)" ] || fail "left running after a kill: $(processes)"
echo "record_job_test: ok"
