// plot, compare and report, against a fake coordinator.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "nlohmann/json.hpp"
#include "tests/client/commands_fixture.h"
#include "tests/client/markup_check.h"
#include "tests/testing/file_size_limit.h"

namespace nsa::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kOtherId[] = "jold12345678a";

class HistoryCommandsTest : public CommandsTest {
 protected:
  HistoryCommandsTest() {
    for (int step = 1; step <= 60; ++step) AddStep(step).set_loss(6 - 0.05 * step);
    v1::WatchRecordsResponse& eval = AddRecord(61);
    eval.mutable_record()->mutable_eval()->set_step(40);
    eval.mutable_record()->mutable_eval()->set_loss(4.25);
    state().jobs[1].mutable_spec()->mutable_train()->set_lr(0.003);
  }

  std::string Path(const std::string& name) { return (dir_ / name).string(); }

  std::string Content(const std::string& name) {
    std::ifstream file(Path(name));
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
};

TEST_F(HistoryCommandsTest, PlotDrawsLossAndValidationsInTheTerminal) {
  const Ran ran = Run({"plot", "demo"});
  EXPECT_EQ(ran.code, ExitCode::kOk) << ran.err;
  EXPECT_THAT(ran.out,
              AllOf(StartsWith("demo: loss, nats a token\n"), HasSubstr("━ training, last "),
                    HasSubstr("   ● validation, last "), HasSubstr("\xE2\xA0"), HasSubstr("step")));
  EXPECT_THAT(ran.out, Not(HasSubstr("\x1B")));
  terminal_ = true;
  const Ran live = Run({"plot", "demo"});
  EXPECT_THAT(live.out, AllOf(HasSubstr("\x1B[94m"), HasSubstr("\xE2\xA0"), HasSubstr("●")));
}

TEST_F(HistoryCommandsTest, PlotLaysJobsOverEachOtherAndDrawsSeveralMetrics) {
  const Ran ran = Run({"plot", "demo", "old", "--metric", "loss,tokens_per_second", "--metric",
                       "memory_bytes", "--x", "time"});
  EXPECT_EQ(ran.code, ExitCode::kOk) << ran.err;
  EXPECT_THAT(ran.out, AllOf(HasSubstr("training loss, nats a token\na demo, last "),
                             HasSubstr("throughput, tokens a second"), HasSubstr("memory, in use"),
                             HasSubstr("time of training"), HasSubstr("MiB")));
}

TEST_F(HistoryCommandsTest, PlotDrawsIntoAFile) {
  const Ran ran = Run({"plot", "demo", "old", "-o", Path("loss.svg")});
  EXPECT_EQ(ran.code, ExitCode::kOk) << ran.err;
  EXPECT_EQ(ran.out, "");
  EXPECT_EQ(ran.err, "training loss of 2 jobs drawn into " + Path("loss.svg") + "\n");
  const std::string svg = Content("loss.svg");
  EXPECT_EQ(MarkupProblem(svg), "");
  EXPECT_THAT(svg, AllOf(StartsWith("<svg xmlns=\"http://www.w3.org/2000/svg\""),
                         HasSubstr(">demo, last "), HasSubstr(">old, last ")));
}

TEST_F(HistoryCommandsTest, PlotPrintsTheNumbersForPrograms) {
  AddStep(61).set_loss(std::nan(""));
  const auto document = nlohmann::json::parse(Run({"plot", "demo", "--output", "json"}).out);
  const auto& chart = document["charts"][0];
  EXPECT_EQ(chart["metric"], "loss");
  EXPECT_EQ(chart["curves"][0]["x"].size(), 61u);
  EXPECT_EQ(chart["curves"][0]["y"][0], 5.95);
  EXPECT_EQ(chart["curves"][0]["y"][60], "NaN");
  EXPECT_EQ(chart["curves"][0]["nonfinite"][60], 1);
  EXPECT_EQ(chart["curves"][1]["name"], "validation");
}

TEST_F(HistoryCommandsTest, ALossThatIsNotFiniteIsShown) {
  AddStep(61).set_loss(std::nan(""));
  EXPECT_THAT(Run({"plot", "demo"}).out, HasSubstr("nats a token; 1 value is NaN or infinite (×)"));
  EXPECT_EQ(Run({"plot", "demo", "-o", Path("nan.svg")}).code, ExitCode::kOk);
  EXPECT_THAT(Content("nan.svg"), AllOf(HasSubstr("1 value is NaN or infinite"), HasSubstr(">×<")));
  EXPECT_EQ(Run({"report", "demo", "-o", Path("nan.html")}).code, ExitCode::kOk);
  EXPECT_THAT(Content("nan.html"), HasSubstr("1 value is NaN or infinite"));
  state().records.clear();
  AddStep(1).set_loss(std::nan(""));
  AddRecord(2).mutable_record()->mutable_eval()->set_loss(std::nan(""));
  EXPECT_THAT(Run({"plot", "demo"}).out,
              AllOf(HasSubstr("2 values are NaN"), HasSubstr("no finite values")));
  EXPECT_THAT(Run({"compare", "demo", "old"}).out, testing::ContainsRegex("nan +nan +- "));
  const auto document = nlohmann::json::parse(Run({"compare", "demo", "old", "-o", "json"}).out);
  EXPECT_EQ(document["jobs"][0]["loss"], "NaN");
}

TEST_F(HistoryCommandsTest, AnOlderCoordinatorIsToBeUpgraded) {
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"plot", "demo"},
                                             {"compare", "demo", "old"},
                                             {"report", "demo", "-o", Path("r.html")}}) {
    state().failures["GetCurves"] = {grpc::Status(grpc::UNIMPLEMENTED, "")};
    const Ran ran = Run(command);
    EXPECT_EQ(ran.code, ExitCode::kPrecondition) << command[0];
    EXPECT_THAT(ran.err, HasSubstr("upgrade the coordinator")) << command[0];
    EXPECT_EQ(std::ranges::count(ran.err, '\n'), 1) << ran.err;
  }
  EXPECT_FALSE(std::filesystem::exists(Path("r.html")));
}

