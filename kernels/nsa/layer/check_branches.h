// Checks an array with one tensor per branch against the configuration.
#pragma once

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/check.h"
#include "kernels/nsa/layer/nsa_layer.h"

namespace nsa {

// As CheckTensor(), "k[1]: …", for each branch: `size` elements of the config's type where the
// branch is present, none where it is absent. T is Tensor or ConstTensor.
template <class T>
absl::Status CheckBranches(const char* name, const NsaLayerConfig& config,
                           const std::array<T, kBranches>& tensors, int64_t size,
                           const char* form) {
  for (int c = 0; c < kBranches; ++c) {
    const bool present = config.branches[c];
    NSA_RETURN_IF_ERROR(CheckTensor(absl::StrCat(name, "[", c, "]"), tensors[c], present ? size : 0,
                                    present ? config.dtype : ConstTensor(tensors[c]).dtype, form));
  }
  return absl::OkStatus();
}

}  // namespace nsa
