// The commands that stop, resume and delete jobs and dump their stacks, against a fake coordinator.
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/rpc/rpc.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/client/commands_fixture.h"

namespace nsa::client {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

TEST_F(CommandsTest, StopSendsWhatWasAsked) {
  EXPECT_THAT(Run({"stop", "demo", "--at-step", "500"}).out, HasSubstr("stopping after step 500"));
  EXPECT_THAT(Run({"stop", "demo"}).err, HasSubstr("nsactl stop --now jdemo1234567"));
  Run({"stop", "demo", "--now"});
  EXPECT_THAT(service().Requests("StopJob"),
              ElementsAre(HasSubstr("STOP_MODE_AT_STEP at_step: 500"),
                          HasSubstr("STOP_MODE_GRACEFUL"), HasSubstr("STOP_MODE_NOW")));
  EXPECT_EQ(Run({"stop", "nothing"}).code, ExitCode::kNotFound);
}

TEST_F(CommandsTest, StopTakesSeveralJobsAndGoesOnAfterOneThatIsRefused) {
  const Ran both = Run({"stop", "demo", "old", "--now"});
  EXPECT_EQ(both.code, ExitCode::kOk);
  EXPECT_EQ(both.out,
            "demo (jdemo1234567): stopping now (now at 375/1000)\n"
            "old (jold12345678a): stopping now (now at 375/1000)\n");
  EXPECT_EQ(both.err, "") << "no next commands of every job";
  const Ran some = Run({"stop", "demo", "nothing", "old"});
  EXPECT_EQ(some.code, ExitCode::kNotFound);
  EXPECT_THAT(some.out, AllOf(HasSubstr("jdemo1234567"), HasSubstr("jold12345678a")));
  EXPECT_EQ(some.err,
            "nothing: job: 'nothing' is not known; see `nsactl list`\n"
            "nsactl: stop: failed for 1 of 3 jobs; see the lines above\n");
  EXPECT_EQ(Run({"stop", "demo", "old", "-o", "name"}).out, "jdemo1234567\njold12345678a\n");
  const auto json = nlohmann::json::parse(Run({"stop", "demo", "old", "-o", "json"}).out);
  ASSERT_THAT(json["jobs"], SizeIs(2));
  EXPECT_EQ(json["jobs"][1]["id"], "jold12345678a");
  EXPECT_EQ(nlohmann::json::parse(Run({"stop", "old", "-o", "json"}).out)["id"], "jold12345678a");
}

TEST_F(CommandsTest, StopActsOnAllThatMatchAndListsThem) {
  for (v1::Job& job : state().jobs) (*job.mutable_spec()->mutable_labels())["run"] = "7";
  const Ran refused = Run({"stop", "--label", "run=7"});
  EXPECT_EQ(refused.code, ExitCode::kUsage) << "no terminal to ask on";
  EXPECT_THAT(refused.err, HasSubstr("--yes: not given"));
  EXPECT_THAT(service().Requests("StopJob"), SizeIs(0));
  const Ran ran = Run({"stop", "--label", "run=7", "--yes"});
  EXPECT_EQ(ran.code, ExitCode::kOk);
  EXPECT_THAT(ran.out, StartsWith("demo (jdemo1234567): stopping"));
  EXPECT_THAT(ran.err, HasSubstr("stop: 1 of 2 matching jobs left out"));
  EXPECT_THAT(service().Requests("StopJob"), ElementsAre(HasSubstr("job: \"jdemo1234567\"")));
}

TEST_F(CommandsTest, APatternStandsForTheJobsWithSuchNames) {
  can_ask_ = true;
  typed_ = "y\n";
  const Ran ran = Run({"stop", "d*", "o?d"});
  EXPECT_EQ(ran.code, ExitCode::kOk) << ran.err;
  EXPECT_THAT(ran.err, AllOf(HasSubstr("stop: 1 of 2 matching jobs left out"),
                             HasSubstr("stop: go on with 1 job?")));
  EXPECT_THAT(service().Requests("StopJob"), ElementsAre(HasSubstr("job: \"jdemo1234567\"")));
  EXPECT_EQ(Run({"label", "[do]*", "kept=yes", "--yes"}).code, ExitCode::kOk);
  EXPECT_THAT(service().Requests("EditJob"), SizeIs(2));
  EXPECT_EQ(Run({"delete", "d*", "--state", "failed", "--yes"}).code, ExitCode::kOk);
  EXPECT_THAT(service().Requests("DeleteJob"), SizeIs(0)) << "only 'old' has failed";
  EXPECT_THAT(Run({"stop", "x*", "--yes"}).err, HasSubstr("stop: no jobs with such names"));
  for (const std::vector<std::string>& mixed :
       {std::vector<std::string>{"stop", "demo", "o*"}, {"stop", "o*", "demo"}}) {
    const Ran both = Run(mixed);
    EXPECT_EQ(both.code, ExitCode::kUsage);
    EXPECT_THAT(both.err, HasSubstr("JOB: demo (none with --state, --label or a pattern)"));
  }
}

TEST_F(CommandsTest, ACommandThatChangesAsksBeforeItActsOnWhatMatches) {
  can_ask_ = true;
  typed_ = "n\n";
  const Ran no = Run({"resume", "--state", "failed"});
  EXPECT_EQ(no.code, ExitCode::kInterrupted);
  EXPECT_THAT(no.err,
              AllOf(HasSubstr("old (jold12345678a)  failed"),
                    HasSubstr("resume: go on with 1 job? [y/N]"), HasSubstr("nothing changed")));
  EXPECT_THAT(service().Requests("ResumeJob"), SizeIs(0));
  typed_ = "y\n";
  const auto json = nlohmann::json::parse(Run({"resume", "--state", "failed", "-o", "json"}).out);
  EXPECT_THAT(json["jobs"], SizeIs(1)) << "a list, however many match";
}

TEST_F(CommandsTest, JobsAreNamedOrMatched) {
  for (const std::string command : {"stop", "resume", "delete", "dump-stack"}) {
    EXPECT_EQ(Run({command}).code, ExitCode::kUsage);
    const Ran both = Run({command, "demo", "--state", "active"});
    EXPECT_EQ(both.code, ExitCode::kUsage);
    EXPECT_THAT(both.err, HasSubstr("name a job or choose some, not both"));
    const Ran none = Run({command, "--state", "queued"});
    EXPECT_EQ(none.code, ExitCode::kOk) << none.err;
    EXPECT_THAT(none.err, HasSubstr("no jobs in these states"));
  }
}

TEST_F(CommandsTest, LabelsAreSetOnAllThatMatch) {
  const Ran ran = Run({"label", "--state", "failed", "--yes", "team=vision"});
  EXPECT_EQ(ran.code, ExitCode::kOk) << ran.err;
  EXPECT_THAT(service().Requests("EditJob"),
              ElementsAre(AllOf(HasSubstr("job: \"jold12345678a\""), HasSubstr("vision"))));
}

TEST_F(CommandsTest, AReaderSaysThatThereAreOthersOfTheName) {
  state().jobs[1].set_name("demo");
  EXPECT_THAT(Run({"describe", "demo"}).err,
              HasSubstr("demo: job jdemo1234567, the newest that has not ended; another job has"));
  EXPECT_EQ(Run({"describe", "jdemo1234567"}).err, "");
  EXPECT_EQ(Run({"describe", "demo", "-q"}).err, "");
}

TEST_F(CommandsTest, WithoutACoordinatorSeveralJobsGiveOneError) {
  const Ran ran = RunAlone({"stop", "demo", "old"});
  EXPECT_EQ(ran.code, ExitCode::kUnreachable);
  EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
}

TEST_F(CommandsTest, AStepThatIsNoneIsNamed) {
  for (const std::string step : {"0", "-1", "x", "5k", "99999999999999999999"}) {
    const Ran ran = Run({"stop", "demo", "--at-step", step});
    EXPECT_EQ(ran.code, ExitCode::kUsage);
    EXPECT_EQ(ran.err, "nsactl: --at-step: '" + step +
                           "' (a whole number of at least 1); see `nsactl stop --help`\n");
  }
  EXPECT_THAT(service().Requests("StopJob"), SizeIs(0));
}

TEST_F(CommandsTest, ResumeQueuesTheJobAgain) {
  const Ran ran = Run({"resume", "old"});
  EXPECT_EQ(ran.out, "resumed old (jold12345678a): waiting (was at 375/1000)\n");
  EXPECT_THAT(ran.err, HasSubstr("nsactl watch jold12345678a"));
}

TEST_F(CommandsTest, AResumeMayChangeTheNumberOfSteps) {
  EXPECT_EQ(Run({"resume", "old", "--set", "train.steps=2000"}).code, ExitCode::kOk);
  EXPECT_THAT(service().Requests("ResumeJob"), ElementsAre(HasSubstr("steps: 2000")));
  const Ran bad = Run({"resume", "old", "--set", "train.stepps=2000"});
  EXPECT_EQ(bad.code, ExitCode::kUsage);
  EXPECT_THAT(bad.err, HasSubstr("did you mean 'steps'?"));
}

// What a terminal shows as \u200f is sent back as the mark that it is.
TEST_F(CommandsTest, AResumeKeepsTextsThatATerminalDoesNotShowAsTheyAre) {
  state().jobs.back().mutable_spec()->mutable_sample()->add_prompts("a\xe2\x80\x8f\r\n");
  EXPECT_EQ(Run({"resume", "old", "--set", "train.steps=2000"}).code, ExitCode::kOk);
  EXPECT_THAT(service().Requests("ResumeJob"),
              ElementsAre(HasSubstr("prompts: \"a\\342\\200\\217\\r\\n\"")));
}

TEST_F(CommandsTest, AResumeSendsNoLabelsButThoseThatItChanges) {
  auto& labels = *state().jobs.back().mutable_spec()->mutable_labels();
  labels["same"] = "1";
  labels["other"] = "1";
  EXPECT_EQ(Run({"resume", "old", "--set", "labels.other=2"}).code, ExitCode::kOk);
  EXPECT_THAT(service().Requests("ResumeJob"),
              ElementsAre(AllOf(HasSubstr("key: \"other\""), Not(HasSubstr("key: \"same\"")))));
}

TEST_F(CommandsTest, AResumeThatPreflightRefusesPrintsWhy) {
  state().failures["ResumeJob"] = {
      ToGrpc(absl::InvalidArgumentError(
                 "preflight: train.steps: it jumps (1 rule refuses this job); see the findings"),
             "PREFLIGHT_REFUSED", {{"train.steps", "SCHEDULE_CHANGED: it jumps; fix it"}})};
  const Ran ran = Run({"resume", "old", "--set", "train.steps=2000"});
  EXPECT_EQ(ran.code, ExitCode::kUsage);
  EXPECT_EQ(ran.err,
            "train.steps: SCHEDULE_CHANGED: it jumps; fix it\n"
            "nsactl: preflight: the job is refused (errors above); change what they name\n");
}

TEST_F(CommandsTest, WhatAResumeIsRefusedForIsSaidOnce) {
  const std::string message = "train.out_dir: job jother is using it; choose another";
  state().failures["ResumeJob"] = {ToGrpc(absl::FailedPreconditionError(message), "OUT_DIR_IN_USE",
                                          {{"train.out_dir", message}})};
  EXPECT_EQ(Run({"resume", "old"}).err, "nsactl: " + message + "\n");
}

TEST_F(CommandsTest, AResumeIsSentAgainWithTheSameRequestIdUntilItIsAnswered) {
  state().failures["ResumeJob"] = {{grpc::StatusCode::UNAVAILABLE, "restarting"}};
  EXPECT_EQ(Run({"resume", "old"}).code, ExitCode::kOk);
  const std::vector<std::string> requests = service().Requests("ResumeJob");
  ASSERT_THAT(requests, SizeIs(2));
  EXPECT_EQ(requests[0], requests[1]);
  EXPECT_THAT(requests[0], HasSubstr("request_id: "));
}

class ForkTest : public CommandsTest {
 protected:
  ForkTest() {
    for (const int64_t step : {200, 300}) {
      v1::CheckpointInfo& checkpoint = state().checkpoints.emplace_back();
      checkpoint.set_step(step);
      checkpoint.set_path(absl::StrCat("/data/demo/checkpoints/step-00000", step));
    }
    state().checkpoints.emplace_back().set_error("state.json: damaged");
    state().checkpoints.back().set_step(350);
    state().report.set_accepted(true);
    v1::TrainSpec& train = *state().jobs[0].mutable_spec()->mutable_train();
    train.set_out_dir("/data/demo");
    train.set_lr(0.001);
    train.set_warmup_steps(250);
    train.set_lr_schedule(v1::LR_SCHEDULE_CONSTANT);
  }

