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

// What qk_norm leaves for backward; all optional.
struct HeadNorm {
  Tensor rstd;         // fp32 [B, S, heads]
  ConstTensor weight;  // with qk_norm_weights: [dk]
  Tensor unit;         // with qk_norm_weights: [B, S, heads, dk]
};

// y ← x, with qk_norm normalized, rotated.
inline absl::Status Rotate(const Exec& exec, const NsaLayerConfig& config, int32_t heads,
                           const ConstTensor& x, const Tensor& y, const HeadNorm& norm,
                           int32_t first = 0) {
  RopeArgs args = RopeArgsOf(config, heads, x, y);
  args.rstd = norm.rstd;
  args.weight = norm.weight;
  args.unit = norm.unit;
  args.first = first;
  return Rope(exec, args);
}

// What Rotate() left, and y itself; read with qk_norm only.
struct HeadNormBackward {
  ConstTensor y, rstd;
  ConstTensor weight, unit;  // with qk_norm_weights, in place of y
  Tensor dweight;            // with qk_norm_weights: fp32 [dk], added to
};

// The gradient of Rotate(): dx ← dy, which may be dx.
inline absl::Status RotateBack(const Exec& exec, const NsaLayerConfig& config, int32_t heads,
                               const ConstTensor& dy, const Tensor& dx,
                               const HeadNormBackward& norm) {
  RopeArgs args = RopeArgsOf(config, heads, dy, dx);
  args.inverse = true;
  args.y_forward = norm.y;
  args.rstd_forward = norm.rstd;
  args.weight = norm.weight;
  args.unit_forward = norm.unit;
  args.dweight = norm.dweight;
  return Rope(exec, args);
}

}  // namespace nsa
