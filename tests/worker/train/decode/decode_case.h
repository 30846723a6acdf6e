// A small model with large random weights and a text, to compare decoding with the whole forward
// pass.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "gmock/gmock.h"
#include "nsa/v1/job.pb.h"
#include "tests/testing/status_matchers.h"
#include "tests/worker/train/tiny_job.h"
#include "worker/train/decode/decoder.h"
#include "worker/train/gpu/machine.h"
#include "worker/train/model/model.h"
#include "worker/train/model/model_config.h"

namespace nsa::train {

// Logarithms of probabilities [V].
inline std::vector<double> LogProbabilities(std::span<const float> logits) {
  double max = -1e30, sum = 0;
  for (const float x : logits) max = std::max(max, double{x});
  for (const float x : logits) sum += std::exp(x - max);
  std::vector<double> result;
  for (const float x : logits) result.push_back(x - max - std::log(sum));
  return result;
}

// The nearest number with the sign, exponent and upper 7 bits of the mantissa of a float.
inline float RoundToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return std::bit_cast<float>((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u);
}

class DecodeCase {
 public:
  // kForGpu: weights that bf16 represents, smaller so that its rounding matters less.
  enum class Weights { kForCpu, kForGpu };

  DecodeCase(const v1::JobSpec& spec, int32_t tokens, uint32_t seed,
             Weights weights = Weights::kForCpu)
      : spec_(spec), layout_(spec), parameters_(&layout_) {
    SetThreads(1, 1);  // the shapes are too small for several threads
    // Weights large enough that scores, gates and norms are far from their symmetric initial
    // values.
    std::mt19937 engine(seed);
    const bool for_gpu = weights == Weights::kForGpu;
    std::normal_distribution<float> normal(0.0f, for_gpu ? 0.125f : 0.25f);
    for (const ParameterInfo& tensor : layout_.tensors()) {
      for (float& value : parameters_.of(tensor)) {
        value = (tensor.init == Init::kOnes ? 1.0f : 0.0f) + normal(engine);
        if (for_gpu) value = RoundToBf16(value);
      }
    }
    text_ = TinyTokens(tokens, spec.model().vocab(), seed);
    if (spec.data().document_mask()) {
      for (int32_t t = 0; t < tokens; ++t) {
        starts_.push_back(text_[t] == kSeparator || t == 0 ? t : starts_.back());
      }
    }
  }
  DecodeCase(const DecodeCase&) = delete;  // the parameters have a pointer to the layout

  static constexpr int32_t kSeparator = 3;

  const v1::JobSpec& spec() const { return spec_; }
  std::span<const int32_t> text() const { return text_; }
  // Where the documents begin; empty without a mask.
  std::span<const int32_t> starts() const { return starts_; }
  // The keys that layer `layer` must have read for the first `tokens` tokens.
  std::array<int64_t, kBranches> KeysExpected(int32_t layer, int32_t tokens) const {
    ModelConfig config = ModelConfigOf(spec_);
    config.attention.shape.batch = 1;
    config.attention.shape.seq_len = tokens;
    return nsa::KeysExpected(config.AttentionOf(layer),
                             starts_.empty() ? starts() : starts().first(tokens));
  }

  const Arena& parameters() const { return parameters_; }

  DecoderOptions Options(int32_t context, int32_t slots = 1) const {
    DecoderOptions options{.context = context, .slots = slots};
    if (spec_.data().document_mask()) options.separator = kSeparator;
    return options;
  }
  std::unique_ptr<Decoder> MakeDecoder(int32_t context, int32_t slots = 1) const {
    auto decoder = Decoder::Create(Exec{}, spec_, &parameters_, Options(context, slots));
    EXPECT_OK(decoder);
    return decoder.ok() ? *std::move(decoder) : nullptr;
  }
  std::unique_ptr<Decoder> MakeDecoder() const {
    return MakeDecoder(static_cast<int32_t>(text_.size()));
  }

  // ln p of every token [V] after each position of the text, by forward passes over all of it.
  std::vector<std::vector<double>> WholeForward() const {
    const auto size = static_cast<int32_t>(text_.size());
    auto model = Model::Create(spec_, {.batch = 1, .seq_len = size}, &parameters_);
    EXPECT_OK(model);
    std::vector<std::vector<double>> result(size, std::vector<double>(spec_.model().vocab()));
    for (int32_t token = 0; model.ok() && token < spec_.model().vocab(); ++token) {
      const std::vector<int32_t> targets(size, token);
      EXPECT_OK((*model)->Forward({}, {text_, targets, starts_}));
      for (int32_t t = 0; t < size; ++t) result[t][token] = -(*model)->token_losses()[t];
    }
    return result;
  }

 private:
  const v1::JobSpec spec_;
  const ParameterLayout layout_;
  Arena parameters_;
  std::vector<int32_t> text_, starts_;
};

// The largest difference between the logits and the expected ln p.
inline double ErrorOf(std::span<const float> logits, const std::vector<double>& expected) {
  const std::vector<double> got = LogProbabilities(logits);
  double worst = 0;
  for (size_t v = 0; v < got.size(); ++v) {
    const double error = std::fabs(got[v] - expected[v]);
    worst = error > worst || std::isnan(error) ? error : worst;
  }
  return worst;
}

}  // namespace nsa::train
