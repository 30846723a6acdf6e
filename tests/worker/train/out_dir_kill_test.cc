// The files of out_dir after SIGKILL: the program is killed repeatedly and its files are checked.
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/run/atomic_file.h"
#include "common/run/process.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/testing/paths.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "worker/train/telemetry/tensorboard.h"

namespace nsa::train {
namespace {

// Several times as many as are done before the last kill: a worker that is started again after the
// last step is refused, because nothing is left to do.
constexpr int kSteps = 4000;

void WriteJob(const std::filesystem::path& path) {
  std::ofstream(path) << R"(
name: killed
model: {dim: 32, n_layers: 1, n_heads: 2, n_kv_groups: 1, d_k: 16, d_v: 16, mlp_ratio: 2}
nsa: {l: 8, d: 4, l_sel: 8, n_sel: 3, w: 8}
data: {source: synthetic}
runtime: {device: cpu}
train: {steps: 4000, seq_len: 32, batch_size: 2, lr: 0.001, log_every: 1, eval_every: 20, eval_batches: 1,
        save_every: 25, keep_checkpoints: 2, out_dir: out}
)";
}

ProcessIdentity StartWorker(const TempDir& dir) {
  const auto child = Spawn(
      {.argv = {Program("nsa-worker"), "--job", (dir / "job.yaml").string(), "--threads", "1"},
       .environment = {},
       .working_dir = dir.path(),
       .output = dir / "log"});
  EXPECT_OK(child);
  return child.ok() ? *child : ProcessIdentity{};
}

ExitStatus Await(const ProcessIdentity& child) {
  for (int i = 0; i < 60000; ++i) {
    const auto exited = TryReap(child.pid);
    if (exited.ok() && exited->has_value()) return **exited;
    absl::SleepFor(absl::Milliseconds(2));
  }
  ADD_FAILURE() << "the worker does not end";
  return {};
}

// Expects complete lines with as many columns as the header, and increasing steps (or equal ones,
// if a step may have several rows).
void ExpectWholeCsv(const std::filesystem::path& path, bool one_row_a_step) {
  const auto content = ReadWholeFile(path);
  if (!content.ok()) return;  // killed before the file was created
  std::vector<std::string> lines = absl::StrSplit(*content, '\n');
  if (content->empty()) return;
  ASSERT_EQ(lines.back(), "") << path << " ends within a line";
  const auto columns = std::count(lines[0].begin(), lines[0].end(), ',');
  int64_t last = 0;
  for (size_t i = 1; i + 1 < lines.size(); ++i) {
    ASSERT_EQ(std::count(lines[i].begin(), lines[i].end(), ','), columns)
        << path << ": " << lines[i];
    const int64_t step = std::atoll(lines[i].c_str());
    ASSERT_TRUE(step > last || (!one_row_a_step && step == last)) << path << ": step " << step;
    last = step;
  }
}

void ExpectWholeFiles(const std::filesystem::path& out) {
  ExpectWholeCsv(out / "training.csv", true);
  ExpectWholeCsv(out / "val.csv", true);
  ExpectWholeCsv(out / "fallback_counters.csv", false);
  ExpectWholeCsv(out / "k_stats.csv", false);
  ExpectWholeCsv(out / "attention_audit.csv", false);
  for (const char* name : {"env.json", "metrics.json"}) {
    const auto content = ReadWholeFile(out / name);
    if (content.ok()) {
      EXPECT_TRUE(nlohmann::json::accept(*content)) << name;
    }
  }
  if (const auto content = ReadWholeFile(out / "heartbeat_rank0.jsonl"); content.ok()) {
    const std::vector<std::string> lines = absl::StrSplit(*content, '\n');
    for (const std::string& line : lines) {
      EXPECT_TRUE(line.empty() || nlohmann::json::accept(line)) << line;
    }
  }
  if (const auto content = ReadWholeFile(out / "tb/events.out.tfevents.nsa"); content.ok()) {
    EXPECT_EQ(KeepEvents(*content, kSteps), content->size()) << "a torn event";
  }
}

TEST(OutDir, IsWholeAfterEveryKillAndHoldsEveryStepOnceInTheEnd) {
  const TempDir dir;
  WriteJob(dir / "job.yaml");
  for (int round = 0; round < 8; ++round) {
    const ProcessIdentity child = StartWorker(dir);
    absl::SleepFor(absl::Milliseconds(15 + round * 37 % 120));
    SignalProcess(child, SIGKILL).IgnoreError();
    ASSERT_EQ(Await(child).signal, SIGKILL) << "it ended by itself in round " << round;
    ExpectWholeFiles(dir / "out");
  }
  const ExitStatus last = Await(StartWorker(dir));
  ASSERT_EQ(last.code, 0) << *ReadWholeFile(dir / "log");
  ExpectWholeFiles(dir / "out");
  std::vector<std::string> lines = absl::StrSplit(*ReadWholeFile(dir / "out/training.csv"), '\n');
  ASSERT_EQ(lines.size(), kSteps + 2u);
  for (int step = 1; step <= kSteps; ++step) {
    EXPECT_TRUE(absl::StartsWith(lines[step], std::to_string(step) + ",")) << lines[step];
  }
  EXPECT_EQ(nlohmann::json::parse(*ReadWholeFile(dir / "out/metrics.json"))["state"], "COMPLETED");
}

}  // namespace
}  // namespace nsa::train
