// Cross-entropy of next tokens, in nats:
//
//   row_loss[r] = lse[r] − y[r, targets[r]],   lse[r] = log Σ_v exp(y[r, v])
//
// where y are the logits, or with a softcap c the numbers c · tanh(logits / c), which are the
// logits where these are small and stay within ±c (Gemma 2, arXiv 2408.00118, section 2).
//
// A row with a negative target is ignored: its loss and its gradient are 0 and it is not counted in
// the mean. Rows are summed in order in fp64, so sums do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <span>

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

  // d(Σ row_loss + z_loss · lse²)/d(logits) · gradient_scale, i.e. (softmax · (1 + 2 · z_loss ·
  // lse) − one-hot) · dy/d(logits) · gradient_scale. For the gradient of a mean, the scale is
  // 1/count.
  float gradient_scale = 1;
  // 0 in columns from vocab on.
  Tensor dlogits;  // fp32 [rows, columns], overwritten; optional; may be logits

  float softcap = 0;  // c of y = c · tanh(logits / c), above 0; 0: y = logits

  // Weight of the z-loss (PaLM, arXiv 2204.02311), 0 or more. It is part of the gradient only:
  // row_loss and mean_loss are the cross-entropy whatever it is.
  float z_loss = 0;

  // Of logits and dlogits, vocab or more; 0: vocab. Logits behind vocab count as −∞.
  int64_t columns = 0;

  int64_t stride() const { return columns > 0 ? columns : vocab; }  // from row to row
};

// InvalidArgument when a tensor's size or type differs from its comment, columns are fewer than
// vocab, softcap or z_loss is negative or not finite, or a target is not below vocab (checked on
// the CPU).
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

// Replaces each x of logits in host memory by c · tanh(x / c) with c = `cap`; 0 leaves them as they
// are. NaN stays NaN.
void SoftCap(float cap, std::span<float> logits);

}  // namespace nsa

// The same on a GPU (cross_entropy.cu); the functions above have checked the arguments.
namespace nsa::cuda {

absl::Status CrossEntropy(const Exec& exec, const CrossEntropyArgs& args);  // without the mean
absl::Status MeanRowLoss(const Exec& exec, const MeanRowLossArgs& args);

}  // namespace nsa::cuda
