// The commands that read and steer, against a fake coordinator.
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/client/nsactl_harness.h"
#include "yaml-cpp/yaml.h"

namespace nsa::client {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr int64_t kNoon = 1795176000LL * 1'000'000'000;
constexpr int64_t kSecond = 1'000'000'000;

class CommandsTest : public NsactlTest {
 protected:
  CommandsTest() {
    state().jobs = {DemoJob()};
    v1::Job old = DemoJob();
    old.set_id("jold12345678a");
    old.set_name("old");
    old.set_state(v1::Job::STATE_FAILED);
    old.set_reason("CUDA_OOM");
    old.set_message("out of memory on rank 1");
    old.set_submit_unix_nanos(kNoon - 50 * 3600 * kSecond);
    state().jobs.push_back(old);
  }

  v1::JobEvent& AddEvent(int64_t sequence, const std::string& reason) {
    v1::JobEvent& event = state().events.emplace_back();
    event.set_sequence(sequence);
    event.set_job_id("jdemo1234567");
    event.set_unix_nanos(kNoon - 60 * kSecond);
    event.set_reason(reason);
    event.set_text("what happened");
    event.set_state(v1::Job::STATE_RUNNING);
    event.set_rank(-1);
    return event;
  }

  v1::WatchRecordsResponse& AddRecord(int64_t position) {
    v1::WatchRecordsResponse& record = state().records.emplace_back();
    record.set_position(position);
    record.set_generation(1);
    return record;
  }

