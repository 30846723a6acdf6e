// Adds up the statistics of one layer over the micro-batches of a step.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "kernels/nsa/layer/nsa_layer.h"
#include "nsa/v1/telemetry.pb.h"

namespace nsa::train {

class LayerTotals {
 public:
  // Adds the statistics that the kernels wrote in one forward pass. Every pass has the same number
  // of rows. `keys_expected` may have the keys of branches that the layer lacks.
  void Add(const GateStats& gate, const SelectionStats& selection,
           const std::array<int64_t, kBranches>& keys_read,
           const std::array<int64_t, kBranches>& keys_expected);

  // The audit of the step, for the record.
  void set_audit(const v1::AttentionAudit& audit) { audit_ = audit; }

  // The record of layer `layer`; gate and selection stay unset where the layer has none,
  // audit where the step had none.
  v1::LayerStats ToProto(int32_t layer, const NsaLayerConfig& config) const;

 private:
  int64_t forwards_ = 0;
  GateStats gate_;  // sums, except entropy_min (smallest) and max_gate_max (largest)
  SelectionStats selection_;
  std::array<int64_t, kBranches> keys_read_ = {};
  std::array<int64_t, kBranches> keys_expected_ = {};
  std::optional<v1::AttentionAudit> audit_;
};

}  // namespace nsa::train
