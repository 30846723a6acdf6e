#!/usr/bin/env bash
# Makes the relocatable archive nsa-<version>-linux-x86_64.tar.zst: the installed programs and every shared library they need, except
# the C and C++ runtime and CUDA's. It runs on machines with glibc 2.34 or newer. Given names of test programs, it makes
# nsa-<version>-gpu-tests-linux-x86_64.tar.zst, which adds those tests, their versions for sm_80, and run_gpu.sh to run them.
#
#   deploy/bundle.sh BUILD_DIR VERSION             called by: cmake --build --preset release --target bundle
#   deploy/bundle.sh BUILD_DIR VERSION TEST…       called by: cmake --build --preset release --target gpu_test_bundle
#
# The programs keep their function names and line tables: dump-stack prints them.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,10p' "$0" | cut -c3-; exit 2; }
build=$1 name=nsa-$2-linux-x86_64 source=$(cd "$(dirname "$0")/.." && pwd)
shift 2
[ $# -eq 0 ] || name=${name/-linux/-gpu-tests-linux}
stage=$build/bundle/$name
rm -rf "$stage"
mkdir -p "$stage/lib"
cmake --install "$build" --prefix "$stage" >/dev/null

# The folders are laid out as the tests expect them in the tree.
if [ $# -gt 0 ]; then
  mkdir -p "$stage/tests/bin"
  for test in "$@"; do
    strip --strip-debug -o "$stage/tests/bin/$test" "$build/tests/$test"
  done
  mkdir -p "$stage/tests/sm80"
  for program in "$build"/sm80/*; do
    strip --strip-debug -o "$stage/tests/sm80/$(basename "$program")" "$program"
  done
  strip --strip-debug -o "$stage/bin/nccl_rank" "$build/bin/nccl_rank"
  cp "$source/tests/run_gpu.sh" "$stage/"
  for script in "$source"/tests/{faults,e2e}/gpu/*_gpu_test.py "$source"/tests/testing/*.py "$source"/tests/kernels/cuda/{cubin,wait_first}.py; do
    install -D "$script" "$stage/${script#"$source/"}"
  done
fi

# Not bundled: the machine's own versions of these must be used, because they must fit its kernel and driver.
readonly SYSTEM='/(ld-linux-x86-64|libc|libm|libgcc_s|libstdc\+\+|libpthread|libdl|librt|libresolv)\.so'
readonly CUDA='/(libcuda|libcudart|libcublas|libcublasLt|libnccl|libnvidia|libnvrtc)[^/]*\.so'

shopt -s nullglob
ldd "$stage"/bin/* "$stage"/tests/bin/* |
  awk '$2 == "=>" && $3 == "not" { print > "/dev/stderr"; missing = 1 } $3 ~ /^\// { print $3 } END { exit missing }' |
  sort -u | grep -vE "$SYSTEM" | grep -vE "$CUDA" | while read -r library; do
  cp -L "$library" "$stage/lib/"
done
chmod u+w "$stage"/lib/*
strip --strip-unneeded "$stage"/lib/*

# nsa-worker-cuda and nsa-bench contain the same kernels tens of megabytes apart, so a long match window (--long) helps. Level 19 takes
# a minute on two cores and makes the archive a sixth smaller than level 12 (33.5 MB instead of 40.7). A test takes a lower one.
tar -C "$build/bundle" -cf - "$name" | zstd -q "-${NSA_BUNDLE_LEVEL:-19}" --long=27 -T0 -f -o "$build/$name.tar.zst"
du -h "$build/$name.tar.zst" | awk '{ print $2 " " $1 }'
