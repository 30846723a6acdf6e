#include "worker/train/step/ranks/group_statistics.h"

#include <vector>

#include "tests/testing/status_matchers.h"
#include "tests/worker/train/comm/on_ranks.h"

namespace nsa::train {
namespace {

// What each rank has of its layer after it was shared in groups of this many.
std::vector<v1::LayerStats> Shared(const std::vector<v1::LayerStats>& layers, int context) {
  std::vector<v1::StepRecord> records(layers.size());
  OnRanks(static_cast<int>(layers.size()), [&](Comm* comm) {
    const auto rank = static_cast<size_t>(comm->rank());
    *records[rank].add_layers() = layers[rank];
    EXPECT_OK(ShareLayers(comm, context, &records[rank]));
  });
  std::vector<v1::LayerStats> shared;
  for (const v1::StepRecord& record : records) shared.push_back(record.layers(0));
  return shared;
}

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
  const std::vector<v1::LayerStats> ranks = Shared({Layer(0), Layer(100)}, 2);
  EXPECT_EQ(ranks[1].SerializeAsString(), ranks[0].SerializeAsString());
  const v1::LayerStats& all = ranks[0];
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
  const v1::LayerStats all = Shared({bare, bare, bare, bare}, 4)[0];
  EXPECT_FALSE(all.has_gate());
  EXPECT_FALSE(all.has_selection());
  EXPECT_FALSE(all.has_audit());
  EXPECT_EQ(all.keys_read(0), 4);
  v1::LayerStats window = Layer(0);
  window.mutable_audit()->clear_selected_mass();
  EXPECT_FALSE(Shared({window, window}, 2)[0].audit().has_selected_mass());
}

TEST(GroupStatistics, StayWithinTheGroup) {
  const auto ranks = Shared({Layer(0), Layer(100), Layer(200), Layer(300)}, 2);
  EXPECT_EQ(ranks[1].selection().rows(), 120);
  EXPECT_EQ(ranks[2].selection().rows(), 520);
  EXPECT_EQ(Shared({Layer(7)}, 1)[0].selection().rows(), 17);
}

}  // namespace
}  // namespace nsa::train
