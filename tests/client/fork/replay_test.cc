// nsactl replay: the verdict, and the command against a fake coordinator, which has the same
// records for the replay as for the job.
#include <filesystem>
#include <fstream>
#include <functional>

#include "client/commands/fork/replay_verdict.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/client/commands_fixture.h"

namespace nsa::client {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

// Steps 91 to 210 of a job with this many ranks; `change` is applied to each record. Steps 100 and
// 200 have hashes.
RankLogs Logs(int32_t ranks, const std::function<void(int32_t, v1::StepRecord*)>& change = {}) {
  RankLogs logs;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    for (int64_t step = 91; step <= 210; ++step) {
      v1::WatchRecordsResponse record;
      v1::StepRecord& values = *record.mutable_record()->mutable_step();
      values.set_step(step);
      values.set_loss(1.0 / static_cast<double>(step));
      if (step % 100 == 0) values.set_parameters_hash(static_cast<uint64_t>(step));
      if (change) change(rank, &values);
      logs[rank].Add(record);
    }
  }
  return logs;
}

Replay ReplayOf(int32_t ranks) {
  Replay replay{.checkpoint_step = 90, .step = 210, .ranks = static_cast<size_t>(ranks)};
  replay.original.set_id("j1");
  replay.original.mutable_spec()->mutable_resources()->set_gpus(ranks);
  for (int32_t rank = 0; rank < ranks; ++rank) {
    v1::RankStatus& status = *replay.original.add_ranks();
    status.set_rank(rank);
    status.set_node(absl::StrCat("node-", rank));
  }
  replay.replay.set_id("j2");
  return replay;
}

TEST(JudgeReplay, OfEqualRunsIsEqual) {
  const ReplayVerdict verdict = JudgeReplay(Logs(2), Logs(2));
  EXPECT_EQ(verdict.parting.step, 0);
  EXPECT_THAT(verdict.ranks, IsEmpty());
  EXPECT_EQ(verdict.split_step, 0);
  EXPECT_EQ(VerdictText(ReplayOf(2), verdict),
            "steps 91 to 210: 120 steps of 2 ranks repeated: loss and gradient norm have the same "
            "bits, and so have all parameters (4 hashes)\n");
  EXPECT_EQ(VerdictDocument(ReplayOf(2), verdict)["equal"], true);
}

// A job of four ranks made steps 91 to 150, and went on from step 120 with two.
RankLogs FourThenTwo() {
  RankLogs logs;
  const auto add = [&logs](int64_t generation, int32_t ranks, int64_t first, int64_t last) {
    for (int32_t rank = 0; rank < ranks; ++rank) {
      for (int64_t step = first; step <= last; ++step) {
        v1::WatchRecordsResponse record;
        record.set_generation(generation);
        record.mutable_record()->mutable_step()->set_step(step);
        logs[rank].Add(record);
      }
    }
  };
  add(1, 4, 91, 150);
  add(2, 2, 121, 200);
  return logs;
}

TEST(RanksOfStep, AreThoseOfItsStart) {
  const RankLogs logs = FourThenTwo();
  EXPECT_THAT(RanksOfStep(logs, 200), SizeIs(2));
  EXPECT_THAT(RanksOfStep(logs, 130), SizeIs(2)) << "it was repeated with two";
  EXPECT_THAT(RanksOfStep(logs, 120), SizeIs(4));
  EXPECT_EQ(RanksOfStep(logs, 200).rbegin()->first, 1);
}

TEST(RanksOfStep, AreTheSameFromSomeStepOn) {
  const RankLogs logs = FourThenTwo();
  EXPECT_EQ(FirstWithSameRanks(logs, 120, 200), 121);
  EXPECT_EQ(FirstWithSameRanks(logs, 150, 200), 151);
  EXPECT_EQ(FirstWithSameRanks(logs, 100, 200), 121) << "with four before";
  EXPECT_EQ(FirstWithSameRanks(logs, 100, 120), 101);
  EXPECT_EQ(FirstWithSameRanks(logs, 0, 120), 1) << "steps without a record are not known";
  EXPECT_EQ(FirstWithSameRanks(Logs(2), 90, 210), 91);
}

