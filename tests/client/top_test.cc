// nsactl top: its view, and the command against a fake coordinator.
#include <algorithm>
#include <cmath>
#include <string_view>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/show/human.h"
#include "client/show/top_view.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "nlohmann/json.hpp"
#include "tests/client/commands_fixture.h"

namespace nsa::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const absl::Time kNow = absl::FromUnixNanos(kNoon);

std::string JoinedLines(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

v1::Job JobIn(v1::Job::State state, const std::string& name) {
  v1::Job job = DemoJob();
  job.set_name(name);
  job.set_state(state);
  return job;
}

v1::Node NodeWithGpus() {
  v1::Node node;
  node.set_state("READY");
  node.set_gpus_used(1);
  node.mutable_info()->set_name("box");
  for (const double busy : {0.97, 0.0}) {
    v1::GpuInfo& gpu = *node.mutable_info()->add_gpus();
    gpu.set_name("H200");
    gpu.set_memory_bytes(int64_t{140} << 30);
    gpu.set_free_bytes(int64_t{40} << 30);
    if (busy == 0) continue;
    gpu.set_utilization_ratio(busy);
    gpu.set_power_watts(612.4);
    gpu.set_temperature_celsius(61);
  }
  return node;
}

TEST(TopView, ShowsJobsByUrgencyAndEveryGpu) {
  TopState state;
  state.active = {JobIn(v1::Job::STATE_QUEUED, "third"), JobIn(v1::Job::STATE_STARTING, "second"),
                  JobIn(v1::Job::STATE_RUNNING, "first")};
  state.active[0].set_queue_position(1);
  state.active[0].set_reason("WAITING_FOR_SLOTS");
  state.active[2].mutable_health()->set_words("healthy");
  state.ended = {JobIn(v1::Job::STATE_FAILED, "fourth")};
  state.nodes = {NodeWithGpus()};
  const std::string text =
      JoinedLines(TopView(state, {}, kNow, {.columns = 200, .rows = 40, .colours = false}));
  EXPECT_THAT(text, HasSubstr("1 training  1 waiting  1 starting or stopping  12.3k tok/s  " +
                              Timestamp(kNoon) + "\n"));
  EXPECT_THAT(text, AllOf(HasSubstr("position 1, WAITING_FOR_SLOTS"), HasSubstr("healthy")));
  EXPECT_LT(text.find("first"), text.find("second"));
  EXPECT_LT(text.find("second"), text.find("third"));
  EXPECT_LT(text.find("third"), text.find("fourth"));
  EXPECT_THAT(text, AllOf(HasSubstr("GPU 0, H200  1/2 GPUs  100.00 GiB of 140.00 GiB   97%  612 W"),
                          HasSubstr("61 °C"), HasSubstr("GPU 1, H200")));
  state.connected = false;
  EXPECT_THAT(JoinedLines(TopView(state, {}, kNow, {.columns = 200, .rows = 40, .colours = false})),
              HasSubstr("coordinator not reached; trying again"));
}

TEST(TopView, FitsIntoEveryTerminal) {
  TopState state;
  for (int i = 0; i < 100; ++i) {
    state.active.push_back(JobIn(v1::Job::STATE_RUNNING, absl::StrCat("job", i)));
  }
  state.nodes = {NodeWithGpus(), NodeWithGpus()};
  for (const int rows : {1, 5, 10, 24, 60}) {
    for (const int columns : {10, 40, 120}) {
      const auto lines =
          TopView(state, {}, kNow, {.columns = columns, .rows = rows, .colours = false});
      EXPECT_LE(static_cast<int>(lines.size()), std::max(1, rows - 1));
      for (const std::string& line : lines) EXPECT_LE(DisplayWidth(line), columns) << line;
    }
  }
  EXPECT_THAT(JoinedLines(TopView(state, {}, kNow, {.columns = 100, .rows = 24, .colours = false})),
              AllOf(HasSubstr("... 87 more; `nsactl list` shows all"), HasSubstr("GPU 1, H200")));
}

TEST(TopView, ANarrowTerminalHasFewerColumnsAndMarksWhatIsCut) {
  TopState state;
  state.active = {JobIn(v1::Job::STATE_RUNNING, "pretrain-of-a-larger-model-s17")};
  state.active[0].mutable_health()->set_words("the loss has not improved for 1200 steps");
  state.nodes = {NodeWithGpus()};
  const auto view = [&](int columns) {
    return TopView(state, {.selected = state.active[0].id(), .last_line = std::string(90, 'k')},
                   kNow, {.columns = columns, .rows = 24, .colours = false});
  };
  EXPECT_THAT(JoinedLines(view(59)),
              AllOf(HasSubstr("  NAME                 STATE     DONE  WORDS\n"),
                    HasSubstr("> pretrain...odel-s17  training   38%  the loss has not im…\n"),
                    HasSubstr("MACHINE  STATE  DEVICE")));
  EXPECT_THAT(JoinedLines(view(79)), HasSubstr("DONE    LOSS     ENDS IN  WORDS\n"));
  EXPECT_THAT(JoinedLines(view(150)), HasSubstr("> jdemo1234567  pretrain-of-a-larger-model"));
  EXPECT_THAT(view(79).back(), testing::EndsWith("kk…"));
  for (const int columns : {40, 59, 79, 150}) {
    for (const std::string& line : view(columns)) EXPECT_LE(DisplayWidth(line), columns) << line;
  }
}

TEST(TopView, TheSelectedJobIsSeenAndTheLastLineToo) {
  TopState state;
  for (int i = 0; i < 100; ++i) {
    v1::Job& job = state.active.emplace_back(JobIn(v1::Job::STATE_RUNNING, absl::StrCat("n", i)));
    job.set_id(absl::StrCat("job", i));
  }
  for (const int selected : {0, 7, 50, 99}) {
    const TopChoice choice{.selected = absl::StrCat("job", selected), .last_line = "keys"};
    const auto lines = TopView(state, choice, kNow, {.columns = 79, .rows = 24, .colours = false});
    EXPECT_LT(lines.size(), 24u);
    EXPECT_EQ(lines.back(), "keys");
    EXPECT_THAT(JoinedLines(lines), HasSubstr(absl::StrCat("\n> n", selected, " ")));
    EXPECT_EQ(std::ranges::count_if(lines, [](const auto& line) { return line[0] == '>'; }), 1);
  }
}

TEST(TopView, AJobThatHasJustFailedIsNoLastRow) {
  TopState state;
  state.active = {JobIn(v1::Job::STATE_RUNNING, "trains")};
  state.ended = {JobIn(v1::Job::STATE_FAILED, "failed")};
  state.ended[0].add_problems()->set_level(v1::JobHealth::LEVEL_BAD);
  state.ended[0].set_end_unix_nanos(kNoon - 3600 * kSecond);
  EXPECT_EQ(JobsShown(state, {}, kNow)[0]->name(), "failed");
  state.ended[0].set_end_unix_nanos(kNoon - 50 * 3600 * kSecond);
  EXPECT_EQ(JobsShown(state, {}, kNow)[0]->name(), "trains");
}

TEST(TopView, IsOrderedAndFilteredAsChosen) {
  TopState state;
  for (const auto& [name, loss] :
       {std::pair("b", 2.0), std::pair("c", std::nan("")), std::pair("a", 3.0)}) {
    state.active.push_back(JobIn(v1::Job::STATE_RUNNING, name));
    state.active.back().mutable_progress()->set_loss(loss);
  }
  const auto names = [&](const TopChoice& choice) {
    std::string text;
    for (const v1::Job* job : JobsShown(state, choice, kNow)) text += job->name();
    return text;
  };
  const auto order = [](std::string_view name) {
    return static_cast<size_t>(std::ranges::find(kTopOrders, name) - kTopOrders.begin());
  };
  EXPECT_EQ(names({}), "bca");
  EXPECT_EQ(names({.order = order("name")}), "abc");
  EXPECT_EQ(names({.order = order("name"), .reversed = true}), "cba");
  EXPECT_EQ(names({.order = order("loss")}), "bac") << "NaN is no best loss";
  EXPECT_EQ(names({.filter = "loss<2.5"}), "b");
}

TEST(TopView, WithoutAnythingSaysSo) {
  EXPECT_THAT(JoinedLines(TopView({}, {}, kNow, {.colours = false})),
              AllOf(HasSubstr("no jobs"), HasSubstr("no machines")));
}

TEST_F(CommandsTest, TopPrintsOnceWithoutATerminal) {
  state().nodes = {NodeWithGpus()};
  const Ran ran = Run({"top"});
  EXPECT_EQ(ran.code, ExitCode::kOk) << ran.err;
  EXPECT_THAT(ran.out, AllOf(HasSubstr("1 training  0 waiting"), HasSubstr("jold12345678a"),
                             HasSubstr("GPU 0, H200"), Not(HasSubstr("\x1B"))));
  const auto document = nlohmann::json::parse(Run({"top", "-o", "json"}).out);
  EXPECT_EQ(document["jobs"].size(), 2u);
  EXPECT_EQ(document["nodes"][0]["info"]["gpus"].size(), 2u);
}

TEST_F(CommandsTest, TopShowsOnlyJobsWithTheLabels) {
  (*state().jobs[0].mutable_spec()->mutable_labels())["team"] = "vision";
  const auto document =
      nlohmann::json::parse(Run({"top", "--label", "team=vision", "-o", "json"}).out);
  EXPECT_EQ(document["jobs"].size(), 1u);
  EXPECT_EQ(document["jobs"][0]["id"], "jdemo1234567");
  EXPECT_EQ(Run({"top", "--label", "vision"}).code, ExitCode::kUsage);
}

TEST_F(CommandsTest, TopShowsOnlyJobsInTheStates) {
  for (const auto& [state, id] :
       {std::pair("failed", "jold12345678a"), std::pair("active", "jdemo1234567")}) {
    const auto document = nlohmann::json::parse(Run({"top", "--state", state, "-o", "json"}).out);
    ASSERT_EQ(document["jobs"].size(), 1u) << state;
    EXPECT_EQ(document["jobs"][0]["id"], id);
  }
}

TEST_F(CommandsTest, TopDoesWithoutMachinesThatItMayNotSee) {
  state().failures["ListNodes"] = {grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "no")};
  EXPECT_THAT(Run({"top"}).out, HasSubstr("no machines"));
  state().failures["ListJobs"] = {grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "no")};
  EXPECT_EQ(Run({"top"}).code, ExitCode::kAuth);
}

TEST_F(CommandsTest, TopIsLiveOnATerminalUntilItIsInterrupted) {
  terminal_ = true;
  // Interrupted in the wait after the first picture, or before it.
  std::thread person([this] { interrupt_.Raise(); });
  const Ran ran = Run({"top"});
  person.join();
  EXPECT_EQ(ran.code, ExitCode::kInterrupted);
}

}  // namespace
}  // namespace nsa::client
