// Cross-entropy of next tokens, in nats:
//
//   row_loss[r] = lse[r] − logits[r, targets[r]],   lse[r] = log Σ_v exp(logits[r, v])
//
// A row with a negative target is ignored: its loss and its gradient are 0 and it is not counted in
// the mean. Rows are summed in order in fp64, so sums do not depend on the number of threads.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"

namespace nsa {

struct CrossEntropyArgs {
  int64_t rows = 0;
  int64_t vocab = 0;
  ConstTensor logits;   // fp32 [rows, columns]
  ConstTensor targets;  // i32 [rows], each below vocab; negative: the row is ignored
  Tensor row_loss;      // fp32 [rows], overwritten: −log p(target)
  Tensor mean_loss;     // fp32 [1], overwritten: see MeanRowLoss(); optional

  // d(Σ row_loss)/d(logits) · gradient_scale, i.e. (softmax − one-hot) · gradient_scale. For the
  // gradient of a mean, the scale is 1/count.
  float gradient_scale = 1;
  // 0 in columns from vocab on.
  Tensor dlogits;  // fp32 [rows, columns], overwritten; optional; may be logits

  // Of logits and dlogits, vocab or more; 0: vocab. Logits behind vocab count as −∞.
  int64_t columns = 0;

  int64_t stride() const { return columns > 0 ? columns : vocab; }  // from row to row
};

// InvalidArgument when a tensor's size or type differs from its comment, columns are fewer than
// vocab, or a target is not below vocab (checked on the CPU).
absl::Status CrossEntropy(const Exec& exec, const CrossEntropyArgs& args);

struct MeanRowLossArgs {
  int64_t rows = 0;
  ConstTensor targets;   // i32 [rows]
  ConstTensor row_loss;  // fp32 [rows], of CrossEntropy()
  Tensor mean_loss;      // fp32 [1], overwritten: mean over rows with a target ≥ 0; 0 without any
};

// The mean of row losses, for callers that compute these in several calls of CrossEntropy().
// InvalidArgument when a tensor's size or type differs from its comment.
absl::Status MeanRowLoss(const Exec& exec, const MeanRowLossArgs& args);

}  // namespace nsa

// The same on a GPU (cross_entropy.cu); the functions above have checked the arguments.
namespace nsa::cuda {

absl::Status CrossEntropy(const Exec& exec, const CrossEntropyArgs& args);  // without the mean
absl::Status MeanRowLoss(const Exec& exec, const MeanRowLossArgs& args);

}  // namespace nsa::cuda
