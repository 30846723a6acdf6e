#include "worker/train/telemetry/reporter.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/run/atomic_file.h"
#include "common/run/journal.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/worker/train/telemetry/reporting.h"
#include "worker/train/telemetry/append_file.h"
#include "worker/train/telemetry/formats.h"

namespace nsa::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

void Train(const ReporterOptions& options, int64_t first, int64_t last) {
  auto reporter = Reporter::Open(options);
  ASSERT_OK(reporter);
  v1::WorkerStarted started;
  started.set_parameters(1234);
  started.set_device("cpu, 2 threads");
  (*reporter)->Started(started);
  for (int64_t step = first; step <= last; ++step) {
    (*reporter)->Step(Step(step));
    if (step % 50 == 0) {
      v1::EvalRecord eval;
      eval.set_step(step);
      eval.set_loss(2.5 + 0.001 * static_cast<double>(step));
      eval.set_tokens(4096);
      (*reporter)->Eval(eval);
    }
  }
  v1::WorkerFinished finished;
  finished.set_outcome(v1::OUTCOME_COMPLETED);
  finished.set_reason("COMPLETED");
  finished.set_step(last);
  (*reporter)->Finished(finished);
  EXPECT_EQ((*reporter)->dropped(), 0);
}

TEST(Reporter, CsvFilesHaveExactHeadersAndARowALoggedStep) {
  const TempDir dir;
  Train(Options(dir), 1, 100);
  const auto training = Lines(dir / "out/training.csv");
  ASSERT_EQ(training.size(), 12u);  // header, step 1, steps 10 … 100
  EXPECT_EQ(training[0],
            "step,loss,lr,toks_per_s,grad_norm,total_tokens,learned_tokens,data_seconds,forward_"
            "seconds,backward_seconds,"
            "communication_seconds,optimizer_seconds,step_seconds,data_source,skipped_nonfinite,"
            "unix_seconds");
  EXPECT_THAT(training[2],
              StartsWith("10,2.9,0.001,5000.0,0.5,10000,1000,0.000000,0.000000,0.000000,0."
                         "000000,0.000000,0.200000,jsonl,0,"));
  const auto val = Lines(dir / "out/val.csv");
  ASSERT_EQ(val.size(), 3u);
  EXPECT_EQ(val[0], "step,val_loss,ppl,tokens,seconds,unix_seconds");
  EXPECT_THAT(val[1], StartsWith("50,2.55,12.8071,4096,0.000,"));
  const auto fallbacks = Lines(dir / "out/fallback_counters.csv");
  EXPECT_EQ(fallbacks[0], "step,fallback,count");
  EXPECT_EQ(fallbacks[1], "1,cuda_graph,1");
  EXPECT_EQ(fallbacks[2], "1,data_source,2");
  EXPECT_EQ(fallbacks[3], "1,total,3");
  const auto selection = Lines(dir / "out/k_stats.csv");
  EXPECT_EQ(selection[0], "step,layer,k_mean,k_max,rows,pct_at_max");
  EXPECT_EQ(selection[1], "1,0,100,128,64,0.25");
  EXPECT_EQ(selection[2], "1,1,100,128,64,0.25");
}

TEST(Reporter, EveryAuditHasARowALayerWhetherItsStepIsLoggedOrNot) {
  const TempDir dir;
  auto reporter = Reporter::Open(Options(dir));
  ASSERT_OK(reporter);
  for (int64_t number = 1; number <= 20; ++number) {
    v1::StepRecord step = Step(number);
    for (v1::LayerStats& layer : *step.mutable_layers()) {
      if (number % 7 != 0) continue;
      layer.mutable_audit()->set_queries(3072);
      layer.mutable_audit()->set_selected_mass(0.75);
      layer.mutable_audit()->set_selected_mass_p10(0.5);
      layer.mutable_audit()->set_window_mass(0.25);
      v1::SelectionChoice& choice = *layer.mutable_audit()->mutable_choice();
      choice.set_window_overlap_ratio(0.5);
      choice.set_entropy_ratio(0.9);
      choice.set_neighbour_agreement_ratio(0.8);
      choice.set_free_choices(6000);
    }
    (*reporter)->Step(step);
  }
  reporter->reset();
  const auto audits = Lines(dir / "out/attention_audit.csv");
  ASSERT_EQ(audits.size(), 5u) << "header, steps 7 and 14 with two layers";
  EXPECT_EQ(audits[0],
            "step,layer,queries,selected_mass,selected_mass_p10,window_mass,window_overlap,"
            "choice_entropy,neighbour_agreement,free_choices,unix_seconds");
  EXPECT_THAT(audits[1], StartsWith("7,0,3072,0.75,0.5,0.25,0.5,0.9,0.8,6000,"));
  EXPECT_THAT(audits[4], StartsWith("14,1,3072,0.75,0.5,0.25,0.5,0.9,0.8,6000,"));
}

