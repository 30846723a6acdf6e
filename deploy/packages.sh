#!/usr/bin/env bash
# Installs the distribution's packages that this tree needs. Debian 12 and Ubuntu 24.04 use the same names.
#
#   deploy/packages.sh [build] [test] [check] [fuzz] [torch]     default: build
#   deploy/packages.sh --list build test          print the names and exit
#
#   build   compile and run the programs        test   run every test        check   clang-format and clang-tidy
#   fuzz    libFuzzer, for tests/fuzz/run.sh
#   torch   compare exported models with PyTorch (tests/e2e/export_test.py, skipped without it); 630 MB on disk
#
# Installs only missing packages, so it can be repeated; needs root or sudo only if one is missing. Starts no service of the packages.
# The CUDA toolkit is not among these packages: the build uses it where it is installed. For `test` it also fetches what the hostile client
# speaks gRPC with, two writers of Parquet files, two tokenizers with published files, a client of OpenAI's API, an object store, the types of Kubernetes' API and axe-core, from npm and checked against hashes (deploy/node_packages.sh).
set -euo pipefail

readonly BUILD=(
  g++ cmake ninja-build pkg-config git ca-certificates ccache mold python3
  libgrpc++-dev protobuf-compiler-grpc libprotobuf-dev protobuf-compiler libabsl-dev libssl-dev
  prometheus-cpp-dev libcivetweb-dev libyaml-cpp-dev libsqlite3-dev libcli11-dev nlohmann-json3-dev libspdlog-dev
  libopenblas-openmp-dev libzstd-dev zstd liblz4-dev libbrotli-dev libsnappy-dev zlib1g-dev libxxhash-dev libpcre2-dev libutf8proc-dev libcurl4-openssl-dev libdw-dev
  libgtest-dev libgmock-dev libbenchmark-dev
)
readonly TEST=(
  curl dpkg-dev file prometheus python3-yaml shellcheck procps iproute2 chromium chromium-driver python3-selenium python3-grpcio python3-protobuf slurmctld slurmd slurm-client munge systemd-container debootstrap
)
readonly CHECK=(clang-format clang-tidy)
readonly FUZZ=(clang libclang-rt-dev)
readonly TORCH=(python3-torch)

say() { printf '\n== %s\n' "$*"; }
die() { printf 'packages.sh: %s\n' "$*" >&2; exit 1; }

list=false wanted=() test=false
for argument in "$@"; do
  case $argument in
    --list) list=true ;;
    build) wanted+=("${BUILD[@]}") ;;
    test) wanted+=("${TEST[@]}") test=true ;;
    check) wanted+=("${CHECK[@]}") ;;
    fuzz) wanted+=("${FUZZ[@]}") ;;
    torch) wanted+=("${TORCH[@]}") ;;
    -h | --help) sed -n '2,14p' "$0" | cut -c3-; exit 0 ;;
    *) die "unknown set '$argument'; one or more of: build test check fuzz torch" ;;
  esac
done
[ ${#wanted[@]} -gt 0 ] || wanted=("${BUILD[@]}")
# Node from elsewhere brings its own npm, which the distribution's package would conflict with.
if $test && ! command -v npm >/dev/null; then wanted+=(nodejs npm); fi
if $list; then printf '%s\n' "${wanted[@]}"; exit 0; fi

{ command -v dpkg-query && command -v apt-get; } >/dev/null ||
  die "this is neither Debian nor Ubuntu; install by hand: ${wanted[*]}"

fetch_rest() {
  ! $test || "$(dirname "$0")/node_packages.sh" "$(dirname "$0")/../tests/faults/hostile" || say "without them faults/hostile_client_test is skipped"
  ! $test || "$(dirname "$0")/node_packages.sh" "$(dirname "$0")/../tests/e2e/parquet" || say "without them e2e/parquet_test is skipped"
  ! $test || "$(dirname "$0")/node_packages.sh" "$(dirname "$0")/../tests/e2e/tokenizer" || say "without them e2e/tokenizer_test is skipped"
  ! $test || "$(dirname "$0")/node_packages.sh" "$(dirname "$0")/../tests/e2e/serve" || say "without it e2e/serve_test is skipped"
  ! $test || "$(dirname "$0")/node_packages.sh" "$(dirname "$0")/../tests/e2e/s3" || say "without it e2e/s3_test is skipped"
  ! $test || "$(dirname "$0")/node_packages.sh" "$(dirname "$0")/../tests/deploy/kubernetes" || say "without them deploy/kubernetes_test checks no field names"
  ! $test || "$(dirname "$0")/node_packages.sh" "$(dirname "$0")/../tests/server/web/axe" || say "without it server/web/page_test looks for no barriers"
}

missing=()
for package in "${wanted[@]}"; do
  case $(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true) in
    installed) ;;
    *) missing+=("$package") ;;
  esac
done
if [ ${#missing[@]} -eq 0 ]; then
  say "packages: all ${#wanted[@]} are installed"
  fetch_rest
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || die "not root and no sudo; as root run: apt-get install -y --no-install-recommends ${missing[*]}"
  as_root=(sudo)
fi

say "packages: installing ${#missing[@]} of ${#wanted[@]}: ${missing[*]}"
# Maintainer scripts run this file before they start a service, and do not start it when the answer is 101.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
  trap '"${as_root[@]}" rm -f $policy' EXIT
  printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee $policy >/dev/null
  "${as_root[@]}" chmod 755 $policy
fi
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 "$@"; }
apt update
apt install -y --no-install-recommends "${missing[@]}" >/dev/null ||
  die "apt-get could not install: ${missing[*]}; on Ubuntu the 'universe' component must be enabled"
fetch_rest
say "packages: done in ${SECONDS} s"
