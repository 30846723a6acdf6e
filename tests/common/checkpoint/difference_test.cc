#include "common/checkpoint/difference.h"

#include <gmock/gmock.h>

#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

struct Weights {
  std::string name;
  std::vector<float> values;
};

// Writes a checkpoint's weights, and with `hash` a manifest that names it.
CheckpointEntry WriteCheckpoint(const TempDir& dir, const std::string& run, int64_t step,
                                const std::vector<Weights>& tensors, const std::string& hash = "") {
  const std::filesystem::path path = dir / absl::StrCat(run, "/", CheckpointName(step));
  std::filesystem::create_directories(path);
  nlohmann::ordered_json header;
  std::string data;
  for (const auto& [name, values] : tensors) {
    const size_t begin = data.size(), bytes = values.size() * sizeof(float);
    data.append(reinterpret_cast<const char*>(values.data()), bytes);
    header[name] = {
        {"dtype", "F32"}, {"shape", {values.size()}}, {"data_offsets", {begin, begin + bytes}}};
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  std::ofstream file(path / "model.safetensors", std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file << text << data;
  if (!hash.empty()) {
    v1::CheckpointState state;
    state.set_step(step);
    v1::CheckpointFile& model = *state.add_files();
    model.set_name("model.safetensors");
    model.set_xxh3_128(hash);
    std::ofstream(path / "state.json") << SerializeCheckpointState(state).value();
  }
  return {step, path};
}

std::vector<Weights> Model() {
  // In the order of the model, which is not that of the names.
  return {{"embed", std::vector<float>(1 << 20, 0.5F)}, {"block", {1, 2, 3}}, {"a_head", {4, 5}}};
}

TEST(CompareWeights, OfEqualFilesFindsNothing) {
  const TempDir dir;
  const auto a = WriteCheckpoint(dir, "a", 1, Model()), b = WriteCheckpoint(dir, "b", 1, Model());
  const auto difference = CompareWeights(a.path, b.path);
  ASSERT_TRUE(difference.ok()) << difference.status();
  EXPECT_FALSE(difference->has_value());
}

TEST(CompareWeights, FindsASingleBitInWhateverTensorItIs) {
  const TempDir dir;
  const auto a = WriteCheckpoint(dir, "a", 1, Model());
  for (size_t tensor = 0; tensor < 3; ++tensor) {
    std::vector<Weights> changed = Model();
    float& last = changed[tensor].values.back();
    uint32_t bits = 0;
    std::memcpy(&bits, &last, sizeof(bits));
    bits ^= 1;
    std::memcpy(&last, &bits, sizeof(bits));
    const auto b = WriteCheckpoint(dir, absl::StrCat("b", tensor), 1, changed);
    const auto difference = CompareWeights(a.path, b.path);
    ASSERT_TRUE(difference.ok() && difference->has_value()) << difference.status();
    EXPECT_EQ((*difference)->first, changed[tensor].name);
    EXPECT_EQ((*difference)->element, static_cast<int64_t>(changed[tensor].values.size()) - 1);
    EXPECT_EQ((*difference)->b, last);
    EXPECT_EQ((*difference)->differing, 1);
    EXPECT_EQ((*difference)->tensors, 3);
  }
}

TEST(CompareWeights, TellsZeroFromMinusZeroAndKnowsEqualNans) {
  const TempDir dir;
  const float nan = std::nanf("7");
  const auto a = WriteCheckpoint(dir, "a", 1, {{"x", {nan, 0.0F}}});
  const auto b = WriteCheckpoint(dir, "b", 1, {{"x", {nan, -0.0F}}});
  const auto difference = CompareWeights(a.path, b.path);
  ASSERT_TRUE(difference.ok() && difference->has_value()) << difference.status();
  EXPECT_EQ((*difference)->element, 1);
}

TEST(CompareWeights, NamesTheFirstInTheOrderOfTheModel) {
  const TempDir dir;
  std::vector<Weights> changed = Model();
  changed[1].values[0] = 7;
  changed[2].values[0] = 7;
  const auto a = WriteCheckpoint(dir, "a", 1, Model()), b = WriteCheckpoint(dir, "b", 1, changed);
  const auto difference = CompareWeights(a.path, b.path);
  ASSERT_TRUE(difference.ok() && difference->has_value()) << difference.status();
  EXPECT_EQ((*difference)->first, "block");
  EXPECT_EQ((*difference)->differing, 2);
}

TEST(CompareWeights, RefusesAnotherModelAndReportsAFileThatCannotBeRead) {
  const TempDir dir;
  const auto a = WriteCheckpoint(dir, "a", 1, Model());
  const auto other = WriteCheckpoint(dir, "b", 1, {{"embed", {1}}});
  EXPECT_EQ(CompareWeights(a.path, other.path).status().code(),
            absl::StatusCode::kFailedPrecondition);
  const auto cut = WriteCheckpoint(dir, "c", 1, Model());
  std::filesystem::resize_file(cut.path / "model.safetensors", 1000);
  EXPECT_EQ(CompareWeights(a.path, cut.path).status().code(), absl::StatusCode::kDataLoss);
}

TEST(FindParting, ComparesTheStepsThatBothHaveUpToTheFirstThatDiffers) {
  const TempDir dir;
  std::vector<Weights> changed = Model();
  changed[1].values[2] = 9;
  std::vector<CheckpointEntry> a, b;
  for (const int64_t step : {10, 20, 30, 40}) {
    a.push_back(WriteCheckpoint(dir, "a", step, Model()));
    if (step != 20) {
      b.push_back(WriteCheckpoint(dir, "b", step, step < 30 ? Model() : changed));
    }
  }
  const auto parting = FindParting(a, b);
  ASSERT_TRUE(parting.ok()) << parting.status();
  EXPECT_THAT(parting->equal, ElementsAre(10));
  EXPECT_EQ(parting->step, 30);
  EXPECT_EQ(parting->difference->first, "block");
  EXPECT_THAT(parting->unreadable, IsEmpty());
}

TEST(FindParting, SaysWhichCheckpointsItCouldNotRead) {
  const TempDir dir;
  const auto a = WriteCheckpoint(dir, "a", 10, Model());
  const auto parting = FindParting({a}, {{10, dir / "elsewhere/step-00000010"}});
  ASSERT_TRUE(parting.ok()) << parting.status();
  EXPECT_EQ(parting->step, 0);
  EXPECT_THAT(parting->equal, IsEmpty());
  EXPECT_THAT(parting->unreadable, ElementsAre(HasSubstr("step-00000010: ")));
}

TEST(FindParting, BelievesEqualHashesOfBothManifests) {
  const TempDir dir;
  std::vector<Weights> changed = Model();
  changed[1].values[2] = 9;
  const std::string one(32, '1'), two(32, '2');
  const auto a = WriteCheckpoint(dir, "a", 10, Model(), one);
  const auto same = WriteCheckpoint(dir, "b", 10, changed, one);
  const auto other = WriteCheckpoint(dir, "c", 10, changed, two);
  EXPECT_THAT(FindParting({a}, {same})->equal, SizeIs(1));
  EXPECT_EQ(FindParting({a}, {other})->step, 10);
}

}  // namespace
}  // namespace nsa