TEST(Reporter, HeartbeatsNameTheirUnits) {
  const TempDir dir;
  ReporterOptions options = Options(dir);
  Train(options, 1, 20);
  options.rank = 1;
  Train(options, 1, 20);
  for (const int rank : {0, 1}) {
    const auto lines = Lines(dir / ("out/heartbeat_rank" + std::to_string(rank) + ".jsonl"));
    ASSERT_EQ(lines.size(), 5u);  // boot, steps 1, 10, 20, end
    const auto boot = nlohmann::json::parse(lines[0]);
    EXPECT_EQ(boot["msg"], "boot");
    EXPECT_EQ(boot["parameters"], 1234);
    const auto beat = nlohmann::json::parse(lines[2]);
    EXPECT_EQ(beat["msg"], "progress");
    EXPECT_EQ(beat["rank"], rank);
    EXPECT_EQ(beat["step"], 10);
    EXPECT_EQ(beat["pid"], getpid());
    EXPECT_EQ(beat["mem_allocated_mib"], 1536.0);
    EXPECT_EQ(beat["mem_allocated_gib"], 1.5);
    EXPECT_EQ(beat["mem_reserved_gib"], 2.0);
    EXPECT_EQ(beat["data_source"], "jsonl");
    EXPECT_EQ(beat["fallbacks"]["data_source"], 2);
    EXPECT_EQ(beat["layers"][1]["gate_entropy_mean"], 2.0);
    EXPECT_EQ(beat["layers"][1]["gate_branch_shares"][2], 0.5);
    EXPECT_EQ(beat["layers"][1]["gate_means"][2], 0.9);
    EXPECT_EQ(nlohmann::json::parse(lines[4])["msg"], "end");
  }
}

TEST(Reporter, OnlyRankZeroKeepsTheFilesOfTheRun) {
  const TempDir dir;
  ReporterOptions options = Options(dir);
  options.rank = 1;
  options.world_size = 2;
  Train(options, 1, 20);
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir / "out")) {
    names.push_back(entry.path().filename());
  }
  EXPECT_THAT(names, ElementsAre("heartbeat_rank1.jsonl"));
}

// Of a restart that ends before its first step.
TEST(Reporter, MetricsHaveNoNumbersOfStepsThatWereNotDone) {
  const TempDir dir;
  Train(Options(dir), 1, 0);
  const auto metrics = nlohmann::json::parse(*ReadWholeFile(dir / "out/metrics.json"));
  EXPECT_EQ(metrics["state"], "COMPLETED");
  EXPECT_EQ(metrics["total_tokens"], nullptr);
  EXPECT_EQ(metrics["loss_last"], nullptr);
}

TEST(Reporter, MetricsAndEnvironmentAreWholeJson) {
  const TempDir dir;
  Train(Options(dir), 1, 100);
  const auto metrics = nlohmann::json::parse(*ReadWholeFile(dir / "out/metrics.json"));
  EXPECT_EQ(metrics["state"], "COMPLETED");
  EXPECT_EQ(metrics["step"], 100);
  EXPECT_EQ(metrics["loss_first"], 2.99);
  EXPECT_EQ(metrics["loss_last"], 2.0);
  EXPECT_EQ(metrics["val_loss_best"], 2.55);
  EXPECT_EQ(metrics["val_best_step"], 50);
  EXPECT_EQ(metrics["val_loss_last"], 2.6);
  EXPECT_NEAR(metrics["toks_per_s_mean"], 5000, 1e-6);
  EXPECT_EQ(metrics["fallbacks"]["cuda_graph"], 1);
  EXPECT_EQ(metrics["telemetry_dropped"], 0);
  const auto environment = nlohmann::json::parse(*ReadWholeFile(dir / "out/env.json"));
  EXPECT_EQ(environment["spec"]["name"], "a-job");
  EXPECT_GT(environment["cores"], 0);
  EXPECT_GT(environment["memory_bytes"], 1 << 20);
}