  v1::StepRecord& AddStep(int64_t step) {
    v1::StepRecord& record = *AddRecord(step).mutable_record()->mutable_step();
    record.set_step(step);
    record.set_loss(2.5);
    record.set_learning_rate(3e-4);
    record.set_grad_norm(0.8125);
    record.set_tokens_per_second(12345);
    record.set_memory_allocated_bytes(312 << 20);
    record.mutable_times()->set_step_seconds(0.25);
    record.mutable_times()->set_data_seconds(0.0012);
    return record;
  }
};

TEST_F(CommandsTest, ListIsATable) {
  EXPECT_EQ(Run({"list"}).out,
            "ID             NAME  STATE        STEP  DONE    LOSS  TOK/S         ETA  AGE  REASON\n"
            "jdemo1234567   demo  RUNNING  375/1000   38%  2.1034  12.3k  5 min 20 s  3 h\n"
            "jold12345678a  old   FAILED   375/1000   38%  2.1034      -           -  2 d  "
            "CUDA_OOM: out of memory on rank 1\n");
  state().jobs.pop_back();
  EXPECT_THAT(Run({"list"}).out, Not(HasSubstr("REASON"))) << "nothing to say";
}

TEST_F(CommandsTest, ListSaysWhyAJobWaitsAndUntilWhen) {
  // Called each time, because state() waits for the coordinator's threads.
  const auto waiting = [this]() -> v1::Job& { return state().jobs[0]; };
  waiting().set_state(v1::Job::STATE_RESTARTING);
  waiting().set_reason("PREFLIGHT_REFUSED");
  waiting().set_message(
      "first\nbox: DISK_TOO_SMALL: train.out_dir: 1.0 GiB free on /data (9.2 GiB)");
  waiting().set_next_start_unix_nanos(kNoon + 42 * kSecond);
  const std::string start =
      "ID             NAME  STATE           STEP  DONE    LOSS  TOK/S  ETA  AGE  REASON\n"
      "jdemo1234567   demo  RESTARTING  375/1000   38%  2.1034      -    -  3 h  ";
  EXPECT_THAT(
      Run({"list"}).out,
      ::testing::StartsWith(start + "next start in 42 s, PREFLIGHT_REFUSED: box: DISK_TOO_SMALL: "
                                    "train.out_dir: ...\n"
                                    "jold12345678a  old   FAILED      375/1000"));
  EXPECT_THAT(Run({"list", "-o", "wide"}).out,
              HasSubstr("next start in 42 s, PREFLIGHT_REFUSED: first"));
  EXPECT_THAT(Run({"describe", "demo"}).out, HasSubstr("Next start:  in 42 s\n"));
  waiting().set_next_start_unix_nanos(kNoon - kSecond);
  EXPECT_THAT(Run({"list"}).out,
              ::testing::StartsWith(start + "next start due, PREFLIGHT_REFUSED: "));
  EXPECT_EQ(nlohmann::json::parse(Run({"list", "-o", "json"}).out)["jobs"][0]["message"],
            waiting().message());

  waiting().clear_next_start_unix_nanos();
  waiting().set_state(v1::Job::STATE_QUEUED);
  waiting().set_reason("WAITING_FOR_SLOTS");
  waiting().set_message("needs 2 GPUs, 1 are free");
  EXPECT_THAT(Run({"list"}).out, HasSubstr("  3 h  WAITING_FOR_SLOTS: needs 2 GPUs, 1 are free\n"));
}

TEST_F(CommandsTest, ListHasWideNameJsonAndYaml) {
  EXPECT_THAT(Run({"list", "-o", "wide"}).out, HasSubstr("CUDA_OOM: out of memory on rank 1\n"));
  EXPECT_EQ(Run({"list", "-o", "name"}).out, "jdemo1234567\njold12345678a\n");
  const auto json = nlohmann::json::parse(Run({"list", "-o", "json"}).out);
  EXPECT_EQ(json["jobs"][0]["progress"]["step"], "375");
  const YAML::Node yaml = YAML::Load(Run({"list", "-o", "yaml"}).out);
  EXPECT_EQ(yaml["jobs"][1]["state"].as<std::string>(), "STATE_FAILED");
}

TEST_F(CommandsTest, ListReadsPagesUpToItsLimit) {
  state().jobs.clear();
  for (int i = 0; i < 1203; ++i) {
    state().jobs.push_back(DemoJob());
    state().jobs.back().set_id(absl::StrCat("j", i));
  }
  const auto count = [](const std::string& text) {
    return std::count(text.begin(), text.end(), '\n');
  };
  const Ran some = Run({"list", "-o", "name"});
  EXPECT_EQ(count(some.out), 100);
  EXPECT_THAT(some.err, HasSubstr("--limit 0 shows all"));
  const Ran all = Run({"list", "-o", "name", "--limit", "0"});
  EXPECT_EQ(count(all.out), 1203);
  EXPECT_EQ(all.err, "");
  EXPECT_EQ(count(Run({"list", "-o", "name", "--limit", "700"}).out), 700);
}

TEST_F(CommandsTest, ListAsksForStates) {
  EXPECT_EQ(Run({"list", "--state", "failed,stopped", "-o", "name"}).out, "jold12345678a\n");
  EXPECT_EQ(Run({"list", "--state", "active", "-o", "name"}).out, "jdemo1234567\n");
}

TEST_F(CommandsTest, ListAsksForLabels) {
  auto& labels = *state().jobs[0].mutable_spec()->mutable_labels();
  labels["team"] = "vision";
  labels["run"] = "7=8";
  EXPECT_EQ(Run({"list", "--label", "team=vision", "-o", "name"}).out, "jdemo1234567\n")
      << "also when an older coordinator sends other jobs too";
  EXPECT_THAT(service().Requests("ListJobs"),
              ElementsAre(HasSubstr("labels { key: \"team\" value: \"vision\" }")));
  EXPECT_EQ(Run({"list", "--label", "run=7=8", "--label", "team=vision", "-o", "name"}).out,
            "jdemo1234567\n");
  const Ran none = Run({"list", "--label", "team=speech"});
  EXPECT_EQ(none.code, ExitCode::kOk);
  EXPECT_EQ(none.out, "");
  EXPECT_THAT(none.err, HasSubstr("no jobs in these states or with these labels"));
  for (const std::string wrong : {"team", "=x"}) {
    const Ran ran = Run({"list", "--label", wrong});
    EXPECT_EQ(ran.code, ExitCode::kUsage);
    EXPECT_EQ(ran.err,
              "nsactl: --label: '" + wrong + "' (KEY=VALUE); write e.g. --label team=vision\n");
  }
  EXPECT_EQ(Run({"list", "--label", "a=b", "--label", "a=c"}).code, ExitCode::kUsage);
}

TEST_F(CommandsTest, AnEmptyListSaysWhatToDo) {
  state().jobs.clear();
  const Ran ran = Run({"list"});
  EXPECT_EQ(ran.out, "");
  EXPECT_THAT(ran.err, HasSubstr("nsactl submit FILE"));
  EXPECT_EQ(Run({"list", "--quiet"}).err, "");
}

TEST_F(CommandsTest, DescribeTellsEverything) {
  v1::Job& job = state().jobs[0];
  (*job.mutable_waivers())["GRADIENT_CHECKPOINTING_OFF"] = "memory is ample";
  v1::Finding& warning = *job.add_warnings();
  warning.set_rule("EVAL_OFF");
  warning.set_field("train.eval_every");
  warning.set_problem("0 (more than 0)");
  warning.set_fix("write eval_every: 100");
  job.mutable_progress()->set_productive_seconds(555);
  AddEvent(1, "SUBMITTED");
  const Ran ran = Run({"describe", "demo"});
  EXPECT_EQ(ran.code, ExitCode::kOk);
  EXPECT_EQ(ran.out,
            "Name:        demo\n"
            "Id:          jdemo1234567\n"
            "State:       RUNNING\n"
            "Submitted:   2026-11-20T09:00:00Z (3 h ago)\n"
            "Started:     2026-11-20T11:50:00Z (10 min ago)\n"
            "Run time:    10 min 00 s\n"
            "Goodput:     92.5 % of the run time in steps that count\n"
            "Restarts:    1 (generation 2)\n"
            "Step:        375 of 1000 (37.5 %)\n"
            "Loss:        2.1034\n"
            "Val loss:    2.2101 at step 300\n"
            "Tokens:      3,072,000 (12.3k a second)\n"
            "Optimizer:   learning rate 0.0003, gradient norm 0.812\n"
            "ETA:         5 min 20 s\n"
            "Checkpoint:  step 300, 41 s ago\n"
            "Output:      /data/demo\n"
            "\n"
            "Ranks:\n"
            "RANK  NODE   PID  STATE    STEP  PHASE\n"
            "   0  box   4711  RUNNING   375  forward layer 3\n"
            "\n"
            "Waived rules:\n"
            "  GRADIENT_CHECKPOINTING_OFF: memory is ample\n"
            "\n"
            "Warnings of preflight:\n"
            "  EVAL_OFF: train.eval_every: 0 (more than 0); write eval_every: 100\n"
            "\n"
            "Events:\n"
            "  AGE  REASON     TEXT\n"
            "1 min  SUBMITTED  what happened\n");
}

TEST_F(CommandsTest, DescribeHasASpeedAndATimeLeftOnlyOfAJobThatRuns) {
  state().jobs[0].set_state(v1::Job::STATE_RESTARTING);
  EXPECT_THAT(Run({"describe", "demo"}).out,
              AllOf(HasSubstr("Tokens:      3,072,000\n"), Not(HasSubstr("ETA:"))));
}

TEST_F(CommandsTest, DescribeSaysWhatIsUnusualAboutARank) {
  state().jobs[0].mutable_ranks(0)->set_state("SUSPENDED");
  state().jobs[0].mutable_ranks(0)->set_note("process stopped (T)");
  EXPECT_THAT(Run({"describe", "demo"}).out,
              HasSubstr("RANK  NODE   PID  STATE      STEP  PHASE            NOTE\n"
                        "   0  box   4711  SUSPENDED   375  forward layer 3  process stopped (T)"));
}

TEST_F(CommandsTest, DescribeSaysThatTelemetryIsNotWritten) {
  EXPECT_THAT(Run({"describe", "demo"}).out, Not(HasSubstr("Not written")));
  state().jobs[0].mutable_ranks(0)->set_telemetry_error("/out/val.csv: No space left on device");
  EXPECT_THAT(
      Run({"describe", "demo"}).out,
      HasSubstr("Not written: telemetry of rank 0: /out/val.csv: No space left on device\n"));
}

TEST_F(CommandsTest, DescribeTakesIdsAndNamesAndKnowsNoOthers) {
  EXPECT_EQ(Run({"describe", "jdemo1234567", "-o", "name"}).out, "jdemo1234567\n");
  EXPECT_EQ(Run({"describe", "demo", "-o", "name"}).out, "jdemo1234567\n");
  const Ran ran = Run({"describe", "nothing"});
  EXPECT_EQ(ran.code, ExitCode::kNotFound);
  EXPECT_EQ(ran.err, "nsactl: job: 'nothing' is not known; see 'nsactl list'\n");
  const auto json = nlohmann::json::parse(Run({"describe", "demo", "-o", "json"}).out);
  EXPECT_EQ(json["id"], "jdemo1234567");
  EXPECT_THAT(Run({"describe", "demo", "--spec"}).out, HasSubstr("\nSpec:\nname: demo\n"));
}

TEST_F(CommandsTest, StopSendsWhatWasAsked) {
  EXPECT_THAT(
      Run({"stop", "demo", "--at-step", "500"}).out,
      HasSubstr("demo (jdemo1234567): STOPPING, stopping after step 500 (now at 375/1000)"));
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
            "demo (jdemo1234567): STOPPING, stopping now (now at 375/1000)\n"
            "old (jold12345678a): STOPPING, stopping now (now at 375/1000)\n");
  EXPECT_EQ(both.err, "") << "no next commands of every job";
  const Ran some = Run({"stop", "demo", "nothing", "old"});
  EXPECT_EQ(some.code, ExitCode::kNotFound);
  EXPECT_THAT(some.out, AllOf(HasSubstr("jdemo1234567"), HasSubstr("jold12345678a")));
  EXPECT_EQ(some.err,
            "nothing: job: 'nothing' is not known; see 'nsactl list'\n"
            "nsactl: stop: failed for 1 of 3 jobs; see the lines above\n");
  EXPECT_EQ(Run({"stop", "demo", "old", "-o", "name"}).out, "jdemo1234567\njold12345678a\n");
  const auto json = nlohmann::json::parse(Run({"stop", "demo", "old", "-o", "json"}).out);
  ASSERT_THAT(json["jobs"], SizeIs(2));
  EXPECT_EQ(json["jobs"][1]["id"], "jold12345678a");
  EXPECT_EQ(nlohmann::json::parse(Run({"stop", "old", "-o", "json"}).out)["id"], "jold12345678a");
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
                           "' (a whole number of at least 1); see 'nsactl stop --help'\n");
  }
  EXPECT_THAT(service().Requests("StopJob"), SizeIs(0));
}

