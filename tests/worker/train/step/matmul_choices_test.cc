#include "worker/train/step/matmul_choices.h"

#include <gmock/gmock.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/status_matchers.h"
#include "tests/worker/train/comm/on_ranks.h"

namespace nsa::train {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Algorithms = std::map<std::string, cuda::Algorithm>;

constexpr char kLibrary[] = "NVIDIA H200, cuBLASLt 13.0.2";
constexpr char kOlder[] = "NVIDIA H200, cuBLASLt 12.8.1";
const Algorithms kFirst = {{"a", {1}}, {"b", {2, 0, ~uint64_t{0}}}, {"c", {3}}};
const Algorithms kOther = {{"a", {4}}, {"b", {5}}, {"c", {3}}};

// Knows the shapes of `algorithms`, and refuses to change those of `refused`.
class FakeLibrary final : public MatmulChooser {
 public:
  FakeLibrary(std::string library, Algorithms algorithms, std::set<std::string> refused = {})
      : choices_{std::move(library), std::move(algorithms)}, refused_(std::move(refused)) {}

  MatmulChoices Choices() const override { return choices_; }
  void Adopt(const MatmulChoices& choices) override {
    ++adoptions_;
    for (auto& [shape, algorithm] : choices_.algorithms) {
      const auto found = choices.algorithms.find(shape);
      if (found == choices.algorithms.end() || refused_.contains(shape)) continue;
      algorithm = found->second;
    }
  }
  int adoptions() const { return adoptions_; }

 private:
  MatmulChoices choices_;
  const std::set<std::string> refused_;
  int adoptions_ = 0;
};

v1::JobSpec JobOf(v1::Optimizer optimizer, v1::Shard shard) {
  v1::JobSpec spec;
  spec.mutable_train()->set_optimizer(optimizer);
  spec.mutable_runtime()->set_shard(shard);
  return spec;
}

const v1::JobSpec kAdamW = JobOf(v1::OPTIMIZER_ADAMW, v1::SHARD_NONE);
const v1::JobSpec kMuon = JobOf(v1::OPTIMIZER_MUON, v1::SHARD_NONE);

// What each rank with such a library gets.
std::vector<absl::StatusOr<std::string>> Share(const v1::JobSpec& spec,
                                               std::vector<FakeLibrary>* libraries) {
  std::vector<absl::StatusOr<std::string>> results(libraries->size());
  OnRanks(static_cast<int>(libraries->size()), [&](Comm* comm) {
    const auto rank = static_cast<size_t>(comm->rank());
    results[rank] = AdoptFromRankZero(spec, &(*libraries)[rank], comm);
    EXPECT_OK(comm->Barrier("afterwards")) << "the ranks are still together";
  });
  return results;
}

MATCHER_P(Says, text, "") { return arg.ok() && ::testing::Value(*arg, text); }

TEST(MatmulChoices, AllRanksUseThoseOfRankZero) {
  for (const v1::JobSpec& spec : {kAdamW, kMuon}) {
    std::vector<FakeLibrary> libraries = {
        {kLibrary, kFirst}, {kLibrary, kOther}, {kLibrary, kFirst}};
    EXPECT_THAT(Share(spec, &libraries), Each(Says("")));
    for (const FakeLibrary& library : libraries) EXPECT_EQ(library.Choices().algorithms, kFirst);
    EXPECT_EQ(libraries[0].adoptions(), 0);
    EXPECT_EQ(libraries[1].adoptions(), 1);
    EXPECT_EQ(libraries[2].adoptions(), 0) << "it has them already";
  }
}

TEST(MatmulChoices, AShapeThatTheLibraryRefusesIsNamedOnEveryRank) {
  std::vector<FakeLibrary> libraries = {
      {kLibrary, kFirst}, {kLibrary, kFirst}, {kLibrary, kOther, {"b", "c"}}};
  EXPECT_THAT(
      Share(kAdamW, &libraries),
      Each(Says(AllOf(HasSubstr("rank 2 keeps other algorithms than rank 0 for 1 shape (b)"),
                      HasSubstr("1 of 3 ranks"), HasSubstr("the weights are the same")))));
  EXPECT_EQ(libraries[2].Choices().algorithms, (Algorithms{{"a", {1}}, {"b", {5}}, {"c", {3}}}));
}

TEST(MatmulChoices, NothingIsTakenOverFromAnotherLibrary) {
  std::vector<FakeLibrary> libraries = {{kLibrary, kFirst}, {kOlder, kOther}, {kOlder, kOther}};
  EXPECT_THAT(
      Share(kAdamW, &libraries),
      Each(Says(AllOf(HasSubstr("rank 1 has NVIDIA H200, cuBLASLt 12.8.1 (rank 0: NVIDIA H200, "
                                "cuBLASLt 13.0.2)"),
                      HasSubstr("2 of 3 ranks")))));
  EXPECT_EQ(libraries[1].Choices().algorithms, kOther);
  EXPECT_EQ(libraries[1].adoptions(), 0);
}

TEST(MatmulChoices, RanksThatWouldMakeOtherWeightsDoNotStart) {
  const auto refused = Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                                     AllOf(HasSubstr("rank 1"), HasSubstr("runtime.shard"))));
  for (const FakeLibrary& other :
       {FakeLibrary(kOlder, kFirst), FakeLibrary(kLibrary, kOther, {"a"})}) {
    std::vector<FakeLibrary> libraries = {{kLibrary, kFirst}, other};
    EXPECT_THAT(Share(kMuon, &libraries), refused);
    std::vector<FakeLibrary> divided = {{kLibrary, kFirst}, other};
    EXPECT_THAT(Share(JobOf(v1::OPTIMIZER_MUON, v1::SHARD_OPTIMIZER), &divided),
                Each(Says(HasSubstr("the weights are the same"))));
  }
}

