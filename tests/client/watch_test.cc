#include <sys/wait.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/show/watch_view.h"
#include "common/run/process.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/client/nsactl_harness.h"
#include "tests/testing/paths.h"
#include "tests/testing/within.h"

namespace nsa::client {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

const absl::Time kNoon = absl::FromUnixSeconds(1795176000);

v1::Job Ended(v1::Job::State state) {
  v1::Job job = DemoJob();
  job.set_state(state);
  job.set_end_unix_nanos(absl::ToUnixNanos(kNoon));
  job.mutable_progress()->set_step(1000);
  return job;
}

TEST(WatchView, ShowsBarLossRateEtaCheckpointAndRestarts) {
  EXPECT_THAT(
      LiveView(DemoJob(), {.now = kNoon, .received = kNoon},
               {.columns = 60, .unicode = false, .colours = false}),
      ElementsAre("demo jdemo1234567  training  10 min 00 s  restarts 1",
                  "[####--------]  37.5 %  375/1000  ends in 5 min 20 s",
                  "loss 2.1034  val loss 2.2101 at 300  12.3k tok/s", "checkpoint 300, 41 s ago"));
}

TEST(WatchView, ANarrowTerminalKeepsWhatMattersWholeAndMarksWhatIsCut) {
  v1::Job job = DemoJob();
  job.set_name("a-name-that-leaves-no-room-for-an-id");
  for (const double share : {0.31, 0.33, 0.36}) {
    job.mutable_progress()->mutable_gates()->add_branch_share(share);
  }
  v1::Problem& problem = *job.add_problems();
  problem.set_cause("The loss rises");
  problem.set_word("diverging");
  problem.set_evidence("it was 2.1 at step 300 and is 7.4 at step 375");
  v1::Remedy& remedy = *problem.add_remedies();
  remedy.set_command("nsactl fork demo --at-step 300 --set train.lr=1e-4");
  remedy.set_text("begin again with half the rate");
  const auto lines = LiveView(job, {.now = kNoon, .received = kNoon, .connected = false},
                              {.columns = 59, .unicode = true, .colours = false});
  EXPECT_THAT(lines, ElementsAre("a-name-that-leaves-no-room-for-an-id  training  10 min 00 s",
                                 testing::EndsWith("  37.5 %  375/1000"),
                                 "loss 2.1034  val loss 2.2101 at 300  3.07M tokens",
                                 "checkpoint 300, 41 s ago", "gates cmp 0.31 sel 0.33 win 0.36",
                                 "The loss rises (diverging): it was 2.1 at step 300 and is …",
                                 "  nsactl fork demo --at-step 300 --set train.lr=1e-4",
                                 "coordinator not reached for 0 s; trying again"));
}

TEST(WatchView, OnlyAJobThatRunsHasASpeedAndATimeLeft) {
  const ViewOptions plain = {.columns = 100, .unicode = false, .colours = false};
  v1::Job job = DemoJob();
  for (const auto state : {v1::Job::STATE_RESTARTING, v1::Job::STATE_QUEUED,
                           v1::Job::STATE_STARTING, v1::Job::STATE_STOPPING}) {
    job.set_state(state);
    for (const std::string& line : LiveView(job, {.now = kNoon, .received = kNoon}, plain)) {
      EXPECT_THAT(line, AllOf(Not(HasSubstr("tok/s")), Not(HasSubstr("ends in"))));
    }
    EXPECT_THAT(PlainLine(job, kNoon), HasSubstr("tok/s - ends in - "));
  }
}

TEST(WatchView, SaysWhetherTheRunIsHealthyAndWhatItsGatesDo) {
  v1::Job job = DemoJob();
  v1::JobProgress& progress = *job.mutable_progress();
  for (const double share : {0.31, 0.33, 0.36}) {
    progress.mutable_gates()->add_branch_share(share);
  }
  progress.mutable_gates()->set_lowest_entropy(0.92);
  progress.mutable_gates()->set_lowest_entropy_layer(3);
  progress.set_memory_allocated_bytes(int64_t{3} << 30);
  job.mutable_health()->set_level(v1::JobHealth::LEVEL_HEALTHY);
  job.mutable_health()->set_words("healthy");
  const ViewOptions plain{.columns = 100, .unicode = false, .colours = false};
  const ViewMoment moment{.now = kNoon, .received = kNoon};
  EXPECT_THAT(
      LiveView(job, moment, plain),
      testing::IsSupersetOf({"gates cmp 0.31 sel 0.33 win 0.36, lowest entropy 0.92 in layer 3",
                             "memory 3.00 GiB, no fallbacks", "healthy"}));
  (*progress.mutable_fallbacks())["cuda_graph"] = 7;
  job.mutable_health()->set_level(v1::JobHealth::LEVEL_WARNING);
  job.mutable_health()->set_words("the loss has not improved for 1200 steps");
  EXPECT_THAT(LiveView(job, moment, plain),
              testing::IsSupersetOf({"memory 3.00 GiB, fallbacks: cuda_graph 7",
                                     "the loss has not improved for 1200 steps"}));
  EXPECT_THAT(PlainLine(job, kNoon), HasSubstr(" health: the loss has not improved"));
}

TEST(WatchView, ARunThatDivergedSaysSoAtItsEnd) {
  v1::Job job = Ended(v1::Job::STATE_SUCCEEDED);
  const ViewOptions plain{.columns = 100, .unicode = false, .colours = false};
  job.set_reason("COMPLETED");
  job.set_message("all 1000 steps done");
  EXPECT_THAT(Summary(job, plain), Not(HasSubstr("COMPLETED")));
  job.set_reason("DIVERGED");
  job.set_message("all 1000 steps done; the run has diverged: loss 7.11");
  EXPECT_THAT(Summary(job, plain), HasSubstr("DIVERGED: all 1000 steps done"));
}

TEST(WatchView, TheNextCommandSuitsWhatThereIs) {
  const ViewOptions plain{.columns = 100, .unicode = false, .colours = false};
  for (const auto state : {v1::Job::STATE_FAILED, v1::Job::STATE_STOPPED}) {
    v1::Job job = Ended(state);
    EXPECT_THAT(Summary(job, plain), HasSubstr("continue from the newest good checkpoint"));
    job.mutable_progress()->clear_checkpoint_step();
    job.mutable_progress()->clear_checkpoint_unix_nanos();
    EXPECT_THAT(Summary(job, plain),
                AllOf(HasSubstr("start it again; it has no checkpoint"),
                      Not(HasSubstr("newest good")), Not(HasSubstr("checkpoint list"))));
  }
  v1::Job diverged = Ended(v1::Job::STATE_FAILED);
  diverged.set_reason("DIVERGED");
  EXPECT_THAT(Summary(diverged, plain), Not(HasSubstr("nsactl resume"))) << "it would again";
}

TEST(WatchView, AFailedCheckpointIsSeen) {
  v1::Job job = DemoJob();
  const ViewOptions plain{.columns = 100, .unicode = false, .colours = false};
  const ViewMoment moment{.now = kNoon, .received = kNoon};
  EXPECT_THAT(LiveView(job, moment, plain), Not(testing::Contains(HasSubstr("failed"))));
  EXPECT_THAT(PlainLine(job, kNoon), Not(HasSubstr("failed")));
  job.mutable_progress()->set_checkpoint_error("step-00000400: disk full");
  EXPECT_THAT(LiveView(job, moment, plain),
              testing::Contains("the newest checkpoint failed: step-00000400: disk full"));
  EXPECT_THAT(PlainLine(job, kNoon), HasSubstr("checkpoint 300 age 41 s (newest failed)"));
}

TEST(WatchView, TelemetryThatIsNotWrittenIsSeen) {
  v1::Job job = DemoJob();
  const ViewOptions plain{.columns = 100, .unicode = false, .colours = false};
  const ViewMoment moment{.now = kNoon, .received = kNoon};
  const v1::Job before = job;
  EXPECT_THAT(LiveView(job, moment, plain), Not(testing::Contains(HasSubstr("telemetry"))));
  EXPECT_THAT(PlainLine(job, kNoon), Not(HasSubstr("telemetry")));
  job.mutable_ranks(0)->set_telemetry_error("/out/training.csv: No space left on device");
  EXPECT_THAT(LiveView(job, moment, plain),
              testing::Contains(
                  "telemetry is not written, rank 0: /out/training.csv: No space left on device"));
  EXPECT_THAT(PlainLine(job, kNoon), HasSubstr("telemetry not written, rank 0: /out/"));
  EXPECT_TRUE(IsNews(before, job));
  v1::RankStatus& other = *job.add_ranks();
  other.set_rank(1);
  other.set_telemetry_error("/out/heartbeat_rank1.jsonl: No space left on device");
  EXPECT_THAT(LiveView(job, moment, plain), testing::Contains(HasSubstr("rank 0 and 1 more: ")));
}

TEST(WatchView, NoLineIsWiderThanTheTerminal) {
  v1::Job job = DemoJob();
  job.set_state(v1::Job::STATE_RESTARTING);
  job.set_reason("RANK_LOST");
  job.set_message(std::string(300, 'x'));
  for (const int columns : {20, 40, 79, 200}) {
    for (const std::string& line :
         LiveView(job, {.now = kNoon, .received = kNoon, .connected = false},
                  {.columns = columns, .unicode = true, .colours = false})) {
      EXPECT_LE(std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; }),
                columns)
          << line;
    }
  }
}