TEST_F(HistoryCommandsTest, PlotOfAJobWithoutAStepSaysSo) {
  state().records.clear();
  EXPECT_THAT(Run({"plot", "demo"}).out, HasSubstr("no values yet"));
  EXPECT_EQ(Run({"plot", "demo", "-o", Path("x.svg")}).code, ExitCode::kOk);
  EXPECT_THAT(Content("x.svg"), HasSubstr("no values yet"));
}

TEST_F(HistoryCommandsTest, PlotRefusesWhatItCannotDraw) {
  EXPECT_THAT(Run({"plot", "demo", "--metric", "los"}).err,
              StartsWith("nsactl: --metric: 'los' (loss, learning_rate, "));
  EXPECT_THAT(Run({"plot", "demo", "--x", "miles"}).err, StartsWith("nsactl: --x: 'miles'"));
  EXPECT_THAT(Run({"plot", "demo", "-o", Path("x.png")}).err,
              HasSubstr("x.png (a name that ends in .svg); "));
  EXPECT_THAT(Run({"plot", "demo", "-o", Path("none/x.svg")}).err,
              HasSubstr("none/x.svg: cannot be written: No such file or directory; name a file"));
  {
    const FileSizeLimit limit(1000);
    const Ran full = Run({"plot", "demo", "-o", Path("x.svg")});
    EXPECT_EQ(full.code, ExitCode::kUsage);
    EXPECT_THAT(full.err, HasSubstr("x.svg: cannot be written: File too large; free space"));
    EXPECT_FALSE(std::filesystem::exists(Path("x.svg")));
  }
  EXPECT_EQ(Run({"plot", "demo", "--metric", "loss,grad_norm", "-o", Path("x.svg")}).err,
            "training loss, gradient norm of 1 job drawn into " + Path("x.svg") + "\n");
  EXPECT_THAT(Content("x.svg"), AllOf(HasSubstr("demo: loss"), HasSubstr("demo: gradient norm")));
  EXPECT_THAT(Run({"plot", "demo", "jdemo1234567"}).err,
              HasSubstr("is job jdemo1234567 again; name it once"));
  EXPECT_THAT(Run({"plot", "1", "2", "3", "4", "5", "6", "7", "8", "9"}).err,
              StartsWith("nsactl: plot: 9 jobs"));
  EXPECT_EQ(Run({"plot", "no-such"}).code, ExitCode::kNotFound);
}

