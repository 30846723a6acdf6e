// Runs the worker program in the way people and agents start it.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "common/checkpoint/checkpoint_dir.h"
#include "common/job/load.h"
#include "common/run/process.h"
#include "nsa/v1/worker.pb.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"

namespace nsa::train {
namespace {

using ::testing::HasSubstr;

std::string Read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// The columns step and loss of training.csv, one string per line.
std::vector<std::string> StepsAndLosses(const std::filesystem::path& out_dir) {
  std::vector<std::string> rows;
  std::istringstream in(Read(out_dir / "training.csv"));
  for (std::string line; std::getline(in, line);) {
    rows.push_back(line.substr(0, line.find(',', line.find(',') + 1)));
  }
  return rows;
}

int CountOf(std::string_view part, std::string_view text) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

class Worker {
 public:
  Worker(const TempDir& dir, const std::string& name, std::vector<std::string> arguments)
      : output_(dir / (name + ".log")) {
    arguments.insert(arguments.begin(), Program("nsa-worker"));
    const auto spawned = Spawn({.argv = std::move(arguments),
                                .environment = FilterEnvironment({"PATH", "NSA_LOG_LEVEL"}),
                                .working_dir = dir.path(),
                                .output = output_});
    EXPECT_TRUE(spawned.ok()) << spawned.status();
    if (spawned.ok()) identity_ = *spawned;
  }

  void Signal(int signal) { EXPECT_TRUE(SignalProcess(identity_, signal).ok()) << output(); }

  // Waits until main() has begun: before that the kernel applies a signal's default action.
  void WaitUntilBlocked(int signal) {
    const std::string status = "/proc/" + std::to_string(identity_.pid) + "/status";
    for (int i = 0; i < 60000; ++i) {
      const std::string text = Read(status);
      const size_t at = text.find("SigBlk:");
      if (at == std::string::npos) return;  // it has ended
      if ((std::stoull(text.substr(at + 7), nullptr, 16) >> (signal - 1) & 1) != 0) return;
      absl::SleepFor(absl::Microseconds(100));
    }
    FAIL() << "signal " << signal << " is never blocked";
  }

  ExitStatus Wait() {
    for (int i = 0; i < 6000; ++i) {
      const auto exited = TryReap(identity_.pid);
      EXPECT_TRUE(exited.ok()) << exited.status();
      if (!exited.ok() || exited->has_value()) return exited.ok() ? **exited : ExitStatus{};
      absl::SleepFor(absl::Milliseconds(10));
    }
    ADD_FAILURE() << "still running: " << output();
    return {};
  }

  // Waits until the output contains `text` so many times, for a minute.
  void WaitFor(const std::string& text, int times = 1) {
    for (int i = 0; i < 6000; ++i) {
      if (CountOf(text, output()) >= times) return;
      absl::SleepFor(absl::Milliseconds(10));
    }
    FAIL() << "no '" << text << "' in: " << output();
  }

  std::string output() const { return Read(output_); }

