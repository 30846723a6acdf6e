#include "kernels/nsa/layer/layer_config.h"

#include <cmath>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/nsa/visibility.h"

namespace nsa {

absl::Status NsaLayerConfig::Validate() const {
  NSA_RETURN_IF_ERROR(shape.Validate());
  if (n_branches() == 0) {
    return absl::InvalidArgumentError("branches: none (cmp, sel, win); keep at least one");
  }
  if (!(rope_base > 1) || !std::isfinite(rope_base)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("rope_base: %g (more than 1); take 10000", rope_base));
  }
  if (!(rope_scale > 0)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("rope_scale: %g (more than 0); take 1", rope_scale));
  }
  if (qk_norm_weights && !qk_norm) {
    return absl::InvalidArgumentError(
        "qk_norm_weights: true without qk_norm (they are those of normalized heads); set qk_norm");
  }
  return nsa::Validate(rope_scaling);
}

std::array<int64_t, kBranches> KeysExpected(const NsaLayerConfig& config,
                                            std::span<const int32_t> doc_start) {
  std::array<int64_t, kBranches> keys = {};
  for (int c = 0; c < kBranches; ++c) {
    if (config.branches[c]) keys[c] = KeysRead(config.shape, static_cast<Branch>(c), doc_start);
  }
  return keys;
}

}  // namespace nsa