TEST(JudgeReplay, SaysThatNoParametersWereCompared) {
  const RankLogs without =
      Logs(1, [](int32_t, v1::StepRecord* step) { step->clear_parameters_hash(); });
  EXPECT_THAT(VerdictText(ReplayOf(1), JudgeReplay(Logs(1), without)),
              HasSubstr("parameters: not compared"));
}

TEST(JudgeReplay, ConvictsTheRankWhoseHashDiffers) {
  const RankLogs original = Logs(3, [](int32_t rank, v1::StepRecord* step) {
    if (rank == 1 && step->step() >= 100 && step->has_parameters_hash()) {
      step->set_parameters_hash(0xbad);
    }
    if (step->step() > 100) step->set_loss(9);  // its wrong gradients reach all ranks
  });
  const ReplayVerdict verdict = JudgeReplay(original, Logs(3));
  EXPECT_EQ(verdict.parting.step, 100);
  EXPECT_EQ(verdict.parting.value, "parameters_hash");
  EXPECT_THAT(verdict.ranks, ElementsAre(1));
  EXPECT_THAT(verdict.equal_ranks, ElementsAre(0, 2));
  EXPECT_THAT(
      VerdictText(ReplayOf(3), verdict),
      AllOf(HasSubstr("steps: equal up to 99\n"), HasSubstr("step 100, rank 1 (on node-1): "),
            HasSubstr("step 100, ranks 0, 2: the same bits\n")));
  const auto document = VerdictDocument(ReplayOf(3), verdict);
  EXPECT_EQ(document["equal"], false);
  EXPECT_EQ(document["first"]["ranks"], nlohmann::json({1}));
  EXPECT_EQ(document["first"]["original"], "0000000000000bad");
}

TEST(JudgeReplay, FindsTheRankOfAnEarlierDifferenceByTheNextHashes) {
  const auto wrong_from_150_on = [](int32_t rank, v1::StepRecord* step) {
    if (step->step() >= 150) step->set_loss(9);
    if (step->step() == 200) step->set_parameters_hash(rank == 2 ? 0xbad : 0xfade);
  };
  const ReplayVerdict three = JudgeReplay(Logs(3, wrong_from_150_on), Logs(3));
  EXPECT_EQ(three.parting.step, 150);
  EXPECT_EQ(three.parting.value, "loss");
  EXPECT_THAT(three.ranks, ElementsAre(0, 1, 2)) << "the loss is a mean over all ranks";
  EXPECT_EQ(three.split_step, 200);
  EXPECT_THAT(three.odd_ranks, ElementsAre(2));
  EXPECT_THAT(VerdictText(ReplayOf(3), three),
              AllOf(HasSubstr("step 150, ranks 0, 1, 2: loss is 9, in the replay "),
                    HasSubstr("do not say which rank is wrong\n"),
                    HasSubstr("parameters of rank 2 (on node-2)")));

  const auto of_two = [](int32_t rank, v1::StepRecord* step) {
    if (step->step() >= 150) step->set_loss(9);
    if (step->step() == 200) step->set_parameters_hash(rank == 1 ? 0xbad : 0xfade);
  };
  const ReplayVerdict two = JudgeReplay(Logs(2, of_two), Logs(2));
  EXPECT_EQ(two.split_step, 200);
  EXPECT_THAT(two.odd_ranks, IsEmpty()) << "one against one";
  EXPECT_THAT(VerdictText(ReplayOf(2), two), HasSubstr("step 200 of the original: the ranks"));
}

TEST(JudgeReplay, ComparesOnlyWhatWasRepeated) {
  RankLogs short_replay;
  const RankLogs again = Logs(2);
  for (const auto& [rank, log] : again) {
    for (const auto& [step, values] : log.steps()) {
      v1::WatchRecordsResponse record;
      *record.mutable_record()->mutable_step() = values;
      if (step <= 95) short_replay[rank].Add(record);
    }
  }
  const ReplayVerdict verdict = JudgeReplay(Logs(2), short_replay);
  EXPECT_EQ(verdict.steps, 5);
  EXPECT_EQ(verdict.first, 91);
  EXPECT_EQ(verdict.last, 95);
  EXPECT_EQ(verdict.hashes, 0);
  EXPECT_EQ(JudgeReplay(Logs(2), {}).steps, 0);
  EXPECT_EQ(JudgeReplay(Logs(2), Logs(1)).last, 0) << "nothing of rank 1";
  EXPECT_EQ(JudgeReplay(Logs(2), Logs(2)).last, 210);
}

