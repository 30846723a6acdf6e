// Logs, events and metrics, against a fake coordinator.
#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/client/commands_fixture.h"
#include "yaml-cpp/yaml.h"

namespace nsa::client {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

TEST_F(CommandsTest, LogsNameTheirRanksWhenThereAreSeveral) {
  const auto add = [this](int rank, const std::string& data, const std::string& token) {
    v1::StreamLogsResponse& chunk = state().logs.emplace_back();
    chunk.set_rank(rank);
    chunk.set_data(data);
    chunk.set_resume_token(token);
  };
  add(0, "a\nb\n", "1");
  add(1, "c\n", "2");
  EXPECT_EQ(Run({"logs", "demo", "--tail", "5"}).out, "a\nb\nc\n");
  EXPECT_THAT(service().Requests("StreamLogs"), ElementsAre(HasSubstr("rank: -1 tail_lines: 5")));
  state().jobs[0].mutable_spec()->mutable_resources()->set_gpus(2);
  EXPECT_EQ(Run({"logs", "demo"}).out, "[rank 0] a\n[rank 0] b\n[rank 1] c\n");
  EXPECT_EQ(Run({"logs", "demo", "--rank", "1"}).out, "c\n");
  const auto json = nlohmann::json::parse(Run({"logs", "demo", "--rank", "1", "-o", "json"}).out);
  EXPECT_EQ(json["data"], "c\n");
}

class EventsTest : public CommandsTest {
 protected:
  // The reasons of the events that `nsactl events` shows with these flags.
  std::vector<std::string> Reasons(const std::vector<std::string>& flags) {
    std::vector<std::string> command = {"events", "-o", "json"};
    command.insert(command.end(), flags.begin(), flags.end());
    std::vector<std::string> found;
    const auto document = nlohmann::json::parse(Run(command).out);
    for (const auto& event : document["events"]) found.push_back(event["reason"]);
    return found;
  }
};

TEST_F(EventsTest, EventsOfTheJobsThatAreChosen) {
  (*state().jobs[0].mutable_spec()->mutable_labels())["team"] = "vision";
  AddEvent(1, "PLACED");
  AddEvent(2, "CUDA_OOM").set_job_id("jold12345678a");
  AddEvent(3, "RANK_LOST");
  EXPECT_THAT(Reasons({"--label", "team=vision"}), ElementsAre("PLACED", "RANK_LOST"));
  EXPECT_THAT(Reasons({"--state", "failed"}), ElementsAre("CUDA_OOM"));
  EXPECT_THAT(Reasons({"--state", "failed", "--label", "team=vision"}), ElementsAre());
  EXPECT_THAT(service().Requests("GetJob"), ElementsAre()) << "old jobs are not asked for";
  EXPECT_EQ(Run({"events", "--state", "queued"}).err, "no events\n");
  const Ran both = Run({"events", "demo", "--state", "failed"});
  EXPECT_EQ(both.code, ExitCode::kUsage);
  EXPECT_THAT(both.err, HasSubstr("name a job or choose some, not both"));
  EXPECT_EQ(Run({"events", "--state", "fast"}).code, ExitCode::kUsage);
}

TEST_F(CommandsTest, FollowedEventsOfTheJobsThatAreChosen) {
  (*state().jobs[1].mutable_spec()->mutable_labels())["team"] = "vision";
  AddEvent(1, "PLACED");
  AddEvent(2, "CUDA_OOM").set_job_id("jold12345678a");
  const grpc::Status broken(grpc::StatusCode::UNAVAILABLE, "Socket closed");
  state().failures["WatchEvents"] = {
      broken, grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "role: viewer")};
  const Ran ran = Run({"events", "--label", "team=vision", "-f", "-o", "json"});
  EXPECT_EQ(ran.code, ExitCode::kAuth);
  EXPECT_THAT(ran.out, AllOf(HasSubstr("CUDA_OOM"), Not(HasSubstr("PLACED"))));
}

TEST_F(CommandsTest, FollowedLogsContinueWhereTheConnectionBroke) {
  state().jobs[0].set_state(v1::Job::STATE_SUCCEEDED);
  for (const char* token : {"1", "2", "3"}) {
    v1::StreamLogsResponse& chunk = state().logs.emplace_back();
    chunk.set_data(std::string("line ") + token + "\n");
    chunk.set_resume_token(token);
  }
  const grpc::Status broken(grpc::StatusCode::UNAVAILABLE, "Socket closed");
  state().failures["StreamLogs"] = {broken, broken};
  state().failures["GetVersion"] = {grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "it hangs")};
  const Ran ran = Run({"logs", "demo", "-f"});
  EXPECT_EQ(ran.code, ExitCode::kOk);
  EXPECT_EQ(ran.out, "line 1\nline 2\nline 3\n");
  EXPECT_EQ(ran.err,
            "nsactl: connection to the coordinator lost; waiting for it (Ctrl-C leaves)\n"
            "nsactl: reconnected\n"
            "nsactl: connection to the coordinator lost; waiting for it (Ctrl-C leaves)\n"
            "nsactl: reconnected\n");
}

