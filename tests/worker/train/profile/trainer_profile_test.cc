// Traces of whole runs on the CPU.
#include <fstream>

#include "common/checkpoint/checkpoint_dir.h"
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/worker/train/profile/read_trace.h"
#include "tests/worker/train/run_job.h"
#include "tests/worker/train/tiny_job.h"

namespace nsa::train {
namespace {

using nlohmann::json;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

v1::JobSpec Job(const TempDir& dir, const std::string& out) {
  v1::JobSpec spec = TinyJob();
  v1::TrainSpec& train = *spec.mutable_train();
  train.set_steps(8);
  train.set_accumulate_grad_batches(2);
  train.set_save_every(4);
  train.set_out_dir(dir / out);
  return spec;
}

v1::ProfileRequest Request(int32_t steps) {
  v1::ProfileRequest request;
  request.set_id("t");
  request.set_steps(steps);
  return request;
}

std::string Weights(const std::filesystem::path& out_dir, int64_t step) {
  std::ifstream in(CheckpointsDir(out_dir) / CheckpointName(step) / "model.safetensors",
                   std::ios::binary);
  EXPECT_TRUE(in) << out_dir << " " << step;
  return {std::istreambuf_iterator<char>(in), {}};
}

class TrainerProfile : public ::testing::Test {
 protected:
  std::vector<RankResult> Run(const std::string& out, RunOptions options) {
    options.generation = ++generation_;
    last_ = options;
    return RunJob(dir_, Job(dir_, out), options);
  }
  json TraceOf(int rank) const {
    return ReadTrace(RunDir{RunFolder(dir_, last_, rank)}.profile("t"));
  }

  const TempDir dir_;
  int64_t generation_ = 0;
  RunOptions last_;
};

TEST_F(TrainerProfile, OfTwoRanksHasTheSameStepsAndChangesNoBit) {
  const auto plain = Run("plain", {.world = 2});
  const auto traced = Run("traced", {.world = 2, .before = [](int, Trainer* trainer) {
                                       ASSERT_TRUE(trainer->RequestProfile(Request(3)).ok());
                                     }});
  for (int rank = 0; rank < 2; ++rank) {
    const RankResult &a = plain[rank], &b = traced[rank];
    ASSERT_EQ(b.finished.outcome(), v1::OUTCOME_COMPLETED) << b.finished.text();
    ASSERT_THAT(b.steps, SizeIs(a.steps.size()));
    for (size_t i = 0; i < a.steps.size(); ++i) {
      EXPECT_EQ(a.steps[i].loss(), b.steps[i].loss()) << "step " << i + 1;
      EXPECT_EQ(a.steps[i].grad_norm(), b.steps[i].grad_norm()) << "step " << i + 1;
    }
    const json trace = TraceOf(rank);
    const std::vector<json> steps = RangesOf(trace, "step");
    EXPECT_THAT(NamesOf(steps), ElementsAre("step 2", "step 3", "step 4"));
    const std::vector<json> phases = RangesOf(trace, "phase");
    for (const char* name :
         {"data", "forward", "backward", "reduce", "optimizer", "telemetry", "checkpoint"}) {
      EXPECT_THAT(NamesOf(phases), Contains(name)) << "rank " << rank;
    }
    EXPECT_EQ(std::ranges::count(NamesOf(phases), "forward"), 6) << "two micro-batches a step";
    for (const json& phase : phases) EXPECT_TRUE(IsInside(phase, steps)) << phase;
    for (const json& layer : RangesOf(trace, "layer")) EXPECT_TRUE(IsInside(layer, phases));
    EXPECT_THAT(NamesOf(RangesOf(trace, "kernel")), Contains("matmul"));
    EXPECT_THAT(NamesOf(RangesOf(trace, "collective")), Contains("all_reduce_gradients"));
    EXPECT_THAT(trace["otherData"]["notes"], IsEmpty());
    const auto samples = std::ranges::count_if(
        trace["traceEvents"], [](const json& event) { return event["ph"] == "C"; });
    EXPECT_GT(samples, 3);
  }
  EXPECT_TRUE(Weights(dir_ / "plain", 8) == Weights(dir_ / "traced", 8));
}

TEST_F(TrainerProfile, BeginsOnlyWhenAllRanksAreAskedForTheSameTrace) {
  Run("out", {.world = 2, .before = [](int rank, Trainer* trainer) {
                if (rank == 1) {
                  EXPECT_OK(trainer->RequestProfile(Request(3)));
                }
              }});
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_FALSE(std::filesystem::exists(RunDir{RunFolder(dir_, last_, rank)}.profile("t")));
  }
}

TEST_F(TrainerProfile, OfMoreStepsThanAreLeftHasThoseThatWereDone) {
  Run("out", {.before = [](int, Trainer* trainer) {
        ASSERT_TRUE(trainer->RequestProfile(Request(100)).ok());
      }});
  const json trace = TraceOf(0);
  EXPECT_THAT(RangesOf(trace, "step"), SizeIs(7));
  EXPECT_THAT(trace["otherData"]["notes"], ElementsAre("the run ended after 7 of 100 steps"));
}

}  // namespace
}  // namespace nsa::train