TEST_F(CommandsTest, ResumeQueuesTheJobAgain) {
  const Ran ran = Run({"resume", "old"});
  EXPECT_EQ(ran.out, "resumed old (jold12345678a): QUEUED (was at 375/1000)\n");
  EXPECT_THAT(ran.err, HasSubstr("nsactl watch jold12345678a"));
}

TEST_F(CommandsTest, AResumeIsSentAgainWithTheSameRequestIdUntilItIsAnswered) {
  state().failures["ResumeJob"] = {{grpc::StatusCode::UNAVAILABLE, "restarting"}};
  EXPECT_EQ(Run({"resume", "old"}).code, ExitCode::kOk);
  const std::vector<std::string> requests = service().Requests("ResumeJob");
  ASSERT_THAT(requests, SizeIs(2));
  EXPECT_EQ(requests[0], requests[1]);
  EXPECT_THAT(requests[0], HasSubstr("request_id: "));
}

TEST_F(CommandsTest, DeleteSaysWhatGoesAndWhatStays) {
  const Ran ran = Run({"delete", "old", "jold12345678a", "--yes"});
  EXPECT_EQ(ran.code, ExitCode::kOk);
  EXPECT_EQ(ran.out, "deleted old (jold12345678a); /data/demo stays, with its checkpoints\n");
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
                AllOf(HasSubstr("old (jold12345678a)  FAILED at 375/1000"), HasSubstr("/data/demo"),
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
  EXPECT_THAT(
      ran.err,
      HasSubstr("nsactl: state: job demo (jdemo1234567) is RUNNING and can be deleted only when "
                "it has ended; end it with 'nsactl stop jdemo1234567', then delete it\n"));
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

TEST_F(CommandsTest, FollowedLogsContinueWhereTheConnectionBroke) {
  state().jobs[0].set_state(v1::Job::STATE_SUCCEEDED);
  for (const char* token : {"1", "2", "3"}) {
    v1::StreamLogsResponse& chunk = state().logs.emplace_back();
    chunk.set_data(std::string("line ") + token + "\n");
    chunk.set_resume_token(token);
  }
  const grpc::Status broken(grpc::StatusCode::UNAVAILABLE, "Socket closed");
  state().failures["StreamLogs"] = {broken, broken};
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
            "2026-11-20T11:59:00Z       jdemo1234567   RUNNING        -  SUBMITTED           what "
            "happened\n"
            "2026-11-20T11:59:00Z       jdemo1234567   RUNNING        1  RANK_LOST           what "
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
  EXPECT_EQ(Run({"metrics", "demo"}).out,
            "    STEP  RANK      LOSS        LR  GRAD NORM     TOK/S   STEP MS  DATA MS  COMM MS  "
            "MEMORY      NOTE\n"
            "     299     0    2.5000  3.00e-04      0.812     12.3k     250.0      1.2      0.0  "
            "312.0 MiB\n"
            "     300     0    2.5000  3.00e-04      0.812     12.3k     250.0      1.2      0.0  "
            "312.0 MiB   skipped: not finite\n"
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
      HasSubstr("\n      0        -       -         -          -      -      -      -          "
                "-         -       -  100\n"));
}

TEST_F(CommandsTest, DumpStackShowsOrWritesEveryRank) {
  for (int rank = 0; rank < 2; ++rank) {
    v1::StackDump& dump = state().dumps.emplace_back();
    dump.set_rank(rank);
    dump.set_pid(100 + rank);
    dump.set_node("box");
    dump.set_status("step 375, forward layer 3");
    dump.set_stacks("thread 100\n  #0 nsa::Model::Forward");
    dump.set_seconds(0.31);
  }
  EXPECT_EQ(Run({"dump-stack", "demo", "--rank", "1"}).out,
            "=== rank 1, pid 101 on box (0.31 s)\n"
            "step 375, forward layer 3\n"
            "thread 100\n"
            "  #0 nsa::Model::Forward\n"
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
            "nothing: job: 'nothing' is not known; see 'nsactl list'\n"
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

TEST_F(CommandsTest, CheckpointsOfAJobAreListedAndVerified) {
  v1::CheckpointInfo& checkpoint = state().checkpoints.emplace_back();
  checkpoint.set_step(300);
  checkpoint.set_path("/data/demo/checkpoints/step-00000300");
  checkpoint.set_bytes(312 << 20);
  checkpoint.set_unix_nanos(kNoon - 41 * kSecond);
  checkpoint.set_val_loss(2.2101);
  checkpoint.set_world_size(2);
  EXPECT_EQ(
      Run({"checkpoint", "list", "demo"}).out,
      "STEP   AGE       SIZE  VAL LOSS  RANKS  PINNED  PATH\n"
      " 300  41 s  312.0 MiB    2.2101      2  -       /data/demo/checkpoints/step-00000300\n");
  const Ran good = Run({"checkpoint", "verify", "demo", "--step", "300"});
  EXPECT_EQ(good.code, ExitCode::kOk);
  EXPECT_THAT(good.out, HasSubstr("step-00000300: good (step 300, 312.0 MiB"));
  state().checkpoint_problems = {"model.safetensors: hash 3f (state.json says 9a)"};
  const Ran bad = Run({"checkpoint", "verify", "demo"});
  EXPECT_EQ(bad.code, ExitCode::kFailed);
  EXPECT_EQ(bad.out, "model.safetensors: hash 3f (state.json says 9a)\n");
  EXPECT_THAT(bad.err, HasSubstr(": 1 problem; a resume skips this checkpoint"));
}

TEST_F(CommandsTest, WithoutMachinesNodesSaysWhetherOneIsJoining) {
  EXPECT_EQ(Run({"nodes"}).err, "no machines; start 'nsa-agent' on one\n");
  state().local_agent = true;
  EXPECT_THAT(Run({"nodes"}).err,
              HasSubstr("no machines yet: the agent that the coordinator starts "
                        "on its own machine is joining"));
}

TEST_F(CommandsTest, NodesAreListed) {
  v1::Node& node = state().nodes.emplace_back();
  node.set_state("READY");
  node.set_heartbeat_unix_nanos(kNoon - 2 * kSecond);
  node.set_cpu_slots_used(1);
  node.add_job_ids("jdemo1234567");
  v1::NodeInfo& info = *node.mutable_info();
  info.set_name("box");
  info.set_cpu_slots(2);
  info.set_free_memory_bytes(20LL << 30);
  info.set_cuda_problem("no GPU");
  EXPECT_EQ(Run({"nodes"}).out,
            "NAME  STATE  CPU SLOTS  GPUS  FREE MEMORY  HEARTBEAT  JOBS\n"
            "box   READY        1/2  -     20.00 GiB    2 s ago    jdemo1234567\n");
  EXPECT_THAT(Run({"nodes", "-o", "wide"}).out, HasSubstr("no GPU"));
  EXPECT_EQ(Run({"nodes", "-o", "name"}).out, "box\n");
  EXPECT_EQ(nlohmann::json::parse(Run({"nodes", "-o", "json"}).out)["nodes"][0]["state"], "READY");
}

}  // namespace
}  // namespace nsa::client