 private:
  const std::filesystem::path output_;
  ProcessIdentity identity_;
};

void WriteJob(const TempDir& dir, int64_t steps, const std::string& runtime = "{}") {
  std::ofstream(dir / "job.yaml")
      << "name: tiny\n"
         "model: {dim: 32, n_layers: 1, n_heads: 4, n_kv_groups: 2, "
         "d_k: 16, d_v: 16}\n"
         "nsa: {l: 8, d: 4, l_sel: 8, n_sel: 4, w: 16}\n"
         "data: {source: synthetic}\n"
         "preflight: {waive: {MODEL_TOO_SMALL_FOR_RUN: a test, DATA_SYNTHETIC: a test}}\n"
         "runtime: "
      << runtime << "\ntrain: {steps: " << steps
      << ", seq_len: 32, batch_size: 4, log_every: 1, save_every: 20}\n";
}

TEST(WorkerProgram, TrainsAJobFileByHandAndSaysHowItGoes) {
  const TempDir dir;
  WriteJob(dir, 30);
  Worker worker(dir, "worker", {"--job", "job.yaml", "--threads", "1"});
  EXPECT_EQ(worker.Wait().code, 0) << worker.output();
  EXPECT_THAT(worker.output(), HasSubstr("step 30/30 | loss"));
  EXPECT_THAT(worker.output(), HasSubstr("COMPLETED: all 30 steps done"));
  EXPECT_EQ(StepsAndLosses(dir / "artifacts/tiny").size(), 31u) << "a header and 30 steps";
  EXPECT_TRUE(VerifyCheckpoint(dir / "artifacts/tiny/checkpoints/step-00000030").empty());
}

TEST(WorkerProgram, SigtermToOneRankEndsBothAfterTheSameStepWithACheckpoint) {
  const TempDir dir;
  WriteJob(dir, 1000000);
  const auto arguments = [](int rank) -> std::vector<std::string> {
    return {"--job", "job.yaml",     "--rank", std::to_string(rank), "--world",
            "2",     "--rendezvous", "meet",   "--threads",          "1"};
  };
  Worker zero(dir, "zero", arguments(0)), one(dir, "one", arguments(1));
  zero.WaitFor("step 3/");
  one.Signal(SIGTERM);
  EXPECT_EQ(zero.Wait().code, 0) << zero.output();
  EXPECT_EQ(one.Wait().code, 0) << one.output();
  const auto all = ListCheckpoints(dir / "artifacts/tiny");
  ASSERT_TRUE(all.ok() && !all->empty());
  const std::string last =
      "STOPPED: stopped as asked after step " + std::to_string(all->back().step);
  EXPECT_THAT(zero.output(), HasSubstr(last));
  EXPECT_THAT(one.output(), HasSubstr(last));
  EXPECT_TRUE(VerifyCheckpoint(all->back().path).empty());
}

TEST(WorkerProgram, Sigusr1WritesTheStacksToTheLogAndTheRunGoesOn) {
  const TempDir dir;
  WriteJob(dir, 1000000);
  Worker worker(dir, "worker", {"--job", "job.yaml", "--threads", "1"});
  worker.WaitFor("step 3/");
  // OpenBLAS has functions without unwind tables: where the main thread is in one of them, its
  // stack ends there. Which dump shows more is chance.
  const std::string trainer = "nsa::train::Trainer::";
  for (int dumps = 1; dumps <= 50 && CountOf(trainer, worker.output()) == 0; ++dumps) {
    worker.Signal(SIGUSR1);
    worker.WaitFor("none was held for more than", dumps);
    ASSERT_FALSE(HasFatalFailure());
  }
  const std::string log = worker.output();
  const std::string stacks = log.substr(log.find("SIGUSR1: the stacks of all threads"));
  EXPECT_THAT(stacks, HasSubstr(trainer));
  EXPECT_THAT(stacks, HasSubstr("\"stack-signal\""));
  const size_t steps = StepsAndLosses(dir / "artifacts/tiny").size();
  while (StepsAndLosses(dir / "artifacts/tiny").size() < steps + 20) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  for (int i = 0; i < 5; ++i) worker.Signal(SIGUSR1);
  worker.Signal(SIGTERM);
  EXPECT_EQ(worker.Wait().code, 0) << worker.output();
}

TEST(WorkerProgram, Sigusr1IsHarmlessFromTheFirstMomentOn) {
  for (int after_us : {2'000, 5'000, 10'000, 20'000, 40'000, 80'000}) {
    const TempDir dir;
    WriteJob(dir, 1000000);
    Worker worker(dir, absl::StrCat("worker-", after_us), {"--job", "job.yaml", "--threads", "1"});
    absl::SleepFor(absl::Microseconds(after_us));
    worker.WaitUntilBlocked(SIGUSR1);
    worker.Signal(SIGUSR1);
    worker.WaitFor("step 3/");
    worker.Signal(SIGTERM);
    EXPECT_EQ(worker.Wait().code, 0) << after_us << ": " << worker.output();
  }
}

// Two ranks that are started again with the settings `runtime` after one was killed have
// the bits of two that were left alone, without these settings.
void ExpectToSurviveAKilledRank(const std::string& runtime) {
  const TempDir dir, unbroken;
  constexpr int64_t kSteps = 2500;  // some seconds, so that it does not end before the signal
  WriteJob(dir, kSteps, runtime);
  WriteJob(unbroken, kSteps);
  const auto arguments = [](int rank, const char* meet) -> std::vector<std::string> {
    return {"--job", "job.yaml",     "--rank", std::to_string(rank), "--world",
            "2",     "--rendezvous", meet,     "--threads",          "1"};
  };
  {
    Worker zero(dir, "zero", arguments(0, "meet")), one(dir, "one", arguments(1, "meet"));
    zero.WaitFor("step-00000020");
    one.Signal(SIGKILL);
    EXPECT_EQ(one.Wait().signal, SIGKILL);
    EXPECT_EQ(zero.Wait().code, 1) << "a restart may help: " << zero.output();
    EXPECT_THAT(zero.output(), HasSubstr("PEER_LOST"));
  }
  Worker zero(dir, "again-0", arguments(0, "meet-2")), one(dir, "again-1", arguments(1, "meet-2"));
  Worker whole_zero(unbroken, "zero", arguments(0, "meet")),
      whole_one(unbroken, "one", arguments(1, "meet"));
  for (Worker* worker : {&zero, &one, &whole_zero, &whole_one}) {
    EXPECT_EQ(worker->Wait().code, 0) << worker->output();
  }
  EXPECT_EQ(StepsAndLosses(dir / "artifacts/tiny").size(), kSteps + 1) << "and a header";
  EXPECT_EQ(StepsAndLosses(dir / "artifacts/tiny"), StepsAndLosses(unbroken / "artifacts/tiny"));
  const std::string weights = "artifacts/tiny/checkpoints/step-00002500/model.safetensors";
  EXPECT_TRUE(Read(dir / weights) == Read(unbroken / weights));
}

TEST(WorkerProgram, ARankKilledIsMissedAtOnceAndTheRunGoesOnFromItsCheckpointBitForBit) {
  ExpectToSurviveAKilledRank("{}");
}

TEST(WorkerProgram, ARankKilledWithAShareOfTheOptimizersStateIsNoLoss) {
  ExpectToSurviveAKilledRank("{shard_optimizer: true}");
}

TEST(WorkerProgram, ARankKilledWithAShareOfTheGradientsIsNoLoss) {
  ExpectToSurviveAKilledRank("{shard: gradients}");
}

TEST(WorkerProgram, ARankKilledWithAShareOfTheWeightsIsNoLoss) {
  ExpectToSurviveAKilledRank("{shard: parameters}");
}

TEST(WorkerProgram, ASampleIsShownAsItIsDrawnAndEndsAtOnceOnASignal) {
  const TempDir dir;
  std::ofstream(dir / "text.txt") << "To be, or not to be, that is the question:\n"
                                     "Whether 'tis nobler in the mind to suffer\n";
  std::ofstream(dir / "val.txt") << "The slings and arrows of outrageous fortune\n";
  std::ofstream(dir / "job.yaml")
      << "name: tiny\n"
         "model: {dim: 32, n_layers: 1, n_heads: 4, n_kv_groups: 2, d_k: 16, d_v: 16}\n"
         "nsa: {l: 8, d: 4, l_sel: 8, n_sel: 4, w: 16}\n"
         "data: {source: text, path: text.txt, val_path: val.txt, tokenizer: byte}\n"
         "train: {steps: 2, seq_len: 16, batch_size: 2, save_every: 2}\n";
  Worker train(dir, "train", {"--job", "job.yaml"});
  ASSERT_EQ(train.Wait().code, 0) << train.output();
  for (const int signal : {SIGTERM, SIGINT}) {
    Worker worker(
        dir, std::to_string(signal),
        {"sample", "artifacts/tiny", "--prompt", "Once upon a time ", "--bytes", "1000000000"});
    for (int i = 0; i < 6000 && worker.output().size() < 40; ++i) {
      absl::SleepFor(absl::Milliseconds(10));
    }
    EXPECT_THAT(worker.output(), HasSubstr("Once upon a time "));
    EXPECT_GE(worker.output().size(), 40u);
    worker.Signal(signal);
    EXPECT_EQ(worker.Wait().signal, signal) << worker.output();
  }
}

TEST(WorkerProgram, RefusesALogLevelThatThereIsNot) {
  const TempDir dir;
  setenv("NSA_LOG_LEVEL", "loud", 1);
  Worker worker(dir, "worker", {"--version"});
  unsetenv("NSA_LOG_LEVEL");
  EXPECT_EQ(worker.Wait().code, 2);
  EXPECT_THAT(worker.output(), HasSubstr("NSA_LOG_LEVEL: 'loud'"));
}

TEST(WorkerProgram, ExitsWithTwoForWhatTheCallerMustCorrect) {
  const TempDir dir;
  std::ofstream(dir / "bad.yaml") << "train: {stepz: 3}\n";
  const std::vector<std::vector<std::string>> calls = {
      {}, {"--jub", "x"}, {"--job", "none.yaml"}, {"--job", "bad.yaml"}, {"--run-dir", "none"}};
  for (size_t i = 0; i < calls.size(); ++i) {
    Worker worker(dir, std::to_string(i), calls[i]);
    EXPECT_EQ(worker.Wait().code, 2) << worker.output();
  }
  EXPECT_THAT(Read(dir / "3.log"), HasSubstr("bad.yaml:1:9: train.stepz"));
}

TEST(WorkerProgram, RefusesALaunchThatItUnderstandsOnlyInPart) {
  const TempDir dir;
  v1::WorkerLaunch launch;
  launch.mutable_spec()->mutable_runtime()->set_precision(static_cast<v1::Precision>(77));
  std::ofstream(dir / "launch.pb", std::ios::binary) << launch.SerializeAsString();
  Worker worker(dir, "worker", {"--run-dir", dir.path().string()});
  EXPECT_EQ(worker.Wait().code, 2) << worker.output();
  EXPECT_THAT(worker.output(), HasSubstr("spec.runtime.precision: value 77"));
}

TEST(WorkerProgram, RefusesByHandWhatPreflightRefuses) {
  const TempDir dir;
  WriteJob(dir, 3);
  const std::string before = Read(dir / "job.yaml");
  std::ofstream(dir / "job.yaml", std::ios::app) << "restart: {resume: nowhere/step-00000005}\n";
  Worker worker(dir, "worker", {"--job", "job.yaml"});
  EXPECT_EQ(worker.Wait().code, 2) << worker.output();
  const int64_t line = std::count(before.begin(), before.end(), '\n') + 1;
  EXPECT_THAT(worker.output(), HasSubstr("job.yaml:" + std::to_string(line) +
                                         ":11: error RESUME_NOT_FOUND: restart.resume"));
  EXPECT_FALSE(std::filesystem::exists(dir / "artifacts"));
}

TEST(WorkerProgram, ExitsWithThreeForAJobThatCanNeverRun) {
  const TempDir dir;
  v1::WorkerLaunch launch;
  launch.set_world_size(1);
  launch.set_generation(1);
  launch.mutable_spec()->mutable_model()->set_d_k(17);
  launch.mutable_spec()->mutable_data()->set_source(v1::DATA_SOURCE_SYNTHETIC);
  ApplyDefaults(launch.mutable_spec());
  launch.mutable_spec()->mutable_train()->set_out_dir(dir / "out");
  std::ofstream(dir / "launch.pb", std::ios::binary) << launch.SerializeAsString();
  Worker worker(dir, "worker", {"--run-dir", dir.path().string()});
  EXPECT_EQ(worker.Wait().code, 3) << worker.output();
  EXPECT_THAT(worker.output(), HasSubstr("d_k: 17"));
}

TEST(WorkerProgram, CountsItsDataAsJson) {
  const TempDir dir;
  const std::string text(30, 'x');
  std::ofstream(dir / "val.jsonl") << R"({"text": "copy"})"
                                   << "\n";
  std::ofstream(dir / "train.jsonl") << R"({"text": ")" << text << R"("})"
                                     << "\n"
                                     << R"({"text": "copy"})"
                                     << "\n";
  std::ofstream(dir / "job.yaml")
      << "data: {source: jsonl, path: train.jsonl, val_path: val.jsonl}\n"
      << "train: {seq_len: 4, batch_size: 1}\n";
  Worker worker(dir, "worker", {"count", "job.yaml"});
  EXPECT_EQ(worker.Wait().code, 0) << worker.output();
  for (const char* part : {R"("documents":"1")", R"("droppedDocuments":"1")", R"("tokens":"31")",
                           R"("rows":"7")", R"("valDocuments":"1")", R"("valRows":"1")"}) {
    EXPECT_THAT(worker.output(), HasSubstr(part));
  }
}

TEST(WorkerProgram, TellsItsVersion) {
  const TempDir dir;
  Worker worker(dir, "worker", {"--version"});
  EXPECT_EQ(worker.Wait().code, 0);
  EXPECT_THAT(worker.output(), HasSubstr("nsa-worker 0."));
}

}  // namespace
}  // namespace nsa::train
