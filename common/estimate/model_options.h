// What the keys of the section `model` mean where they are absent. Pure.
#pragma once

#include <cstdint>

#include "nsa/v1/job.pb.h"

namespace nsa {

inline constexpr double kDefaultNormEps = 1e-6;
inline constexpr double kLeastNormEps = 1e-12;  // norms are computed in fp32
inline constexpr double kMostNormEps = 0.01;

// Limits of model.mlp_dim. A GPU reads rows in multiples of 16 bytes, and tensors begin at
// multiples of 16 elements.
inline constexpr int32_t kMlpUnitsMultiple = 16;
inline constexpr int32_t kMostMlpUnits = 524288;

// What norms add to the mean of the squares.
inline double NormEpsOf(const v1::ModelSpec& model) {
  return model.has_norm_eps() ? model.norm_eps() : kDefaultNormEps;
}

// Hidden units of the MLP: model.mlp_dim, else mlp_ratio times dim.
inline int64_t MlpUnitsOf(const v1::ModelSpec& model) {
  return model.mlp_dim() != 0 ? model.mlp_dim() : int64_t{model.mlp_ratio()} * model.dim();
}

// Sets mlp_ratio, or mlp_dim where the units are no multiple of dim. False if neither can say them.
inline bool SetMlpUnits(int32_t units, v1::ModelSpec* model) {
  const int32_t dim = model->dim();
  if (units % dim == 0 && units / dim <= 16) {
    model->set_mlp_ratio(units / dim);
    return true;
  }
  if (units % kMlpUnitsMultiple != 0 || units > kMostMlpUnits) return false;
  model->set_mlp_dim(units);
  return true;
}

inline bool IsSwiglu(const v1::ModelSpec& model) { return model.mlp() == v1::MLP_SWIGLU; }

// Outputs of the MLP's first product: the hidden units, with SwiGLU their gates and themselves.
inline int64_t MlpInputsOf(const v1::ModelSpec& model) {
  return (IsSwiglu(model) ? 2 : 1) * MlpUnitsOf(model);
}

}  // namespace nsa