TEST_F(HistoryCommandsTest, PlotAndCompareChooseJobsByLabelAndState) {
  for (v1::Job& job : state().jobs) (*job.mutable_spec()->mutable_labels())["sweep"] = "lr";
  v1::Job other = state().jobs[0];
  other.set_id("jother1234567");
  other.set_name("other");
  other.mutable_spec()->clear_labels();
  state().jobs.push_back(other);
  const auto names = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> command = {"compare", "-o", "json"};
    command.insert(command.end(), flags.begin(), flags.end());
    std::vector<std::string> found;
    const auto document = nlohmann::json::parse(Run(command).out);
    for (const auto& job : document["jobs"]) found.push_back(job["name"]);
    return found;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names({"--label", "sweep=lr"}), (Names{"old", "demo"})) << "the oldest first";
  EXPECT_EQ(names({"other", "--label", "sweep=lr", "--state", "failed"}), (Names{"other", "old"}))
      << "--state takes one word";
  EXPECT_EQ(names({"--state", "failed", "other"}), (Names{"other", "old"}));
  EXPECT_EQ(names({"demo", "--label", "sweep=lr"}), (Names{"demo", "old"})) << "demo once";
  EXPECT_THAT(Run({"plot", "--label", "sweep=lr"}).out,
              ::testing::ContainsRegex("a old, last .*   b demo, last "));
  const Ran none = Run({"plot", "--label", "sweep=wd"});
  EXPECT_EQ(none.code, ExitCode::kNotFound);
  EXPECT_THAT(none.err, StartsWith("nsactl: plot: no job"));
  EXPECT_EQ(Run({"compare", "--label", "sweep"}).code, ExitCode::kUsage);
  EXPECT_THAT(Run({"plot"}).err, StartsWith("nsactl: plot: 0 jobs"));
}

TEST_F(HistoryCommandsTest, PlotTakesTheNewestOfManyJobs) {
  state().jobs.clear();
  for (int number = 12; number >= 1; --number) {  // the newest first
    v1::Job& job = state().jobs.emplace_back(DemoJob());
    job.set_id(absl::StrCat("jmany", number));
    job.set_name(absl::StrCat("many-", number));
  }
  const Ran ran = Run({"plot", "many-2", "--state", "running", "--output", "json"});
  EXPECT_THAT(ran.err, HasSubstr("11 jobs match"));
  const auto curves = nlohmann::json::parse(ran.out)["charts"][0]["curves"];
  ASSERT_EQ(curves.size(), 8u);
  EXPECT_EQ(curves[0]["name"], "many-2");
  EXPECT_EQ(curves[1]["name"], "many-6");
  EXPECT_EQ(curves[7]["name"], "many-12");
}

TEST_F(HistoryCommandsTest, CompareShowsFiguresAndTheKeysThatDiffer) {
  const Ran ran = Run({"compare", "demo", "old"});
  EXPECT_EQ(ran.code, ExitCode::kOk) << ran.err;
  EXPECT_THAT(ran.out, AllOf(HasSubstr("BEST VAL"),
                             HasSubstr("demo  training    375   3.07M     4.2250    4.2500    "
                                       "4.2500       40  12.3k  312.0 MiB  10 min 00 s         1"),
                             HasSubstr("\nKEY       demo  old\n"), HasSubstr("train.lr"),
                             Not(HasSubstr("train.out_dir"))));
  EXPECT_THAT(ran.err, HasSubstr("keys differ; --all shows every key"));
  EXPECT_THAT(Run({"compare", "demo", "old", "--all"}).out, HasSubstr("train.out_dir"));
  const auto document = nlohmann::json::parse(Run({"compare", "demo", "old", "-o", "json"}).out);
  EXPECT_EQ(document["jobs"][0]["best_val_loss"], 4.25);
  EXPECT_EQ(document["jobs"][1]["id"], kOtherId);
  EXPECT_EQ(document["configuration"].size(), 1u);
  EXPECT_EQ(document["configuration"][0]["values"][1], "0.003");
}

TEST_F(HistoryCommandsTest, CompareSaysThatConfigurationsAreEqual) {
  state().jobs[1].mutable_spec()->CopyFrom(state().jobs[0].spec());
  state().records.clear();
  const Ran ran = Run({"compare", "demo", "old"});
  EXPECT_THAT(ran.out, HasSubstr("The configurations are equal in all "));
  EXPECT_THAT(Run({"compare", "demo"}).err, StartsWith("nsactl: compare: 1 job"));
  EXPECT_EQ(Run({"compare", "demo"}).code, ExitCode::kUsage);
}

