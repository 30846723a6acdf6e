#include "worker/train/model/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <random>

#include "common/estimate/layers.h"
#include "tests/worker/train/model/model_bench.h"
#include "tests/worker/train/tiny_job.h"
#include "worker/train/model/optimizer.h"

namespace nsa::train {
namespace {

struct Variant {
  const char* name;
  std::function<void(v1::JobSpec*)> change;
  bool document_mask = false;
};

class ModelVariants : public ::testing::TestWithParam<Variant> {
 protected:
  static std::unique_ptr<Bench> MakeBench() {
    v1::JobSpec spec = TinyJob();
    GetParam().change(&spec);
    auto bench = std::make_unique<Bench>(spec);
    if (GetParam().document_mask) {
      for (int64_t i = 0; i < bench->Rows(); ++i) {
        const int64_t t = i % spec.train().seq_len();
        bench->doc_start.push_back(t < 9 ? 0 : 9);
      }
    }
    return bench;
  }
};

// The derivative of the loss along `direction`, computed from central differences with two step
// sizes. Their combination has an error of the fourth order.
double DifferenceAlong(Bench* bench, const ParameterInfo& tensor,
                       const std::vector<double>& direction, double step) {
  const std::span<float> values = bench->parameters.of(tensor);
  const std::vector<float> start(values.begin(), values.end());
  const auto at = [&](double distance) {
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(start[i] + distance * direction[i]);
    }
    return bench->Loss();
  };
  const double near = (at(step) - at(-step)) / (2 * step);
  const double far = (at(2 * step) - at(-2 * step)) / (4 * step);
  std::copy(start.begin(), start.end(), values.begin());
  return (4 * near - far) / 3;
}

TEST_P(ModelVariants, GradientsEqualCentralDifferences) {
  const auto made = MakeBench();
  Bench& bench = *made;
  bench.Randomize();
  bench.Loss();
  bench.Backward();
  constexpr double kStep = 0.005;  // within two of them no query chooses other blocks
  std::mt19937 engine(5);
  std::normal_distribution<double> normal;
  for (const ParameterInfo& tensor : bench.layout.tensors()) {
    const std::span<const float> gradient = std::as_const(bench.gradients).of(tensor);
    double norm = 0;
    for (const float g : gradient) norm += double{g} * g;
    norm = std::sqrt(norm);
    // Along the gradient itself, which checks its length, and along two random directions.
    for (int trial = 0; trial < 3; ++trial) {
      std::vector<double> direction(gradient.begin(), gradient.end());
      if (trial > 0) {
        for (double& d : direction) d = normal(engine);
      }
      double length = 0, want = 0;
      for (const double d : direction) length += d * d;
      length = std::sqrt(length) + 1e-30;
      for (size_t i = 0; i < direction.size(); ++i) {
        direction[i] /= length;
        want += direction[i] * gradient[i];
      }
      const double got = DifferenceAlong(&bench, tensor, direction, kStep);
      // The loss of a token has an error of about 2^-21 (eight roundings of a number near 4), and
      // the errors of the 48 tokens are independent; the combination multiplies them by 2/step. The
      // fourth-order remainder is step^4 times a fifth derivative, of the order of the gradient.
      const double noise = 3 * (0x1p-21 / std::sqrt(48.0)) * 2 / kStep;
      EXPECT_NEAR(got, want, noise + 2e-3 * std::abs(want) + 1e-4 * norm)
          << tensor.name << " trial " << trial << " gradient norm " << norm;
    }
  }
}

TEST_P(ModelVariants, CheckpointingChangesNoBitOfLossOrGradient) {
  const auto made = MakeBench();
  Bench& keep = *made;
  v1::JobSpec spec = keep.spec;
  spec.mutable_runtime()->set_gradient_checkpointing(true);
  ASSERT_EQ(RecomputeOf(spec), Recompute::kMlp);
  keep.Randomize();
  const double loss = keep.Loss();
  keep.Backward();
  int64_t bytes = keep.model->activation_bytes();
  for (const Recompute what : {Recompute::kNorms, Recompute::kMlp, Recompute::kBlock}) {
    Bench recompute(spec, what);
    recompute.doc_start = keep.doc_start;
    recompute.Randomize();
    EXPECT_EQ(loss, recompute.Loss());
    recompute.Backward();
    for (const ParameterInfo& tensor : keep.layout.tensors()) {
      const auto a = keep.gradients.of(tensor), b = recompute.gradients.of(tensor);
      EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin())) << tensor.name;
    }
    EXPECT_LT(recompute.model->activation_bytes(), bytes);
    bytes = recompute.model->activation_bytes();
  }
}

