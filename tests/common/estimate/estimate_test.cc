#include "common/estimate/estimate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "common/estimate/memory/memory.h"
#include "common/estimate/shares.h"
#include "common/job/enum_words.h"
#include "common/job/load.h"
#include "common/nsa/visibility.h"

namespace nsa {
namespace {

// The Python system's attention.
void UseItsPhiAndGate(v1::JobSpec* spec) {
  spec->mutable_nsa()->set_phi(v1::PHI_AVG);
  spec->mutable_nsa()->set_gate(v1::GATE_SOFTMAX);
}

v1::JobSpec M7c() {
  v1::JobSpec spec;
  UseItsPhiAndGate(&spec);
  ApplyDefaults(&spec);
  return spec;
}

v1::JobSpec Toy() {
  v1::JobSpec spec;
  v1::ModelSpec* model = spec.mutable_model();
  model->set_dim(128);
  model->set_n_layers(1);
  model->set_n_heads(8);
  model->set_n_kv_groups(2);
  model->set_d_k(16);
  model->set_d_v(16);
  v1::NsaSpec* nsa = spec.mutable_nsa();
  nsa->set_l(16);
  nsa->set_d(8);
  nsa->set_l_sel(32);
  nsa->set_n_sel(8);
  nsa->set_w(64);
  UseItsPhiAndGate(&spec);
  spec.mutable_train()->set_seq_len(128);
  spec.mutable_train()->set_batch_size(8);
  ApplyDefaults(&spec);
  return spec;
}

TEST(ParameterCount, OfM7cWithBytesIsThePythonSystems) {
  EXPECT_EQ(ParameterCount(M7c()), 78'295'332);
}

TEST(ParameterCount, OfM7cWithGpt2TokensIsThePythonSystems) {
  v1::JobSpec spec;
  UseItsPhiAndGate(&spec);
  spec.mutable_data()->set_tokenizer(v1::TOKENIZER_GPT2);
  ApplyDefaults(&spec);
  EXPECT_EQ(ParameterCount(spec), 155'096'868);
}

TEST(ParameterCount, OfTheToyIsThePythonSystems) { EXPECT_EQ(ParameterCount(Toy()), 254'499); }

TEST(ParameterCount, CountsTheCompressionMlpForKeysAndValues) {
  v1::JobSpec spec = Toy();
  spec.mutable_nsa()->set_phi(v1::PHI_MLP);
  // l=16, width 16: pe 256, w1 4096, b1 16, w2 256, b2 16; keys and values.
  EXPECT_EQ(ParameterCount(spec), 254'499 + 2 * 4640);
}

TEST(ParameterCount, LeavesOutABranchsProjectionsAndItsGateRow) {
  v1::JobSpec spec = Toy();
  spec.mutable_nsa()->clear_branches();
  spec.mutable_nsa()->add_branches(v1::BRANCH_CMP);
  spec.mutable_nsa()->add_branches(v1::BRANCH_WIN);
  EXPECT_EQ(ParameterCount(spec), 254'499 - 2 * 128 * 32 - 9);
}

TEST(TokensPerStep, CountsEveryMicroBatchOfEveryRank) {
  v1::JobSpec spec = M7c();
  spec.mutable_train()->set_batch_size(4);
  spec.mutable_train()->set_accumulate_grad_batches(3);
  EXPECT_EQ(TokensPerStep(spec), 4 * 3 * 2048);
}

TEST(MeanKeysRead, EqualABruteForceOverEveryPairOfPositions) {
  NsaShape shape = ShapeOf(Toy());
  shape.seq_len = 123;  // ragged in l, d and l'
  shape.n_sel = 3;
  int64_t cmp = 0, win = 0, sel = 0;
  for (int t = 0; t < shape.seq_len; ++t) {
    for (int i = 0; i * shape.d + shape.l <= shape.seq_len; ++i) {
      cmp += i * shape.d + shape.l - 1 <= t;
    }
    for (int j = 0; j <= t; ++j) win += t - j < shape.window;
    // Block of t, and the n − 1 others that are wholly in the past, as far as there are any.
    const int past = t / shape.l_sel;
    sel += t - past * shape.l_sel + 1 + std::min(past, shape.n_sel - 1) * shape.l_sel;
  }
  const std::array<double, kBranches> mean = MeanKeysRead(shape);
  EXPECT_DOUBLE_EQ(mean[kCmp], cmp / 123.0);
  EXPECT_DOUBLE_EQ(mean[kWin], win / 123.0);
  EXPECT_DOUBLE_EQ(mean[kSel], sel / 123.0);
}

TEST(MeanKeysRead, OfM7cGiveThePythonSystemsFingerprint) {
  // 752.5 selected keys a row at S=2048 (its sequential path, which kept the current block).
  EXPECT_NEAR(MeanKeysRead(ShapeOf(M7c()))[kSel], 752.5, 0.05);
}

TEST(FlopsPerToken, IsSixAWeightPlusAttention) {
  v1::JobSpec spec = M7c();
  const double weights = 78'295'332 - 256 * 768 /* embedding */;
  // 62.3 + 752.5 + 448.1 keys a query, 12 layers, 12 heads of 64 + 64 columns; backward twice.
  const double attention = 3.0 * 12 * 2 * (62.3 + 752.5 + 448.1) * 12 * 128;
  EXPECT_NEAR(FlopsPerToken(spec), 6 * weights + attention, 0.002 * 6 * weights);
}

TEST(BranchNames, AreTheWordsOfTheJobFileInItsOrder) {
  for (int branch = 0; branch < kBranches; ++branch) {
    const auto* value = v1::Branch_descriptor()->FindValueByNumber(v1::BRANCH_CMP + branch);
    EXPECT_EQ(EnumWord(*value), kBranchNames[branch]);
  }
}

TEST(PeakFlops, IsTheDataSheetsByPartOfTheName) {
  EXPECT_EQ(PeakFlops("NVIDIA A100-SXM4-80GB"), 312e12);
  EXPECT_EQ(PeakFlops("NVIDIA RTX A1000"), 0) << "another GPU";
  EXPECT_EQ(PeakFlops("NVIDIA H100 PCIe"), 756e12);
  EXPECT_EQ(PeakFlops("NVIDIA H100 80GB HBM3"), 989e12);
  EXPECT_EQ(PeakFlops("NVIDIA H100 NVL"), 835e12);
  EXPECT_EQ(PeakFlops("NVIDIA H20"), 148e12);
  EXPECT_EQ(PeakFlops("NVIDIA H200"), 989e12);
  EXPECT_EQ(PeakFlops("NVIDIA H200 NVL"), 835e12);
  EXPECT_EQ(PeakFlops("cpu"), 0);
}

TEST(PeakFlops, OfAMigInstanceIsThatOfItsSlices) {
  EXPECT_NEAR(PeakFlops("NVIDIA A100-SXM4-40GB MIG 1g.5gb"), 312e12 / 7, 1);
  EXPECT_NEAR(PeakFlops("NVIDIA H100 80GB HBM3 MIG 3g.40gb"), 989e12 * 3 / 7, 1);
  EXPECT_NEAR(PeakFlops("NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb"), 989e12 / 7, 1);
  EXPECT_NEAR(PeakFlops("NVIDIA H100 80GB HBM3 MIG 7g.80gb"), 989e12, 1);
}

TEST(RecomputeOf, KeepsTheAttentionOfAllLayersUpToTwelveGigabytesOfARank) {
  const auto job = [](int batch, int seq_len, int gpus, bool checkpointing) {
    v1::JobSpec spec = M7c();
    spec.mutable_train()->set_batch_size(batch);
    spec.mutable_train()->set_seq_len(seq_len);
    spec.mutable_resources()->set_gpus(gpus);
    spec.mutable_runtime()->set_device(v1::DEVICE_CUDA);
    spec.mutable_runtime()->set_gradient_checkpointing(checkpointing);
    return RecomputeOf(spec);
  };
  EXPECT_EQ(job(2, 2048, 1, false), Recompute::kNothing);
  EXPECT_EQ(job(512, 2048, 1, false), Recompute::kNothing);
  EXPECT_EQ(job(2, 2048, 1, true), Recompute::kMlp);
  // 151 KB a token in bf16: 9.9 GB with 65,536 tokens.
  EXPECT_EQ(job(32, 2048, 1, true), Recompute::kMlp);
  EXPECT_EQ(job(1, 65'536, 1, true), Recompute::kMlp);
  EXPECT_EQ(job(64, 2048, 1, true), Recompute::kBlock);
  EXPECT_EQ(job(64, 2048, 2, true), Recompute::kMlp);
  EXPECT_EQ(job(1, 1 << 20, 1, true), Recompute::kBlock);
}

// Bytes of `spec` with what `recompute` keeps.
int64_t BytesWith(const v1::JobSpec& spec, Recompute recompute) {
  return TotalBytes(MemoryEstimate(spec, recompute));
}

// The GPU memory whose four fifths are this, to the byte or slightly more.
int64_t MemoryFor(int64_t bytes) {
  return static_cast<int64_t>(static_cast<double>(bytes) / kShareOfMemory) + 2;
}

TEST(RecomputeOf, IsTheLeastThatFitsIntoFourFifthsOfTheMemory) {
  v1::JobSpec spec = M7c();
  spec.mutable_runtime()->set_device(v1::DEVICE_CUDA);
  spec.mutable_runtime()->set_gradient_checkpointing(true);
  constexpr Recompute kAll[] = {Recompute::kNothing, Recompute::kNorms, Recompute::kMlp,
                                Recompute::kBlock};
  for (int i = 0; i < 3; ++i) {
    const int64_t bytes = BytesWith(spec, kAll[i]);
    EXPECT_EQ(RecomputeOf(spec, MemoryFor(bytes)), kAll[i]);
    EXPECT_EQ(RecomputeOf(spec, MemoryFor(bytes - (1 << 20))), kAll[i + 1]);
    EXPECT_GT(bytes, BytesWith(spec, kAll[i + 1]));
  }
  EXPECT_EQ(RecomputeOf(spec, 1), Recompute::kBlock) << "preflight refuses it";
  spec.mutable_runtime()->set_gradient_checkpointing(false);
  EXPECT_EQ(RecomputeOf(spec, 1), Recompute::kNothing);
}

TEST(RecomputeOf, OfWholeBlocksDependsOnTheJobAloneWhereRanksShareSequences) {
  v1::JobSpec spec = M7c();
  spec.mutable_runtime()->set_device(v1::DEVICE_CUDA);
  spec.mutable_runtime()->set_gradient_checkpointing(true);
  spec.mutable_resources()->set_gpus(2);
  spec.mutable_resources()->set_context_parallel(2);
  EXPECT_EQ(RecomputeOf(spec, 1), Recompute::kMlp);
  EXPECT_EQ(RecomputeOf(spec, int64_t{80} << 30), Recompute::kNothing);
  spec.mutable_train()->set_seq_len(1 << 20);
  EXPECT_EQ(RecomputeOf(spec, 1), Recompute::kBlock);
  EXPECT_EQ(RecomputeOf(spec, int64_t{8} << 40), Recompute::kBlock);
}

TEST(RecomputeOf, OnTheCpuDoesNotDependOnTheMemory) {
  v1::JobSpec spec = M7c();
  spec.mutable_runtime()->set_device(v1::DEVICE_CPU);
  spec.mutable_runtime()->set_gradient_checkpointing(true);
  EXPECT_EQ(RecomputeOf(spec, int64_t{80} << 30), Recompute::kMlp);
}

TEST(MemoryEstimate, NamesEveryPartOnceAndSumsThem) {
  const std::vector<MemoryItem> items = MemoryEstimate(M7c());
  int64_t total = 0;
  for (const MemoryItem& item : items) {
    EXPECT_GT(item.bytes, 0) << item.name;
    total += item.bytes;
  }
  EXPECT_EQ(TotalBytes(items), total);
}

TEST(MemoryEstimate, ShrinksWithGradientCheckpointing) {
  v1::JobSpec spec = M7c();
  spec.mutable_train()->set_batch_size(64);
  const int64_t kept = TotalBytes(MemoryEstimate(spec));
  spec.mutable_runtime()->set_gradient_checkpointing(true);
  ASSERT_EQ(RecomputeOf(spec), Recompute::kBlock);
  EXPECT_LT(TotalBytes(MemoryEstimate(spec)), kept / 2 + (int64_t{1} << 30));
}

TEST(MemoryEstimate, HasOnceWhatBlocksShareBecauseItIsRecomputed) {
  const v1::JobSpec spec = M7c();
  const int64_t tokens = int64_t{spec.train().batch_size()} * spec.train().seq_len();
  // In bf16: RMSNorm's results twice and the activation's output; one norm's stays.
  const int64_t norms = BytesWith(spec, Recompute::kNorms);
  EXPECT_EQ(BytesWith(spec, Recompute::kNothing) - norms,
            tokens * 2 * (12 * (2 * 768 + 3072) - 768));
  // fc1's output.
  EXPECT_EQ(norms - BytesWith(spec, Recompute::kMlp), 11 * tokens * 2 * 3072);
}

TEST(MemoryEstimate, HasTheOptimizersStateOfAShareWhereItIsDivided) {
  const auto bytes = [](int gpus, bool shard, bool cuda) {
    v1::JobSpec spec = M7c();
    spec.mutable_train()->set_batch_size(4);
    spec.mutable_resources()->set_gpus(gpus);
    spec.mutable_runtime()->set_shard_optimizer(shard);
    spec.mutable_runtime()->set_device(cuda ? v1::DEVICE_CUDA : v1::DEVICE_CPU);
    return TotalBytes(MemoryEstimate(spec));
  };
  constexpr int64_t kParameters = 78'295'332;
  EXPECT_EQ(bytes(1, true, true), bytes(1, false, true)) << "nothing to divide";
  EXPECT_EQ(bytes(2, false, true) - bytes(2, true, true), 12 * kParameters / 2);
  EXPECT_EQ(bytes(4, false, true) - bytes(4, true, true), 12 * kParameters * 3 / 4);
  // All weights in fp32; moments. What a checkpoint is written from is always a share.
  EXPECT_EQ(bytes(2, false, false) - bytes(2, true, false), 8 * kParameters / 2);
}

// docs/two_gpus.md: 2 + 16 / R bytes a parameter on a GPU, 4 + 12 / R on the CPU, and gradients on
// their way: on a GPU those of a block, which is two parts, on the CPU of the largest part, an MLP.
TEST(MemoryEstimate, HasTheGradientsOfAShareAndWindowsForTheOthersWhereTheyAreDivided) {
  const auto bytes = [](int gpus, v1::Shard shard, bool cuda) {
    v1::JobSpec spec = M7c();
    spec.mutable_train()->set_batch_size(4);
    spec.mutable_resources()->set_gpus(gpus);
    spec.mutable_runtime()->set_shard(shard);
    spec.mutable_runtime()->set_device(cuda ? v1::DEVICE_CUDA : v1::DEVICE_CPU);
    return TotalBytes(MemoryEstimate(spec));
  };
  constexpr int64_t kParameters = 78'295'332, kBytes = 256 * 768;
  const std::vector<int64_t> parts = PartParameters(M7c());
  ASSERT_EQ(parts.size(), 26u);
  EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), int64_t{0}), kParameters);
  EXPECT_EQ(parts.front(), 768 + kBytes);
  EXPECT_EQ(parts.back(), kBytes);
  const int64_t mlp = parts[1], attention = parts[2];
  EXPECT_EQ(mlp, 768 + 2 * 768 * 3072);
  EXPECT_EQ(bytes(1, v1::SHARD_GRADIENTS, true), bytes(1, v1::SHARD_NONE, true));
  for (const int ranks : {2, 4}) {
    EXPECT_EQ(bytes(ranks, v1::SHARD_NONE, true) - bytes(ranks, v1::SHARD_GRADIENTS, true),
              16 * kParameters * (ranks - 1) / ranks - 4 * (mlp + attention));
    EXPECT_EQ(bytes(ranks, v1::SHARD_OPTIMIZER, false) - bytes(ranks, v1::SHARD_GRADIENTS, false),
              4 * kParameters * (ranks - 1) / ranks - 4 * mlp);
  }
}

// docs/two_gpus.md: 18 / R bytes a parameter on a GPU, 16 / R on the CPU, and parts of the weights
// and of the gradients on their way: of the weights two blocks on a GPU, a block on the CPU.
TEST(MemoryEstimate, HasTheWeightsOfAShareAndAWindowForTheOthersWhereTheyAreDivided) {
  const auto bytes = [](int gpus, v1::Shard shard, bool cuda) {
    v1::JobSpec spec = M7c();
    spec.mutable_train()->set_batch_size(4);
    spec.mutable_resources()->set_gpus(gpus);
    spec.mutable_runtime()->set_shard(shard);
    spec.mutable_runtime()->set_device(cuda ? v1::DEVICE_CUDA : v1::DEVICE_CPU);
    if (!cuda) spec.mutable_runtime()->set_precision(v1::PRECISION_FP32);
    return TotalBytes(MemoryEstimate(spec));
  };
  constexpr int64_t kParameters = 78'295'332;
  const std::vector<int64_t> parts = PartParameters(M7c());
  const int64_t block = parts[1] + parts[2];
  EXPECT_EQ(bytes(1, v1::SHARD_PARAMETERS, true), bytes(1, v1::SHARD_NONE, true));
  for (const int ranks : {2, 4}) {
    EXPECT_EQ(bytes(ranks, v1::SHARD_GRADIENTS, true) - bytes(ranks, v1::SHARD_PARAMETERS, true),
              2 * kParameters * (ranks - 1) / ranks - 2 * (2 * block));
    EXPECT_EQ(bytes(ranks, v1::SHARD_GRADIENTS, false) - bytes(ranks, v1::SHARD_PARAMETERS, false),
              4 * kParameters * (ranks - 1) / ranks - 4 * block);
  }
}

TEST(PartParameters, HaveWhatEachKeyOfTheModelAddsToItsPart) {
  const std::vector<int64_t> plain = PartParameters(M7c());
  const auto parts_with = [](const std::function<void(v1::ModelSpec*)>& set) {
    v1::JobSpec spec = M7c();
    set(spec.mutable_model());
    const std::vector<int64_t> parts = PartParameters(spec);
    EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), int64_t{0}), ParameterCount(spec));
    EXPECT_EQ(parts.size(), 26u);
    return parts;
  };
  // Part 0 is the final norm and the head, 1 and 2 are the last block's MLP and attention.
  std::vector<int64_t> parts = parts_with([](auto* model) { model->set_tie_embeddings(true); });
  EXPECT_EQ(parts.front(), 768);
  EXPECT_EQ(parts.back(), plain.back());
  EXPECT_EQ(parts[1], plain[1]);
  parts = parts_with([](auto* model) { model->set_mlp(v1::MLP_SWIGLU); });
  EXPECT_EQ(parts[1], 768 + 3 * 768 * 3072);
  EXPECT_EQ(parts[2], plain[2]);
  parts = parts_with([](auto* model) { model->set_mlp_dim(2048); });
  EXPECT_EQ(parts[1], 768 + 2 * 768 * 2048);
  parts = parts_with([](auto* model) { model->set_qkv_bias(true); });
  EXPECT_EQ(parts[1], plain[1]);
  EXPECT_EQ(parts[2], plain[2] + 768 + 3 * (128 + 128));
  parts = parts_with([](auto* model) {
    model->set_qk_norm(true);
    model->set_qk_norm_weights(true);
  });
  EXPECT_EQ(parts[2], plain[2] + 64 + 64);
}

TEST(ShardOf, IsTheKeyOrItsOlderNameAndNothingForOneRank) {
  v1::JobSpec spec;
  EXPECT_EQ(ShardOf(spec, 2), v1::SHARD_NONE);
  spec.mutable_runtime()->set_shard_optimizer(true);
  EXPECT_EQ(ShardOf(spec, 2), v1::SHARD_OPTIMIZER);
  EXPECT_EQ(ShardOf(spec, 1), v1::SHARD_NONE);
  EXPECT_FALSE(ShardsGradients(spec, 2));
  SetShard(v1::SHARD_GRADIENTS, &spec);
  EXPECT_FALSE(spec.runtime().has_shard_optimizer());
  EXPECT_TRUE(ShardsOptimizer(spec, 2)) << "each level divides what the one before it does";
  EXPECT_TRUE(ShardsGradients(spec, 2));
  EXPECT_FALSE(ShardsParameters(spec, 2));
  SetShard(v1::SHARD_PARAMETERS, &spec);
  EXPECT_TRUE(ShardsGradients(spec, 2));
  EXPECT_TRUE(ShardsParameters(spec, 2));
  EXPECT_FALSE(ShardsParameters(spec, 1));
}

TEST(LevelsOf, EndBeforeTheOneThatAKeyRulesOut) {
  v1::JobSpec spec;
  EXPECT_EQ(LevelsOf(spec).back(), v1::SHARD_PARAMETERS);
  spec.mutable_sample()->add_prompts("To be");
  EXPECT_EQ(LevelsOf(spec).back(), v1::SHARD_GRADIENTS);
  EXPECT_EQ(RulesOut(v1::SHARD_PARAMETERS, spec), "sample.prompts");
  spec.clear_sample();
  spec.mutable_data()->set_allow_synthetic_fallback(true);
  EXPECT_EQ(LevelsOf(spec).back(), v1::SHARD_GRADIENTS);
  EXPECT_EQ(RulesOut(v1::SHARD_PARAMETERS, spec), "data.allow_synthetic_fallback");
  spec.mutable_model()->set_tie_embeddings(true);
  EXPECT_EQ(LevelsOf(spec).back(), v1::SHARD_OPTIMIZER);
  EXPECT_EQ(RulesOut(v1::SHARD_PARAMETERS, spec), "model.tie_embeddings");
  EXPECT_EQ(RulesOut(v1::SHARD_OPTIMIZER, spec), "");
}

TEST(ResolveShard, TakesTheFirstLevelThatFits) {
  v1::JobSpec spec = M7c();
  spec.mutable_train()->set_batch_size(4);
  spec.mutable_resources()->set_gpus(4);
  spec.mutable_runtime()->set_device(v1::DEVICE_CUDA);
  const auto bytes = [&spec](v1::Shard shard) {
    SetShard(shard, &spec);
    return TotalBytes(MemoryEstimate(spec));
  };
  const int64_t none = bytes(v1::SHARD_NONE), optimizer = bytes(v1::SHARD_OPTIMIZER);
  const int64_t gradients = bytes(v1::SHARD_GRADIENTS), parameters = bytes(v1::SHARD_PARAMETERS);
  const auto resolved = [&spec](int64_t memory, int ranks = 4) {
    spec.mutable_resources()->set_gpus(ranks);
    SetShard(v1::SHARD_AUTO, &spec);
    ResolveShard(memory, &spec);
    return ShardName(spec.runtime().shard());
  };
  EXPECT_EQ(resolved(none), "none");
  EXPECT_EQ(resolved(none - 1), "optimizer");
  EXPECT_EQ(resolved(optimizer - 1), "gradients");
  EXPECT_EQ(resolved(gradients - 1), "parameters");
  EXPECT_EQ(resolved(parameters - 1), "parameters") << "preflight says that none fits";
  EXPECT_EQ(resolved(0), "none") << "nobody knows the memory";
  EXPECT_EQ(resolved(1, 1), "none") << "there is nothing to divide";
  spec.mutable_sample()->add_prompts("To be");
  EXPECT_EQ(resolved(1), "gradients") << "rank 0 needs all weights";
  spec.mutable_model()->set_tie_embeddings(true);
  EXPECT_EQ(resolved(1), "optimizer") << "its gradients cannot be divided";
  SetShard(v1::SHARD_NONE, &spec);
  ResolveShard(1, &spec);
  EXPECT_EQ(spec.runtime().shard(), v1::SHARD_NONE) << "the job file decides";
}

TEST(MemoryEstimate, HasThePartOfTheGradientsThatTravelsInBf16) {
  const auto more = [](int gpus, bool cuda) {
    v1::JobSpec spec = M7c();
    spec.mutable_resources()->set_gpus(gpus);
    spec.mutable_runtime()->set_device(cuda ? v1::DEVICE_CUDA : v1::DEVICE_CPU);
    const int64_t fp32 = TotalBytes(MemoryEstimate(spec));
    spec.mutable_runtime()->set_gradient_precision(v1::PRECISION_BF16);
    return TotalBytes(MemoryEstimate(spec)) - fp32;
  };
  EXPECT_EQ(more(1, true), 0);
  EXPECT_EQ(more(2, true), 8 << 20);
  EXPECT_EQ(more(2, false), 2 * 78'295'332LL);
}

TEST(ExpectedTokensPerSecond, OfMuonIsHigherWhereItsMatricesAreDivided) {
  v1::JobSpec spec = M7c();
  spec.mutable_resources()->set_gpus(2);
  spec.mutable_runtime()->set_device(v1::DEVICE_CUDA);
  const auto gain = [&spec] {
    spec.mutable_runtime()->set_shard_optimizer(false);
    const double whole = ExpectedTokensPerSecond(spec, "NVIDIA H100", 0);
    spec.mutable_runtime()->set_shard_optimizer(true);
    return ExpectedTokensPerSecond(spec, "NVIDIA H100", 0) / whole;
  };
  EXPECT_EQ(gain(), 1);
  spec.mutable_train()->set_optimizer(v1::OPTIMIZER_MUON);
  EXPECT_GT(gain(), 1.01);
}

TEST(MemoryEstimate, OfFp32IsLargerThanOfBf16) {
  v1::JobSpec spec = M7c();
  spec.mutable_train()->set_batch_size(16);
  spec.mutable_runtime()->set_precision(v1::PRECISION_BF16);
  const int64_t bf16 = TotalBytes(MemoryEstimate(spec));
  spec.mutable_runtime()->set_precision(v1::PRECISION_FP32);
  EXPECT_GT(TotalBytes(MemoryEstimate(spec)), bf16 * 3 / 2);
}

TEST(SnapshotBytes, IsTwelveAParameterDividedByTheRanksAtEveryLevel) {
  constexpr int64_t kParameters = 78'295'332;
  v1::JobSpec spec = M7c();
  EXPECT_EQ(SnapshotBytes(spec, 1), 12 * kParameters);
  for (const v1::Shard shard : kShards) {
    SetShard(shard, &spec);
    for (const int gpus : {2, 4}) {
      spec.mutable_resources()->set_gpus(gpus);
      EXPECT_EQ(SnapshotBytes(spec, 1), 12 * kParameters / gpus) << ShardName(shard);
      EXPECT_EQ(SnapshotBytes(spec, gpus / 2), 12 * kParameters / 2) << "on each of two machines";
      EXPECT_EQ(SnapshotBytes(spec, gpus), 12 * kParameters);
    }
  }
}

// With Muon a rank may have half a matrix more than another, but all together have no more.
TEST(SnapshotBytes, OfAllRanksIsThatOfOne) {
  v1::JobSpec spec = M7c();
  spec.mutable_train()->set_optimizer(v1::OPTIMIZER_MUON);
  spec.mutable_resources()->set_gpus(4);
  SetShard(v1::SHARD_OPTIMIZER, &spec);
  EXPECT_GT(SnapshotBytes(spec, 1), 12 * 78'295'332LL / 4);
  EXPECT_EQ(SnapshotBytes(spec, 4), 12 * 78'295'332LL);
}

TEST(SnapshotBytes, OnTheCpuIsAPartOfTheEstimate) {
  v1::JobSpec spec = M7c();
  const auto counted = [&spec] {
    int64_t bytes = 0;
    for (const MemoryItem& item : MemoryEstimate(spec)) {
      if (item.name == "checkpoint snapshot") bytes += item.bytes;
    }
    return bytes;
  };
  EXPECT_EQ(counted(), 0) << "on a GPU";
  spec.mutable_runtime()->set_device(v1::DEVICE_CPU);
  spec.mutable_runtime()->set_precision(v1::PRECISION_FP32);
  EXPECT_EQ(counted(), SnapshotBytes(spec, 1));
}

TEST(DiskForCheckpoints, HasRoomForOneMoreAndForWhatRanksHandOver) {
  v1::JobSpec spec = M7c();
  spec.mutable_train()->set_keep_checkpoints(3);
  const auto four = static_cast<double>(4 * CheckpointBytes(spec));
  EXPECT_EQ(DiskForCheckpoints(spec), four);
  spec.mutable_resources()->set_gpus(2);
  EXPECT_EQ(DiskForCheckpoints(spec), four + 4 * 78'295'332.0 / 2) << "the weights of one rank";
}

TEST(CheckpointBytes, IsTwelveAParameterAndHeaders) {
  EXPECT_GE(CheckpointBytes(M7c()), 12 * 78'295'332LL);
  EXPECT_LT(CheckpointBytes(M7c()), 12 * 78'295'332LL + (1 << 20));
}

// Not 41,511,236 tok/s: a step takes at least the time that its kernels need to start.
TEST(ExpectedTokensPerSecond, OfAToyOnAGpuIsLimitedByItsLaunches) {
  v1::JobSpec spec = Toy();
  spec.mutable_runtime()->set_device(v1::DEVICE_CUDA);
  const double one = ExpectedTokensPerSecond(spec, "NVIDIA H200", 0);
  EXPECT_NEAR(one, 1024 / (8e-3 / 24), 1);
  spec.mutable_model()->set_n_layers(2);
  EXPECT_NEAR(ExpectedTokensPerSecond(spec, "NVIDIA H200", 0), one / 2, 1);
  spec.mutable_train()->set_accumulate_grad_batches(4);  // as many more tokens and launches
  EXPECT_NEAR(ExpectedTokensPerSecond(spec, "NVIDIA H200", 0), one / 2, 1);
}

// The figures of nsa-bench step of 2026-11-27 and, for the last shape, of a job.
TEST(ExpectedTokensPerSecond, IsNearWhatWasMeasuredOnAnH100) {
  v1::JobSpec spec = M7c();
  spec.mutable_runtime()->set_device(v1::DEVICE_CUDA);
  const auto expect = [&spec](int sequences, int tokens, double measured, double within) {
    spec.mutable_train()->set_batch_size(sequences);
    spec.mutable_train()->set_seq_len(tokens);
    EXPECT_NEAR(ExpectedTokensPerSecond(spec, "NVIDIA H100 80GB HBM3", 0) / measured, 1, within)
        << sequences << " x " << tokens;
  };
  expect(4, 2048, 480'000, 0.02);
  expect(32, 2048, 563'000, 0.02);
  expect(16, 4096, 468'400, 0.15);
  expect(8, 8192, 443'100, 0.12);
  expect(4, 16384, 412'900, 0.1);
  expect(2, 32768, 373'700, 0.05);
  expect(1, 65536, 310'500, 0.05);
  expect(1, 131072, 228'600, 0.1);
  spec.mutable_runtime()->set_gradient_checkpointing(true);
  expect(1, 1048576, 37'800, 0.15);
}

// docs/a100.md
TEST(ExpectedTokensPerSecond, OfAnA100IsThatOfItsPage) {
  v1::JobSpec spec = M7c();
  spec.mutable_runtime()->set_device(v1::DEVICE_CUDA);
  spec.mutable_train()->set_batch_size(4);
  EXPECT_NEAR(ExpectedTokensPerSecond(spec, "NVIDIA A100-SXM4-80GB", 0), 193'000, 4'000);
  spec.mutable_train()->set_batch_size(32);
  EXPECT_NEAR(ExpectedTokensPerSecond(spec, "NVIDIA A100-SXM4-80GB", 0), 224'000, 4'000);
}

TEST(ExpectedTokensPerSecond, IsSlowerWithGradientCheckpointingAndOnSmallerDevices) {
  v1::JobSpec spec = M7c();
  spec.mutable_runtime()->set_device(v1::DEVICE_CUDA);
  const double h200 = ExpectedTokensPerSecond(spec, "NVIDIA H200", 0);
  EXPECT_GT(h200, ExpectedTokensPerSecond(spec, "NVIDIA A100-SXM4-80GB", 0));
  spec.mutable_runtime()->set_gradient_checkpointing(true);
  EXPECT_LT(ExpectedTokensPerSecond(spec, "NVIDIA H200", 0), h200);
  spec.mutable_runtime()->set_device(v1::DEVICE_CPU);
  EXPECT_LT(ExpectedTokensPerSecond(spec, "cpu", 2), h200 / 100);
}

}  // namespace
}  // namespace nsa
