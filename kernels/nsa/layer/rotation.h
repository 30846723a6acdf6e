// RoPE (nn/rope.h) for a layer: base, scale and QK-norm from the config, positions from `first` on.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/nn/rope.h"
#include "kernels/nsa/layer/nsa_layer.h"

namespace nsa {

// The arguments that rotations of a layer share. x, y: [B, S, heads, dk]; y may be x.
inline RopeArgs RopeArgsOf(const NsaLayerConfig& config, int32_t heads, const ConstTensor& x,
                           const Tensor& y) {
  return {.batch = config.shape.batch,
          .seq_len = config.shape.seq_len,
          .heads = heads,
          .head_dim = config.shape.d_k,
          .base = config.rope_base,
          .scale = config.rope_scale,
          .scaling = config.rope_scaling,
          .x = x,
          .y = y,
          .eps = config.norm_eps,
          .normalize = config.qk_norm};
}

// y ← x, with qk_norm normalized, rotated. `rstd` is optional: fp32 [B, S, heads], for backward.
inline absl::Status Rotate(const Exec& exec, const NsaLayerConfig& config, int32_t heads,
                           const ConstTensor& x, const Tensor& y, const Tensor& rstd,
                           int32_t first = 0) {
  RopeArgs args = RopeArgsOf(config, heads, x, y);
  args.rstd = rstd;
  args.first = first;
  return Rope(exec, args);
}

// The gradient of Rotate(): dx ← dy, which may be dx. `y` and `rstd` are its results and are read
// with qk_norm only.
inline absl::Status RotateBack(const Exec& exec, const NsaLayerConfig& config, int32_t heads,
                               const ConstTensor& dy, const Tensor& dx, const ConstTensor& y,
                               const ConstTensor& rstd) {
  RopeArgs args = RopeArgsOf(config, heads, dy, dx);
  args.inverse = true;
  args.y_forward = y;
  args.rstd_forward = rstd;
  return Rope(exec, args);
}

}  // namespace nsa
