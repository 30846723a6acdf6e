// What happens around the attention with context parallelism: a matrix of this rank's tokens and
// all heads becomes one of all tokens and this rank's heads, and back.
//
//   tokens  [B, S/N, W]     its columns are segments of heads (kernels/nsa/layer/head_parts.h)
//   parts   [N, B, S/N, W/N]
//   heads   [B, S, W/N]     the same segments of H/N query heads or G/N groups
//
// Both ways have one kernel, on the side of `tokens`, and one exchange. What a rank sends is (N −
// 1)/N of its matrix, and it receives as much.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/exec.h"
#include "kernels/nsa/layer/layer_config.h"
#include "kernels/tensor.h"
#include "worker/train/model/context/context_group.h"

namespace nsa::train {

struct HeadExchange {
  ContextGroup* group = nullptr;
  int32_t batch = 0;            // B
  int64_t rows = 0;             // B·S/N
  std::vector<int64_t> widths;  // of the segments over all heads; W is their sum
  Tensor parts;                 // scratch memory of at least rows·W elements

  // heads ← tokens. Both have rows·W elements and may be the same memory.
  absl::Status ToHeads(const Exec& exec, const ConstTensor& tokens, const Tensor& heads) const;
  // The way back: tokens ← heads.
  absl::Status ToTokens(const Exec& exec, const ConstTensor& heads, const Tensor& tokens) const;

 private:
  Tensor PartsFor(const ConstTensor& values) const;
};

// The segments of all projections side by side (projections.h) over all heads of `size` ranks, of
// which `config` has the heads of one.
std::vector<int64_t> ProjectionSegments(const NsaLayerConfig& config, int32_t size);

}  // namespace nsa::train
