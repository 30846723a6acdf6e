// Records of a worker in which every field has a value, none of them twice, and the golden files
// that say what becomes of them.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>

#include "nsa/v1/fleet.pb.h"
#include "nsa/v1/telemetry.pb.h"
#include "tests/testing/paths.h"

namespace nsa {

// A layer with all branches and an audit, or with the window alone.
inline v1::LayerStats FullLayer(int layer, bool all) {
  v1::LayerStats stats;
  stats.set_layer(layer);
  for (int64_t branch = all ? 0 : 2; branch < 3; ++branch) {
    stats.add_keys_read(1000 * (layer + 1) + branch);
    stats.add_keys_expected(2000 * (layer + 1) + branch);
  }
  v1::AttentionAudit& audit = *stats.mutable_audit();
  audit.set_queries(3072 + layer);
  audit.set_window_mass(0.25 + 0.01 * layer);
  if (!all) return stats;
  v1::GateStats& gate = *stats.mutable_gate();
  gate.set_entropy_mean(0.9 + 0.01 * layer);
  gate.set_entropy_min(0.1 + 0.01 * layer);
  gate.set_max_gate_mean(0.6 + 0.01 * layer);
  gate.set_max_gate_max(0.8 + 0.01 * layer);
  gate.set_collapse_ratio(0.03 + 0.01 * layer);
  for (const double share : {0.2, 0.3, 0.5}) gate.add_branch_share(share);
  for (const double mean : {0.15, 0.85, 0.95}) gate.add_gate_mean(mean);
  v1::SelectionStats& selection = *stats.mutable_selection();
  selection.set_keys_mean(100.5 + layer);
  selection.set_keys_max(128 + layer);
  selection.set_rows(64 + layer);
  selection.set_at_max_ratio(0.375);
  audit.set_selected_mass(0.75);
  audit.set_selected_mass_p10(0.55);
  v1::SelectionChoice& choice = *audit.mutable_choice();
  choice.set_rows(96);
  choice.set_window_overlap_ratio(0.45);
  choice.set_entropy_ratio(0.91);
  choice.set_neighbour_agreement_ratio(0.81);
  choice.set_free_choices(6000);
  return stats;
}

inline v1::WorkerRecord FullStep(int64_t number) {
  v1::WorkerRecord record;
  record.set_sequence(number);
  record.set_unix_nanos(1'700'000'000'250'000'000 + number * 1'000'000'000);
  v1::StepRecord& step = *record.mutable_step();
  step.set_step(number);
  step.set_loss(2.5 + 1.0 / 3);
  step.set_learning_rate(3e-4);
  step.set_grad_norm(0.7);
  step.set_tokens(8192);
  step.set_total_tokens(8192 * number);
  step.set_tokens_per_second(51234.56);
  v1::StepTimes& times = *step.mutable_times();
  times.set_data_seconds(0.001);
  times.set_forward_seconds(0.05);
  times.set_backward_seconds(0.1);
  times.set_communication_seconds(0.004);
  times.set_optimizer_seconds(0.005);
  times.set_step_seconds(0.16);
  step.set_memory_allocated_bytes(int64_t{3} << 29);
  step.set_memory_reserved_bytes(int64_t{1} << 31);
  for (int layer = 0; layer < 3; ++layer) *step.add_layers() = FullLayer(layer, layer != 1);
  (*step.mutable_fallbacks())["cuda_graph"] = 1;
  (*step.mutable_fallbacks())["data_source"] = 2;
  step.set_data_source(v1::DATA_SOURCE_JSONL);
  step.set_data_epoch(6);
  step.set_skipped_nonfinite(true);
  for (const char* name : {"books", "code"}) {
    v1::SourceShare& source = *step.add_sources();
    source.set_name(name);
    source.set_rows(7);
    source.set_loss(2.25);
    source.set_epoch(1);
  }
  step.set_parameters_hash(0x0123456789abcdef);
  step.set_answer_tokens(4096);
  return record;
}

// A step whose numbers are not finite, of a model without gates and selection.
inline v1::WorkerRecord LostStep(int64_t number) {
  v1::WorkerRecord record = FullStep(number);
  v1::StepRecord& step = *record.mutable_step();
  step.set_loss(std::numeric_limits<double>::quiet_NaN());
  step.set_grad_norm(std::numeric_limits<double>::infinity());
  step.clear_layers();
  *step.add_layers() = FullLayer(0, false);
  step.clear_fallbacks();
  step.clear_sources();
  step.clear_data_source();
  return record;
}

inline v1::WorkerRecord FullEval(int64_t step) {
  v1::WorkerRecord record;
  record.set_unix_nanos(1'700'000'000'750'000'000 + step * 1'000'000'000);
  v1::EvalRecord& eval = *record.mutable_eval();
  eval.set_step(step);
  eval.set_loss(2.75);
  eval.set_tokens(4096);
  eval.set_seconds(1.5);
  for (const char* name : {"code", "prose"}) {
    v1::NamedLoss& set = *eval.add_sets();
    set.set_name(name);
    set.set_loss(1.25);
    set.set_tokens(2048);
  }
  return record;
}

inline v1::GpuInfo FullGpu(double use) {
  v1::GpuInfo gpu;
  gpu.set_uuid("GPU-1");
  gpu.set_name("NVIDIA H200");
  gpu.set_memory_bytes(int64_t{1} << 37);
  gpu.set_utilization_ratio(use);
  gpu.set_power_watts(500 * use);
  gpu.set_temperature_celsius(60);
  gpu.set_memory_clock_hertz(2e9);
  return gpu;
}

// Compares `text` with a file below tests/. After a change that is meant, NSA_WRITE_GOLDEN=1 in the
// environment of the test writes the file again; read its diff.
inline void ExpectGolden(const std::string& name, const std::string& text) {
  const std::string path = SourceDir() + "/tests/" + name;
  if (std::getenv("NSA_WRITE_GOLDEN") != nullptr) std::ofstream(path) << text;
  std::ifstream in(path);
  EXPECT_EQ(text, std::string(std::istreambuf_iterator<char>(in), {})) << path;
}

}  // namespace nsa
