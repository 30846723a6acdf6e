// nsactl label, note and mute, and how problems are shown, against a fake coordinator.
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "server/decide/problem/templates.h"
#include "tests/client/commands_fixture.h"

namespace nsa::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

TEST_F(CommandsTest, LabelSetsAndRemovesAndShowsWhatIsLeft) {
  (*state().jobs[0].mutable_spec()->mutable_labels())["draft"] = "yes";
  EXPECT_THAT(Run({"label", "demo"}).out, HasSubstr("  draft=yes\n"));
  const Ran ran = Run({"label", "demo", "team=a=b", "draft-", "empty="});
  EXPECT_EQ(ran.code, ExitCode::kOk) << ran.err;
  EXPECT_THAT(ran.out,
              AllOf(HasSubstr("demo (jdemo1234567)\n"), HasSubstr("  empty=\n  team=a=b\n")));
  const auto sent = service().Requests("EditJob");
  ASSERT_THAT(sent, SizeIs(1)) << "showing changes nothing";
  EXPECT_THAT(sent[0], AllOf(HasSubstr("job: \"demo\""), HasSubstr("key: \"team\" value: \"a=b\""),
                             HasSubstr("remove_labels: \"draft\""), HasSubstr("request_id: \"")));
  const auto json = nlohmann::json::parse(Run({"label", "demo", "-o", "json"}).out);
  EXPECT_EQ(json["spec"]["labels"]["team"], "a=b");
  EXPECT_EQ(Run({"label", "nothing"}).code, ExitCode::kNotFound);
}

TEST_F(CommandsTest, AChangeOfALabelThatIsNoneIsRefusedBeforeAnythingIsSent) {
  for (const std::string change : {"team", "=x", "-", ""}) {
    const Ran ran = Run({"label", "demo", change});
    EXPECT_EQ(ran.code, ExitCode::kUsage) << change;
    EXPECT_THAT(ran.err, HasSubstr(absl::StrCat("'", change, "'"))) << change;
  }
  EXPECT_THAT(Run({"label", "demo", "a=1", "a=2"}).err, HasSubstr("'a': changed twice"));
  EXPECT_THAT(Run({"label", "demo", "a=1", "a-"}).err, HasSubstr("'a': changed twice"));
  EXPECT_THAT(service().Requests("EditJob"), IsEmpty());
}

TEST_F(CommandsTest, ANoteIsSentAgainWithTheSameRequestId) {
  state().failures["EditJob"] = {grpc::Status(grpc::StatusCode::UNAVAILABLE, "Socket closed")};
  const Ran ran = Run({"note", "demo", "a spike", "at 1,200"});
  EXPECT_EQ(ran.code, ExitCode::kOk) << ran.err;
  EXPECT_EQ(ran.out, "demo (jdemo1234567): noted; `nsactl events jdemo1234567` shows it\n");
  const auto sent = service().Requests("EditJob");
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(sent[0], sent[1]);
  EXPECT_THAT(sent[0], HasSubstr("note: \"a spike at 1,200\""));
  EXPECT_EQ(Run({"note", "demo"}).code, ExitCode::kUsage);
  EXPECT_EQ(Run({"note", "demo", "x", "-o", "name"}).out, "jdemo1234567\n");
  const Ran both = Run({"note", "demo", "bad data", "--label", "run=7", "--yes"});
  EXPECT_EQ(both.code, ExitCode::kUsage);
  EXPECT_THAT(both.err, HasSubstr("TEXT: 'demo' and 1 more (one with --state or --label)"));
}