TEST_P(ModelVariants, AddsTheGradientsOfMicroBatches) {
  const auto made = MakeBench();
  Bench& bench = *made;
  bench.Randomize();
  bench.Loss();
  bench.Backward();
  const std::vector<float> once(bench.gradients.flat().begin(), bench.gradients.flat().end());
  bench.Loss();
  bench.Backward();
  for (const ParameterInfo& tensor : bench.layout.tensors()) {
    double error = 0, size = 0;
    for (int64_t i = 0; i < tensor.size; ++i) {
      const double twice = 2.0 * once[tensor.offset + i];
      error += std::pow(bench.gradients.of(tensor)[i] - twice, 2);
      size += std::pow(twice, 2);
    }
    EXPECT_LE(std::sqrt(error), 1e-6 * std::sqrt(size) + 1e-8) << tensor.name;
  }
}

// Where the gradients are overwritten it does not matter what they were.
TEST_P(ModelVariants, OverwrittenGradientsAreThoseAddedToZeros) {
  const auto made = MakeBench();
  Bench& bench = *made;
  bench.Randomize();
  bench.Loss();
  bench.Backward();
  const std::vector<float> added(bench.gradients.flat().begin(), bench.gradients.flat().end());
  std::fill(bench.gradients.flat().begin(), bench.gradients.flat().end(), NAN);
  bench.Loss();
  EXPECT_TRUE(bench.model
                  ->Backward({}, static_cast<float>(1.0 / bench.Rows()), &bench.gradients,
                             /*after_part=*/{}, /*overwrite=*/true)
                  .ok());
  EXPECT_TRUE(std::equal(added.begin(), added.end(), bench.gradients.flat().begin()));
}

TEST_P(ModelVariants, EveryParameterReceivesAGradientOnStepOneAndChangesInFive) {
  const auto made = MakeBench();
  Bench& bench = *made;
  const std::vector<float> start(bench.parameters.flat().begin(), bench.parameters.flat().end());
  Optimizer optimizer(bench.spec.train(), &bench.layout);
  for (int step = 1; step <= 5; ++step) {
    std::fill(bench.gradients.flat().begin(), bench.gradients.flat().end(), 0.0f);
    bench.Loss();
    bench.Backward();
    const auto norm = optimizer.GlobalNorm({}, bench.gradients);
    ASSERT_TRUE(norm.ok());
    for (const ParameterInfo& tensor : bench.layout.tensors()) {
      // This bias shifts all compressed keys alike, which cancels in the softmax: its gradient is
      // 0.
      if (tensor.name.ends_with("phi_k.fc2.bias")) continue;
      double squares = 0;
      for (const float g : bench.gradients.of(tensor)) squares += double{g} * g;
      EXPECT_GT(std::sqrt(squares), 1e-12) << tensor.name << " in step " << step;
    }
    ASSERT_TRUE(optimizer.Update({}, step, 1e-2, *norm, bench.gradients, &bench.parameters).ok());
  }
  for (const ParameterInfo& tensor : bench.layout.tensors()) {
    const auto now = bench.parameters.of(tensor);
    EXPECT_FALSE(std::equal(now.begin(), now.end(), start.begin() + tensor.offset)) << tensor.name;
  }
}

TEST_P(ModelVariants, AFutureTokenChangesNoBitOfAnEarlierLoss) {
  const auto made = MakeBench();
  Bench& bench = *made;
  bench.Randomize();
  bench.Loss();
  const std::vector<float> before(bench.model->token_losses().begin(),
                                  bench.model->token_losses().end());
  const int32_t seq_len = bench.spec.train().seq_len();
  for (int32_t p = 1; p < seq_len; ++p) {
    const std::vector<int32_t> tokens = bench.tokens;
    for (int32_t t = p; t < seq_len; ++t) bench.tokens[t] = (bench.tokens[t] + 1) % 11;
    bench.Loss();
    for (int32_t t = 0; t < p; ++t) ASSERT_EQ(bench.model->token_losses()[t], before[t]) << p;
    EXPECT_NE(bench.model->token_losses()[p], before[p]) << p;
    bench.tokens = tokens;
  }
}

