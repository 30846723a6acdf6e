// Compares the decoder on a GPU, in bf16, with the decoder on the CPU, in fp32, for the same
// weights, which bf16 represents exactly.
#include "worker/train/decode/gpu_decoder.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "kernels/cuda/device.h"
#include "tests/testing/status_matchers.h"
#include "tests/worker/train/decode/batch_bits.h"
#include "tests/worker/train/decode/decode_case.h"
#include "tests/worker/train/decode/variants.h"
#include "tests/worker/train/tiny_job.h"
#include "worker/train/gpu/gpu.h"

namespace nsa::train {
namespace {

// Log-probabilities of magnitude below 10, from activations that keep 8 bits.
constexpr double kMostOfOne = 0.5, kMostOnAverage = 0.05;

// Widths are multiples of 8, which matrix products on GPUs require. n_sel = S_sel, so that all
// blocks are selected: rounding could otherwise change the selection.
v1::JobSpec GpuJob() {
  v1::JobSpec spec = TinyJob();
  spec.mutable_model()->set_dim(64);
  spec.mutable_model()->set_n_layers(2);
  spec.mutable_model()->set_vocab(48);
  spec.mutable_nsa()->set_n_sel(64);
  return spec;
}

// A decoder on a GPU with the weights of an example.
class OnGpu {
 public:
  explicit OnGpu(const DecodeCase& example) {
    auto gpu = Gpu::Open();
    EXPECT_OK(gpu);
    if (!gpu.ok()) return;
    gpu_ = *std::move(gpu);
    auto weights = Arena::Create(&example.parameters().layout(),
                                 {.backend = Backend::kCuda, .half = true}, "weights");
    EXPECT_OK(weights);
    if (!weights.ok()) return;
    weights_ = *std::move(weights);
    EXPECT_OK(CopyArena(gpu_->exec(), example.parameters(), &weights_));
    decoder_ = MakeDecoder(example, 1);
  }
  Decoder* decoder() { return decoder_.get(); }

  // Another one, whose matrix products have the same algorithms.
  std::unique_ptr<Decoder> MakeDecoder(const DecodeCase& example, int32_t slots) {
    auto decoder =
        Decoder::Create(gpu_->exec(), example.spec(), &weights_,
                        example.Options(static_cast<int32_t>(example.text().size()), slots));
    EXPECT_OK(decoder);
    return decoder.ok() ? *std::move(decoder) : nullptr;
  }

 private:
  std::unique_ptr<Gpu> gpu_;
  Arena weights_;
  std::unique_ptr<Decoder> decoder_;
};

// ln p of every token after each of the text, by a decoder that reads `split` tokens first, then
// `at_once` at a time, the logits of all of them.
std::vector<std::vector<double>> Decode(std::span<const int32_t> text, size_t split, size_t at_once,
                                        Decoder* decoder) {
  std::vector<std::vector<double>> result;
  decoder->Reset();
  const auto first = decoder->Prefill(text.first(split));
  EXPECT_OK(first);
  if (!first.ok()) return result;
  result.push_back(LogProbabilities(*first));
  for (size_t begin = split; begin < text.size(); begin += at_once) {
    const size_t rows = std::min(at_once, text.size() - begin);
    const auto logits = decoder->PrefillEach(text.subspan(begin, rows));
    EXPECT_OK(logits);
    if (!logits.ok()) return result;
    const size_t vocab = logits->size() / rows;
    for (size_t row = 0; row < rows; ++row) {
      result.push_back(LogProbabilities(logits->subspan(row * vocab, vocab)));
    }
  }
  return result;
}

void ExpectNear(const std::vector<std::vector<double>>& got,
                const std::vector<std::vector<double>>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  double sum = 0, count = 0;
  for (size_t t = 0; t < got.size(); ++t) {
    for (size_t v = 0; v < got[t].size(); ++v) {
      const double error = std::fabs(got[t][v] - expected[t][v]);
      ASSERT_LT(error, kMostOfOne) << "token " << t << ", logit " << v;
      sum += error, ++count;
    }
  }
  EXPECT_LT(sum / count, kMostOnAverage);
}

class GpuDecoderVariants : public testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    if (cuda::DeviceCount() == 0) GTEST_SKIP() << "no CUDA device on this machine";
  }
  static v1::JobSpec Spec() {
    v1::JobSpec spec = GpuJob();
    GetParam().change(&spec);
    return spec;
  }
};