TEST(WatchView, AJobThatWaitsForItsNextStartSaysUntilWhen) {
  v1::Job job = DemoJob();
  job.set_state(v1::Job::STATE_RESTARTING);
  job.set_reason("PREFLIGHT_REFUSED");
  job.set_next_start_unix_nanos(absl::ToUnixNanos(kNoon + absl::Seconds(42)));
  EXPECT_THAT(LiveView(job, {.now = kNoon, .received = kNoon},
                       {.columns = 100, .unicode = false, .colours = false}),
              testing::Contains("next start in 42 s  PREFLIGHT_REFUSED"));
}

TEST(WatchView, EtaCountsDownSinceTheStateArrived) {
  v1::JobProgress progress;
  progress.set_eta_seconds(100);
  const auto at = [](int64_t seconds) {
    return ViewMoment{.now = kNoon + absl::Seconds(seconds), .received = kNoon};
  };
  EXPECT_EQ(EtaNow(progress, at(0)), 100);
  EXPECT_EQ(EtaNow(progress, at(30)), 70);
  EXPECT_EQ(EtaNow(progress, at(300)), 0);
  progress.set_eta_seconds(-1);
  EXPECT_LT(EtaNow(progress, at(0)), 0);
}

TEST(WatchView, AQueuedJobSaysItsPlaceAndAStoppingOneItsStep) {
  v1::Job job = DemoJob();
  job.mutable_progress()->Clear();
  job.set_state(v1::Job::STATE_QUEUED);
  job.set_queue_position(2);
  job.set_reason("WAITING_FOR_SLOTS");
  const ViewOptions plain = {.columns = 100, .unicode = false, .colours = false};
  EXPECT_EQ(LiveView(job, {.now = kNoon, .received = kNoon}, plain).back(),
            "position 2 in the queue  WAITING_FOR_SLOTS");
  job = DemoJob();
  job.set_state(v1::Job::STATE_STOPPING);
  job.mutable_stop()->set_mode(v1::STOP_MODE_AT_STEP);
  job.mutable_stop()->set_at_step(500);
  EXPECT_EQ(LiveView(job, {.now = kNoon, .received = kNoon}, plain).back(),
            "stopping after step 500");
}

