// runtime.shard on the CPU, in steps of one micro-batch: the same bits at every level, whatever the
// checkpoints were written by.
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/checkpoint/safetensors_file.h"
#include "common/estimate/shares.h"
#include "tests/worker/train/step/ranks/shares_jobs.h"
#include "worker/train/model/shares.h"

namespace nsa::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int64_t kShareSteps = 12;  // of Job()

constexpr v1::Shard kNone = v1::SHARD_NONE;

struct Divided {
  v1::Optimizer optimizer;
  v1::Shard shard;
};

class SharesTest : public ::testing::TestWithParam<Divided> {
 protected:
  v1::JobSpec JobFor(const std::string& out, v1::Shard shard) const {
    return SharesJob(dir_, out, GetParam().optimizer, shard);
  }
  v1::Shard level() const { return GetParam().shard; }

  const TempDir dir_;
};

// A run with whole states: its steps, those of the second part if it had two, and what it left.
struct WholeRun {
  std::vector<StepBits> steps;
  Loaded loaded;
  std::string weights;
};

// On `first` ranks up to step 5 and on `second` from there on; 0: on `second` from the beginning.
// Each is run once for all levels.
const WholeRun& RunWhole(v1::Optimizer optimizer, int first, int second) {
  static std::map<std::tuple<v1::Optimizer, int, int>, WholeRun> runs;
  const auto [at, is_new] = runs.try_emplace({optimizer, first, second});
  if (!is_new) return at->second;
  const TempDir dir;
  const v1::JobSpec spec = SharesJob(dir, "whole", optimizer, kNone);
  if (first > 0) RunUntil(5, spec, first);
  at->second.steps = RunToTheEnd(spec, second, first > 0 ? 2 : 1);
  at->second.loaded = Load(spec, kShareSteps);
  at->second.weights = Weights(spec.train().out_dir(), kShareSteps);
  return at->second;
}

TEST_P(SharesTest, GiveTheBitsOfWholeStates) {
  for (const int world : {1, 2, 3}) {
    const WholeRun& whole = RunWhole(GetParam().optimizer, 0, world);
    const v1::JobSpec divided = JobFor("divided-" + std::to_string(world), level());
    EXPECT_EQ(RunToTheEnd(divided, world), whole.steps) << world;
    EXPECT_TRUE(Load(divided, kShareSteps) == whole.loaded) << world;
    EXPECT_EQ(Weights(divided.train().out_dir(), kShareSteps), whole.weights) << world;
  }
}

// Each of two parts of a run has another number of ranks or another setting.
TEST_P(SharesTest, GoOnFromCheckpointsOfAnyRanksAndSetting) {
  struct Part {
    int world;
    v1::Shard shard;
  };
  std::vector<std::pair<Part, Part>> changes = {
      {{2, level()}, {2, kNone}},   {{2, kNone}, {2, level()}}, {{2, level()}, {3, level()}},
      {{3, level()}, {2, level()}}, {{3, level()}, {1, kNone}}, {{1, kNone}, {3, level()}},
      {{2, level()}, {2, level()}},
  };
  for (const v1::Shard other : kShards) {
    if (other == level() || other == kNone) continue;
    changes.push_back({{2, other}, {3, level()}});
  }
  for (const auto& [first, second] : changes) {
    const std::string name =
        absl::StrCat(first.world, first.shard, "-", second.world, second.shard);
    const WholeRun& whole = RunWhole(GetParam().optimizer, first.world, second.world);
    EXPECT_THAT(whole.steps, SizeIs(kShareSteps - 5));
    RunUntil(5, JobFor(name, first.shard), first.world);
    EXPECT_EQ(RunToTheEnd(JobFor(name, second.shard), second.world, 2), whole.steps) << name;
    EXPECT_TRUE(Load(JobFor(name, kNone), kShareSteps) == whole.loaded) << name;
  }
}

TEST_P(SharesTest, ARankWritesTheMomentsOfItsShareOnly) {
  const v1::JobSpec spec = JobFor("out", level());
  RunToTheEnd(spec, 3);
  const ParameterLayout layout(spec);
  const Shares shares(layout, spec.train(), 3);
  const auto folder = CheckpointsDir(spec.train().out_dir()) / CheckpointName(kShareSteps);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 5)
      << "weights, three shares of the moments and state.json, and nothing that was handed over";
  for (int rank = 0; rank < 3; ++rank) {
    const auto file = SafetensorsFile::Open(
        folder / absl::StrFormat("optimizer-%05d-of-00003.safetensors", rank));
    ASSERT_OK(file);
    EXPECT_EQ((*file)->metadata().at("begin"), absl::StrCat(shares.of(rank).begin));
    EXPECT_EQ((*file)->metadata().at("end"), absl::StrCat(shares.of(rank).end));
  }
}