TEST(MatmulChoices, OneRankAndRanksOnTheCpuHaveNothingToAgreeOn) {
  std::vector<FakeLibrary> one = {{kLibrary, kFirst}};
  EXPECT_THAT(Share(kMuon, &one), Each(Says("")));
  std::vector<FakeLibrary> none = {{"", {}}, {"", {}}};
  EXPECT_THAT(Share(kMuon, &none), Each(Says("")));
  EXPECT_EQ(none[1].adoptions(), 0);
}

TEST(MatmulChoices, ThoseOfACheckpointAreReadBackAndUsed) {
  v1::CheckpointState state;
  RecordChoices({kLibrary, kFirst}, &state);
  EXPECT_EQ(RecordedChoices(state).library, kLibrary);
  EXPECT_EQ(RecordedChoices(state).algorithms, kFirst);
  FakeLibrary library(kLibrary, kOther);
  EXPECT_EQ(AdoptRecorded(state, &library), "");
  EXPECT_EQ(library.Choices().algorithms, kFirst);
}

TEST(MatmulChoices, WhatACheckpointCannotGiveIsNamed) {
  v1::CheckpointState state;
  RecordChoices({kLibrary, {{"a", {1}}, {"c", {9}}}}, &state);
  (*state.mutable_matmul_algorithms())["c"] = "broken";
  FakeLibrary library(kLibrary, kOther);
  EXPECT_THAT(AdoptRecorded(state, &library), HasSubstr("2 shapes (b, c)"));
  EXPECT_EQ(library.Choices().algorithms, (Algorithms{{"a", {1}}, {"b", {5}}, {"c", {3}}}));
  FakeLibrary older(kOlder, kOther);
  EXPECT_THAT(AdoptRecorded(state, &older), AllOf(HasSubstr(kLibrary), HasSubstr(kOlder)));
  EXPECT_EQ(older.adoptions(), 0);
}

TEST(MatmulChoices, ACheckpointWithoutAnyChangesNothing) {
  FakeLibrary library(kLibrary, kOther);
  EXPECT_EQ(AdoptRecorded({}, &library), "");
  v1::CheckpointState state;
  RecordChoices({kLibrary, kFirst}, &state);
  MatmulChooser cpu;
  EXPECT_EQ(AdoptRecorded(state, &cpu), "");
  EXPECT_EQ(library.adoptions(), 0);
}

TEST(MatmulChoices, ShapesDifferWhereTheOtherHasAnotherAlgorithmOrNone) {
  EXPECT_THAT(DifferentShapes({kLibrary, kFirst}, {kLibrary, kOther}), ElementsAre("a", "b"));
  EXPECT_THAT(DifferentShapes({kLibrary, kFirst}, {kLibrary, {{"a", {1}}}}), ElementsAre("b", "c"));
  EXPECT_THAT(DifferentShapes({kLibrary, {{"a", {1}}}}, {kLibrary, kFirst}), IsEmpty());
}

}  // namespace
}  // namespace nsa::train