TEST(WatchView, APlainLineHasEverythingOnIt) {
  setenv("TZ", "UTC", 1);
  EXPECT_EQ(PlainLine(DemoJob(), kNoon),
            "2026-11-20T12:00:00Z jdemo1234567 training step 375/1000 37.5% loss 2.1034 val_loss "
            "2.2101 tok/s 12345 ends in 5 min 20 s checkpoint 300 age 41 s restarts 1");
}

TEST(WatchView, AReasonOfSeveralLinesStaysOnItsLine) {
  v1::Job job = DemoJob();
  job.set_state(v1::Job::STATE_FAILED);
  job.set_reason("CRASHED");
  job.set_message("first\nsecond");
  EXPECT_THAT(PlainLine(job, kNoon), ::testing::EndsWith(" reason CRASHED: first\\nsecond"));
  EXPECT_THAT(TransitionLine(job, kNoon, "training", {.unicode = false, .colours = false}),
              ::testing::EndsWith("  CRASHED: first\\nsecond"));
}

TEST(WatchView, EveryTimeIsLocalAndNamesItsZone) {
  setenv("TZ", "Fixed/UTC+01:00:00", 1);
  EXPECT_THAT(PlainLine(DemoJob(), kNoon), StartsWith("2026-11-20T13:00:00+01:00 jdemo1234567 "));
  EXPECT_THAT(TransitionLine(DemoJob(), kNoon, "training", {.unicode = false, .colours = false}),
              StartsWith("2026-11-20T13:00:00+01:00 training"))
      << "two states of one title are no change";
  EXPECT_THAT(TransitionLine(DemoJob(), kNoon, "starting", {.unicode = false, .colours = false}),
              StartsWith("2026-11-20T13:00:00+01:00 starting -> training"));
  unsetenv("TZ");
}

