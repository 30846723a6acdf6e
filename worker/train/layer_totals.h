// One layer's statistics, gathered over the micro-batches of a step.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/nsa/attention.h"
#include "nsa/v1/telemetry.pb.h"

namespace nsa {

class LayerTotals {
 public:
  // Adds what the kernels wrote for one forward. Every forward has the same number of rows.
  void Add(const GateStats& gate, const SelectionStats& selection,
           const std::array<int64_t, kBranches>& keys_read,
           const std::array<int64_t, kBranches>& keys_expected);

  // As the record of layer `layer`; a gate or a selection that the model lacks is left unset.
  v1::LayerStats ToProto(int32_t layer, const AttentionConfig& config) const;

 private:
  int64_t forwards_ = 0;
  GateStats gate_;  // sums; entropy_min the smallest, max_gate_max the largest
  SelectionStats selection_;
  std::array<int64_t, kBranches> keys_read_ = {};
  std::array<int64_t, kBranches> keys_expected_ = {};
};

}  // namespace nsa
