// How long the ranks of a job take to sum their gradients over a link, beside the time that a step
// computes. Pure.
//
// Ranks in a ring send and receive 2 (N - 1) / N times the gradients in each step (Patarasuk and
// Yuan, 2009), also where the optimizer's state is divided over them: a reduce-scatter and an
// all-gather are the two halves of that sum. With several ranks on a machine the ring leaves it
// once. A step sums once, however many micro-batches it has; with runtime.shard: gradients, where a
// rank cannot keep the sum of its micro-batches, each pass (passes.h) does. With `parameters` each
// pass also gathers the weights, for forward and for backward.
#pragma once

#include <cstdint>

#include "nsa/v1/job.pb.h"

namespace nsa {

// What the ranks exchange in a step, as bytes of gradients that are summed once: 4 for each
// parameter, or 2 where SendsBf16Gradients() (shares.h). With ShardsGradients() each of P passes
// has the first half of a sum, and the step one second half: (P + 1) / 2 times as many. With
// ShardsParameters() there is no second half, but each pass gathers the weights twice, of 2 bytes
// on a GPU and 4 on the CPU, each time as much as half a sum of them. (The last parts of the model,
// which backward reads first, are gathered once; that is not counted.)
int64_t GradientBytes(const v1::JobSpec& spec);

// Seconds of one step.
struct StepSeconds {
  double computing = 0;
  double communicating = 0;
  // GPUs sum the gradients of the last layers while they compute those of the first. What is
  // measured lies between the two.
  double Overlapped() const;
  double OneAfterTheOther() const { return computing + communicating; }
};

// Seconds in which the ranks sum `bytes` over a link of this many bytes a second in each direction,
// assuming that the sum uses all of it. 0 for one rank. `bytes_per_second` must be positive.
double SumSeconds(int64_t bytes, int32_t ranks, double bytes_per_second);

}  // namespace nsa