// Two ranks with an out_dir each, as on two machines.
RunOptions TwoMachines(const TempDir& dir, const std::string& name, int64_t generation) {
  return {.world = 2, .generation = generation, .launch = [&dir, name](v1::WorkerLaunch* launch) {
            launch->set_rank_address("127.0.0.1");
            launch->mutable_spec()->mutable_train()->set_out_dir(
                dir / absl::StrCat(name, "-", launch->rank()));
          }};
}

TEST_P(SharesTest, EachMachineWritesWholeCheckpointsAndReceivesThem) {
  const WholeRun& whole = RunWhole(GetParam().optimizer, 0, 2);
  RunOptions stopped = TwoMachines(dir_, "machine", 1);
  stopped.before = StopAt(5, 0).before;
  const TempDir runs, more_runs;
  for (const RankResult& rank : RunJob(runs, JobFor("", level()), stopped)) {
    ASSERT_EQ(rank.finished.reason(), "STOPPED_AT_STEP") << rank.finished.text();
  }
  std::filesystem::remove_all(dir_ / "machine-0");  // receives all from the other machine
  for (const RankResult& rank :
       RunJob(more_runs, JobFor("", level()), TwoMachines(dir_, "machine", 2))) {
    ASSERT_EQ(rank.finished.outcome(), v1::OUTCOME_COMPLETED) << rank.finished.text();
    EXPECT_EQ(rank.started.resumed_step(), 5);
  }
  for (const char* const machine : {"machine-0", "machine-1"}) {
    EXPECT_TRUE(Load(JobFor(machine, kNone), kShareSteps) == whole.loaded) << machine;
  }
}

INSTANTIATE_TEST_SUITE_P(All, SharesTest,
                         ::testing::Values(Divided{v1::OPTIMIZER_ADAMW, v1::SHARD_OPTIMIZER},
                                           Divided{v1::OPTIMIZER_MUON, v1::SHARD_OPTIMIZER},
                                           Divided{v1::OPTIMIZER_ADAMW, v1::SHARD_GRADIENTS},
                                           Divided{v1::OPTIMIZER_MUON, v1::SHARD_GRADIENTS},
                                           Divided{v1::OPTIMIZER_ADAMW, v1::SHARD_PARAMETERS},
                                           Divided{v1::OPTIMIZER_MUON, v1::SHARD_PARAMETERS}),
                         [](const auto& divided) {
                           return absl::StrCat(
                               divided.param.optimizer == v1::OPTIMIZER_MUON ? "Muon_" : "AdamW_",
                               std::string(ShardName(divided.param.shard)));
                         });

// Cuts that would fall inside one matrix of Muon move to the same end of it.
TEST(Shares, ARankMayHaveNone) {
  constexpr int kRanks = 8;
  const TempDir dir;
  std::vector<std::vector<StepBits>> bits;
  std::vector<Loaded> ends;
  for (const v1::Shard shard : kShards) {
    v1::JobSpec spec = SharesJob(dir, std::string(ShardName(shard)), v1::OPTIMIZER_MUON, shard);
    spec.mutable_model()->set_n_layers(1);
    spec.mutable_model()->set_mlp_ratio(16);
    spec.mutable_train()->set_batch_size(kRanks);
    const Shares shares(ParameterLayout(spec), spec.train(), kRanks);
    int empty = 0;
    for (int rank = 0; rank < kRanks; ++rank) empty += shares.of(rank).empty() ? 1 : 0;
    ASSERT_GT(empty, 0) << "the test needs an empty share";
    bits.push_back(RunToTheEnd(spec, kRanks));
    ends.push_back(Load(spec, kShareSteps));
  }
  for (size_t level = 1; level < bits.size(); ++level) {
    EXPECT_EQ(bits[level], bits[0]) << level;
    EXPECT_TRUE(ends[level] == ends[0]) << level;
  }
}

