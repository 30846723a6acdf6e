// A side stream: a second stream for kernels that do not depend on each other. The blocks of one
// kernel fill the multiprocessors that the last blocks of another leave idle. Results have the same
// bits with and without it: it changes when a kernel runs, never what the kernel reads.
//
//   Fork(exec)     later work of the side stream waits for everything enqueued on `exec` so far
//   OnSide(exec)   the same Exec on the side stream; any number of calls may use it
//   Join(exec)     later work of `exec` waits for everything enqueued on the side stream so far
//
// Without a side stream (Exec::side is null: on the CPU, or when everything runs in order) OnSide()
// returns `exec` itself and Fork() and Join() do nothing. Exec::workspace is the same in both, so
// kernels on the two streams must not use the same part of it. The matrix library has one
// workspace, so between a Fork() and its Join() only one of the two streams may run matrix
// products. A captured graph contains both streams if every Fork() has its Join().
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device.h"
#include "kernels/exec.h"

namespace nsa::cuda {

class Side {
 public:
  // Priority of the main stream (Stream::Create()). That of the side stream is 0, so that where
  // both have blocks ready to run, those of the main stream go first.
  static constexpr int kMainPriority = 1;

  static absl::StatusOr<std::unique_ptr<Side>> Create();

 private:
  friend absl::Status Fork(const Exec& exec);
  friend absl::Status Join(const Exec& exec);
  friend Exec OnSide(const Exec& exec);

  Stream stream_;
  Event event_;  // Fork() and Join() each record it and wait for it in one call, so one is enough
};

absl::Status Fork(const Exec& exec);
absl::Status Join(const Exec& exec);
Exec OnSide(const Exec& exec);

}  // namespace nsa::cuda
