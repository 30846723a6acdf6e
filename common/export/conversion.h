// Conversion of a dense model into one with sparse attention: the job of the converted model, and
// what each of its tensors begins as. The model is to begin as near to the dense one as it can, and
// to have gradients everywhere. Pure.
//
// W_K_x, W_V_x and their biases begin in every branch x as those of the dense attention, all other
// tensors of the dense model as themselves. Two parts have no counterpart in it:
//
// Gates. A layer with one branch has none. With several, fc2.weight is 0 and fc2.bias the logits of
// fixed gates, so that every token begins with the same ones; fc1 adds the pairs of the query's
// columns, since rows that were equal or 0 would stay so. A branch divides by a sum of its own:
// where two branches see all keys, both give what dense attention gives, and only gates whose sum
// is 1 keep it. Elsewhere a branch's output o_x differs from dense attention's o by the attention
// to what it does not see, 1 − m_x of it: o − o_x = (1 − m_x) · (o_rest − o_x). Chosen blocks have
// the most mass m, so sel gets the most, and cmp, which has means in place of tokens, little: as
// much as keeps its gradient. conversion.cc has the numbers and how they were chosen.
//
// φ. `avg` is the mean. `mlp`, W2 · silu(W1 · u + b1) + b2, has as many hidden units as outputs, so
// that no values of its parameters make it linear. They make it nearly so around the point z where
// silu'' is 0: with position = 0, W1 = s · (I I … I) / l, b1 = z, W2 = I / (s · silu'(z)) and
// b2 = −silu(z) / (s · silu'(z)), the mean x of a column becomes
//
//   y = x + s² · silu'''(z) / (6 · silu'(z)) · x³ + …      z = 2.39936, here −0.0139 · s² · x³
//
// At s = 1/4 an x of 1 is 0.1 % off, one of 4 is 2 %.  A smaller s is nearer to the mean for large
// x, and leaves W1 so small that a step of the optimizer changes it by a large part.
//
// Where the converted model is exact, up to rounding: at positions at which every layer has a
// branch that sees all tokens before, and nothing else is added. A full layer is exact everywhere,
// and so is a window that the dense model has. Elsewhere win alone sees all at t < w, sel alone at
// t < n_sel · l_sel, sel+win at t below both. A layer with cmp is never exact.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nsa/v1/job.pb.h"

namespace nsa {

// The job of the model `dense` with the attention that `nsa` says, at its beginning. What `nsa`
// leaves open is that of configs/jobs/openstax_best.yaml, and phi: avg. In a dense model with
// windows in some layers these layers keep them: they must be win with a window that is no wider,
// and are so, beside layers sel, where `nsa` leaves it open. InvalidArgument when `dense` is not
// dense, which is a layer that is full or has a window of all tokens, no layer with another branch,
// and a rotation in every layer; when nsa.layers or nsa.w is refused; and when the kernels cannot
// have the shape, on a GPU or elsewhere.
absl::StatusOr<v1::JobSpec> ConvertedSpec(const v1::JobSpec& dense, const v1::NsaSpec& nsa);

// What a tensor of a model begins as.
struct TensorStart {
  std::string dense;          // the tensor of the dense model whose values it has; empty:
  std::vector<float> values;  // all of them
};

// Of a tensor (ModelTensors()) of a job that ConvertedSpec() returned.
TensorStart StartOf(const v1::JobSpec& spec, const std::string& tensor);

}  // namespace nsa
