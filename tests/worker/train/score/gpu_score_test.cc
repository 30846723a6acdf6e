// Compares the scores of a model on a GPU, in bf16, with those on the CPU, in fp32.
#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "kernels/cuda/device.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/worker/train/score/small_trained.h"
#include "worker/train/score/score.h"

namespace nsa::train {
namespace {

// Logits of magnitude below 8; bf16 keeps 8 bits of them.
constexpr double kMostOfOne = 0.1, kMostOnAverage = 0.015;

void CompareScores(const TempDir& dir) {
  const auto on_cpu = TrainedModel::Load(dir.path());
  const auto on_gpu = TrainedModel::Load(dir.path(), Backend::kCuda);
  ASSERT_OK(on_cpu);
  ASSERT_OK(on_gpu);
  EXPECT_EQ((*on_gpu)->exec().backend, Backend::kCuda);
  EXPECT_NE((*on_gpu)->device(), "CPU");
  Scorer scorer(on_gpu->get());
  std::string text;
  for (int i = 0; i < 40; ++i) text += "line " + std::to_string(i * i) + "\n";
  text[100] = '\0';
  // A part of a window, a window, more windows than fit a batch, and a part of one again.
  for (const size_t bytes : {size_t{5}, size_t{32}, text.size(), size_t{9}}) {
    const auto expected = ScoreTokens(**on_cpu, Bytes(text.substr(0, bytes)));
    const auto scores = scorer.Score(Bytes(text.substr(0, bytes)));
    ASSERT_OK(expected);
    ASSERT_OK(scores);
    ASSERT_EQ(scores->size(), expected->size());
    double sum = 0;
    for (size_t i = 0; i < bytes; ++i) {
      const double error = std::fabs(double{(*scores)[i]} - double{(*expected)[i]});
      EXPECT_LT(error, kMostOfOne) << "byte " << i << " of " << bytes;
      sum += error;
    }
    EXPECT_LT(sum / static_cast<double>(bytes), kMostOnAverage) << bytes << " bytes";
  }
}

class GpuScore : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::DeviceCount() == 0) GTEST_SKIP() << "no CUDA device on this machine";
  }
};

// n_sel of all blocks: rounding could otherwise change the selection.
TEST_F(GpuScore, IsThatOfTheCpuUpToRounding) {
  const TempDir dir;
  SaveSmallModel(dir, [](v1::JobSpec* spec) { spec->mutable_nsa()->set_n_sel(4); });
  CompareScores(dir);
}

TEST_F(GpuScore, WithDocumentsIsThatOfTheCpuUpToRounding) {
  const TempDir dir;
  SaveSmallModel(dir, [](v1::JobSpec* spec) {
    spec->mutable_nsa()->set_n_sel(4);
    spec->mutable_data()->set_document_mask(true);
  });
  CompareScores(dir);
}

}  // namespace
}  // namespace nsa::train
