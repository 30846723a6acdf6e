// A full layer computes what a window of all tokens does, beside layers of other kinds.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/worker/train/model/model_bench.h"
#include "tests/worker/train/tiny_job.h"
#include "worker/train/model/model_config.h"

namespace nsa::train {
namespace {

constexpr int32_t kWindow = 6, kAllTokens = 24;  // of TinyJob()

v1::JobSpec Job(std::initializer_list<const char*> layers, int32_t window) {
  v1::JobSpec spec = TinyJob();
  spec.mutable_model()->set_n_layers(3);
  spec.mutable_nsa()->set_w(window);
  SetLayers(&spec, layers);
  return spec;
}

void ExpectTheSameBits(const v1::JobSpec& one, const v1::JobSpec& other) {
  Bench a(one), b(other);
  a.Randomize();
  b.Randomize();
  ASSERT_EQ(a.parameters.flat().size(), b.parameters.flat().size());
  EXPECT_EQ(a.Loss(), b.Loss());
  a.Backward();
  b.Backward();
  EXPECT_TRUE(std::ranges::equal(a.gradients.flat(), b.gradients.flat()));
}

TEST(FullLayers, AloneHaveTheBitsOfAWindowOfAllTokens) {
  ExpectTheSameBits(Job({"full"}, kWindow), Job({"win"}, kAllTokens));
}

TEST(FullLayers, BesideOtherLayersHaveTheBitsOfAWindowOfAllTokens) {
  ExpectTheSameBits(Job({"full", "sel", "cmp+sel"}, kWindow),
                    Job({"win", "sel", "cmp+sel"}, kAllTokens));
}

// Layers of zeros leave the residual stream as it is. The other one must then compute, and learn,
// what it does in a model of its kind alone.
TEST(FullLayers, BesideNarrowWindowsEveryLayerIsThatOfAModelOfItsKind) {
  const std::pair<const char*, int32_t> kinds[] = {
      {"win", kAllTokens}, {"win", kWindow}, {"sel", kWindow}};
  for (int layer = 0; layer < 3; ++layer) {
    const auto& [branches, window] = kinds[layer];
    Bench hybrid(Job({"full", "win", "sel"}, kWindow)), uniform(Job({branches}, window));
    hybrid.Randomize();
    const std::string spoken = "blocks." + std::to_string(layer) + ".";
    for (const ParameterInfo& tensor : hybrid.layout.tensors()) {
      const bool silent = tensor.name.starts_with("blocks.") && !tensor.name.starts_with(spoken);
      if (silent) std::ranges::fill(hybrid.parameters.of(tensor), 0.0f);
      const auto same = uniform.layout.Find(tensor.name);
      if (same.ok()) {
        std::ranges::copy(hybrid.parameters.of(tensor), uniform.parameters.of(**same).begin());
      }
    }
    // Tensors of branches that the hybrid's silent layers do not have.
    for (const ParameterInfo& tensor : uniform.layout.tensors()) {
      if (!hybrid.layout.Find(tensor.name).ok()) {
        std::ranges::fill(uniform.parameters.of(tensor), 0.0f);
      }
    }
    EXPECT_EQ(hybrid.Loss(), uniform.Loss()) << layer;
    hybrid.Backward();
    uniform.Backward();
    for (const ParameterInfo& tensor : hybrid.layout.tensors()) {
      if (!tensor.name.starts_with(spoken)) continue;
      const auto same = uniform.layout.Find(tensor.name);
      ASSERT_TRUE(same.ok()) << tensor.name;
      EXPECT_TRUE(std::ranges::equal(hybrid.gradients.of(tensor), uniform.gradients.of(**same)))
          << tensor.name;
    }
  }
}

TEST(FullLayers, HaveTheWindowOfTheSequenceThatIsComputedAndRotateUnlessWindowsDo) {
  v1::JobSpec spec = Job({"full", "win", "sel"}, kWindow);
  ModelConfig config = ModelConfigOf(spec);
  EXPECT_EQ(config.AttentionOf(0).shape.window, kAllTokens);
  EXPECT_EQ(config.AttentionOf(1).shape.window, kWindow);
  config.attention.shape.seq_len = 100;  // as a decoder has it
  EXPECT_EQ(config.AttentionOf(0).shape.window, 100);
  EXPECT_EQ(config.AttentionOf(1).shape.window, kWindow);
  for (int32_t layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(config.AttentionOf(layer).rope_scale, 1) << layer;
  }
  spec.mutable_model()->set_rope_layers(v1::ROPE_LAYERS_WINDOW);
  config = ModelConfigOf(spec);
  EXPECT_EQ(config.AttentionOf(0).rope_scale, kNoRotation);
  EXPECT_EQ(config.AttentionOf(1).rope_scale, 1);
  EXPECT_EQ(config.AttentionOf(2).rope_scale, kNoRotation);
}

}  // namespace
}  // namespace nsa::train