// "demo" has 2 ranks, steps 1 to 12 (hashes in 10 and 12) and checkpoints of 4 and 8; it has ended,
// and the fake coordinator gives its id and records to the replay too.
class ReplayTest : public CommandsTest {
 protected:
  ReplayTest() {
    v1::Job& demo = state().jobs[0];
    demo.set_state(v1::Job::STATE_STOPPED);
    demo.mutable_spec()->mutable_train()->set_out_dir((dir_ / "demo").string());
    std::filesystem::create_directory(dir_ / "demo");
    // The folder of the replay, with a file of its run.
    state().on_call = [this](const std::string& method, const google::protobuf::Message& request) {
      if (method == interrupted_at_) interrupt_.Raise();
      if (method != "SubmitJob") return;
      folder_ = dynamic_cast<const v1::SubmitJobRequest&>(request).spec().train().out_dir();
      std::filesystem::create_directories(folder_ / "checkpoints");
      std::ofstream(folder_ / "training.csv") << "step\n";
    };
    demo.mutable_spec()->mutable_train()->set_steps(1000);
    demo.mutable_spec()->mutable_resources()->set_gpus(2);
    state().report.set_accepted(true);
    state().stops_at_once = true;
    for (const int64_t step : {4, 8}) {
      v1::CheckpointInfo& checkpoint = state().checkpoints.emplace_back();
      checkpoint.set_step(step);
      checkpoint.set_path(absl::StrCat("/data/demo/checkpoints/step-0000000", step));
    }
    for (int64_t position = 1; position <= 24; ++position) {
      const int64_t step = (position + 1) / 2;
      v1::StepRecord& record = AddStep(step);
      if (step == 10 || step == 12) record.set_parameters_hash(static_cast<uint64_t>(step));
      state().records.back().set_position(position);
      state().records.back().set_rank(static_cast<int32_t>(position % 2));
    }
  }

  std::filesystem::path folder_;
  std::string interrupted_at_;  // the call during which the user types Ctrl-C

  std::vector<std::string> Submitted() { return service().Requests("SubmitJob"); }
};

TEST_F(ReplayTest, RepeatsTheLastStepWithAHashFromTheCheckpointBefore) {
  const Ran ran = Run({"replay", "demo"});
  EXPECT_EQ(ran.code, ExitCode::kOk) << ran.err;
  EXPECT_EQ(ran.out,
            "steps 1 to 12: 12 steps of 2 ranks repeated: loss and gradient norm have the same "
            "bits, and so have all parameters (4 hashes)\n");
  ASSERT_THAT(Submitted(), SizeIs(1));
  EXPECT_THAT(Submitted()[0], AllOf(HasSubstr("name: \"demo-replay-12-"),
                                    HasSubstr("out_dir: \"" + (dir_ / "demo-replay-12-").string()),
                                    HasSubstr("steps: 1000"),
                                    HasSubstr("resume: \"/data/demo/checkpoints/step-00000008\"")));
  EXPECT_THAT(service().Requests("StopJob"),
              ElementsAre(AllOf(HasSubstr("STOP_MODE_AT_STEP"), HasSubstr("at_step: 12"))));
  EXPECT_THAT(ran.err, HasSubstr("repeats steps 9 to 12 of demo"));
  EXPECT_THAT(service().Requests("DeleteJob"), SizeIs(1)) << "equal: not kept";
  EXPECT_THAT(ran.err, HasSubstr("the replay was deleted, with its folder"));
  EXPECT_FALSE(std::filesystem::exists(folder_));
  EXPECT_TRUE(std::filesystem::exists(dir_ / "demo")) << "that of the job stays";
}

// The labels of a sweep find its jobs and say what each has.
TEST_F(ReplayTest, OfAJobOfASweepIsNoJobOfIt) {
  v1::JobSpec& spec = *state().jobs[0].mutable_spec();
  spec.mutable_sweep()->set_name("lr");
  for (const char* const key : {"sweep", "train.lr", "team"}) (*spec.mutable_labels())[key] = "x";
  EXPECT_EQ(Run({"replay", "demo"}).code, ExitCode::kOk);
  EXPECT_THAT(Submitted().at(0), AllOf(HasSubstr("key: \"team\""), Not(HasSubstr("train.lr")),
                                       Not(HasSubstr("sweep"))));
}

