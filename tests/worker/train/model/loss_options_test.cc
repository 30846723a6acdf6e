// model.logit_softcap and train.z_loss in the whole model: what is reported, and of what the
// gradient is one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "tests/testing/status_matchers.h"
#include "tests/worker/train/tiny_job.h"
#include "worker/train/gpu/machine.h"
#include "worker/train/model/model.h"
#include "worker/train/model/parameters.h"

namespace nsa::train {
namespace {

v1::JobSpec JobWith(double softcap, double z_loss) {
  v1::JobSpec spec = TinyJob();
  spec.mutable_model()->set_n_layers(1);
  spec.mutable_model()->set_logit_softcap(softcap);
  spec.mutable_train()->set_z_loss(z_loss);
  spec.mutable_train()->set_batch_size(1);
  return spec;
}

// A model with large random weights and one row of tokens.
class Row {
 public:
  explicit Row(const v1::JobSpec& spec)
      : spec_(spec),
        layout_(spec),
        parameters_(&layout_),
        gradients_(&layout_),
        tokens_(TinyTokens(spec.train().seq_len(), spec.model().vocab(), 1)),
        targets_(TinyTokens(spec.train().seq_len(), spec.model().vocab(), 2)) {
    SetThreads(1, 1);  // the shapes are too small for several threads
    targets_[5] = -1;  // not predicted
    std::mt19937 engine(3);
    std::normal_distribution<float> normal(0.0f, 0.25f);
    for (const ParameterInfo& tensor : layout_.tensors()) {
      for (float& value : parameters_.of(tensor)) {
        value = (tensor.init == Init::kOnes ? 1.0f : 0.0f) + normal(engine);
      }
    }
    auto model = Model::Create(
        spec, {.batch = 1, .seq_len = spec.train().seq_len(), .training = true}, &parameters_);
    EXPECT_OK(model);
    model_ = *std::move(model);
  }
  Row(const Row&) = delete;  // the arenas have pointers to the layout

  double Loss() {
    const auto loss = model_->Forward({}, {tokens_, targets_});
    EXPECT_OK(loss);
    return *loss;
  }

  // The gradient of the mean over the predicted tokens.
  const Arena& Gradients() {
    std::ranges::fill(gradients_.flat(), 0.0f);
    Loss();
    EXPECT_OK(model_->Backward({}, 1.0f / static_cast<float>(tokens_.size() - 1), &gradients_));
    return gradients_;
  }

  struct Means {
    double loss = 0, square = 0;  // of the cross-entropy, and of ln² Σ exp(logits)
  };
  // From the logits after each token, in fp64.
  Means FromLogits() {
    std::vector<float> logits(spec_.model().vocab());
    Means means;
    const auto count = static_cast<double>(tokens_.size() - 1);
    for (size_t t = 0; t < tokens_.size(); ++t) {
      if (targets_[t] < 0) continue;
      EXPECT_OK(model_->NextLogits({}, tokens_, static_cast<int32_t>(t), logits));
      double sum = 0;
      for (const float logit : logits) sum += std::exp(double{logit});
      const double lse = std::log(sum);
      means.loss += (lse - logits[targets_[t]]) / count;
      means.square += lse * lse / count;
      for (const float logit : logits) largest_ = std::max(largest_, std::abs(logit));
    }
    return means;
  }
  float largest_logit() const { return largest_; }

  const ParameterLayout& layout() const { return layout_; }
  Arena& parameters() { return parameters_; }

 private:
  const v1::JobSpec spec_;
  const ParameterLayout layout_;
  Arena parameters_, gradients_;
  std::vector<int32_t> tokens_, targets_;
  std::unique_ptr<Model> model_;
  float largest_ = 0;
};

TEST(LossOptions, TheReportedLossIsTheCrossEntropyOfTheSoftCappedLogits) {
  Row plain(JobWith(0, 0)), with_z(JobWith(0, 1)), capped(JobWith(1.5, 0)), both(JobWith(1.5, 1));
  EXPECT_NEAR(plain.Loss(), plain.FromLogits().loss, 1e-5);
  EXPECT_GT(plain.largest_logit(), 3);
  EXPECT_EQ(with_z.Loss(), plain.Loss()) << "without the z-loss";
  EXPECT_NEAR(capped.Loss(), capped.FromLogits().loss, 1e-5);
  EXPECT_LE(capped.largest_logit(), 1.5);
  EXPECT_GT(std::abs(capped.Loss() - plain.Loss()), 0.1);
  EXPECT_EQ(both.Loss(), capped.Loss());
}

// Along the gradient of each tensor, with a central difference of what is minimized. It has about
// 24 roundings of 2^-22, divided by the step, and an error of the order of the step's square.
TEST(LossOptions, GradientsAreThoseOfTheLossAndTheZLoss) {
  constexpr double kStep = 2e-3;
  for (const auto& [softcap, z_loss] : {std::pair(0.0, 0.3), {1.5, 0.0}, {1.5, 0.3}}) {
    Row row(JobWith(softcap, z_loss));
    const Arena& gradients = row.Gradients();
    for (const ParameterInfo& tensor : row.layout().tensors()) {
      const std::span<const float> gradient = gradients.of(tensor);
      const std::span<float> values = row.parameters().of(tensor);
      const std::vector<float> start(values.begin(), values.end());
      double norm = 0;
      for (const float g : gradient) norm += double{g} * g;
      norm = std::sqrt(norm);
      const auto objective = [&](double distance) {
        for (size_t i = 0; i < values.size(); ++i) {
          values[i] = static_cast<float>(start[i] + distance * gradient[i] / (norm + 1e-30));
        }
        const Row::Means means = row.FromLogits();
        return means.loss + z_loss * means.square;
      };
      const double slope = (objective(kStep) - objective(-kStep)) / (2 * kStep);
      std::ranges::copy(start, values.begin());
      EXPECT_NEAR(slope, norm, 2e-3 * norm + 2e-4)
          << tensor.name << ", softcap " << softcap << ", z_loss " << z_loss;
    }
  }
}

}  // namespace
}  // namespace nsa::train
