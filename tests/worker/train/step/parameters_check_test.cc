// The hashes of the parameters in step records: which steps have one, and the report about ranks
// whose hashes differ.
#include "worker/train/step/parameters_check.h"

#include <cstdlib>
#include <map>

#include "tests/worker/train/step/trainer_jobs.h"

namespace nsa::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

// Sets the variable that makes a worker flip a bit, as long as it lives.
class FlippedBit {
 public:
  explicit FlippedBit(const char* step_and_rank) {
    setenv("NSA_TEST_FLIP_BIT_AT_STEP", step_and_rank, 1);
  }
  ~FlippedBit() { unsetenv("NSA_TEST_FLIP_BIT_AT_STEP"); }
};

v1::JobSpec JobOf(const TempDir& dir, int64_t steps) {
  v1::JobSpec spec = Job(dir);
  spec.mutable_train()->set_steps(steps);
  spec.mutable_train()->set_eval_every(0);
  spec.mutable_train()->set_save_every(0);
  return spec;
}

std::map<int64_t, uint64_t> HashesOf(const RankResult& result) {
  std::map<int64_t, uint64_t> hashes;
  for (const v1::StepRecord& step : result.steps) {
    if (step.has_parameters_hash()) hashes[step.step()] = step.parameters_hash();
  }
  return hashes;
}

TEST(DifferenceText, IsEmptyForEqualHashes) {
  EXPECT_EQ(DifferenceText(std::vector<uint64_t>{7}, 100, "j1"), std::nullopt);
  EXPECT_EQ(DifferenceText(std::vector<uint64_t>{7, 7, 7}, 100, "j1"), std::nullopt);
}

TEST(DifferenceText, NamesRanksHashesAndWhatToDo) {
  EXPECT_EQ(
      DifferenceText(std::vector<uint64_t>{0xab, 7, 7, 7}, 300, "j1"),
      "step 300: the hash of the parameters: ranks 1, 2, 3: 0000000000000007; rank 0: "
      "00000000000000ab (equal where nothing is wrong); `nsactl replay j1 --step 300` repeats the "
      "steps from the checkpoint before and says which rank differs; run it before "
      "train.keep_checkpoints removes that checkpoint");
  std::vector<uint64_t> many(64, 7);
  many[9] = 8;
  EXPECT_THAT(*DifferenceText(many, 100, "j1"),
              HasSubstr("ranks 0, 1, 2, 3, 4, 5, 6, 7, … (63 ranks): 0000000000000007; rank 9: "));
  for (size_t rank = 0; rank < many.size(); ++rank) many[rank] = rank;
  EXPECT_THAT(*DifferenceText(many, 100, "j1"), HasSubstr("rank 7: 0000000000000007; … (equal"));
}

TEST(FlipsBitAfter, ThatStepOfThatRankInTheFirstStart) {
  EXPECT_FALSE(FlipsBitAfter(100, 1, 1)) << "without the variable";
  {
    const FlippedBit flipped("100,1");
    EXPECT_TRUE(FlipsBitAfter(100, 1, 1));
    EXPECT_FALSE(FlipsBitAfter(101, 1, 1));
    EXPECT_FALSE(FlipsBitAfter(100, 0, 1));
    EXPECT_FALSE(FlipsBitAfter(100, 1, 2)) << "in the second start";
  }
  for (const char* wrong : {"", "100", "100,", ",1", "one,1"}) {
    const FlippedBit flipped(wrong);
    EXPECT_FALSE(FlipsBitAfter(100, 0, 1)) << wrong;
  }
}

TEST(HashesAfter, MultiplesOfHashEveryWhichIsAHundredByDefault) {
  v1::GuardSpec guard;
  EXPECT_TRUE(HashesAfter(guard, 100));
  EXPECT_TRUE(HashesAfter(guard, 700));
  EXPECT_FALSE(HashesAfter(guard, 50));
  guard.set_hash_every(50);
  EXPECT_TRUE(HashesAfter(guard, 50));
  EXPECT_FALSE(HashesAfter(guard, 51));
  guard.set_hash_every(0);
  EXPECT_FALSE(HashesAfter(guard, 100));
}