TEST_F(ReplayTest, SaysWhereAFolderIsThatItDoesNotRemove) {
  state().on_call = nullptr;
  EXPECT_THAT(Run({"replay", "demo"}).err,
              AllOf(HasSubstr("its folder stays: " + (dir_ / "demo-replay-12-").string()),
                    HasSubstr(": not on this machine")));
}

TEST_F(ReplayTest, KeepsAFolderThatSetNamed) {
  state().on_call = nullptr;
  const std::string named = (dir_ / "named").string();
  std::filesystem::create_directory(named);
  EXPECT_THAT(Run({"replay", "demo", "--set", "train.out_dir=" + named}).err,
              HasSubstr("its folder stays, because --set named it: " + named));
  EXPECT_TRUE(std::filesystem::exists(named));
}

TEST_F(ReplayTest, WithoutAComparisonSaysWhatStaysAndWhere) {
  // After the call that reads the job's own records.
  state().failures["WatchRecords"] = {grpc::Status::OK,
                                      {grpc::StatusCode::PERMISSION_DENIED, "role: viewer"}};
  const Ran failed = Run({"replay", "demo"});
  EXPECT_EQ(failed.code, ExitCode::kAuth);
  EXPECT_THAT(failed.err, AllOf(HasSubstr("with the folder " + folder_.string()),
                                HasSubstr("\n  nsactl delete jdemo1234567")));
  EXPECT_TRUE(std::filesystem::exists(folder_));

  state().jobs[0].set_state(v1::Job::STATE_RUNNING);
  interrupted_at_ = "StopJob";
  const Ran left = Run({"replay", "demo"});
  EXPECT_EQ(left.code, ExitCode::kInterrupted);
  EXPECT_THAT(left.err, AllOf(HasSubstr("the replay goes on as demo-replay-12-"),
                              HasSubstr("with the folder " + folder_.string()),
                              HasSubstr("\n  nsactl stop jdemo1234567")));
  EXPECT_THAT(service().Requests("DeleteJob"), IsEmpty());
}

TEST_F(ReplayTest, TakesTheNamedStepCheckpointAndChanges) {
  const Ran ran = Run({"replay", "demo", "--step", "8", "--set", "priority=10", "--keep"});
  EXPECT_EQ(ran.code, ExitCode::kOk) << ran.err;
  EXPECT_THAT(Submitted()[0], AllOf(HasSubstr("step-00000004\""), HasSubstr("priority: 10"),
                                    HasSubstr("name: \"demo-replay-8-")))
      << "the checkpoint of step 8 was written after it";
  EXPECT_THAT(service().Requests("DeleteJob"), IsEmpty());
  EXPECT_THAT(ran.err, HasSubstr("Next:\n  nsactl bisect jdemo1234567 "));
  EXPECT_EQ(Run({"replay", "demo", "--step", "12", "--from", "4", "--keep"}).code, ExitCode::kOk);
  EXPECT_THAT(Submitted()[1], HasSubstr("step-00000004\""));
}

TEST_F(ReplayTest, FromZeroRepeatsTheJobFromItsBeginning) {
  state().jobs[0].mutable_spec()->mutable_train()->set_steps(12);
  state().jobs[0].mutable_spec()->mutable_restart()->set_resume("never");
  const Ran ran = Run({"replay", "demo", "--from", "0"});
  EXPECT_EQ(ran.code, ExitCode::kOk) << ran.err;
  EXPECT_THAT(Submitted()[0], AllOf(HasSubstr("resume: \"never\""), Not(HasSubstr("step-0000"))));
  EXPECT_THAT(service().Requests("StopJob"), IsEmpty()) << "12 is the job's last step";
  EXPECT_THAT(ran.err, HasSubstr("repeats steps 1 to 12 of demo"));
}