TEST(Reporter, EnvironmentShowsWhatMattersAndNoSecret) {
  const TempDir dir;
  setenv("OMP_NUM_THREADS", "2", 1);
  setenv("NSA_API_TOKEN", "hunter2", 1);
  setenv("HOME_BANKING", "hunter2", 1);
  ASSERT_OK(Reporter::Open(Options(dir)));
  const std::string text = *ReadWholeFile(dir / "out/env.json");
  EXPECT_THAT(text, HasSubstr("\"OMP_NUM_THREADS\": \"2\""));
  EXPECT_THAT(text, testing::Not(HasSubstr("hunter2")));
}

TEST(Reporter, EnvironmentSaysWhichVariablesOfNcclAreNotTheUsers) {
  const TempDir dir;
  ReporterOptions options = Options(dir);
  options.nccl_replaced = {{.name = "NCCL_ALGO", .given = "Tree", .used = "Ring"},
                           {.name = "NCCL_COMM_ID", .given = "10.0.0.1:5"}};
  ASSERT_OK(Reporter::Open(options));
  const auto environment = nlohmann::json::parse(*ReadWholeFile(dir / "out/env.json"));
  EXPECT_EQ(environment["nccl_replaced"],
            nlohmann::json({{"NCCL_ALGO", {{"given", "Tree"}, {"used", "Ring"}}},
                            {"NCCL_COMM_ID", {{"given", "10.0.0.1:5"}, {"used", nullptr}}}}));
}

TEST(Reporter, AResumedRunWritesNoStepTwice) {
  const TempDir dir;
  ReporterOptions options = Options(dir);
  Train(options, 1, 73);
  options.resumed_step = 40;
  Train(options, 41, 100);
  std::vector<std::string> steps;
  for (const std::string& line : Lines(dir / "out/training.csv")) {
    steps.push_back(line.substr(0, line.find(',')));
  }
  EXPECT_THAT(steps, ElementsAre("step", "1", "10", "20", "30", "40", "41", "50", "60", "70", "80",
                                 "90", "100"));
  EXPECT_EQ(Lines(dir / "out/val.csv").size(), 3u);
  int64_t last = 0;
  for (const std::string& line : Lines(dir / "out/heartbeat_rank0.jsonl")) {
    const int64_t step = nlohmann::json::parse(line)["step"];
    EXPECT_GE(step, last);
    last = step;
  }
  EXPECT_EQ(nlohmann::json::parse(*ReadWholeFile(dir / "out/metrics.json"))["loss_first"], 2.99);
}

// Returns metrics.json after these validations; NaN is written as null.
nlohmann::json MetricsAfter(const ReporterOptions& options, const std::vector<double>& losses) {
  auto reporter = Reporter::Open(options);
  EXPECT_OK(reporter);
  int64_t step = options.resumed_step;
  for (const double loss : losses) {
    v1::EvalRecord eval;
    eval.set_step(++step);
    eval.set_loss(loss);
    (*reporter)->Eval(eval);
  }
  (*reporter)->Finished({});
  return nlohmann::json::parse(*ReadWholeFile(options.out_dir.path() / "metrics.json"));
}

TEST(Reporter, TheBestValidationOutlivesARestart) {
  const TempDir dir;
  ReporterOptions options = Options(dir);
  options.resumed_step = 50;
  options.best_val_loss = 2.5;
  options.best_val_step = 40;
  auto metrics = MetricsAfter(options, {});
  EXPECT_EQ(metrics["val_loss_last"], nullptr);
  EXPECT_EQ(metrics["val_loss_best"], 2.5);
  EXPECT_EQ(metrics["val_best_step"], 40);
  metrics = MetricsAfter(options, {2.75});
  EXPECT_EQ(metrics["val_loss_last"], 2.75);
  EXPECT_EQ(metrics["val_loss_best"], 2.5);
  EXPECT_EQ(metrics["val_best_step"], 40);
  metrics = MetricsAfter(options, {2.75, 2.25});
  EXPECT_EQ(metrics["val_loss_best"], 2.25);
  EXPECT_EQ(metrics["val_best_step"], 52);
}

TEST(Reporter, AValidationThatIsNotFiniteIsNeverTheBest) {
  const TempDir dir;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  auto metrics = MetricsAfter(Options(dir), {nan});
  EXPECT_EQ(metrics["val_best_step"], nullptr);
  metrics = MetricsAfter(Options(dir), {nan, 3.5, nan});
  EXPECT_EQ(metrics["val_loss_last"], "NaN");
  EXPECT_EQ(metrics["val_loss_best"], 3.5);
  EXPECT_EQ(metrics["val_best_step"], 2);
}

