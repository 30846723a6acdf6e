// The memory that common/estimate/estimate.h computes before a run is what the trainer allocates.
#include "common/estimate/estimate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "common/estimate/layers.h"
#include "common/estimate/memory/memory.h"
#include "common/estimate/model_options.h"
#include "common/estimate/passes.h"
#include "common/estimate/sampling.h"
#include "common/job/load.h"
#include "worker/train/decode/sequence_memory.h"
#include "worker/train/model/block/block.h"
#include "worker/train/model/gradient_window.h"
#include "worker/train/model/model.h"
#include "worker/train/model/parameters.h"
#include "worker/train/model/shares.h"
#include "worker/train/model/statistics/token_losses.h"
#include "worker/train/model/weight_window.h"

namespace nsa::train {
namespace {

// An entry of nsa.layers: three bits for the branches, 8 for a full layer.
std::string EntryOf(int entry) {
  if (entry == 8) return kFullName;
  return LayerText({.branches = {(entry & 1) != 0, (entry & 2) != 0, (entry & 4) != 0}});
}

// Small jobs of every kind: branches, φ, checkpointing, head widths.
v1::JobSpec RandomJob(std::mt19937* random) {
  const auto one_of = [&](std::initializer_list<int> values) {
    return *(values.begin() + (*random)() % values.size());
  };
  v1::JobSpec spec;
  v1::ModelSpec* model = spec.mutable_model();
  model->set_dim(one_of({24, 64}));
  model->set_n_layers(one_of({1, 3}));
  model->set_n_kv_groups(one_of({1, 2}));
  model->set_n_heads(model->n_kv_groups() * one_of({1, 3}));
  model->set_d_k(one_of({16, 32, 192}));
  model->set_d_v(one_of({16, 32, 128}));
  model->set_mlp_ratio(one_of({1, 4}));
  if (one_of({0, 1}) == 1) model->set_mlp_dim(80);
  if (MlpUnitsOf(*model) % 16 == 0 && one_of({0, 1}) == 1) model->set_mlp(v1::MLP_SWIGLU);
  model->set_tie_embeddings(one_of({0, 1}) == 1);
  model->set_qk_norm(one_of({0, 1}) == 1);
  model->set_qkv_bias(one_of({0, 1}) == 1);
  model->set_qk_norm_weights(model->qk_norm() && one_of({0, 1}) == 1);
  v1::NsaSpec* nsa = spec.mutable_nsa();
  nsa->set_l(16);
  nsa->set_d(8);
  nsa->set_l_sel(32);
  nsa->set_n_sel(one_of({3, 5}));
  nsa->set_w(24);
  nsa->set_phi(one_of({0, 1}) == 0 ? v1::PHI_AVG : v1::PHI_MLP);
  const int branches = one_of({1, 2, 3, 4, 5, 6, 7});
  for (int branch = 0; branch < 3; ++branch) {
    if ((branches >> branch & 1) != 0) nsa->add_branches(static_cast<v1::Branch>(branch + 1));
  }
  // A third of the jobs with three layers has different ones.
  if (model->n_layers() == 3 && one_of({0, 1, 2}) == 0) {
    nsa->clear_branches();
    for (const int entry : {one_of({1, 2, 3, 4, 5, 6, 7}), one_of({1, 2, 3, 4, 5, 6, 7, 8})}) {
      nsa->add_layers(EntryOf(entry));
    }
  }
  spec.mutable_runtime()->set_device(v1::DEVICE_CPU);
  spec.mutable_runtime()->set_precision(v1::PRECISION_FP32);
  spec.mutable_runtime()->set_gradient_checkpointing(one_of({0, 1}) == 1);
  spec.mutable_train()->set_seq_len(one_of({8, 100, 160}));
  spec.mutable_train()->set_batch_size(one_of({1, 2}));
  ApplyDefaults(&spec);
  return spec;
}

TEST(Estimate, CountsTheParametersThatTheTrainerAllocates) {
  std::mt19937 random(3);
  for (int round = 0; round < 100; ++round) {
    const v1::JobSpec spec = RandomJob(&random);
    EXPECT_EQ(ParameterCount(spec), ParameterLayout(spec).count()) << spec.DebugString();
  }
}

TEST(Estimate, CountsTheMomentsOfTheLargestShare) {
  std::mt19937 random(7);
  for (int round = 0; round < 100; ++round) {
    v1::JobSpec spec = RandomJob(&random);
    if (round % 2 == 1) spec.mutable_train()->set_optimizer(v1::OPTIMIZER_MUON);
    spec.mutable_runtime()->set_shard(v1::SHARD_OPTIMIZER);
    const int32_t ranks = 2 + round % 5;
    spec.mutable_resources()->set_gpus(ranks);
    const ParameterLayout layout(spec);
    const Shares shares(layout, spec.train(), ranks);
    int64_t largest = 0, matrix = 0;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      largest = std::max(largest, shares.of(rank).size());
    }
    for (const ParameterInfo& tensor : layout.tensors()) {
      if (tensor.hidden && round % 2 == 1) matrix = std::max(matrix, tensor.size);
    }
    for (const MemoryItem& item : MemoryEstimate(spec)) {
      if (item.name != "optimizer moments") continue;
      // The layout also has gaps between tensors, and cuts are at multiples of 16.
      const int64_t gaps = layout.size() - layout.count() + 32;
      EXPECT_GE(item.bytes + 8 * gaps, 8 * largest) << spec.DebugString();
      EXPECT_LE(item.bytes, 8 * (layout.size() / ranks + 1 + matrix)) << spec.DebugString();
      EXPECT_GE(SnapshotBytes(spec, 1) + 12 * gaps, 12 * largest) << spec.DebugString();
    }
  }
}

TEST(Estimate, CountsTheWindowsThatGradientsPassThrough) {
  std::mt19937 random(11);
  for (int round = 0; round < 60; ++round) {
    v1::JobSpec spec = RandomJob(&random);
    spec.mutable_resources()->set_gpus(2);
    spec.mutable_train()->set_batch_size(2);
    spec.mutable_runtime()->set_shard(v1::SHARD_GRADIENTS);
    const bool cuda = round % 2 == 1;
    if (cuda) spec.mutable_runtime()->set_device(v1::DEVICE_CUDA);
    if (cuda) spec.mutable_runtime()->set_precision(v1::PRECISION_BF16);
    const ParameterLayout layout(spec);
    const Arena parameters(&layout);
    const auto model = Model::Create(
        spec, {.batch = 1, .seq_len = spec.train().seq_len(), .training = true}, &parameters);
    ASSERT_TRUE(model.ok()) << model.status() << spec.DebugString();
    const WindowPlan plan =
        WindowPlan::Of(PartsOf(**model, layout), cuda ? layout.tail() : 0, /*two=*/cuda);
    const int64_t gaps = layout.size() - layout.count() + 32;
    for (const MemoryItem& item : MemoryEstimate(spec)) {
      if (item.name != "gradients on their way") continue;
      EXPECT_LE(item.bytes, 4 * plan.room) << spec.DebugString();
      EXPECT_GE(item.bytes + 4 * gaps, 4 * plan.room) << spec.DebugString();
    }
  }
}

TEST(Estimate, CountsTheWindowsThatWeightsPassThrough) {
  std::mt19937 random(12);
  for (int round = 0; round < 60; ++round) {
    v1::JobSpec spec = RandomJob(&random);
    spec.mutable_resources()->set_gpus(2);
    spec.mutable_train()->set_batch_size(2);
    spec.mutable_runtime()->set_shard(v1::SHARD_PARAMETERS);
    const ParameterLayout layout(spec);
    const auto window = WeightWindow::Create(&layout, spec.model().n_layers(), Backend::kCpu);
    ASSERT_TRUE(window.ok()) << window.status();
    const int64_t gaps = layout.size() - layout.count() + 32;
    const std::vector<MemoryItem> items = MemoryEstimate(spec);
    EXPECT_EQ(std::ranges::count(items, "weights on their way", &MemoryItem::name), 1);
    for (const MemoryItem& item : items) {
      if (item.name != "weights on their way") continue;
      EXPECT_LE(item.bytes, window->bytes()) << spec.DebugString();
      EXPECT_GE(item.bytes + 4 * gaps, window->bytes()) << spec.DebugString();
    }
  }
}

TEST(Estimate, CountsTheActivationsThatTheTrainerAllocates) {
  std::mt19937 random(4);
  for (int round = 0; round < 60; ++round) {
    const v1::JobSpec spec = RandomJob(&random);
    const ParameterLayout layout(spec);
    const Arena parameters(&layout);
    const auto recompute = static_cast<Recompute>(round % 4);
    const auto model = Model::Create(spec,
                                     {.batch = spec.train().batch_size(),
                                      .seq_len = spec.train().seq_len(),
                                      .training = true,
                                      .recompute = recompute},
                                     &parameters);
    ASSERT_TRUE(model.ok()) << model.status() << spec.DebugString();
    int64_t estimated = 0;
    for (const MemoryItem& item : MemoryEstimate(spec, recompute)) {
      const bool arena = item.name.starts_with("activations") || item.name == "logits" ||
                         item.name == "attention, saved for backward" ||
                         item.name == "backward workspace";
      if (arena) estimated += item.bytes;
    }
    // Every tensor of the arena begins at a multiple of 64 bytes.
    const int64_t taken = (*model)->activation_bytes();
    EXPECT_GE(taken, estimated) << spec.DebugString();
    EXPECT_LE(taken, estimated + 64 * 50 * (spec.model().n_layers() + 1)) << spec.DebugString();
  }
}

// On a GPU the workspace is laid out differently: the branches have no gradients of their outputs.
TEST(Estimate, CountsTheBackwardWorkspaceThatATrainerOnAGpuPlans) {
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) {
    v1::JobSpec spec = RandomJob(&random);
    spec.mutable_runtime()->set_device(v1::DEVICE_CUDA);
    spec.mutable_runtime()->set_precision(v1::PRECISION_BF16);
    ModelConfig config = ModelConfigOf(spec);
    config.attention.dtype = DType::kBf16;
    ActivationArena arena;
    PlanWorkspaces(config, /*training=*/true, &arena);
    for (const MemoryItem& item : MemoryEstimate(spec)) {
      if (item.name != "backward workspace") continue;
      // Every tensor begins at a multiple of 64 bytes, as do those within the attention's part.
      EXPECT_GE(arena.bytes(), item.bytes) << spec.DebugString();
      EXPECT_LE(arena.bytes(), item.bytes + 64 * 20) << spec.DebugString();
    }
  }
}

