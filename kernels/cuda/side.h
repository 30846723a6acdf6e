// A second stream beside an Exec's, for kernels that need not wait for one another: the blocks of
// one fill what the last blocks of another leave free. Results have the same bits with it and
// without: it changes when a kernel runs, never what it reads.
//
//   Fork(exec)          what is enqueued on the side from now on comes after all that `exec` holds
//   OnSide(exec)        the same Exec on the side's stream; more than one call may be made on it
//   Join(exec)          what is enqueued on `exec` from now on comes after all that the side holds
//
// Without a side (Exec::side null: CPU, or everything in order) OnSide() is `exec` itself and the
// other two do nothing. Kernels on the two streams must not share scratch memory: Exec::workspace
// is the same in both. A captured graph holds both streams when every Fork() has its Join().
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device.h"
#include "kernels/exec.h"

namespace nsa::cuda {

class Side {
 public:
  // The stream has the lowest priority: where both have blocks ready, the main stream's come first
  // when that has a higher one.
  static absl::StatusOr<std::unique_ptr<Side>> Create();

 private:
  friend absl::Status Fork(const Exec& exec);
  friend absl::Status Join(const Exec& exec);
  friend Exec OnSide(const Exec& exec);

  Stream stream_;
  Event event_;  // recorded and waited for in one call, so that it may be used again at once
};

absl::Status Fork(const Exec& exec);
absl::Status Join(const Exec& exec);
Exec OnSide(const Exec& exec);

}  // namespace nsa::cuda