TEST_F(CommandsTest, EventsAreATableOrADocument) {
  AddEvent(1, "SUBMITTED");
  AddEvent(2, "RANK_LOST").set_rank(1);
  EXPECT_EQ(Run({"events", "demo"}).out,
            "TIME                       JOB            STATE       RANK  REASON              TEXT\n"
            "2026-11-20T11:59:00Z       jdemo1234567   training       -  SUBMITTED           what "
            "happened\n"
            "2026-11-20T11:59:00Z       jdemo1234567   training       1  RANK_LOST           what "
            "happened\n");
  setenv("TZ", "Fixed/UTC+01:00:00", 1);
  EXPECT_THAT(Run({"events", "demo"}).out, HasSubstr("\n2026-11-20T12:59:00+01:00  jdemo1234567 "));
  EXPECT_THAT(Run({"describe", "demo"}).out,
              HasSubstr("Submitted:   2026-11-20T10:00:00+01:00 (3 h ago)\n"));
  const auto json = nlohmann::json::parse(Run({"events", "-o", "json"}).out);
  ASSERT_THAT(json["events"], SizeIs(2));
  EXPECT_EQ(json["events"][1]["reason"], "RANK_LOST");
  EXPECT_EQ(YAML::Load(Run({"events", "-o", "yaml"}).out)["events"].size(), 2u);
}

TEST_F(EventsTest, EventsAreTheLastOnesOrThoseSinceATime) {
  (*state().jobs[1].mutable_spec()->mutable_labels())["team"] = "vision";
  for (const int hours : {48, 3, 2, 1}) {
    AddEvent(std::ssize(state().events) + 1, absl::StrCat("H", hours))
        .set_unix_nanos(kNoon - hours * 3600 * kSecond);
  }
  state().events[2].set_job_id("jold12345678a");
  EXPECT_THAT(Reasons({"--tail", "2"}), ElementsAre("H2", "H1"));
  EXPECT_THAT(Reasons({"--tail", "0"}), SizeIs(4));
  EXPECT_THAT(Reasons({"demo", "--tail", "2"}), ElementsAre("H3", "H1"));
  EXPECT_THAT(Reasons({"--label", "team=vision", "--tail", "1"}), ElementsAre("H2"));
  EXPECT_THAT(Reasons({"--since", "150m"}), ElementsAre("H2", "H1"));
  EXPECT_THAT(Reasons({"--since", "3d", "--tail", "3"}), ElementsAre("H3", "H2", "H1"));
  EXPECT_THAT(Reasons({"--since", "2026-11-20T10:00:00"}), ElementsAre("H2", "H1"));
  EXPECT_THAT(Reasons({"--since", "2026-11-20T12:00:00+02:00"}), ElementsAre("H2", "H1"));
  const Ran wrong = Run({"events", "--since", "yesterday"});
  EXPECT_EQ(wrong.code, ExitCode::kUsage);
  EXPECT_THAT(wrong.err, HasSubstr("--since: 'yesterday' (a duration of at least 1s, or a time)"));
}

TEST_F(CommandsTest, FollowedEventsBeginWithTheLastOnes) {
  state().jobs[0].set_state(v1::Job::STATE_SUCCEEDED);
  for (int i = 1; i <= 4; ++i) AddEvent(i, absl::StrCat("E", i));
  const Ran ran = Run({"events", "demo", "-f", "--tail", "2"});
  EXPECT_EQ(ran.code, ExitCode::kOk);
  EXPECT_THAT(ran.out, AllOf(HasSubstr("E3"), HasSubstr("E4"), Not(HasSubstr("E2"))));
  EXPECT_EQ(ran.out.find("E4"), ran.out.rfind("E4")) << "once";
  EXPECT_THAT(service().Requests("WatchEvents").back(), HasSubstr("after_sequence: 4"));
}

TEST_F(CommandsTest, FollowedEventsContinueWithoutAGapOrARepeat) {
  state().jobs[0].set_state(v1::Job::STATE_SUCCEEDED);
  for (int i = 1; i <= 4; ++i) AddEvent(i, absl::StrCat("E", i));
  const grpc::Status broken(grpc::StatusCode::UNAVAILABLE, "Socket closed");
  state().failures["WatchEvents"] = {broken, broken};
  const Ran ran = Run({"events", "demo", "-f", "-o", "json"});
  EXPECT_EQ(ran.code, ExitCode::kOk);
  std::istringstream lines(ran.out);
  std::string line;
  for (int i = 1; i <= 4; ++i) {
    ASSERT_TRUE(std::getline(lines, line));
    EXPECT_EQ(nlohmann::json::parse(line)["reason"], absl::StrCat("E", i));
  }
  EXPECT_FALSE(std::getline(lines, line));
}