  std::vector<std::string> Submitted() { return service().Requests("SubmitJob"); }
};

TEST_F(ForkTest, PathsOfSetStartAtTheCurrentDirectory) {
  EXPECT_EQ(Run({"fork", "demo", "--set", "train.out_dir=here/it"}).code, ExitCode::kOk);
  const std::string folder = std::filesystem::current_path() / "here/it";
  EXPECT_THAT(Submitted(), ElementsAre(HasSubstr("out_dir: \"" + folder + "\"")));
}

TEST_F(ForkTest, DoesNotWaitAgainForWhatTheJobWaitedFor) {
  v1::JobSpec& spec = *state().jobs[0].mutable_spec();
  spec.add_after("prep");
  spec.set_not_before("+2h");
  spec.add_alerts()->set_when("loss > 3");
  EXPECT_EQ(Run({"fork", "demo"}).code, ExitCode::kOk);
  EXPECT_EQ(Run({"fork", "demo", "--set", "after=later"}).code, ExitCode::kOk);
  ASSERT_THAT(Submitted(), testing::SizeIs(2));
  EXPECT_THAT(Submitted()[0], AllOf(Not(HasSubstr("after:")), Not(HasSubstr("not_before")),
                                    HasSubstr("when: \"loss > 3\"")));
  EXPECT_THAT(Submitted()[1], HasSubstr("after: \"later\""));
}

TEST_F(ForkTest, ContinuesFromTheNewestCheckpointThatCanBeReadInAnOutDirOfItsOwn) {
  EXPECT_EQ(Run({"fork", "demo", "--set", "train.seed=5"}).code, ExitCode::kOk);
  EXPECT_THAT(
      Submitted(),
      ElementsAre(
          AllOf(HasSubstr("name: \"demo-at-300\""), HasSubstr("out_dir: \"/data/demo-at-300\""),
                HasSubstr("resume: \"/data/demo/checkpoints/step-00000300\""), HasSubstr("seed: 5"),
                HasSubstr("request_id"), HasSubstr("lr_schedule: LR_SCHEDULE_CONSTANT"))));
}

TEST_F(ForkTest, DecayLowersTheLearningRateFromThatOfTheCheckpoint) {
  EXPECT_EQ(Run({"fork", "demo", "--decay", "50", "--name", "short"}).code, ExitCode::kOk);
  EXPECT_THAT(Submitted(),
              ElementsAre(AllOf(HasSubstr("out_dir: \"/data/short\""), HasSubstr("steps: 350"),
                                HasSubstr("lr_schedule: LR_SCHEDULE_WSD"), HasSubstr("lr: 0.001"),
                                HasSubstr("decay_steps: 50"))));
}

TEST_F(ForkTest, DecayOfAScheduleThatFallsAlreadyBeginsWhereItIs) {
  v1::TrainSpec& train = *state().jobs[0].mutable_spec()->mutable_train();
  train.set_lr_schedule(v1::LR_SCHEDULE_LINEAR);
  train.set_min_lr_ratio(0);
  train.set_steps(350);
  train.set_optimizer(v1::OPTIMIZER_MUON);
  train.set_muon_lr(0.004);
  EXPECT_EQ(Run({"fork", "demo", "--decay", "50"}).code, ExitCode::kOk);
  EXPECT_THAT(Submitted(),
              ElementsAre(AllOf(HasSubstr("lr: 0.0005 "), HasSubstr("muon_lr: 0.002"))))
      << "step 300 is half of the way from the peak at 250 to 0 at 350";
}

TEST_F(ForkTest, AtStep0CopiesTheJobWithItsChanges) {
  EXPECT_EQ(
      Run({"fork", "demo", "--at-step", "0", "--name", "again", "--set", "model.dim=64"}).code,
      ExitCode::kOk);
  EXPECT_THAT(Submitted(),
              ElementsAre(AllOf(HasSubstr("name: \"again\""), HasSubstr("dim: 64"),
                                HasSubstr("out_dir: \"/data/again\""), Not(HasSubstr("resume:")))));
}

TEST_F(ForkTest, NamesWhatIsNotThere) {
  const Ran none = Run({"fork", "demo", "--at-step", "350"});
  EXPECT_EQ(none.code, ExitCode::kNotFound);
  EXPECT_THAT(none.err, HasSubstr("--at-step: 350: demo"));
  const Ran early = Run({"fork", "demo", "--at-step", "200", "--decay", "50"});
  EXPECT_EQ(early.code, ExitCode::kUsage);
  EXPECT_THAT(early.err, HasSubstr("(at least step 250)"));
  EXPECT_THAT(Submitted(), SizeIs(0));
}

TEST_F(CommandsTest, DeleteSaysWhatGoesAndWhatStays) {
  const Ran ran = Run({"delete", "old", "jold12345678a", "--yes"});
  EXPECT_EQ(ran.code, ExitCode::kOk);
  EXPECT_THAT(ran.out, StartsWith("deleted old (jold12345678a); /data/demo"));
  EXPECT_THAT(service().Requests("DeleteJob"),
              ElementsAre(AllOf(HasSubstr("job: \"jold12345678a\""), HasSubstr("request_id"))))
      << "named twice, deleted once";
  EXPECT_EQ(Run({"delete", "old", "--yes"}).code, ExitCode::kNotFound);
}

TEST_F(CommandsTest, DeleteAsksOnATerminal) {
  can_ask_ = true;
  for (const std::string answer : {"", "\n", "n\n", "yesterday\n"}) {
    typed_ = answer;
    const Ran ran = Run({"delete", "old"});
    EXPECT_EQ(ran.code, ExitCode::kInterrupted) << answer;
    EXPECT_THAT(ran.err,
                AllOf(HasSubstr("old (jold12345678a)  failed at 375/1000"), HasSubstr("/data/demo"),
                      HasSubstr("checkpoints. [y/N]"), HasSubstr("nothing deleted")));
    EXPECT_EQ(ran.out, "");
  }
  EXPECT_THAT(service().Requests("DeleteJob"), SizeIs(0));
  typed_ = " YES \n";
  EXPECT_EQ(Run({"delete", "old"}).code, ExitCode::kOk);
  EXPECT_THAT(service().Requests("DeleteJob"), SizeIs(1));
}

TEST_F(CommandsTest, DeleteWithoutATerminalNeedsYes) {
  const Ran ran = Run({"delete", "old"});
  EXPECT_EQ(ran.code, ExitCode::kUsage);
  EXPECT_THAT(ran.err, HasSubstr("nsactl: --yes: not given"));
  EXPECT_THAT(service().Requests("DeleteJob"), SizeIs(0));
}

TEST_F(CommandsTest, DeleteOfAJobThatRunsDeletesNothing) {
  const Ran ran = Run({"delete", "old", "demo", "--yes"});
  EXPECT_EQ(ran.code, ExitCode::kPrecondition);
  EXPECT_THAT(ran.err, HasSubstr("state: job demo (jdemo1234567) is training"));
  EXPECT_EQ(Run({"delete", "old", "nothing", "--yes"}).code, ExitCode::kNotFound);
  EXPECT_THAT(service().Requests("DeleteJob"), SizeIs(0));
}

TEST_F(CommandsTest, DeleteIsSentAgainUnderTheSameRequestId) {
  state().failures["DeleteJob"] = {grpc::Status(grpc::StatusCode::UNAVAILABLE, "Socket closed")};
  EXPECT_EQ(Run({"delete", "old", "--yes", "-o", "name"}).out, "jold12345678a\n");
  const std::vector<std::string> sent = service().Requests("DeleteJob");
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0], sent[1]);
}

