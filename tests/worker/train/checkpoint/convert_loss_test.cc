// What a dense model that has learned something loses when it becomes sparse: the losses before a
// first step. The model is trained here, on rows in which values have to be looked up.
#include <cblas.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "common/export/conversion.h"
#include "common/job/load.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "worker/train/model/model.h"
#include "worker/train/model/optimizer.h"
#include "worker/train/model/parameters.h"

namespace nsa::train {
namespace {

constexpr int32_t kSeqLen = 192, kBatch = 8, kKeys = 16, kVocab = 9 * kKeys, kSteps = 500;

v1::JobSpec DenseJob() {
  v1::JobSpec spec;
  EXPECT_OK(LoadYamlText(
      "model: {dim: 64, n_layers: 2, n_heads: 4, n_kv_groups: 2, d_k: 16, d_v: 16, mlp_ratio: 2,\n"
      "  vocab: 144, qk_norm: true}\n"
      "nsa: {branches: [win], w: 192}\n"
      "train: {seq_len: 192, batch_size: 8, optimizer: muon, lr: 3.0e-3, muon_lr: 2.0e-2,\n"
      "  weight_decay: 0}\n",
      "dense.yaml", &spec));
  ApplyDefaults(&spec);
  return spec;
}

// Inputs and the tokens that follow them, [kBatch, kSeqLen].
struct Rows {
  std::vector<int32_t> tokens, targets;
};

// A row is pairs of a key and the value that this key has in this row: one of eight of its own.
Rows ReadRows(int64_t first) {
  Rows rows;
  for (int64_t i = first; i < first + kBatch; ++i) {
    std::mt19937 engine(static_cast<uint32_t>(i));
    const auto draw = [&](int32_t count) { return static_cast<int32_t>(engine() % count); };
    std::array<int32_t, kKeys> value_of;
    for (int32_t key = 0; key < kKeys; ++key) value_of[key] = kKeys + 8 * key + draw(8);
    for (int32_t t = 0; t < kSeqLen; t += 2) {
      const int32_t key = draw(kKeys);
      rows.tokens.insert(rows.tokens.end(), {key, value_of[key]});
      rows.targets.insert(rows.targets.end(), {value_of[key], -1});
    }
  }
  return rows;
}

std::unique_ptr<Model> MakeModel(const v1::JobSpec& spec, const Arena& parameters, bool training) {
  auto model =
      Model::Create(spec, {.batch = kBatch, .seq_len = kSeqLen, .training = training}, &parameters);
  EXPECT_OK(model);
  return *std::move(model);
}

// With blocks that begin as the identity the model learns to look up in these few steps.
void BeginAsIdentity(Arena* parameters) {
  for (const ParameterInfo& tensor : parameters->layout().tensors()) {
    if (!tensor.name.ends_with("attn.out.weight") && !tensor.name.ends_with("mlp.fc2.weight")) {
      continue;
    }
    std::ranges::fill(parameters->of(tensor), 0.0f);
  }
}

void Train(const v1::JobSpec& spec, Arena* parameters) {
  const auto model = MakeModel(spec, *parameters, /*training=*/true);
  Arena gradients(&parameters->layout());
  Optimizer optimizer(spec.train(), &parameters->layout());
  for (int step = 1; step <= kSteps; ++step) {
    const Rows rows = ReadRows(step * kBatch);
    ASSERT_OK(model->Forward({}, {rows.tokens, rows.targets}));
    ASSERT_OK(model->Backward({}, 2.0f / (kBatch * kSeqLen), &gradients, {}, /*overwrite=*/true));
    const auto norm = optimizer.GlobalNorm({}, gradients);
    ASSERT_OK(norm);
    const double left = 1 - static_cast<double>(step - 1) / kSteps;
    ASSERT_OK(optimizer.Update({}, step, left * spec.train().lr(), *norm, gradients, parameters));
  }
}

// The mean loss over rows that were not trained on.
double LossOf(const v1::JobSpec& spec, const Arena& parameters) {
  const auto model = MakeModel(spec, parameters, /*training=*/false);
  constexpr int kBatches = 6;
  double sum = 0;
  for (int i = 0; i < kBatches; ++i) {
    const Rows rows = ReadRows((kSteps + 1 + i) * kBatch);
    const auto loss = model->Forward({}, {rows.tokens, rows.targets});
    EXPECT_OK(loss);
    sum += *loss;
  }
  return sum / kBatches;
}

// What takes the place of a conversion's own values.
struct Instead {
  bool random = false;        // the branches that the dense model does not have, drawn at random
  std::vector<double> gates;  // of the branches, in the order of branch.h
};

class ConvertLoss : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    // The shapes are too small for several threads.
    omp_set_num_threads(1);
    openblas_set_num_threads(1);
    spec_ = DenseJob();
    layout_ = std::make_unique<ParameterLayout>(spec_);
    dense_ = Arena(layout_.get());
    Initialize(11, &dense_);
    BeginAsIdentity(&dense_);
    Train(spec_, &dense_);
  }
  static void TearDownTestSuite() {
    dense_ = Arena();
    layout_ = nullptr;
  }