TEST(ParametersHashes, AreInEveryHundredthStepAndInTheLast) {
  const TempDir a, b;
  const auto whole = RunJob(a, JobOf(a, 104), {.world = 2});
  const auto hashes = HashesOf(whole[0]);
  EXPECT_THAT(hashes, ElementsAre(Pair(100, ::testing::_), Pair(104, ::testing::_)));
  EXPECT_NE(hashes.at(100), hashes.at(104));
  EXPECT_EQ(HashesOf(whole[1]), hashes) << "the ranks have the same parameters";
  EXPECT_THAT(whole[0].events, IsEmpty());

  // Stopped and resumed, the run has the same parameters at the same steps, and one hash more.
  const auto part = RunJob(b, JobOf(b, 104), StopAt(90, 0, 2));
  EXPECT_THAT(HashesOf(part[1]), ElementsAre(Pair(90, ::testing::_)));
  const auto rest = RunJob(b, JobOf(b, 104), {.world = 2, .generation = 2});
  EXPECT_EQ(rest[0].started.resumed_step(), 90);
  EXPECT_EQ(HashesOf(rest[1]), hashes);
}

TEST(ParametersHashes, AreAsFrequentAsTheJobAsks) {
  const auto steps_with_hash = [](int64_t every) {
    const TempDir dir;
    v1::JobSpec spec = JobOf(dir, 7);
    spec.mutable_guard()->set_hash_every(every);
    std::vector<int64_t> steps;
    for (const auto& [step, hash] : HashesOf(RunJob(dir, spec)[0])) steps.push_back(step);
    return steps;
  };
  EXPECT_THAT(steps_with_hash(3), ElementsAre(3, 6, 7));
  EXPECT_THAT(steps_with_hash(1), ElementsAre(1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(steps_with_hash(0), ElementsAre(7)) << "only the last step";
}

TEST(ParametersHashes, ThatDifferAreReportedOnceAndTrainingGoesOn) {
  const TempDir dir;
  const FlippedBit flipped("100,1");
  const auto ranks = RunJob(dir, JobOf(dir, 201), {.world = 2});
  EXPECT_EQ(ranks[0].finished.outcome(), v1::OUTCOME_COMPLETED);
  const auto zero = HashesOf(ranks[0]), one = HashesOf(ranks[1]);
  ASSERT_THAT(zero, SizeIs(3));
  for (const int64_t step : {100, 200, 201}) EXPECT_NE(zero.at(step), one.at(step)) << step;
  const auto texts = EventTexts(ranks[0], "PARAMETERS_DIFFER");
  ASSERT_THAT(texts, SizeIs(1)) << "once";
  EXPECT_THAT(texts[0], HasSubstr("the hash of the parameters: rank 0: "));
  EXPECT_THAT(texts[0], HasSubstr("`nsactl replay job-1 --step 100`"));
  EXPECT_THAT(EventTexts(ranks[1], "PARAMETERS_DIFFER"), IsEmpty()) << "rank 0 speaks for all";

  const TempDir good_dir;
  const FlippedBit nowhere("100,2");
  const auto good = RunJob(good_dir, JobOf(good_dir, 201), {.world = 2});
  EXPECT_EQ(HashesOf(good[0]).at(100), zero.at(100)) << "rank 0 was not wrong in that step";
  EXPECT_NE(HashesOf(good[0]).at(200), zero.at(200)) << "wrong gradients reach all ranks";
}

TEST(ParametersHashes, OfABitThatIsFlippedBetweenTwoHashesAreFoundAtTheNext) {
  const TempDir dir;
  const FlippedBit flipped("60,0");
  const auto ranks = RunJob(dir, JobOf(dir, 100), {.world = 2});
  EXPECT_THAT(EventTexts(ranks[0], "PARAMETERS_DIFFER"), SizeIs(1));
}

}  // namespace
}  // namespace nsa::train