TEST_F(CommandsTest, DeleteInJsonIsOneDocument) {
  const auto json = nlohmann::json::parse(Run({"delete", "old", "--yes", "-o", "json"}).out);
  EXPECT_EQ(json, nlohmann::json::parse(R"({"job_ids": ["jold12345678a"]})"));
}

TEST_F(CommandsTest, DumpStackShowsOrWritesEveryRank) {
  for (int rank = 0; rank < 2; ++rank) {
    v1::StackDump& dump = state().dumps.emplace_back();
    dump.set_rank(rank);
    dump.set_pid(100 + rank);
    dump.set_node("box");
    dump.set_status("step 375, forward layer 3");
    dump.set_stacks("thread 100\n  #0 nsa::train::Model::Forward");
    dump.set_seconds(0.31);
  }
  EXPECT_EQ(Run({"dump-stack", "demo", "--rank", "1"}).out,
            "=== rank 1, pid 101 on box (0.31 s)\n"
            "step 375, forward layer 3\n"
            "thread 100\n"
            "  #0 nsa::train::Model::Forward\n"
            "\n");
  const std::string file = (dir_ / "stacks.txt").string();
  const Ran ran = Run({"dump-stack", "demo", "-o", file});
  EXPECT_EQ(ran.out, "");
  EXPECT_THAT(ran.err, HasSubstr("stacks of 2 ranks written to " + file));
  std::stringstream written;
  written << std::ifstream(file).rdbuf();
  EXPECT_THAT(written.str(), AllOf(HasSubstr("rank 0"), HasSubstr("rank 1")));
  const auto json = nlohmann::json::parse(Run({"dump-stack", "demo", "--output", "json"}).out);
  EXPECT_THAT(json["dumps"], SizeIs(2));
}

