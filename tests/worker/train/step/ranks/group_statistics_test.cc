#include "worker/train/step/ranks/group_statistics.h"

#include <gtest/gtest.h>

namespace nsa::train {
namespace {

// A layer in which every number is `base` plus its place.
v1::LayerStats Layer(int base) {
  v1::LayerStats layer;
  layer.set_layer(3);
  v1::GateStats& gate = *layer.mutable_gate();
  gate.set_entropy_mean(base + 1);
  gate.set_entropy_min(base + 2);
  gate.set_max_gate_mean(base + 3);
  gate.set_max_gate_max(base + 4);
  gate.set_collapse_ratio(base);
  for (int branch = 0; branch < 3; ++branch) gate.add_branch_share(base + 5 + branch);
  v1::SelectionStats& selection = *layer.mutable_selection();
  selection.set_keys_mean(base + 8);
  selection.set_keys_max(base + 9);
  selection.set_rows(base + 10);
  layer.add_keys_read(base + 11);
  layer.add_keys_read(0);
  v1::AttentionAudit& audit = *layer.mutable_audit();
  audit.set_queries(base + 12);
  audit.set_selected_mass(base + 13);
  audit.mutable_choice()->set_free_choices(base + 14);
  return layer;
}

TEST(GroupStatistics, AddCountsAndAverageMeans) {
  const v1::LayerStats ranks[] = {Layer(0), Layer(100)};
  const v1::LayerStats all = CombineLayers(ranks);
  EXPECT_EQ(all.layer(), 3);
  EXPECT_EQ(all.gate().entropy_mean(), 51);
  EXPECT_EQ(all.gate().entropy_min(), 2);
  EXPECT_EQ(all.gate().max_gate_mean(), 53);
  EXPECT_EQ(all.gate().max_gate_max(), 104);
  EXPECT_EQ(all.gate().collapse_ratio(), 50);
  ASSERT_EQ(all.gate().branch_share_size(), 3);
  EXPECT_EQ(all.gate().branch_share(2), 57);
  EXPECT_EQ(all.gate().gate_mean_size(), 0);
  EXPECT_EQ(all.selection().keys_mean(), 58);
  EXPECT_EQ(all.selection().keys_max(), 109);
  EXPECT_EQ(all.selection().rows(), 120);
  EXPECT_EQ(all.keys_read(0), 122);
  EXPECT_EQ(all.keys_read(1), 0);
  EXPECT_EQ(all.audit().queries(), 124);
  EXPECT_EQ(all.audit().selected_mass(), 63);
  EXPECT_EQ(all.audit().choice().free_choices(), 128);
}

TEST(GroupStatistics, KeepWhatALayerLacksAbsent) {
  v1::LayerStats bare;
  bare.add_keys_read(1);
  const v1::LayerStats ranks[] = {bare, bare, bare, bare};
  const v1::LayerStats all = CombineLayers(ranks);
  EXPECT_FALSE(all.has_gate());
  EXPECT_FALSE(all.has_selection());
  EXPECT_FALSE(all.has_audit());
  EXPECT_EQ(all.keys_read(0), 4);
  v1::LayerStats window = Layer(0);
  window.mutable_audit()->clear_selected_mass();
  const v1::LayerStats windows[] = {window, window};
  EXPECT_FALSE(CombineLayers(windows).audit().has_selected_mass());
}

}  // namespace
}  // namespace nsa::train