  // The loss of the converted model.
  static double Loss(const std::string& nsa, const Instead& instead = {}) {
    v1::JobSpec keys;
    EXPECT_OK(LoadYamlText("nsa: {l: 16, d: 8, l_sel: 16, n_sel: 5, w: 48, " + nsa + "}",
                           "nsa.yaml", &keys));
    const auto spec = ConvertedSpec(spec_, keys.nsa());
    EXPECT_OK(spec);
    const ParameterLayout layout(*spec);
    Arena parameters(&layout);
    Initialize(12, &parameters);
    for (const ParameterInfo& tensor : layout.tensors()) {
      const TensorStart start = StartOf(*spec, tensor.name);
      const std::span<float> values = parameters.of(tensor);
      if (instead.random && start.dense != tensor.name) continue;
      if (start.dense.empty()) {
        std::ranges::copy(start.values, values.begin());
      } else {
        const auto from = layout_->Find(start.dense);
        EXPECT_OK(from);
        std::ranges::copy(dense_.of(**from), values.begin());
      }
      if (instead.gates.empty() || !tensor.name.ends_with("gate.fc2.bias")) continue;
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<float>(std::log(instead.gates[i] / (1 - instead.gates[i])));
      }
    }
    return LossOf(*spec, parameters);
  }

  static double DenseLoss() { return LossOf(spec_, dense_); }

  static inline v1::JobSpec spec_;
  static inline std::unique_ptr<ParameterLayout> layout_;
  static inline Arena dense_;
};

TEST_F(ConvertLoss, IsNearTheDenseModelsAndFarFromThatOfRandomBranches) {
  const double dense = DenseLoss();
  EXPECT_LT(dense, 0.5) << "the model has learned to look up values";
  for (const char* nsa :
       {"layers: [sel]", "layers: [sel+win]", "layers: [cmp+sel]", "layers: [cmp+sel+win]",
        "layers: [cmp+sel+win], phi: mlp", "layers: [cmp+sel+win], gate: softmax"}) {
    const double converted = Loss(nsa) - dense;
    EXPECT_LT(converted, 0.03) << nsa;
    EXPECT_GT(Loss(nsa, {.random = true, .gates = {}}) - dense, 8 * std::abs(converted)) << nsa;
  }
}

// The first layer looks values up. With a window it no longer sees those before, whatever the
// second one sees.
TEST_F(ConvertLoss, OfAWindowIsHighWhereTheLayerLookedFar) {
  const double dense = DenseLoss();
  EXPECT_LT(Loss("layers: [sel, win]") - dense, 0.05);
  EXPECT_GT(Loss("layers: [win, sel]") - dense, 0.2);
}

TEST_F(ConvertLoss, TheGatesAreNearTheBestOnes) {
  const double two = Loss("layers: [sel+win]"), three = Loss("layers: [cmp+sel+win]");
  for (const double win : {0.01, 0.1, 0.2, 0.4, 0.8}) {
    const double other = Loss("layers: [sel+win]", {.random = false, .gates = {1 - win, win}});
    EXPECT_LT(two - other, 0.005) << win;
  }
  for (const double cmp : {0.001, 0.02, 0.1, 0.4}) {
    const double other =
        Loss("layers: [cmp+sel+win]", {.random = false, .gates = {cmp, 0.75 - cmp, 0.25}});
    EXPECT_LT(three - other, 0.005) << cmp;
  }
}

}  // namespace
}  // namespace nsa::train