TEST_F(CommandsTest, DumpStackOfSeveralJobsHasAHeadingForEach) {
  v1::StackDump& dump = state().dumps.emplace_back();
  dump.set_node("box");
  dump.set_stacks("thread 100");
  const Ran ran = Run({"dump-stack", "demo", "nothing", "old"});
  EXPECT_EQ(ran.code, ExitCode::kNotFound);
  EXPECT_EQ(ran.out,
            "##### demo (jdemo1234567)\n"
            "=== rank 0, pid 0 on box (0.00 s)\n"
            "thread 100\n"
            "\n"
            "##### old (jold12345678a)\n"
            "=== rank 0, pid 0 on box (0.00 s)\n"
            "thread 100\n"
            "\n");
  EXPECT_EQ(ran.err,
            "nothing: job: 'nothing' is not known; see `nsactl list`\n"
            "nsactl: dump-stack: failed for 1 of 3 jobs; see the lines above\n");
  const std::string file = (dir_ / "stacks.txt").string();
  EXPECT_EQ(Run({"dump-stack", "demo", "old", "-o", file}).err,
            "stacks of 2 ranks written to " + file + "\n");
  const auto json =
      nlohmann::json::parse(Run({"dump-stack", "demo", "old", "--output", "json"}).out);
  EXPECT_EQ(json["jobs"][0]["job_name"], "demo");
  EXPECT_EQ(json["jobs"][1]["job_id"], "jold12345678a");
  EXPECT_THAT(json["jobs"][1]["dumps"], SizeIs(1));
}