TEST(WatchView, ValidationsAndCheckpointsAreNewsAndStatesAreTurns) {
  const v1::Job before = DemoJob();
  v1::Job job = before;
  job.mutable_progress()->set_step(376);
  EXPECT_FALSE(IsNews(before, job) || IsTurn(before, job));
  job.mutable_progress()->set_checkpoint_step(350);
  EXPECT_TRUE(IsNews(before, job));
  EXPECT_FALSE(IsTurn(before, job));
  job.set_restarts(2);
  EXPECT_TRUE(IsTurn(before, job));
  job = before;
  job.mutable_stop()->set_mode(v1::STOP_MODE_GRACEFUL);
  EXPECT_TRUE(IsTurn(before, job));
}

class WatchTest : public NsactlTest {
 protected:
  WatchTest() { state().jobs = {DemoJob()}; }
};

TEST_F(WatchTest, PrintsALineAtEveryTurnAndASummary) {
  v1::Job job = DemoJob();
  state().watch = {job};
  job.mutable_progress()->set_step(376);  // no news, and within 10 s
  state().watch.push_back(job);
  job.mutable_progress()->set_step(400);
  job.set_state(v1::Job::STATE_STOPPING);
  state().watch.push_back(job);
  state().watch.push_back(Ended(v1::Job::STATE_SUCCEEDED));
  const Ran ran = Run({"watch", "demo"});
  EXPECT_EQ(ran.code, ExitCode::kOk);
  const std::vector<std::string> lines = absl::StrSplit(ran.out, '\n');
  ASSERT_GT(lines.size(), 5u);
  EXPECT_THAT(lines[0], HasSubstr("training step 375/1000"));
  EXPECT_THAT(lines[1], HasSubstr("stopping step 400/1000"));
  EXPECT_THAT(lines[2], HasSubstr("finished step 1000/1000 100.0%"));
  EXPECT_EQ(lines[4],
            "demo (jdemo1234567) finished after 10 min 00 s: step 1000/1000, loss 2.1034, val loss "
            "2.2101, checkpoint 300");
  EXPECT_THAT(ran.out, Not(HasSubstr("\x1B")));
}

TEST_F(WatchTest, AFailedJobIsExitCodeOneWithItsReason) {
  v1::Job job = Ended(v1::Job::STATE_FAILED);
  job.set_reason("NO_PROGRESS");
  job.set_message("3 restarts without a newer checkpoint");
  state().watch = {job};
  const Ran ran = Run({"watch", "demo"});
  EXPECT_EQ(ran.code, ExitCode::kFailed);
  EXPECT_THAT(ran.out,
              AllOf(HasSubstr("NO_PROGRESS: 3 restarts"), HasSubstr("nsactl events jdemo1234567")));
  state().watch = {Ended(v1::Job::STATE_STOPPED), Ended(v1::Job::STATE_STOPPED)};
  EXPECT_EQ(Run({"watch", "demo"}).code, ExitCode::kOk);
}

TEST_F(WatchTest, GoesOnWhenTheCoordinatorComesBack) {
  v1::Job job = DemoJob();
  state().watch = {job, v1::Job()};  // the stream breaks
  job.mutable_progress()->set_step(500);
  job.set_restarts(2);
  state().watch.push_back(job);
  state().watch.push_back(v1::Job());
  state().watch.push_back(Ended(v1::Job::STATE_SUCCEEDED));
  const Ran ran = Run({"watch", "demo"});
  EXPECT_EQ(ran.code, ExitCode::kOk);
  EXPECT_THAT(ran.out, AllOf(HasSubstr("step 375/1000"), HasSubstr("step 500/1000"),
                             HasSubstr("finished after")));
  EXPECT_THAT(ran.err, AllOf(HasSubstr("coordinator not reached"), HasSubstr("reconnected")));
  EXPECT_THAT(
      service().Requests("WatchJob"),
      ElementsAre(HasSubstr("jdemo1234567"), HasSubstr("jdemo1234567"), HasSubstr("jdemo1234567")))
      << "by id: a newer job of that name is another job";
}

TEST_F(WatchTest, AJobThatIsNotThereIsNotFound) {
  EXPECT_EQ(Run({"watch", "nothing"}).code, ExitCode::kNotFound);
}