// Steps 1 to 8 were made by four ranks, the later ones by two.
TEST_F(ReplayTest, HasAsManyRanksAsTheJobHadInTheseSteps) {
  v1::JobSpec& spec = *state().jobs[0].mutable_spec();
  spec.mutable_resources()->set_gpus(4);
  spec.mutable_restart()->set_min_ranks(1);
  for (v1::WatchRecordsResponse& record : state().records) {
    record.set_generation(record.record().step().step() <= 8 ? 1 : 2);
  }
  for (int64_t position = 25; position <= 40; ++position) {
    AddStep((position - 23) / 2);
    state().records.back().set_position(position);
    state().records.back().set_generation(1);
    state().records.back().set_rank(static_cast<int32_t>(2 + position % 2));
  }
  const Ran two = Run({"replay", "demo", "--keep"});
  EXPECT_EQ(two.code, ExitCode::kOk) << two.err;
  EXPECT_THAT(two.out, HasSubstr("12 steps of 2 ranks repeated"));
  EXPECT_THAT(Submitted()[0], AllOf(HasSubstr("gpus: 2"), Not(HasSubstr("min_ranks"))));
  const Ran four = Run({"replay", "demo", "--step", "8", "--keep"});
  EXPECT_EQ(four.code, ExitCode::kOk) << four.err;
  ASSERT_THAT(Submitted(), SizeIs(2));
  EXPECT_THAT(Submitted()[1], AllOf(HasSubstr("gpus: 4"), Not(HasSubstr("min_ranks"))));
  const Ran both = Run({"replay", "demo", "--from", "4"});
  EXPECT_EQ(both.code, ExitCode::kPrecondition);
  EXPECT_THAT(both.err, StartsWith("nsactl: --from: 4 (steps 9 to 12"));
  EXPECT_THAT(Submitted(), SizeIs(2));
}

TEST_F(ReplayTest, ThatCannotBeToldWhereToStopSaysSo) {
  state().failures["StopJob"] = {{grpc::StatusCode::FAILED_PRECONDITION, "step: 12 (13 is done)"}};
  const Ran ran = Run({"replay", "demo"});
  EXPECT_EQ(ran.code, ExitCode::kPrecondition);
  EXPECT_THAT(ran.err, AllOf(HasSubstr("step: 12 (13 is done)"), HasSubstr("goes on after step 12"),
                             HasSubstr("nsactl stop jdemo1234567")));
}

TEST_F(ReplayTest, PrintsADocument) {
  const auto document = nlohmann::json::parse(Run({"replay", "demo", "-o", "json"}).out);
  EXPECT_EQ(document["equal"], true);
  EXPECT_EQ(document["checkpoint_step"], 8);
  EXPECT_EQ(document["compared"]["hashes"], 4);
}

TEST_F(ReplayTest, SaysWhatIsMissing) {
  const auto refused = [this](const std::vector<std::string>& words, const std::string& text) {
    const Ran ran = Run(words);
    EXPECT_EQ(ran.code, ExitCode::kPrecondition) << ran.err;
    EXPECT_EQ(ran.err, absl::StrCat("nsactl: ", text, "\n"));
  };
  refused({"replay", "demo", "--step", "4"},
          "--step: 4 (a step of demo after a checkpoint; kept are those of 4, 8); name a later "
          "one, or repeat the job from its beginning by --from 0");
  refused({"replay", "demo", "--step", "13"},
          "--step: 13 (the coordinator keeps steps 1 to 12 of demo); name one of them");
  refused({"replay", "demo", "--from", "5"},
          "--from: 5 (the step of a checkpoint of demo before step 12; kept are those of 4, 8); "
          "name another one, or 0 for the job's beginning");
  for (v1::WatchRecordsResponse& record : state().records) {
    record.mutable_record()->mutable_step()->clear_parameters_hash();
  }
  refused({"replay", "demo"},
          "replay: no step of demo has a hash of the parameters (multiples of "
          "guard.hash_every and the last one have); name a step by --step");
  state().records.clear();
  refused({"replay", "demo"},
          "replay: the coordinator keeps no step of demo; name a job that has trained");
  EXPECT_THAT(Submitted(), IsEmpty());
  EXPECT_EQ(Run({"replay", "no-such"}).code, ExitCode::kNotFound);
}

}  // namespace
}  // namespace nsa::client