TEST_F(CommandsTest, EveryCommandThatAProblemNamesExistsWithItsFlags) {
  using server::Help;
  v1::Job job = state().jobs[0];
  job.mutable_spec()->mutable_train()->set_lr(0.01);
  job.mutable_spec()->mutable_train()->set_batch_size(8);
  for (int help = 0; help <= static_cast<int>(Help::kEvents); ++help) {
    for (const auto in : {v1::Job::STATE_RUNNING, v1::Job::STATE_FAILED}) {
      job.set_state(in);
      const auto remedy = server::RemedyFor(static_cast<Help>(help), job, 0);
      if (!remedy.has_value()) continue;
      std::vector<std::string> words = absl::StrSplit(remedy->command(), ' ');
      ASSERT_EQ(words[0], "nsactl");
      words.erase(words.begin());
      const Ran ran = Run(words);
      // The coordinator may refuse the job, as wrong usage is.
      EXPECT_TRUE(ran.code != ExitCode::kUsage || absl::StrContains(ran.err, "by preflight"))
          << remedy->command() << "\n"
          << ran.err;
    }
  }
  EXPECT_NE(Run({"mute", job.id(), "DIVERGED"}).code, ExitCode::kUsage);
}

v1::Problem& AddProblem(v1::Job* job, const std::string& word) {
  v1::Problem& problem = *job->add_problems();
  problem.set_word(word);
  problem.set_level(v1::JobHealth::LEVEL_BAD);
  problem.set_cause("The run has diverged");
  problem.set_evidence("loss 8.07 (a uniform guess has 5.55); train.lr: 0.01");
  problem.set_since_step(1812);
  return problem;
}

TEST_F(CommandsTest, MuteMeansWhatIsWrongNowUnlessItIsNamed) {
  AddProblem(&state().jobs[0], "DIVERGED");
  AddProblem(&state().jobs[0], "PLATEAU").set_level(v1::JobHealth::LEVEL_HEALTHY);
  AddProblem(&state().jobs[0], "HANG_SUSPECTED").set_muted(true);
  const Ran ran = Run({"mute", "demo"});
  EXPECT_EQ(ran.code, ExitCode::kOk) << ran.err;
  EXPECT_EQ(ran.out, "demo (jdemo1234567): muted until it ends: DIVERGED\n");
  auto sent = service().Requests("EditJob");
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_THAT(sent[0], AllOf(HasSubstr("mute: \"DIVERGED\""), Not(HasSubstr("PLATEAU")),
                             Not(HasSubstr("HANG")), HasSubstr("request_id: \"")));
  EXPECT_EQ(Run({"unmute", "demo"}).out, "demo (jdemo1234567): nothing is muted\n");
  Run({"mute", "demo", "MEMORY_CREEP"});
  sent = service().Requests("EditJob");
  ASSERT_THAT(sent, SizeIs(3));
  EXPECT_THAT(sent[1], HasSubstr("unmute: \"DIVERGED\""));
  EXPECT_THAT(sent[2], HasSubstr("mute: \"MEMORY_CREEP\""));
}

TEST_F(CommandsTest, DescribeSaysWhatIsWrongSinceWhenAndWhatHelps) {
  v1::Problem& problem = AddProblem(&state().jobs[0], "DIVERGED");
  v1::Remedy& remedy = *problem.add_remedies();
  remedy.set_text("Stop now");
  remedy.set_command("nsactl stop jdemo1234567 --now");
  EXPECT_THAT(
      Run({"describe", "demo"}).out,
      HasSubstr("\nProblems:\nThe run has diverged since step 1,812 (DIVERGED): loss 8.07 (a "
                "uniform guess has 5.55); train.lr: 0.01\n"
                "  nsactl stop jdemo1234567 --now                # Stop now\n"));
  EXPECT_THAT(Run({"list"}).out, HasSubstr("The run has diverged"));
  EXPECT_THAT(Run({"top"}).out, AllOf(HasSubstr("1 needs you"), HasSubstr("loss 8.07")));
  state().jobs[0].mutable_problems(0)->set_muted(true);
  EXPECT_THAT(Run({"describe", "demo"}).out, HasSubstr("train.lr: 0.01; muted\n"));
  EXPECT_THAT(Run({"list"}).out, Not(HasSubstr("The run has diverged")));
  EXPECT_THAT(Run({"top"}).out, Not(HasSubstr("needs you")));
}

}  // namespace
}  // namespace nsa::client