// A wrong bit is found in the step in which it is there. Where another rank has the share, that
// rank's weights replace it in the next step; where its own rank has flipped it, all get it. With
// `parameters` all ranks compute with the wrong bit, and nothing on the CPU shows it.
TEST(Shares, AFlippedBitIsFound) {
  for (const auto& [rank, shard] :
       {std::pair(0, v1::SHARD_OPTIMIZER), std::pair(1, v1::SHARD_OPTIMIZER),
        std::pair(1, v1::SHARD_GRADIENTS)}) {
    setenv("NSA_TEST_FLIP_BIT_AT_STEP", absl::StrCat("6,", rank).c_str(), 1);
    const TempDir dir, runs;
    const auto ranks =
        RunJob(runs, SharesJob(dir, "out", v1::OPTIMIZER_ADAMW, shard), {.world = 2});
    unsetenv("NSA_TEST_FLIP_BIT_AT_STEP");
    EXPECT_THAT(EventTexts(ranks[0], "PARAMETERS_DIFFER"), ElementsAre(HasSubstr("step 6: ")));
    EXPECT_NE(BitsOf(ranks[0])[5].hash, BitsOf(ranks[1])[5].hash);
    EXPECT_EQ(BitsOf(ranks[0])[7].hash, BitsOf(ranks[1])[7].hash);
  }
}

TEST(Shares, AStepThatIsNotFiniteIsSkippedByAllRanks) {
  const TempDir dir;
  v1::JobSpec whole = SharesJob(dir, "none", v1::OPTIMIZER_ADAMW, kNone);
  whole.mutable_train()->set_lr(1e38);  // weights whose products overflow
  whole.mutable_train()->set_warmup_steps(0);
  whole.mutable_train()->set_grad_clip(0);
  whole.mutable_guard()->set_max_consecutive_nonfinite(100);
  std::vector<std::vector<bool>> skipped;
  for (const v1::Shard shard : kShards) {
    const TempDir runs;
    v1::JobSpec spec = whole;
    spec.mutable_train()->set_out_dir(dir / std::string(ShardName(shard)));
    spec.mutable_runtime()->set_shard(shard);
    const auto ranks = RunJob(runs, spec, {.world = 2});
    std::vector<bool> steps;
    for (const v1::StepRecord& step : ranks[1].steps) steps.push_back(step.skipped_nonfinite());
    skipped.push_back(steps);
    EXPECT_EQ(ranks[0].steps.back().parameters_hash(), ranks[1].steps.back().parameters_hash());
  }
  EXPECT_THAT(skipped[0], ::testing::Contains(true)) << "the test needs a step that is not finite";
  EXPECT_THAT(skipped, ::testing::Each(skipped[0]));
}

// The gradient of an embedding that is also the head is complete after both of its uses, on every
// rank. A run of one rank shows that each is summed once; the sums have another order there.
TEST(Shares, OfAModelOfAnotherFamilyGiveTheBitsOfWholeStates) {
  for (const v1::Optimizer optimizer : {v1::OPTIMIZER_ADAMW, v1::OPTIMIZER_MUON}) {
    SCOPED_TRACE(v1::Optimizer_Name(optimizer));
    const TempDir dir;
    const auto job = [&](const std::string& out, v1::Shard shard) {
      v1::JobSpec spec = SharesJob(dir, out, optimizer, shard);
      UseAllOfOtherFamilies(&spec);
      return spec;
    };
    const v1::JobSpec whole = job("whole", kNone), divided = job("divided", v1::SHARD_OPTIMIZER),
                      broken = job("broken", v1::SHARD_OPTIMIZER);
    const std::vector<StepBits> want = RunToTheEnd(whole, 3);
    EXPECT_EQ(RunToTheEnd(divided, 3), want);
    EXPECT_TRUE(Load(divided, kShareSteps) == Load(whole, kShareSteps));
    RunUntil(5, broken, 3);
    EXPECT_EQ(RunToTheEnd(broken, 3, 2), std::vector<StepBits>(want.begin() + 5, want.end()));
    EXPECT_TRUE(Load(broken, kShareSteps) == Load(whole, kShareSteps));
    const std::vector<StepBits> alone = RunToTheEnd(job("alone", kNone), 1);
    EXPECT_NEAR(alone[0].loss, want[0].loss, 1e-5);
    EXPECT_NEAR(alone[0].norm, want[0].norm, 1e-4 * want[0].norm);
  }
}

}  // namespace
}  // namespace nsa::train