TEST_P(GpuDecoderVariants, GivesTheLogitsOfTheCpuHoweverTheTextIsDivided) {
  const DecodeCase example(Spec(), 200, 1, DecodeCase::Weights::kForGpu);
  const auto on_cpu = example.MakeDecoder();
  ASSERT_NE(on_cpu, nullptr);
  OnGpu on_gpu(example);
  ASSERT_NE(on_gpu.decoder(), nullptr);
  for (const auto& [split, at_once] : {std::pair<size_t, size_t>{1, 1}, {70, 7}, {129, 64}}) {
    ExpectNear(Decode(example.text(), split, at_once, on_gpu.decoder()),
               Decode(example.text(), split, at_once, on_cpu.get()));
  }
}

TEST_P(GpuDecoderVariants, ReadsTheKeysOfTheFormulaHoweverTheTextIsDivided) {
  v1::JobSpec spec = Spec();
  spec.mutable_nsa()->set_n_sel(4);  // fewer than the blocks
  const DecodeCase example(spec, 300, 2, DecodeCase::Weights::kForGpu);
  OnGpu on_gpu(example);
  ASSERT_NE(on_gpu.decoder(), nullptr);
  for (const size_t split : {1, 65, 200}) {
    on_gpu.decoder()->Reset();
    ASSERT_OK(on_gpu.decoder()->Prefill(example.text().first(split)));
    while (true) {
      const int32_t tokens = on_gpu.decoder()->tokens();
      for (int32_t layer = 0; layer < example.spec().model().n_layers(); ++layer) {
        const auto keys = on_gpu.decoder()->keys_read(layer);
        ASSERT_OK(keys);
        ASSERT_EQ(*keys, example.KeysExpected(layer, tokens))
            << "split " << split << ", layer " << layer << ", " << tokens << " tokens";
      }
      if (tokens == on_gpu.decoder()->context()) break;
      ASSERT_OK(on_gpu.decoder()->Step(example.text()[tokens]));
    }
  }
}

TEST_P(GpuDecoderVariants, InABatchEverySequenceHasTheBitsThatItHasAlone) {
  const DecodeCase example(Spec(), 200, 3, DecodeCase::Weights::kForGpu);
  OnGpu on_gpu(example);
  ASSERT_NE(on_gpu.decoder(), nullptr);
  const auto together = on_gpu.MakeDecoder(example, kBatchSlots);
  ASSERT_NE(together, nullptr);
  ExpectTheBitsOfEachAlone(example, on_gpu.decoder(), together.get());
  ExpectTheBitsOfTheWhole(example.text(), on_gpu.decoder());
}

class DecoderOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::DeviceCount() == 0) GTEST_SKIP() << "no CUDA device on this machine";
  }
};

// With few blocks to choose from many, rounding changes some choices; most tokens are not affected,
// and wrong scores would affect all of them.
TEST_F(DecoderOnGpu, ChoosesTheBlocksThatTheCpuChooses) {
  v1::JobSpec spec = GpuJob();
  SetBranches(&spec, {v1::BRANCH_CMP, v1::BRANCH_SEL});
  spec.mutable_model()->set_n_layers(1);  // later layers see what the first one chose
  spec.mutable_nsa()->set_n_sel(6);
  const DecodeCase example(spec, 600, 3, DecodeCase::Weights::kForGpu);
  const auto on_cpu = example.MakeDecoder();
  ASSERT_NE(on_cpu, nullptr);
  OnGpu on_gpu(example);
  ASSERT_NE(on_gpu.decoder(), nullptr);
  const auto got = Decode(example.text(), 1, 1, on_gpu.decoder());
  const auto expected = Decode(example.text(), 1, 1, on_cpu.get());
  ASSERT_EQ(got.size(), expected.size());
  int different = 0;
  for (size_t t = 0; t < got.size(); ++t) {
    double worst = 0;
    for (size_t v = 0; v < got[t].size(); ++v) {
      worst = std::max(worst, std::fabs(got[t][v] - expected[t][v]));
    }
    if (worst > 0.1) ++different;
  }
  EXPECT_LT(different, 60) << "of 600 tokens";
}

TEST_F(DecoderOnGpu, RefusesWhatTheCpuRefuses) {
  const DecodeCase example(GpuJob(), 40, 1, DecodeCase::Weights::kForGpu);
  OnGpu on_gpu(example);
  ASSERT_NE(on_gpu.decoder(), nullptr);
  EXPECT_EQ(on_gpu.decoder()->Prefill({}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(on_gpu.decoder()->Step(48).status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_OK(on_gpu.decoder()->Prefill(example.text()));
  EXPECT_EQ(on_gpu.decoder()->Step(1).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(on_gpu.decoder()->tokens(), 40);
}

INSTANTIATE_TEST_SUITE_P(Decoder, GpuDecoderVariants, testing::ValuesIn(kVariants),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace nsa::train
