// RoPE (nn/rope.h) for a layer: base and scale from the config, positions from `first` on.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/nn/rope.h"
#include "kernels/nsa/layer/nsa_layer.h"

namespace nsa {

// x, y: [B, S, heads, dk]; y may be x. `inverse` rotates back, for gradients.
inline absl::Status Rotate(const Exec& exec, const NsaLayerConfig& config, int32_t heads,
                           bool inverse, const ConstTensor& x, const Tensor& y, int32_t first = 0) {
  return Rope(exec, {.batch = config.shape.batch,
                     .seq_len = config.shape.seq_len,
                     .heads = heads,
                     .head_dim = config.shape.d_k,
                     .base = config.rope_base,
                     .scale = config.rope_scale,
                     .inverse = inverse,
                     .x = x,
                     .y = y,
                     .first = first});
}

}  // namespace nsa