TEST_F(WatchTest, JsonIsADocumentALine) {
  state().watch = {DemoJob(), Ended(v1::Job::STATE_SUCCEEDED)};
  const std::string out = Run({"watch", "demo", "-o", "json"}).out;
  const std::vector<std::string> lines = absl::StrSplit(out, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 2u) << out;
  EXPECT_EQ(nlohmann::json::parse(lines[1])["state"], "STATE_SUCCEEDED");
}

TEST_F(WatchTest, ATerminalIsRedrawnInPlaceAndGetsItsCursorBack) {
  terminal_ = true;
  v1::Job restarting = DemoJob();
  restarting.set_state(v1::Job::STATE_RESTARTING);
  restarting.set_reason("RANK_LOST");
  state().watch = {DemoJob(), restarting, Ended(v1::Job::STATE_SUCCEEDED)};
  const Ran ran = Run({"watch", "demo"});
  EXPECT_THAT(ran.out, StartsWith("\x1B[?25l"));
  EXPECT_THAT(ran.out, HasSubstr("\x1B[?25h"));
  EXPECT_THAT(ran.out, HasSubstr("RANK_LOST"));
  EXPECT_THAT(ran.out, HasSubstr("\r\x1B[J"));
}

v1::WatchRecordsResponse StepWith(int64_t step, double loss) {
  v1::WatchRecordsResponse record;
  record.set_position(step);
  record.mutable_record()->mutable_step()->set_step(step);
  record.mutable_record()->mutable_step()->set_loss(loss);
  record.mutable_record()->mutable_step()->set_tokens_per_second(1000);
  return record;
}

TEST_F(WatchTest, ATerminalWithRoomShowsCharts) {
  terminal_ = true;
  state().watch = {DemoJob(), Ended(v1::Job::STATE_SUCCEEDED)};
  state().records = {StepWith(1, 5.5), StepWith(2, 4.5), StepWith(3, 4.0)};
  const Ran ran = Run({"watch", "demo"});
  // 100 columns and 24 rows have room for two.
  EXPECT_THAT(ran.out, testing::ContainsRegex("training loss, nats a token +throughput, tokens"));
  EXPECT_THAT(ran.out, Not(HasSubstr("gradient norm")));
}

TEST_F(WatchTest, AnOlderCoordinatorHasNoChartsAndThatIsSaid) {
  terminal_ = true;
  state().watch = {DemoJob(), Ended(v1::Job::STATE_SUCCEEDED)};
  state().failures["GetCurves"] = std::vector(9, grpc::Status(grpc::UNIMPLEMENTED, ""));
  const Ran ran = Run({"watch", "demo"});
  EXPECT_EQ(ran.code, ExitCode::kOk) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("no charts: coordinator: "));
}

TEST_F(WatchTest, CtrlCLeavesTheJobRunningAndSaysHowToGoOn) {
  state().watch = {DemoJob()};
  std::thread later([this] {
    while (service().Requests("WatchJob").empty()) absl::SleepFor(absl::Milliseconds(2));
    interrupt_.Raise();
  });
  const Ran ran = Run({"watch", "demo"});
  later.join();
  EXPECT_EQ(ran.code, ExitCode::kInterrupted);
  EXPECT_THAT(ran.err,
              AllOf(HasSubstr("demo (jdemo1234567) keeps running"),
                    HasSubstr("nsactl watch jdemo1234567"), HasSubstr("nsactl stop jdemo1234567")));
  EXPECT_TRUE(service().Requests("StopJob").empty());
}

std::string ReadFile(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST_F(WatchTest, SigintToTheProgramIs130) {
  state().watch = {DemoJob()};
  const auto output = dir_ / "output";
  SpawnOptions options;
  options.argv = {Program("nsactl"), "--address", coordinator_.address(), "watch", "demo"};
  options.environment = FilterEnvironment({"ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"});
  options.environment["HOME"] = dir_.path().string();
  options.output = output;
  state();  // what was written into it is visible to the call
  const auto child = Spawn(options);
  ASSERT_TRUE(child.ok()) << child.status();
  ASSERT_TRUE(Within(absl::Minutes(1), [&] {
    return ReadFile(output).find("step 375/1000") != std::string::npos;
  })) << ReadFile(output);
  ASSERT_EQ(kill(child->pid, SIGINT), 0);
  int status = 0;
  ASSERT_EQ(waitpid(child->pid, &status, 0), child->pid);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 130);
  EXPECT_THAT(ReadFile(output), HasSubstr("keeps running"));
}

}  // namespace
}  // namespace nsa::client
