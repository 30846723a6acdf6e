#!/usr/bin/env bash
# Draws a recording of record_job.sh: the dashboard's rows and nsactl watch as they were while the job ran, and its losses.
#
#   deploy/plot/draw_job.sh SHOTS_DIR OUT_DIR [SECONDS]      shows the state SECONDS before the job's end (default 10)
#
# Makes OUT_DIR/dashboard.png, dashboard_attention.png, watch.svg and curve.svg. Needs the packages of `deploy/packages.sh plot`.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,6p' "$0" | cut -c3-; exit 2; }
shots=$1 out=$2 before=${3:-10}
tools=$(dirname "$(realpath "$0")")
mkdir -p "$out"
# The recording of the metrics continues for five seconds after the job's end.
draw() { "$tools/dashboard.py" --recording "$shots/metrics.om.gz" --to "-$((before + 5))" "$@"; }
draw --row Job --row Learning --row "Speed and memory" -o "$out/dashboard.png"
draw --row "Sparse attention" -o "$out/dashboard_attention.png"
"$tools/terminal.py" draw "$shots/watch.cast" --at "-$before" --title nsactl -o "$out/watch.svg"
"$tools/curve.py" "$shots" -o "$out/curve.svg" --x tokens
