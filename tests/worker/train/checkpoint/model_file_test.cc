#include "worker/train/checkpoint/model_file.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "common/checkpoint/checkpoint_dir.h"
#include "common/checkpoint/safetensors_file.h"
#include "gmock/gmock.h"
#include "tests/testing/small_model.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "worker/train/checkpoint/durable_file.h"

namespace nsa::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// Weights that all differ. Those of the gaps between tensors are -1, and no tensor has them.
std::vector<float> Weights(const ParameterLayout& layout) {
  std::vector<float> weights(static_cast<size_t>(layout.size()), -1);
  for (const ParameterInfo& tensor : layout.tensors()) {
    for (int64_t i = 0; i < tensor.size; ++i) {
      weights[tensor.offset + i] = static_cast<float>(tensor.offset + i);
    }
  }
  return weights;
}

void ExpectTheWeights(const std::filesystem::path& path, const ParameterLayout& layout) {
  const auto file = SafetensorsFile::Open(path);
  ASSERT_OK(file);
  EXPECT_EQ((*file)->tensors().size(), layout.tensors().size());
  EXPECT_EQ((*file)->metadata().at("step"), "7");
  for (const ParameterInfo& tensor : layout.tensors()) {
    ASSERT_TRUE((*file)->tensors().contains(tensor.name)) << tensor.name;
    const SafetensorsFile::Tensor& found = (*file)->tensors().at(tensor.name);
    EXPECT_EQ(found.shape, tensor.shape);
    std::vector<float> values(static_cast<size_t>(tensor.size));
    ASSERT_OK((*file)->ReadBytes(found, 0, std::as_writable_bytes(std::span(values))));
    for (int64_t i = 0; i < tensor.size; ++i) {
      ASSERT_EQ(values[i], static_cast<float>(tensor.offset + i)) << tensor.name << " " << i;
    }
  }
}

v1::CheckpointFile WritePart(const Folder& folder, std::span<const float> values) {
  auto file = DurableFile::Create(folder, "a.part");
  EXPECT_OK(file);
  EXPECT_OK((*file)->Append(std::as_bytes(values)));
  auto part = (*file)->Finish();
  EXPECT_OK(part);
  return *part;
}

class ModelFileTest : public testing::Test {
 protected:
  const TempDir dir_;
  const Folder folder_ = *Folder::Make(dir_.path());
};

// The embedding that is also the head has a gap behind it.
TEST_F(ModelFileTest, TakesPiecesThatBeginAndEndAnywhere) {
  v1::JobSpec spec = SmallModel();
  spec.mutable_model()->set_vocab(131);
  std::mt19937 random(3);
  for (const bool tied : {false, true}) {
    spec.mutable_model()->set_tie_embeddings(tied);
    const ParameterLayout layout(spec);
    const std::vector<float> weights = Weights(layout);
    std::string hash;
    for (const size_t most : {weights.size(), size_t{5000}, size_t{40}}) {
      auto file = ModelFile::Create(folder_, layout, 7);
      ASSERT_OK(file);
      for (std::span<const float> left(weights); !left.empty();) {
        const size_t size = std::min<size_t>(left.size(), 1 + random() % most);
        ASSERT_OK((*file)->Append(left.first(size)));
        left = left.subspan(size);
      }
      const auto written = (*file)->Finish();
      ASSERT_OK(written);
      EXPECT_EQ(written->name(), "model.safetensors");
      ExpectTheWeights(dir_ / "model.safetensors", layout);
      if (hash.empty()) hash = written->xxh3_128();
      EXPECT_EQ(written->xxh3_128(), hash) << most;
    }
  }
}

TEST_F(ModelFileTest, TakesOverWhatAnotherRankWroteAndRemovesItsFile) {
  v1::JobSpec spec = SmallModel();
  spec.mutable_model()->set_vocab(50'000);  // so that the part is read in several pieces
  const ParameterLayout layout(spec);
  const std::vector<float> weights = Weights(layout);
  const std::span<const float> first = std::span(weights).first(1000);
  auto file = ModelFile::Create(folder_, layout, 7);
  ASSERT_OK(file);
  ASSERT_OK((*file)->Append(first));
  const v1::CheckpointFile part = WritePart(folder_, std::span(weights).subspan(1000));
  ASSERT_GT(part.bytes(), 2 * (4 << 20));
  ASSERT_OK((*file)->TakeOver(folder_, part));
  ASSERT_OK((*file)->Finish());
  ExpectTheWeights(dir_ / "model.safetensors", layout);
  EXPECT_THAT(*folder_.Names(), ElementsAre("model.safetensors"));
}

TEST_F(ModelFileTest, RefusesAPartThatIsNotWhatItsRankWrote) {
  const ParameterLayout layout(SmallModel());
  const std::vector<float> weights = Weights(layout);
  auto file = ModelFile::Create(folder_, layout, 7);
  ASSERT_OK(file);
  v1::CheckpointFile part = WritePart(folder_, weights);
  part.set_bytes(part.bytes() + 4);
  EXPECT_THAT((*file)->TakeOver(folder_, part),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("a.part: it ends too early")));
  part.set_bytes(part.bytes() - 8);
  EXPECT_THAT((*file)->TakeOver(folder_, part),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("a.part: hash"), HasSubstr(part.xxh3_128()))));
  folder_.RemoveAll("a.part").IgnoreError();
  EXPECT_THAT((*file)->TakeOver(folder_, part), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(ModelFileTest, IsNotCompleteWithoutEveryElement) {
  const ParameterLayout layout(SmallModel());
  const std::vector<float> weights = Weights(layout);
  auto file = ModelFile::Create(folder_, layout, 7);
  ASSERT_OK(file);
  ASSERT_OK((*file)->Append(std::span(weights).first(weights.size() - 16)));
  EXPECT_THAT((*file)->Finish(),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("model.safetensors: weights of")));
}

}  // namespace
}  // namespace nsa::train
