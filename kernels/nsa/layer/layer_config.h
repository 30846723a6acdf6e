// The configuration of an NSA layer: shape, branches, φ, gate, positions.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "common/nsa/branch.h"
#include "common/nsa/nsa_shape.h"
#include "kernels/dtype.h"
#include "kernels/nn/rope_frequency.h"
#include "kernels/nsa/compress/compress.h"
#include "kernels/nsa/gate/gate.h"

namespace nsa {

struct NsaLayerConfig {
  NsaShape shape;
  DType dtype = DType::kF32;  // of activations and parameters; the CPU supports fp32 only
  BranchSet branches = {true, true, true};
  Phi phi = Phi::kAvg;
  GateKind gate = GateKind::kSoftmax;
  float rope_base = 10000;
  float rope_scale = 1;  // divides the positions of q and of every k; may be kNoRotation
  RopeScaling rope_scaling;
  // Divides every head of q and of every k by its root mean square before it is rotated. The gate
  // reads q as it was projected.
  bool qk_norm = false;
  // With qk_norm: the columns of a normalized head are multiplied by weights, one set for q and one
  // for the keys of all branches.
  bool qk_norm_weights = false;
  float norm_eps = 1e-6f;  // added to the mean of the squares of a head

  bool has(Branch branch) const { return branches[branch]; }
  int n_branches() const { return CountOf(branches); }
  bool has_gate() const { return n_branches() > 1; }
  // Whether φ has parameters.
  bool has_phi() const { return has(kCmp) && phi == Phi::kMlp; }

  // Ok when the shape is within its limits, at least one branch is present, rope_base > 1,
  // rope_scale > 0, rope_scaling within its limits,
  // and there are weights of normalized heads with qk_norm only.
  absl::Status Validate() const;
};

// The expected keys_read of the layer, per branch. `doc_start` (host memory) may be empty.
std::array<int64_t, kBranches> KeysExpected(const NsaLayerConfig& config,
                                            std::span<const int32_t> doc_start = {});

}  // namespace nsa