// With a mixture the losses of all passes of a step are kept (statistics/token_losses.h).
TEST(Estimate, CountsTheTokenLossesThatAMixtureKeeps) {
  std::mt19937 random(6);
  int kept = 0;
  for (int round = 0; round < 60; ++round) {
    v1::JobSpec spec = RandomJob(&random);
    spec.mutable_runtime()->set_device(round % 3 == 0 ? v1::DEVICE_CPU : v1::DEVICE_CUDA);
    spec.mutable_runtime()->set_merge_micro_batches(1);
    spec.mutable_train()->set_accumulate_grad_batches(1 + round % 4);
    if (round % 2 == 0) spec.mutable_data()->add_mix()->set_name("books");
    const Passes passes = PassesOf(spec);
    const bool cuda = spec.runtime().device() == v1::DEVICE_CUDA;
    ActivationArena one, all;
    TokenLosses().Plan(int64_t{passes.sequences} * spec.train().seq_len(), 1, false, &one);
    TokenLosses().Plan(int64_t{passes.sequences} * spec.train().seq_len(), cuda ? passes.count : 1,
                       !spec.data().mix().empty(), &all);
    int64_t estimated = 0;
    for (const MemoryItem& item : MemoryEstimate(spec)) {
      if (item.name == "token losses of other passes") estimated = item.bytes;
    }
    EXPECT_NEAR(all.bytes() - one.bytes(), estimated, 64) << spec.DebugString();
    kept += estimated > 0 ? 1 : 0;
  }
  EXPECT_GT(kept, 5);
}