TEST_F(CommandsTest, DumpStackSavedListsWhatWasSavedAndShowsOne) {
  EXPECT_THAT(Run({"dump-stack", "demo", "--saved"}).err, HasSubstr("no saved stacks"));
  for (int id = 1; id <= 2; ++id) {
    v1::GetSavedStacksResponse& each = state().saved_stacks.emplace_back();
    each.mutable_saved()->set_id(id);
    each.mutable_saved()->set_generation(7);
    each.mutable_saved()->set_why(absl::StrCat("rank ", id, " on a: no progress for 180 s"));
    each.set_text(absl::StrCat("stacks ", id, "\n"));
  }
  const std::string all = Run({"dump-stack", "demo", "--saved"}).out;
  EXPECT_THAT(all, AllOf(HasSubstr("GENERATION"), HasSubstr("rank 1 on a: no progress for 180 s"),
                         HasSubstr("rank 2 on a"), HasSubstr("=== saved 2, "),
                         HasSubstr("\nstacks 2\n"), Not(HasSubstr("\nstacks 1\n"))));
  EXPECT_THAT(Run({"dump-stack", "demo", "--saved", "1"}).out,
              AllOf(HasSubstr("=== saved 1, "), HasSubstr("\nstacks 1\n")));
  EXPECT_EQ(Run({"dump-stack", "demo", "--saved", "3"}).code, ExitCode::kNotFound);
  EXPECT_THAT(Run({"dump-stack", "demo", "--saved", "1", "-o", "file"}).err,
              HasSubstr("-o: set beside --saved"));
  EXPECT_THAT(Run({"dump-stack", "demo", "--saved", "--rank", "1"}).err,
              HasSubstr("--rank: set beside --saved"));
  EXPECT_EQ(Run({"dump-stack", "demo", "--saved", "0"}).code, ExitCode::kUsage);
  const auto json =
      nlohmann::json::parse(Run({"dump-stack", "demo", "--output", "json", "--saved"}).out);
  EXPECT_THAT(json["saved"], SizeIs(2));
}

TEST_F(CommandsTest, ADumpWithoutStacksIsAFailure) {
  v1::StackDump& dump = state().dumps.emplace_back();
  dump.set_error("process is gone");
  const Ran ran = Run({"dump-stack", "demo"});
  EXPECT_EQ(ran.code, ExitCode::kFailed);
  EXPECT_THAT(ran.out, HasSubstr("incomplete: process is gone"));
}
}  // namespace
}  // namespace nsa::client