TEST(Reporter, AFailedStartRemovesNothing) {
  const TempDir dir;
  ReporterOptions options = Options(dir);
  Train(options, 1, 40);
  const size_t rows = Lines(dir / "out/training.csv").size();
  const size_t beats = Lines(dir / "out/heartbeat_rank0.jsonl").size();
  options.resumed_step = std::numeric_limits<int64_t>::max();
  {
    auto reporter = Reporter::Open(options);
    ASSERT_OK(reporter);
    v1::WorkerEvent event;
    event.set_reason("CHECKPOINT_CORRUPT");
    (*reporter)->Event(event);
    v1::WorkerFinished finished;
    finished.set_outcome(v1::OUTCOME_FAILED_FINAL);
    finished.set_reason("NO_VALID_CHECKPOINT");
    (*reporter)->Finished(finished);
  }
  EXPECT_EQ(Lines(dir / "out/training.csv").size(), rows);
  const auto lines = Lines(dir / "out/heartbeat_rank0.jsonl");
  ASSERT_EQ(lines.size(), beats + 2);
  EXPECT_EQ(nlohmann::json::parse(lines[beats])["reason"], "CHECKPOINT_CORRUPT");
  EXPECT_EQ(nlohmann::json::parse(lines[beats])["step"], 0) << "no step was begun";
  EXPECT_EQ(nlohmann::json::parse(lines.back())["reason"], "NO_VALID_CHECKPOINT");
  EXPECT_EQ(nlohmann::json::parse(lines.back())["step"], 0);
}

TEST(Reporter, AForeignFileStepsAside) {
  const TempDir dir;
  std::filesystem::create_directory(dir / "out");
  std::ofstream(dir / "out/training.csv")
      << "1,5.67,1e-4,380\n";  // a file of the Python system, without a header
  Train(Options(dir), 1, 20);
  EXPECT_EQ(Lines(dir / "out/training.csv.old").size(), 1u);
  EXPECT_EQ(Lines(dir / "out/training.csv").size(), 4u);
}

// During a run everything in out_dir is replaced by links to other files. Their content stays as it
// is, and the replacement is reported once.
TEST(Reporter, FilesExchangedForLinksAreNotWrittenThrough) {
  const TempDir dir;
  std::ofstream(dir / "precious") << "mine";
  ReporterOptions options = Options(dir);
  options.journal = dir / "journal";
  const std::vector<std::string> files = {
      "heartbeat_rank0.jsonl", "training.csv", "val.csv",      "fallback_counters.csv",
      "k_stats.csv",           "env.json",     "metrics.json", "tb/events.out.tfevents.nsa"};
  {
    auto reporter = Reporter::Open(options);
    ASSERT_OK(reporter);
    v1::EvalRecord eval;
    eval.set_step(10);
    (*reporter)->Step(Step(10));
    (*reporter)->Eval(eval);
    (*reporter)->Flush();
    EXPECT_THAT(Events(dir / "journal"), ElementsAre());
    for (const std::string& name : files) {
      std::filesystem::remove(dir / ("out/" + name));
      std::filesystem::create_symlink(dir / "precious", dir / ("out/" + name));
    }
    std::filesystem::create_symlink(dir / "precious", dir / "out/metrics.json.tmp");
    for (const int64_t step : {20, 30}) {
      eval.set_step(step);
      (*reporter)->Step(Step(step));
      (*reporter)->Eval(eval);
    }
    (*reporter)->Finished({});
    EXPECT_EQ((*reporter)->dropped(), 0);
  }
  EXPECT_EQ(*ReadWholeFile(dir / "precious"), "mine");
  EXPECT_THAT(Events(dir / "journal"),
              ElementsAre(AllOf(HasSubstr("TELEMETRY_FAILED"),
                                HasSubstr("heartbeat_rank0.jsonl: no longer"),
                                HasSubstr("put it back; training continues"))));
  EXPECT_EQ(nlohmann::json::parse(*ReadWholeFile(dir / "out/metrics.json"))["step"], 30);

  // The next start fails with an error before it has written anything.
  options.journal = dir / "journal-2";
  EXPECT_THAT(Reporter::Open(options),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("heartbeat_rank0.jsonl: "), HasSubstr("symbolic link"))));
  EXPECT_EQ(*ReadWholeFile(dir / "precious"), "mine");
}

