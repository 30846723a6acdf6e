#include "worker/train/model/statistics/layer_totals.h"

#include <algorithm>

namespace nsa::train {

void LayerTotals::Add(const GateStats& gate, const SelectionStats& selection,
                      const std::array<int64_t, kBranches>& keys_read,
                      const std::array<int64_t, kBranches>& keys_expected) {
  gate_.entropy_mean += gate.entropy_mean;
  gate_.max_gate_mean += gate.max_gate_mean;
  gate_.collapse_ratio += gate.collapse_ratio;
  gate_.entropy_min =
      forwards_ == 0 ? gate.entropy_min : std::min(gate_.entropy_min, gate.entropy_min);
  gate_.max_gate_max = std::max(gate_.max_gate_max, gate.max_gate_max);
  selection_ = forwards_ == 0 ? selection : Combine(selection_, selection);
  for (int branch = 0; branch < kBranches; ++branch) {
    gate_.branch_share[branch] += gate.branch_share[branch];
    gate_.gate_mean[branch] += gate.gate_mean[branch];
    keys_read_[branch] += keys_read[branch];
    keys_expected_[branch] += keys_expected[branch];
  }
  ++forwards_;
}

v1::LayerStats LayerTotals::ToProto(int32_t layer, const NsaLayerConfig& config) const {
  v1::LayerStats stats;
  stats.set_layer(layer);
  const double forwards = static_cast<double>(std::max<int64_t>(forwards_, 1));
  if (config.has_gate()) {
    v1::GateStats& gate = *stats.mutable_gate();
    gate.set_entropy_mean(gate_.entropy_mean / forwards);
    gate.set_entropy_min(gate_.entropy_min);
    gate.set_max_gate_mean(gate_.max_gate_mean / forwards);
    gate.set_max_gate_max(gate_.max_gate_max);
    gate.set_collapse_ratio(gate_.collapse_ratio / forwards);
    for (const float share : gate_.branch_share) gate.add_branch_share(share / forwards);
    for (const float mean : gate_.gate_mean) gate.add_gate_mean(mean / forwards);
  }
  if (config.has(kSel)) {
    v1::SelectionStats& selection = *stats.mutable_selection();
    const double rows = static_cast<double>(std::max<int64_t>(selection_.rows, 1));
    selection.set_keys_mean(static_cast<double>(selection_.keys_sum) / rows);
    selection.set_keys_max(selection_.keys_max);
    selection.set_rows(selection_.rows);
    selection.set_at_max_ratio(static_cast<double>(selection_.at_max) / rows);
  }
  for (int branch = 0; branch < kBranches; ++branch) {
    stats.add_keys_read(keys_read_[branch]);
    stats.add_keys_expected(config.branches[branch] ? keys_expected_[branch] : 0);
  }
  if (audit_.has_value()) *stats.mutable_audit() = *audit_;
  return stats;
}

}  // namespace nsa::train
