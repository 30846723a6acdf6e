#!/usr/bin/env bash
# Checks which folders include which, and that no file includes itself through others.
# Each row of the table has a room (a folder), the rooms or single headers that it may include besides its own, and the libraries and headers that it
# must not include. The longest row that matches a file applies. A room in the second column also stands for the rooms inside it.
# Run: tests/layering_test.sh [FOLDER_OF_THE_TREE]; with --self-test it proves on a made-up tree that it can fail.
set -euo pipefail

# What a room of pure functions must not include: gRPC, databases, logs, threads, files and clocks. Time is passed to them as a value.
impure='grpcpp sqlite spdlog prometheus civetweb thread mutex shared_mutex condition_variable atomic future fstream filesystem iostream chrono ctime random
  unistd.h fcntl.h sys/ absl/synchronization absl/time/clock.h absl/random
  common/base/clock.h common/base/mutex.h common/base/log.h common/base/durable_folder.h common/base/beneath.h common/base/thread_name.h'
impure=${impure//$'\n'/ }
below_rpc='common/base common/nsa common/estimate common/job common/checkpoint common/preflight common/run'
kernel_base='common/base/status.h common/base/arena_plan.h common/estimate/muon_plan.h common/nsa common/base/log.h common/base/clock.h common/base/mutex.h common/base/shared_library.h'

# room | may include | must not include
rules() {
  cat <<TABLE
proto||
common/base|proto|cuda nccl grpcpp yaml sqlite prometheus
common/nsa|common/base|cuda nccl grpcpp google/protobuf yaml sqlite spdlog prometheus
common/estimate|common/base common/nsa proto|cuda nccl grpcpp yaml sqlite spdlog prometheus
common/checkpoint|common/base proto|cuda nccl grpcpp yaml sqlite prometheus
common/run|common/base proto|cuda nccl grpcpp yaml sqlite prometheus
common/job|common/base common/estimate proto|cuda nccl grpcpp sqlite prometheus
common/preflight|common/base common/nsa common/estimate common/job common/checkpoint proto|cuda nccl grpcpp sqlite prometheus
common/export|common/base common/nsa common/estimate common/job common/checkpoint common/run/new_folder.h common/preflight/preflight.h proto|cuda nccl grpcpp sqlite prometheus
common/http|common/base|cuda nccl grpcpp google/protobuf yaml sqlite spdlog prometheus
common/trace|common/base proto|cuda nccl grpcpp yaml sqlite prometheus
common/rpc|common/base proto|cuda nccl yaml sqlite prometheus
kernels|$kernel_base|grpcpp nccl google/protobuf yaml sqlite prometheus
kernels/cuda|kernels/exec.h kernels/tensor.h kernels/dtype.h kernels/matmul_args.h common/base/status.h common/base/log.h common/base/shared_library.h|grpcpp nccl google/protobuf yaml sqlite prometheus
worker/train/comm|kernels $below_rpc proto|grpcpp sqlite prometheus
worker/train/data/cache|common/base common/job|cuda grpcpp google/protobuf sqlite prometheus
worker/train/data/read|worker/train/data/remote worker/train/data/tokens common/base common/job proto|cuda grpcpp sqlite prometheus curl
worker/train/data/remote|worker/train/data/read/progress.h worker/train/data/cache common/base common/http common/job common/run proto|cuda grpcpp sqlite prometheus
worker/train/data/tokenize|worker/train/data/read/byte_stream.h worker/train/data/tokens common/base common/job proto|cuda grpcpp sqlite prometheus
worker/train/data/tokens|common/base common/job proto|cuda grpcpp sqlite prometheus
worker/train/data|kernels $below_rpc proto|grpcpp sqlite prometheus
worker/train/model|kernels $below_rpc proto|grpcpp sqlite prometheus
worker/train/gpu|worker/train/model worker/train/comm kernels $below_rpc proto|grpcpp sqlite prometheus
worker/train/profile|$below_rpc proto|grpcpp sqlite prometheus
worker/train/telemetry|worker/train/folder.h kernels $below_rpc proto|grpcpp sqlite prometheus
worker/train/checkpoint|worker/train/folder.h worker/train/model kernels $below_rpc proto|grpcpp sqlite prometheus
worker/train/decode|worker/train/model kernels $below_rpc proto|grpcpp sqlite prometheus
worker/train/score|worker/train/folder.h worker/train/model worker/train/decode worker/train/data worker/train/checkpoint worker/train/gpu kernels $below_rpc proto|grpcpp sqlite prometheus
worker/train/needle|worker/train/score worker/train/decode worker/train/data kernels $below_rpc proto|grpcpp sqlite prometheus
worker/train/serve|worker/train/score worker/train/decode worker/train/data worker/train/gpu/machine.h kernels $below_rpc proto|grpcpp sqlite prometheus
worker/train|kernels $below_rpc proto|grpcpp sqlite prometheus
worker/bench|worker/train kernels $below_rpc proto|grpcpp sqlite prometheus
worker/agent|proto common|cuda nccl cublas
server/decide|common/base common/estimate common/job common/preflight common/rpc/cordon_text.h proto|$impure
server/store|server/decide common/base common/run proto|grpcpp prometheus cuda nccl cublas
server/backup|server/store common/base common/job/data/sha256.h common/run|grpcpp prometheus cuda nccl cublas
server/watch|server/store server/decide common/base common/nsa common/estimate common/job proto|sqlite cuda nccl cublas
server/act|server/watch server/store server/decide common/rpc/cordon_text.h $below_rpc proto|grpcpp sqlite prometheus cuda nccl cublas
server/notice|server/store server/decide common proto|grpcpp sqlite prometheus civetweb Civet cuda nccl cublas
server/provision|server/store server/decide common proto|grpcpp sqlite prometheus civetweb Civet cuda nccl cublas
server/web|server/act server/watch server/store server/decide common proto|grpcpp sqlite prometheus civetweb Civet cuda nccl cublas
server/rpc|server/act server/watch server/store server/decide common proto|sqlite prometheus cuda nccl cublas
server|proto common|cuda nccl cublas
client/show|client/exit_code.h common/base common/estimate proto|cuda nccl cublas grpcpp sqlite prometheus
client/connect|client/exit_code.h client/show common proto|cuda nccl cublas sqlite prometheus
client/admin|client/cli.h client/exit_code.h client/connect client/show common proto|cuda nccl cublas grpcpp sqlite prometheus
client/commands|client/cli.h client/exit_code.h client/connect client/show common proto|cuda nccl cublas grpcpp sqlite prometheus
client|proto common|cuda nccl cublas sqlite prometheus
tests|proto common kernels worker server client|
TABLE
}

# includes TREE: prints "FILE:LINE PATH" for every include in the tree.
includes() {
  (cd "$1"; grep -rnE '^[[:space:]]*#[[:space:]]*include' --include='*.h' --include='*.cc' --include='*.cu' --include='*.cuh' \
    common kernels server worker client tests 2>/dev/null || true) |
    sed -nE 's/^(\.\/)?([^:]+:[0-9]+):[^"<]*["<]([^">]+)[">].*/\2 \3/p'
}

# check TREE: prints every include that the table does not allow and every cycle; fails when there is one.
check() {
  includes "$1" | awk -v table="$(rules)" '
    # The row that a path belongs to; generated nsa/v1 headers are those of proto. Empty for a library.
    function row_of(path,    room, best) {
      if (path ~ /^nsa\/v1\//) return "proto"
      for (room in may) if (index(path, room "/") == 1 && length(room) > length(best)) best = room
      return best
    }
    function listed(words, path, to,    word, count, i) {
      count = split(words, word, " ")
      for (i = 1; i <= count; ++i) if (word[i] == path || word[i] == to || index(to, word[i] "/") == 1) return 1
      return 0
    }
    function forbidden(words, path,    word, count, i) {
      count = split(words, word, " ")
      for (i = 1; i <= count; ++i) if (index(path, word[i]) == 1) return 1
      return 0
    }
    # Follows the includes of `file`; `trail` is the chain of includes that led to it.
    function walk(file, trail,    next_file, count, i) {
      if (seen[file] == 2) return
      if (seen[file] == 1) { print "include cycle: " trail; ++bad; return }
      seen[file] = 1
      count = split(below[file], next_file, " ")
      for (i = 1; i <= count; ++i) walk(next_file[i], trail " -> " next_file[i])
      seen[file] = 2
    }
    BEGIN {
      rows = split(table, row, "\n")
      for (r = 1; r <= rows; ++r) { split(row[r], cell, "|"); may[cell[1]] = cell[2]; never[cell[1]] = cell[3] }
    }
    {
      file = $1; sub(/:[0-9]+$/, "", file); path = $2; from = row_of(file); to = row_of(path)
      below[file] = below[file] " " path
      if (from == "") next
      own = to == from || index(to, from "/") == 1
      wrong = forbidden(never[from], path) || (to != "" && !own && !listed(may[from], path, to))
      if (wrong) { print $1 ": " from " may not include " path; ++bad }
    }
    END {
      for (file in below) files[++n] = file
      for (i = 1; i <= n; ++i) walk(files[i], files[i])
      if (bad) { print bad " forbidden includes or cycles; the table is at the top of tests/layering_test.sh"; exit 1 }
    }'
}

# What the self test tries: FILE INCLUDE pass|fail.
readonly EXPECTED='server/a.cc "client/b.h" fail
server/a.cc "common/base/status.h" pass
server/a.cc "server/rpc/listener.h" pass
server/a.cc <cuda_runtime.h> fail
# decide is pure.
server/decide/a.cc "server/decide/gang.h" pass
server/decide/a.cc "common/base/status.h" pass
server/decide/a.cc "absl/time/time.h" pass
server/decide/a.cc "server/store/job_store.h" fail
server/decide/a.cc "server/act/reconciler.h" fail
server/decide/a.cc "common/run/process.h" fail
server/decide/a.cc "common/base/clock.h" fail
server/decide/a.cc "absl/time/clock.h" fail
server/decide/a.cc "spdlog/spdlog.h" fail
server/decide/a.cc "grpcpp/grpcpp.h" fail
server/decide/a.cc <sqlite3.h> fail
server/decide/a.cc <thread> fail
server/decide/a.cc <fstream> fail
server/decide/a.cc <sys/stat.h> fail
# The rooms of the server: decide, store, watch, act, rpc. Each may use those before it.
server/store/a.h "server/decide/gang.h" pass
server/store/a.h "server/watch/metrics.h" fail
server/watch/a.h "server/act/launch_check.h" fail
server/act/a.h "server/watch/queue_board.h" pass
server/act/a.h "server/rpc/errors.h" fail
server/act/a.h "grpcpp/grpcpp.h" fail
server/rpc/a.h "server/act/job_control.h" pass
server/rpc/a.h "server/server.h" fail
server/notice/a.h "server/store/job_store.h" pass
server/notice/a.h "server/watch/metrics.h" fail
server/web/a.h "server/act/job_control.h" pass
server/web/a.h "server/rpc/auth.h" fail
server/web/a.h "sqlite3.h" fail
# The rooms of common.
common/base/a.h "common/job/load.h" fail
common/job/a.h "common/base/status.h" pass
common/job/a.h "common/preflight/preflight.h" fail
common/run/a.h "common/job/load.h" fail
common/http/a.h "common/job/load.h" fail
common/preflight/a.h "common/rpc/rpc.h" fail
common/preflight/a.h "grpcpp/grpcpp.h" fail
common/base/a.h "server/store.h" fail
client/a.cc "nsa/v1/job.pb.h" pass
# The rooms of the client: show, connect, commands, each on the ones before.
client/show/a.h "client/exit_code.h" pass
client/show/a.h "client/connect/session.h" fail
client/show/a.h "client/commands/submit.h" fail
client/connect/a.h "client/show/table.h" pass
client/connect/a.h "client/commands/watch.h" fail
client/commands/a.h "client/connect/session.h" pass
client/commands/a.cc "grpcpp/grpcpp.h" fail
client/admin/a.h "client/connect/session.h" pass
client/admin/a.h "client/commands/watch.h" fail
client/admin/a.cc "grpcpp/grpcpp.h" fail
kernels/a.h "nsa/v1/job.pb.h" fail
kernels/a.h "common/base/status.h" pass
kernels/a.h "common/job/load.h" fail
kernels/cuda/a.h "kernels/nn/rope.h" fail
kernels/cuda/a.h "kernels/tensor.h" pass
worker/train/a.cc "kernels/tensor.h" pass
worker/train/a.cc "worker/train/step/trainer.h" pass
worker/train/a.cc "common/rpc/rpc.h" fail
worker/train/a.cc <grpcpp/grpcpp.h> fail
worker/train/a.cc "grpcpp/grpcpp.h" fail
worker/train/a.cc "worker/agent/agent.h" fail
worker/train/data/a.h "worker/train/model/model.h" fail
worker/train/gpu/a.h "worker/train/model/model.h" pass
worker/train/decode/a.h "worker/train/model/block/block.h" pass
worker/train/decode/a.h "worker/train/score/sample.h" fail
worker/agent/a.cc "worker/train/model/model.h" fail'

self_test() {
  tree=$(mktemp -d)
  trap 'rm -rf "$tree"' EXIT
  expect() { # expect FILE INCLUDE pass|fail
    mkdir -p "$(dirname "$tree/$1")"
    printf '#include %s\n' "$2" >"$tree/$1"
    local result=pass
    check "$tree" >/dev/null || result=fail
    rm "$tree/$1"
    [ "$result" = "$3" ] || { echo "self test: $1 including $2 should $3"; return 1; }
  }
  local file include result
  while read -r file include result; do
    case $file in '#') continue ;; esac
    expect "$file" "$include" "$result"
  done <<<"$EXPECTED"
  # Cycles: a.h -> b.h -> c.h -> b.h.
  mkdir -p "$tree/server/store"
  printf '#include "server/store/c.h"\n' >"$tree/server/store/b.h"
  expect server/store/a.h '"server/store/b.h"' pass
  printf '#include "server/store/b.h"\n' >"$tree/server/store/c.h"
  expect server/store/a.h '"server/store/b.h"' fail
}

if [ "${1:-}" = --self-test ]; then self_test; else check "${1:-$(dirname "$0")/..}"; fi