TEST(Reporter, AnOutDirExchangedForALinkIsNotWrittenThrough) {
  const TempDir dir;
  std::filesystem::create_directory(dir / "precious");
  ReporterOptions options = Options(dir);
  options.journal = dir / "journal";
  {
    auto reporter = Reporter::Open(options);
    ASSERT_OK(reporter);
    (*reporter)->Step(Step(10));
    (*reporter)->Flush();
    std::filesystem::rename(dir / "out", dir / "moved");
    std::filesystem::create_directory_symlink("precious", dir / "out");
    (*reporter)->Step(Step(20));
    (*reporter)->Finished({});
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir / "precious"));
  EXPECT_EQ(Lines(dir / "moved/training.csv").size(), 3u) << "header, two steps";
  EXPECT_TRUE(std::filesystem::exists(dir / "moved/metrics.json"));
  EXPECT_THAT(Events(dir / "journal"), ElementsAre(AllOf(HasSubstr("TELEMETRY_FAILED"),
                                                         HasSubstr("/out: no longer the folder"))));
}

TEST(Reporter, WithoutAnOutDirTheJournalHasTheLastWords) {
  const TempDir dir;
  ReporterOptions options;
  options.journal = dir / "journal";
  {
    auto reporter = Reporter::Open(options);
    ASSERT_OK(reporter);
    v1::WorkerFinished finished;
    finished.set_reason("FAILED_PRECONDITION");
    (*reporter)->Finished(finished);
  }
  JournalReader reader(dir / "journal");
  const auto record = reader.Next();
  ASSERT_OK(record);
  ASSERT_TRUE(record->has_value());
  EXPECT_EQ((*record)->finished().reason(), "FAILED_PRECONDITION");
}

TEST(Reporter, WhatAFileRefusesIsToldOnceAndCounted) {
  const TempDir dir;
  ReporterOptions options = Options(dir);
  options.journal = dir / "journal";
  auto reporter = Reporter::Open(options);
  ASSERT_OK(reporter);
  // metrics.json is a folder that is not empty, so it cannot be replaced.
  std::filesystem::create_directories(dir / "out/metrics.json/in the way");
  for (const int64_t step : {10, 20}) {
    v1::EvalRecord eval;
    eval.set_step(step);
    (*reporter)->Eval(eval);
  }
  (*reporter)->Flush();
  EXPECT_EQ((*reporter)->dropped(), 2);
  EXPECT_THAT(Events(dir / "journal"),
              ElementsAre(AllOf(HasSubstr("TELEMETRY_FAILED"), HasSubstr("metrics.json"),
                                HasSubstr("training continues"))));
}

TEST(Reporter, EveryStepIsInTheJournalInOrder) {
  const TempDir dir;
  ReporterOptions options = Options(dir);
  options.journal = dir / "journal";
  Train(options, 1, 60);
  JournalReader reader(dir / "journal");
  std::vector<v1::WorkerRecord> records;
  while (true) {
    auto record = reader.Next();
    ASSERT_OK(record);
    if (!record->has_value()) break;
    records.push_back(**record);
  }
  ASSERT_EQ(records.size(), 63u);  // started, 60 steps, a validation, finished
  EXPECT_TRUE(records[0].has_started());
  for (int i = 1; i <= 50; ++i) EXPECT_EQ(records[i].step().step(), i);
  EXPECT_TRUE(records[51].has_eval());
  EXPECT_TRUE(records.back().has_finished());
  for (size_t i = 0; i < records.size(); ++i)
    EXPECT_EQ(records[i].sequence(), static_cast<int64_t>(i) + 1);
}

TEST(Reporter, ANonFiniteLossDoesNotBreakTheFiles) {
  const TempDir dir;
  ReporterOptions options = Options(dir);
  {
    auto reporter = Reporter::Open(options);
    ASSERT_OK(reporter);
    v1::StepRecord step = Step(1);
    step.set_loss(std::nan(""));
    step.set_grad_norm(INFINITY);
    step.set_skipped_nonfinite(true);
    (*reporter)->Step(step);
    v1::WorkerFinished finished;
    finished.set_outcome(v1::OUTCOME_FAILED_FINAL);
    finished.set_reason("NONFINITE_LOSS");
    (*reporter)->Finished(finished);
  }
  EXPECT_THAT(Lines(dir / "out/training.csv")[1], StartsWith("1,nan,0.001,5000.0,inf,"));
  const auto beat = nlohmann::json::parse(Lines(dir / "out/heartbeat_rank0.jsonl")[0]);
  EXPECT_EQ(beat["loss"], "NaN");
  EXPECT_EQ(beat["grad_norm"], "Infinity");
  EXPECT_EQ(nlohmann::json::parse(*ReadWholeFile(dir / "out/metrics.json"))["loss_last"], "NaN");
}

}  // namespace
}  // namespace nsa::train
