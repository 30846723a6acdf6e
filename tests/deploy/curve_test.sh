#!/usr/bin/env bash
# deploy/plot/curve.py draws a run as well-formed SVG, with a dot for every validation, and does not count gaps between runs as minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
header=step,loss,lr,toks_per_s,grad_norm,total_tokens,data_seconds,forward_seconds,backward_seconds
header+=,communication_seconds,optimizer_seconds,step_seconds,data_source,skipped_nonfinite,unix_seconds
{
  echo "$header"
  for i in $(seq 1 60); do
    # One day passes between steps 30 and 31.
    echo "$i,$((6 - i / 12)).5,0.001,1000,0.5,$((i * 1000)),0,0,0,0,0,1.0,jsonl,0,$((1000000 + i + (i > 30 ? 86400 : 0)))"
  done
  echo "61,nan,0.001,1000,inf,61000,0,0,0,0,0,1.0,jsonl,1,1086461"
} >"$work/training.csv"
printf 'step,val_loss,ppl,tokens,seconds,unix_seconds\n20,4.5,90,100,0.1,1000020\n40,3.25,25.8,100,0.1,1086440\n' >"$work/val.csv"

fail() { echo "curve_test: $*" >&2; exit 1; }
for x in step tokens minutes; do
  python3 deploy/plot/curve.py "$work" -o "$work/$x.svg" --x "$x" --title 'A < B & C' --line 2.53 'order-1' >/dev/null
  python3 -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])' "$work/$x.svg" || fail "$x: not XML"
  [ "$(grep -c '<circle' "$work/$x.svg")" = 2 ] || fail "$x: two validations are not two dots"
  grep -q 'validation, last 3.250' "$work/$x.svg" || fail "$x: no last validation loss"
  grep -qi 'nan' "$work/$x.svg" && fail "$x: a point that is no number"
done
python3 - "$work" <<'PY' || fail "the gap between two runs counts as training time"
import importlib.util, pathlib, sys
spec = importlib.util.spec_from_file_location("curve", "deploy/plot/curve.py")
curve = importlib.util.module_from_spec(spec); spec.loader.exec_module(curve)
minutes = curve.elapsed_minutes(curve.read_csv(pathlib.Path(sys.argv[1]) / "training.csv"))
sys.exit(0 if 1.0 <= minutes[-1] <= 2.2 else f"{minutes[-1]} minutes")
PY
if python3 deploy/plot/curve.py "$work/none" -o "$work/x.svg" 2>/dev/null; then fail "an empty folder is drawn"; fi
echo "curve_test: ok"