// The decoder that continues prompts while the job trains.
TEST(Estimate, CountsTheDecoderOfSamples) {
  std::mt19937 random(8);
  for (int round = 0; round < 100; ++round) {
    v1::JobSpec spec = RandomJob(&random);
    const bool cuda = round % 2 == 0;
    if (cuda) {
      spec.mutable_runtime()->set_device(v1::DEVICE_CUDA);
      spec.mutable_runtime()->set_precision(v1::PRECISION_BF16);
    }
    spec.mutable_sample()->add_prompts(std::string(static_cast<size_t>(round % 40), 'a'));
    spec.mutable_sample()->set_tokens(1 + round);
    const auto context = static_cast<int32_t>(SampleContext(spec));
    EXPECT_EQ(context, std::min(spec.train().seq_len(), 1 + round % 40 + 1 + round));
    ModelConfig config = ModelConfigOf(spec);
    config.attention.shape.batch = 1;
    config.attention.shape.seq_len = context;
    config.attention.dtype = cuda ? DType::kBf16 : DType::kF32;
    const int64_t taken = SequenceMemory(config, cuda ? Backend::kCuda : Backend::kCpu).bytes();
    int64_t estimated = 0;
    for (const MemoryItem& item : MemoryEstimate(spec)) {
      if (item.name == "decoder of samples") estimated = item.bytes;
    }
    // Every tensor begins at a multiple of 64 bytes; the inputs and counters of tokens are small,
    // in both workspaces of a GPU.
    EXPECT_GE(taken, estimated) << spec.DebugString();
    EXPECT_LE(taken, estimated + 64 * (30 + 8 * spec.model().n_layers()) + (cuda ? 1600 : 1024))
        << spec.DebugString();
  }
}

}  // namespace
}  // namespace nsa::train
