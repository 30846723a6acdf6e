#!/usr/bin/env bash
# The bundle needs only the C and C++ runtime of a machine: it is made, unpacked elsewhere and started with an empty environment.
#
#   tests/deploy/bundle_test.sh BUILD_DIR
set -euo pipefail
readme_test=$(cd "$(dirname "$0")/.." && pwd)/readme_test.sh
build=$(cd "$1" && pwd)
NSA_BUNDLE_LEVEL=3 cmake --build "$build" --target bundle
# The newest one: a build folder keeps those of earlier commits.
archive=$(find "$build" -maxdepth 1 -name 'nsa-*-linux-x86_64.tar.zst' ! -name '*-gpu-tests-*' -printf '%T@ %p\n' | sort -n | tail -n 1 | cut -d ' ' -f 2-)
[ -f "$archive" ] || { echo "no archive in $build"; exit 1; }

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
mkdir "$place/some where"
cd "$place/some where"
cmake -E tar xf "$archive"
cd nsa-*

for program in nsactl nsa-coordinator nsa-agent nsa-worker; do
  env -i "bin/$program" --version || { echo "$program --version failed"; exit 1; }
done

# Whatever is not in the bundle must be the machine's C or C++ runtime, or CUDA.
outside=$(for program in bin/*; do env -i /usr/bin/ldd "$program"; done |
  sed -nE 's/^[[:space:]]*([^ ]+) => (.*)$/\1 \2/p' | grep -vF " $PWD/bin/../lib/" |
  grep -vE '^(ld-linux-x86-64|libc|libm|libgcc_s|libstdc\+\+|libpthread|libdl|librt|libresolv)\.so' |
  grep -vE '^lib(cuda|cudart|cublas|cublasLt|nccl|nvidia|nvrtc)[^ ]*\.so' | sort -u || true)
[ -z "$outside" ] || { echo "libraries from outside the bundle:"; echo "$outside"; exit 1; }
[ -f configs/jobs/demo.yaml ] || { echo "the bundle has no configs/jobs/demo.yaml"; exit 1; }
[ -f docs/two_gpus.md ] || { echo "the bundle has no docs/two_gpus.md"; exit 1; }
python3 -c 'import json, sys; assert json.load(open(sys.argv[1]))["panels"]' deploy/grafana/dashboards/nsa.json || { echo "the bundle has no dashboard"; exit 1; }
bash "$readme_test" --links .
echo "the bundle runs from $PWD: $(find lib -type f | wc -l) libraries, $(du -sh . | cut -f1)"
