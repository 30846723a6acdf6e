// Side streams: streams for kernels that do not depend on each other. The blocks of one kernel fill
// the multiprocessors that the last blocks of another leave idle. Results have the same bits with
// and without them: they change when a kernel runs, never what the kernel reads.
//
//   Fork(exec, lane)     later work of the lane waits for everything enqueued on `exec` so far
//   OnSide(exec, lane)   the same Exec on the lane's stream; any number of calls may use it
//   Join(exec, lane)     later work of `exec` waits for everything enqueued on the lane so far
//
// Without side streams (Exec::side is null: on the CPU, or when everything runs in order) OnSide()
// returns `exec` itself and Fork() and Join() do nothing. Exec::workspace is the same in all of
// them, so kernels on two streams must not use the same part of it; each stream has a workspace of
// its own for matrix products (Exec::blas_workspace). A captured graph contains all streams if
// every Fork() is followed by a Join().
#pragma once

#include <array>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device.h"
#include "kernels/exec.h"

namespace nsa::cuda {

// What runs on a side stream, in the order of the streams' priorities: where blocks of several
// streams are ready to run, those of the main stream go first, then those of a lower lane.
enum class Lane {
  kBranches,  // branches of the attention beside each other
  kWeights,   // gradients of weight matrices, which nothing in the backward pass waits for
};
constexpr int kLanes = 2;

// Workspaces for matrix products that an Exec with side streams needs: one for each stream.
constexpr int kBlasWorkspaces = 1 + kLanes;

class Side {
 public:
  // Priority of the main stream (Stream::Create()) above those of the lanes.
  static constexpr int kMainPriority = kLanes;

  static absl::StatusOr<std::unique_ptr<Side>> Create();

 private:
  friend absl::Status Fork(const Exec& exec, Lane lane);
  friend absl::Status Join(const Exec& exec, Lane lane);
  friend Exec OnSide(const Exec& exec, Lane lane);

  struct LaneStream {
    Stream stream;
    Event event;  // Fork() and Join() each record it and wait for it in one call: one is enough
  };
  LaneStream& operator[](Lane lane) { return lanes_[static_cast<size_t>(lane)]; }

  std::array<LaneStream, kLanes> lanes_;
};

absl::Status Fork(const Exec& exec, Lane lane = Lane::kBranches);
absl::Status Join(const Exec& exec, Lane lane = Lane::kBranches);
Exec OnSide(const Exec& exec, Lane lane = Lane::kBranches);

}  // namespace nsa::cuda