TEST_P(ModelVariants, CountsTheKeysThatTheFormulaExpects) {
  const auto made = MakeBench();
  Bench& bench = *made;
  bench.Loss();
  bench.Loss();
  const std::vector<v1::LayerStats> stats = bench.model->TakeLayerStats();
  const std::vector<LayerAttention> turns = LayersOf(bench.spec.nsa());
  ASSERT_EQ(std::ssize(stats), bench.spec.model().n_layers());
  for (const v1::LayerStats& layer : stats) {
    const BranchSet& has = turns[layer.layer() % turns.size()].branches;
    for (int branch = 0; branch < 3; ++branch) {
      EXPECT_EQ(layer.keys_read(branch), layer.keys_expected(branch)) << branch;
      EXPECT_EQ(layer.keys_read(branch) > 0, has[branch]) << branch;
    }
    EXPECT_EQ(layer.has_gate(), std::count(has.begin(), has.end(), true) > 1);
    EXPECT_EQ(layer.has_selection(), has[kSel]);
    if (!layer.has_gate()) continue;
    EXPECT_NEAR(
        layer.gate().branch_share(0) + layer.gate().branch_share(1) + layer.gate().branch_share(2),
        1.0, 1e-5);
    const bool softmax = bench.spec.nsa().gate() == v1::GATE_SOFTMAX;
    for (int branch = 0; branch < 3; ++branch) {
      const double share = layer.gate().branch_share(branch);
      const bool same = std::abs(layer.gate().gate_mean(branch) - share) < 1e-5;
      EXPECT_EQ(same, softmax || share == 0);
    }
  }
  EXPECT_EQ(bench.model->TakeLayerStats()[0].keys_expected(2), 0) << "taken means gone";
}

