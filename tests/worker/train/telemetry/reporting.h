// Records for the tests of the reporter, and helpers to read its files.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "common/run/atomic_file.h"
#include "common/run/journal.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "worker/train/telemetry/reporter.h"

namespace nsa::train {

inline ReporterOptions Options(const TempDir& dir) {
  ReporterOptions options;
  options.spec.set_name("a-job");
  v1::TrainSpec* train = options.spec.mutable_train();
  train->set_steps(100);
  train->set_log_every(10);
  options.out_dir = *Folder::Make(dir / "out");
  return options;
}

inline v1::StepRecord Step(int64_t number) {
  v1::StepRecord step;
  step.set_step(number);
  step.set_loss(3.0 - 0.01 * static_cast<double>(number));
  step.set_learning_rate(1e-3);
  step.set_grad_norm(0.5);
  step.set_tokens(1000);
  step.set_total_tokens(1000 * number);
  step.set_tokens_per_second(5000);
  step.mutable_times()->set_step_seconds(0.2);
  step.set_memory_allocated_bytes(int64_t{3} << 29);  // 1.5 GiB
  step.set_memory_reserved_bytes(int64_t{1} << 31);
  step.set_data_source(v1::DATA_SOURCE_JSONL);
  (*step.mutable_fallbacks())["data_source"] = 2;
  (*step.mutable_fallbacks())["cuda_graph"] = 1;
  for (int layer = 0; layer < 2; ++layer) {
    v1::LayerStats* stats = step.add_layers();
    stats->set_layer(layer);
    stats->mutable_gate()->set_entropy_mean(1.0 + layer);
    for (const double share : {0.2, 0.3, 0.5}) stats->mutable_gate()->add_branch_share(share);
    for (const double mean : {0.1, 0.8, 0.9}) stats->mutable_gate()->add_gate_mean(mean);
    stats->mutable_selection()->set_keys_mean(100);
    stats->mutable_selection()->set_keys_max(128);
    stats->mutable_selection()->set_rows(64);
    stats->mutable_selection()->set_at_max_ratio(0.25);
  }
  return step;
}

inline std::vector<std::string> Lines(const std::filesystem::path& path) {
  const auto content = ReadWholeFile(path);
  EXPECT_OK(content);
  std::vector<std::string> lines = absl::StrSplit(*content, '\n');
  EXPECT_EQ(lines.back(), "") << path << " ends within a line";
  lines.pop_back();
  return lines;
}

// The events of a journal, each as "REASON text".
inline std::vector<std::string> Events(const std::filesystem::path& journal) {
  std::vector<std::string> events;
  JournalReader reader(journal);
  for (auto record = reader.Next(); record.ok() && record->has_value(); record = reader.Next()) {
    if (!(*record)->has_event()) continue;
    events.push_back((*record)->event().reason() + " " + (*record)->event().text());
  }
  return events;
}

}  // namespace nsa::train