TEST_F(HistoryCommandsTest, CompareCutsLongValues) {
  state().jobs[1].mutable_spec()->mutable_train()->set_out_dir("/" + std::string(80, 'x'));
  EXPECT_THAT(
      Run({"compare", "demo", "old"}).out,
      AllOf(HasSubstr("/" + std::string(32, 'x') + "..."), Not(HasSubstr(std::string(33, 'x')))));
  EXPECT_THAT(Run({"compare", "demo", "old", "-o", "wide"}).out,
              HasSubstr("/" + std::string(80, 'x')));
}

TEST_F(HistoryCommandsTest, ReportWritesOneFile) {
  AddEvent(1, "PLACED");
  AddEvent(2, "RANK_LOST").set_severity(v1::SEVERITY_ERROR);
  v1::CheckpointInfo& checkpoint = state().checkpoints.emplace_back();
  checkpoint.set_step(40);
  checkpoint.set_path("/out/step-40");
  v1::Node& node = state().nodes.emplace_back();
  node.mutable_info()->set_name("box");
  node.mutable_info()->set_cores(12);
  state().nodes.emplace_back().mutable_info()->set_name("elsewhere");
  v1::GetSavedStacksResponse& saved = state().saved_stacks.emplace_back();
  saved.mutable_saved()->set_id(7);
  saved.mutable_saved()->set_why("rank 1 stands still");
  const Ran ran = Run({"report", "demo", "-o", Path("demo.html")});
  EXPECT_EQ(ran.code, ExitCode::kOk) << ran.err;
  EXPECT_EQ(ran.err, "report of demo (jdemo1234567) written to " + Path("demo.html") + "\n");
  const std::string page = Content("demo.html");
  EXPECT_EQ(MarkupProblem(page), "");
  EXPECT_THAT(page, AllOf(HasSubstr("<h1>demo <span class=\"good\">training</span></h1>"),
                          HasSubstr("375 of 1,000 (37.5 %)"), HasSubstr("RANK_LOST"),
                          HasSubstr(" rank hours (1 rank for "), HasSubstr("/out/step-40"),
                          HasSubstr("12 cores"), HasSubstr("rank 1 stands still"),
                          HasSubstr("9.9.9 abcdef"), HasSubstr("out_dir: /data/demo")));
  EXPECT_THAT(page, AllOf(HasSubstr("aria-label=\"Loss\""), HasSubstr("aria-label=\"Throughput\""),
                          Not(HasSubstr("elsewhere")), Not(HasSubstr("<script")),
                          Not(HasSubstr("src=")), Not(HasSubstr("href="))));
}

TEST_F(HistoryCommandsTest, ReportIsMadeWithoutWhatMayNotBeRead) {
  const grpc::Status denied(grpc::StatusCode::PERMISSION_DENIED, "role: viewer; ask an operator");
  for (const char* method : {"ListNodes", "ListSavedStacks", "ListCheckpoints"})
    state().failures[method] = {denied};
  EXPECT_EQ(Run({"report", "demo", "-o", Path("demo.html")}).code, ExitCode::kOk);
  EXPECT_THAT(Content("demo.html"), HasSubstr("They could not be listed: role: viewer"));
  state().failures["WatchEvents"] = {denied};
  EXPECT_EQ(Run({"report", "demo", "-o", Path("none.html")}).code, ExitCode::kAuth);
  EXPECT_FALSE(std::filesystem::exists(Path("none.html")));
}

TEST_F(HistoryCommandsTest, ReportSaysWhyThereIsNoSample) {
  EXPECT_THAT(Run({"report", "demo", "-o", Path("r.html"), "--prompt", "The"}).err,
              HasSubstr("--prompt: demo (jdemo1234567)"));
  state().checkpoints.emplace_back().set_path("/no/such/checkpoint");
  EXPECT_THAT(Run({"report", "demo", "-o", Path("r.html"), "--prompt", "The"}).err,
              HasSubstr("/no/such/checkpoint"));
  EXPECT_FALSE(std::filesystem::exists(Path("r.html")));
}

}  // namespace
}  // namespace nsa::client
