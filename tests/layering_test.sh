#!/usr/bin/env bash
# Who may include whom. A row is a folder and the folders (or single headers) whose headers it may include; the longest matching row counts.
# Run: tests/layering_test.sh [FOLDER_OF_THE_TREE]; with --self-test it proves on a made-up tree that it can fail.
set -euo pipefail

# folder          may include                                       and of libraries never
rules() {
  cat <<'TABLE'
proto|                                                               |
common|proto common                                                  |cuda nccl
kernels|kernels common/status.h common/attention_scratch.h common/nsa_shape.h common/log.h common/clock.h common/mutex.h common/shared_library.h|grpcpp nccl google/protobuf yaml sqlite prometheus
worker/train|worker/train kernels proto common                       |grpcpp sqlite prometheus
worker/bench|worker/bench worker/train kernels proto common           |grpcpp sqlite prometheus
worker/agent|worker/agent proto common                               |cuda nccl cublas
server|server proto common                                           |cuda nccl cublas
client|client proto common                                           |cuda nccl cublas sqlite prometheus
tests|proto common kernels worker server client tests                |
TABLE
}
# check TREE: prints every include that the table does not allow; fails when there is one.
check() {
  (cd "$1"; grep -rnE '^[[:space:]]*#[[:space:]]*include' --include='*.h' --include='*.cc' --include='*.cu' --include='*.cuh' \
    common kernels server worker client tests 2>/dev/null || true) | awk -v table="$(rules)" '
    # The folder of the table that a path lies in; generated nsa/v1 headers are those of proto.
    function owner(path) {
      if (path ~ /^nsa\/v1\//) return "proto"
      if (match(path, /^worker\/[a-z]+\//)) return substr(path, 1, RLENGTH - 1)
      if (match(path, /^(proto|common|kernels|server|client|tests)\//)) return substr(path, 1, RLENGTH - 1)
      return ""
    }
    function allows(from, path, to,    words, count, i) {
      count = split(may[from], words, " ")
      for (i = 1; i <= count; ++i) if (words[i] == path || words[i] == to || index(to, words[i] "/") == 1) return 1
      return 0
    }
    function forbids(from, path,    words, count, i) {
      count = split(never[from], words, " ")
      for (i = 1; i <= count; ++i) if (index(path, words[i]) == 1) return 1
      return 0
    }
    BEGIN {
      rows = split(table, row, "\n")
      for (r = 1; r <= rows; ++r) { split(row[r], cell, "|"); may[cell[1]] = cell[2]; never[cell[1]] = cell[3] }
    }
    {
      split($0, place, ":"); file = place[1]; sub(/^\.\//, "", file); from = owner(file)
      if (from == "" || !match($0, /["<][^">]+[">]/)) next
      angled = substr($0, RSTART, 1) == "<"; path = substr($0, RSTART + 1, RLENGTH - 2); to = owner(path)
      wrong = angled ? forbids(from, path) : to != "" && !allows(from, path, to)
      if (path == "common/rpc.h" && from == "worker/train") wrong = 1  # it brings gRPC
      if (wrong) { print file ":" place[2] ": " from " may not include " path; ++bad }
    }
    END { if (bad) { print bad " forbidden includes; the table is at the top of tests/layering_test.sh"; exit 1 } }'
}

self_test() {
  tree=$(mktemp -d)
  trap 'rm -rf "$tree"' EXIT
  mkdir -p "$tree"/{server,client,kernels,worker/train,worker/agent,common}
  expect() { # expect FILE INCLUDE pass|fail
    printf '#include %s\n' "$2" >"$tree/$1"
    local result=pass
    check "$tree" >/dev/null || result=fail
    rm "$tree/$1"
    [ "$result" = "$3" ] || { echo "self test: $1 including $2 should $3"; return 1; }
  }
  expect server/a.cc '"client/b.h"' fail
  expect server/a.cc '"common/status.h"' pass
  expect server/a.cc '<cuda_runtime.h>' fail
  expect client/a.cc '"nsa/v1/job.pb.h"' pass
  expect kernels/a.h '"nsa/v1/job.pb.h"' fail
  expect kernels/a.h '"common/status.h"' pass
  expect kernels/a.h '"common/load.h"' fail
  expect worker/train/a.cc '"kernels/tensor.h"' pass
  expect worker/train/a.cc '"common/rpc.h"' fail
  expect worker/train/a.cc '<grpcpp/grpcpp.h>' fail
  expect worker/train/a.cc '"worker/agent/agent.h"' fail
  expect worker/agent/a.cc '"worker/train/model.h"' fail
  expect common/a.h '"server/store.h"' fail
}

if [ "${1:-}" = --self-test ]; then self_test; else check "${1:-$(dirname "$0")/..}"; fi