TEST_F(CommandsTest, MetricsAreATableWithTheOtherRecordsBetween) {
  AddStep(299);
  AddStep(300).set_skipped_nonfinite(true);
  v1::EvalRecord& eval = *AddRecord(301).mutable_record()->mutable_eval();
  eval.set_step(300);
  eval.set_loss(2.2101);
  eval.set_tokens(65536);
  eval.set_seconds(1.25);
  EXPECT_EQ(
      Run({"metrics", "demo"}).out,
      "    STEP  RANK      LOSS        LR     TOK/S  GRAD NORM   DATA MS   COMM MS   STEP MS  "
      "    MEMORY  NOTE\n"
      "     299     0    2.5000  3.00e-04     12.3k      0.812       1.2       0.0     250.0  "
      " 312.0 MiB\n"
      "     300     0    2.5000  3.00e-04     12.3k      0.812       1.2       0.0     250.0  "
      " 312.0 MiB  skipped: not finite\n"
      "# step 300: validation loss 2.2101 (65,536 tokens, 1.2 s)\n");
  const auto json = nlohmann::json::parse(Run({"metrics", "demo", "-o", "json"}).out);
  EXPECT_THAT(json["records"], SizeIs(3));
  EXPECT_THAT(service().Requests("WatchRecords").back(), Not(HasSubstr("tail")));
}

TEST_F(CommandsTest, MetricsCountStepsForTail) {
  for (int i = 1; i <= 50; ++i) AddStep(i);
  AddRecord(51).mutable_record()->mutable_eval()->set_step(50);
  AddRecord(52).mutable_record()->mutable_finished()->set_step(50);
  const auto lines = [](const std::string& text) {
    return std::count(text.begin(), text.end(), '\n');
  };
  EXPECT_EQ(lines(Run({"metrics", "demo", "--tail", "2"}).out), 1 + 2 + 2);
  EXPECT_EQ(lines(Run({"metrics", "demo"}).out), 1 + 20 + 2);
  EXPECT_EQ(lines(Run({"metrics", "demo", "--tail", "0"}).out), 1 + 50 + 2);
  state().jobs[0].set_state(v1::Job::STATE_SUCCEEDED);
  EXPECT_EQ(lines(Run({"metrics", "demo", "--tail", "2", "-f"}).out), 1 + 2 + 2);
}

// A step may have many samples and validations.
TEST_F(CommandsTest, TheTailOfMetricsIsAsManyStepsWhateverIsBetweenThem) {
  int64_t position = 0;
  for (int step = 1; step <= 30; ++step) {
    AddStep(step);
    state().records.back().set_position(++position);
    for (int i = 0; i < 12; ++i)
      AddRecord(++position).mutable_record()->mutable_eval()->set_step(step);
  }
  const std::vector<std::string> lines =
      absl::StrSplit(Run({"metrics", "demo", "--tail", "20"}).out, '\n', absl::SkipEmpty());
  const auto notes = std::ranges::count_if(
      lines, [](const std::string& line) { return absl::StartsWith(line, "#"); });
  EXPECT_EQ(std::ssize(lines) - notes, 1 + 20);
  EXPECT_EQ(notes, 20 * 12);
}

TEST_F(CommandsTest, MetricsShowEveryLayer) {
  v1::LayerStats& layer = *AddStep(1).add_layers();
  layer.set_layer(0);
  layer.mutable_gate()->set_entropy_mean(1.0986);
  for (const double share : {0.2, 0.3, 0.5}) layer.mutable_gate()->add_branch_share(share);
  layer.mutable_selection()->set_keys_mean(96.5);
  layer.add_keys_read(100);
  layer.add_keys_expected(120);
  const Ran ran = Run({"metrics", "demo", "--layers"});
  EXPECT_THAT(ran.out, AllOf(HasSubstr("  LAYER  ENTROPY"), HasSubstr("0.200  0.300  0.500"),
                             HasSubstr("100 (formula 120)")));
}

TEST_F(CommandsTest, MetricsOfAModelWithoutAGateHaveNoEntropy) {
  v1::LayerStats& layer = *AddStep(1).add_layers();
  layer.add_keys_read(100);
  layer.add_keys_expected(100);
  EXPECT_THAT(
      Run({"metrics", "demo", "--layers"}).out,
      HasSubstr("\n      0        -      -         -          -      -      -      -          "
                "-         -       -  100\n"));
}
}  // namespace
}  // namespace nsa::client