TEST_P(ModelVariants, AnAuditMeasuresEveryBranchThatReadsTokensAndChangesNoBit) {
  const auto made = MakeBench();
  Bench& bench = *made;
  bench.Randomize();
  const double loss = bench.Loss();
  bench.Backward();
  const std::vector<float> gradients(bench.gradients.flat().begin(), bench.gradients.flat().end());
  ASSERT_TRUE(bench.model->AuditAttention({}, 100).ok());
  const std::vector<LayerAttention> turns = LayersOf(bench.spec.nsa());
  for (const v1::LayerStats& layer : bench.model->TakeLayerStats()) {
    const auto& [has, full] = turns[layer.layer() % turns.size()];
    const v1::AttentionAudit& audit = layer.audit();
    EXPECT_EQ(layer.has_audit(), (has[kSel] || has[kWin]) && !full) << "nothing is left out";
    if (full) continue;
    EXPECT_EQ(audit.queries(), layer.has_audit() ? 48 * 4 : 0);
    EXPECT_EQ(audit.has_selected_mass(), has[kSel]);
    EXPECT_EQ(audit.selected_mass() > 0.5, has[kSel]) << audit.DebugString();
    EXPECT_LE(audit.selected_mass_p10(), audit.selected_mass());
    EXPECT_EQ(audit.has_window_mass(), has[kWin]);
    EXPECT_EQ(audit.window_mass() > 0.1, has[kWin]) << audit.DebugString();
    EXPECT_EQ(audit.choice().rows() > 0, has[kSel]) << audit.DebugString();
    EXPECT_EQ(audit.choice().window_overlap_ratio() > 0, has[kSel] && has[kWin]);
    EXPECT_LE(std::max(audit.selected_mass(), audit.window_mass()), 1.000001);
  }
  std::fill(bench.gradients.flat().begin(), bench.gradients.flat().end(), 0.0f);
  EXPECT_EQ(bench.Loss(), loss);
  bench.Backward();
  EXPECT_TRUE(std::equal(gradients.begin(), gradients.end(), bench.gradients.flat().begin()));
  for (const v1::LayerStats& layer : bench.model->TakeLayerStats()) {
    EXPECT_FALSE(layer.has_audit()) << "taken means gone";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, ModelVariants,
    ::testing::Values(
        Variant{"Default", [](v1::JobSpec*) {}},
        Variant{"PhiMlp", [](v1::JobSpec* s) { s->mutable_nsa()->set_phi(v1::PHI_MLP); }},
        Variant{"Sigmoid", [](v1::JobSpec* s) { s->mutable_nsa()->set_gate(v1::GATE_SIGMOID); }},
        Variant{"WindowAndSelection", [](v1::JobSpec* s) { SetLayers(s, {"sel+win"}); }},
        Variant{"WindowAlone", [](v1::JobSpec* s) { SetLayers(s, {"win"}); }},
        Variant{"LayersInTurn",
                [](v1::JobSpec* s) {
                  SetLayers(s, {"win", "cmp+sel"});
                }},
        Variant{"LayersInTurnOfThreeWithDocuments",
                [](v1::JobSpec* s) {
                  s->mutable_model()->set_n_layers(3);
                  s->mutable_nsa()->set_phi(v1::PHI_MLP);
                  s->mutable_nsa()->set_gate(v1::GATE_SIGMOID);
                  SetLayers(s, {"sel+win", "cmp"});
                },
                true},
        Variant{"QkNorm", [](v1::JobSpec* s) { s->mutable_model()->set_qk_norm(true); }},
        Variant{"Relu2",
                [](v1::JobSpec* s) { s->mutable_model()->set_activation(v1::ACTIVATION_RELU2); }},
        Variant{"NormEps",
                [](v1::JobSpec* s) {
                  s->mutable_model()->set_norm_eps(0.01);
                  s->mutable_model()->set_qk_norm(true);
                }},
        Variant{"Swiglu",
                [](v1::JobSpec* s) {
                  s->mutable_model()->set_mlp(v1::MLP_SWIGLU);
                  s->mutable_model()->set_mlp_dim(48);
                }},
        Variant{"QkvBias", [](v1::JobSpec* s) { s->mutable_model()->set_qkv_bias(true); }},
        Variant{"RopeScaling",
                [](v1::JobSpec* s) {
                  v1::RopeScaling* scaling = s->mutable_model()->mutable_rope_scaling();
                  scaling->set_type(v1::ROPE_SCALING_TYPE_LLAMA3);
                  scaling->set_factor(4);
                  scaling->set_original_seq_len(64);
                  ApplyDefaults(s);
                }},
        Variant{"RotationInWindows",
                [](v1::JobSpec* s) {
                  s->mutable_model()->set_rope_layers(v1::ROPE_LAYERS_WINDOW);
                  SetLayers(s, {"win", "cmp+sel"});
                }},
        Variant{"FullAndWindowsAndBlocks",
                [](v1::JobSpec* s) {
                  s->mutable_model()->set_n_layers(3);
                  SetLayers(s, {"full", "win", "sel"});
                }},
        Variant{"FullWithoutRotationWithDocuments",
                [](v1::JobSpec* s) {
                  s->mutable_model()->set_rope_layers(v1::ROPE_LAYERS_WINDOW);
                  SetLayers(s, {"win", "full"});
                },
                true},
        Variant{"QkNormWeights",
                [](v1::JobSpec* s) {
                  s->mutable_model()->set_qk_norm(true);
                  s->mutable_model()->set_qk_norm_weights(true);
                }},
        Variant{"TiedEmbeddings",
                [](v1::JobSpec* s) { s->mutable_model()->set_tie_embeddings(true); }},
        Variant{"AllOfOtherFamilies", UseAllOfOtherFamilies},
        Variant{"AllOfOtherFamiliesInTurnWithDocuments",
                [](v1::JobSpec* s) {
                  UseAllOfOtherFamilies(s);
                  SetLayers(s, {"win", "cmp+sel"});
                  s->mutable_nsa()->set_phi(v1::PHI_MLP);
                },
                true},
        Variant{"MlpDim", [](v1::JobSpec* s) { s->mutable_model()->set_mlp_dim(48); }},
        Variant{"DocumentMask", [](v1::JobSpec*) {}, true}),
    [](const auto& variant) { return std::string(variant.param.name); });

// A layer of zeros leaves the residual stream as it is. The other one must then compute what it
// computes in a model with its branches everywhere.
TEST(Model, EveryLayerInTurnComputesWhatAModelOfItsBranchesDoes) {
  const char* const turns[] = {"win", "cmp+sel"};
  v1::JobSpec spec = TinyJob();
  SetLayers(&spec, {turns[0], turns[1]});
  for (const int layer : {0, 1}) {
    v1::JobSpec uniform_spec = TinyJob();
    SetLayers(&uniform_spec, {turns[layer]});
    Bench both(spec), uniform(uniform_spec);
    both.Randomize();
    const std::string silent = "blocks." + std::to_string(1 - layer) + ".";
    for (const ParameterInfo& tensor : both.layout.tensors()) {
      if (tensor.name.starts_with(silent)) std::ranges::fill(both.parameters.of(tensor), 0.0f);
      const auto same = uniform.layout.Find(tensor.name);
      if (!same.ok() || (*same)->shape != tensor.shape) continue;
      std::ranges::copy(both.parameters.of(tensor), uniform.parameters.of(**same).begin());
    }
    EXPECT_EQ(both.Loss(), uniform.Loss()) << turns[layer];
  }
}

// Weights of the same name have the same values, so that the loss differs by what the key says.
TEST(Model, EveryKeyOfOtherFamiliesChangesTheLoss) {
  using Change = void (*)(v1::ModelSpec*);
  const std::pair<const char*, Change> changes[] = {
      {"norm_eps", [](v1::ModelSpec* model) { model->set_norm_eps(0.005); }},
      {"mlp", [](v1::ModelSpec* model) { model->set_mlp(v1::MLP_SWIGLU); }},
      {"tie_embeddings", [](v1::ModelSpec* model) { model->set_tie_embeddings(true); }},
      {"qkv_bias", [](v1::ModelSpec* model) { model->set_qkv_bias(true); }},
      {"qk_norm_weights", [](v1::ModelSpec* model) { model->set_qk_norm_weights(true); }},
      {"rope_scaling", [](v1::ModelSpec* model) {
         v1::RopeScaling& scaling = *model->mutable_rope_scaling();
         scaling.set_type(v1::ROPE_SCALING_TYPE_LLAMA3);
         scaling.set_factor(8);
         scaling.set_original_seq_len(64);
         scaling.set_low_freq_factor(1);
         scaling.set_high_freq_factor(4);
       }}};
  v1::JobSpec plain = TinyJob();
  plain.mutable_model()->set_qk_norm(true);
  const auto loss_of = [](const v1::JobSpec& spec) {
    Bench bench(spec);
    for (const ParameterInfo& tensor : bench.layout.tensors()) {
      std::mt19937 engine(static_cast<uint32_t>(std::hash<std::string>()(tensor.name)));
      std::normal_distribution<float> normal(0.0f, 0.25f);
      for (float& value : bench.parameters.of(tensor)) {
        value = (tensor.init == Init::kOnes ? 1.0f : 0.0f) + normal(engine);
      }
    }
    return bench.Loss();
  };
  const double loss = loss_of(plain);
  EXPECT_EQ(loss_of(plain), loss);
  for (const auto& [name, change] : changes) {
    v1::JobSpec spec = plain;
    change(spec.mutable_model());
    EXPECT_GT(std::abs(loss_of(spec) - loss), 1e-3) << name;
  }
}

TEST(Model, StartsAtTheEntropyOfTheVocabulary) {
  Bench bench(TinyJob());
  // Logits have a standard deviation of 0.02·√32 = 0.11: the expected loss is ln V + 0.11²/2.
  EXPECT_NEAR(bench.Loss(), std::log(11.0), 0.05);
}

// The audits of a model after one forward and backward.
std::vector<v1::AttentionAudit> AuditOf(const v1::JobSpec& spec,
                                        std::optional<Recompute> recompute = {}) {
  Bench bench(spec, recompute);
  bench.Randomize();
  bench.Loss();
  bench.Backward();
  EXPECT_TRUE(bench.model->AuditAttention({}, 100).ok());
  std::vector<v1::AttentionAudit> audits;
  for (const v1::LayerStats& layer : bench.model->TakeLayerStats()) {
    audits.push_back(layer.audit());
  }
  return audits;
}

TEST(Model, AnAuditIsTheSameWhateverBackwardRecomputes) {
  v1::JobSpec spec = TinyJob();
  spec.mutable_nsa()->set_l_sel(4);
  const auto keep = AuditOf(spec);
  for (const Recompute recompute : {Recompute::kNorms, Recompute::kMlp, Recompute::kBlock}) {
    const auto again = AuditOf(spec, recompute);
    for (size_t layer = 0; layer < keep.size(); ++layer) {
      EXPECT_EQ(again[layer].SerializeAsString(), keep[layer].SerializeAsString());
    }
  }
  EXPECT_NE(keep[0].SerializeAsString(), keep[1].SerializeAsString());
}

TEST(Model, AnAuditFindsThatMoreBlocksKeepMoreAndAllBlocksEverything) {
  v1::JobSpec spec = TinyJob();
  spec.mutable_nsa()->set_l_sel(4);
  spec.mutable_nsa()->set_n_sel(6);  // of 24 tokens: all
  const auto all = AuditOf(spec);
  spec.mutable_nsa()->set_n_sel(3);
  const auto some = AuditOf(spec);
  EXPECT_FLOAT_EQ(all[0].selected_mass_p10(), 1);
  EXPECT_LT(some[0].selected_mass(), 0.95 * all[0].selected_mass());
  EXPECT_LT(some[0].selected_mass_p10(), 0.95 * some[0].selected_mass());
  EXPECT_EQ(some[0].window_mass(), all[0].window_mass());
}

TEST(Model, RefusesABackwardWithoutAForward) {
  Bench bench(TinyJob());
  EXPECT_EQ(bench.model->Backward({}, 1.0f, &bench.gradients).code(),
            absl::StatusCode::kFailedPrecondition);
  bench.Loss();
  bench.Backward();
  EXPECT_EQ(bench.model->Backward({}, 1.0f, &bench.gradients).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(Model, NextLogitsAreThoseOfTheLoss) {
  Bench bench(TinyJob());
  bench.Randomize();
  bench.Loss();
  auto one = Model::Create(bench.spec, {.batch = 1, .seq_len = 24}, &bench.parameters);
  ASSERT_TRUE(one.ok());
  std::vector<int32_t> row(bench.tokens.begin(), bench.tokens.begin() + 24);
  std::vector<float> logits(11);
  for (const int32_t position : {0, 7, 23}) {
    for (int32_t t = position + 1; t < 24; ++t) row[t] = 0;
    ASSERT_TRUE((*one)->NextLogits({}, row, position, logits).ok());
    double sum = 0;
    for (const float logit : logits) sum += std::exp(double{logit});
    EXPECT_NEAR(std::log(sum) - logits[bench.targets[position]],
                bench.model->token_losses()[position], 1e-5);
    std::copy_n(bench.tokens.begin(), 24, row.begin());
  }
}

// A layer of selected blocks that reads everything, without the rotation, sees a set of tokens.
TEST(Model, WithoutRotationALayerDoesNotKnowTheOrderOfTokens) {
  v1::JobSpec spec = TinyJob();
  spec.mutable_model()->set_n_layers(1);
  spec.mutable_nsa()->set_n_sel(64);
  SetLayers(&spec, {"sel"});
  for (const v1::RopeLayers rotated : {v1::ROPE_LAYERS_ALL, v1::ROPE_LAYERS_WINDOW}) {
    spec.mutable_model()->set_rope_layers(rotated);
    Bench bench(spec);
    bench.Randomize();
    auto one = Model::Create(spec, {.batch = 1, .seq_len = 24}, &bench.parameters);
    ASSERT_TRUE(one.ok());
    std::vector<int32_t> row(bench.tokens.begin(), bench.tokens.begin() + 24);
    std::vector<float> logits(11), of_reversed(11);
    ASSERT_TRUE((*one)->NextLogits({}, row, 23, logits).ok());
    std::reverse(row.begin(), row.end() - 1);
    ASSERT_TRUE((*one)->NextLogits({}, row, 23, of_reversed).ok());
    double apart = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      apart = std::max(apart, std::abs(double{logits[i]} - of_reversed[i]));
    }
    if (rotated == v1::ROPE_LAYERS_WINDOW) {
      EXPECT_LT(apart, 1e-5);
    } else {
      EXPECT_GT(apart, 1e-3);
    }
  }
}

TEST(Model, LearnsOneBatchByHeart) {
  Bench bench(TinyJob());
  Optimizer optimizer(bench.spec.train(), &bench.layout);
  const double start = bench.Loss();
  for (int step = 1; step <= 60; ++step) {
    std::fill(bench.gradients.flat().begin(), bench.gradients.flat().end(), 0.0f);
    bench.Loss();
    bench.Backward();
    const double norm = *optimizer.GlobalNorm({}, bench.gradients);
    ASSERT_TRUE(optimizer.Update({}, step, 1e-2, norm, bench.gradients, &bench.parameters).ok());
  }
  EXPECT_LT(bench.Loss(), 0.2 * start);
}
}  // namespace
}  // namespace nsa::train
