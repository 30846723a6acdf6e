// A job and a machine that break no preflight rule, for tests to break one at a time.
#pragma once

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "common/preflight/preflight.h"
#include "tests/testing/temp_dir.h"

namespace nsa {

// A production job on text files of its own, and one GPU to run it on.
class GoodJob {
 public:
  GoodJob() {
    Write("train.txt", std::string(4 << 20, 'a'));
    Write("val.txt", std::string(1 << 16, 'b'));
    spec.set_name("good");
    spec.mutable_data()->set_source(v1::DATA_SOURCE_TEXT);
    spec.mutable_data()->add_path(PathOf("train.txt"));
    spec.mutable_data()->add_val_path(PathOf("val.txt"));
    spec.mutable_runtime()->set_device(v1::DEVICE_CUDA);
    spec.mutable_runtime()->set_precision(v1::PRECISION_BF16);
    spec.mutable_runtime()->set_gradient_checkpointing(true);
    v1::TrainSpec* train = spec.mutable_train();
    train->set_steps(5000);
    train->set_batch_size(2);
    train->set_warmup_steps(200);
    train->set_save_every(500);
    train->set_eval_every(500);
    train->set_out_dir(PathOf("out"));
    spec.mutable_guard()->set_min_tokens_per_second(200'000);
    machine.gpus.push_back({"NVIDIA H200", int64_t{141} << 30, int64_t{139} << 30, 90});
    machine.cpu_slots = 2;
    machine.cores = 2;
    machine.memory_bytes = int64_t{64} << 30;
    machine.cuda_worker = true;
    machine.driver_version = "580.159";
    context.machine = &machine;
    context.check_files = true;
    context.free_disk_bytes = [this](const std::string&) { return free_disk_bytes; };
    ApplyDefaults(&spec);
  }
  GoodJob(const GoodJob&) = delete;
  GoodJob& operator=(const GoodJob&) = delete;

  std::string PathOf(const std::string& name) const { return (folder / name).string(); }
  void Write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((folder / name).parent_path());
    std::ofstream(folder / name, std::ios::binary) << text;
  }

  // Writes the state of a checkpoint of this job, as it is now.
  void WriteCheckpoint(const std::string& name, int64_t step) const {
    v1::CheckpointState state;
    state.set_format_version(1);
    state.set_step(step);
    *state.mutable_spec() = spec;
    state.set_job_hash(JobHash(spec));
    Write(name + "/state.json", *SerializeCheckpointState(state));
  }

  // On the CPU instead.
  void MoveToCpu() {
    spec.mutable_runtime()->set_device(v1::DEVICE_CPU);
    spec.mutable_runtime()->set_precision(v1::PRECISION_FP32);
  }

  v1::PreflightReport Check() const { return Preflight(spec, context); }

  TempDir folder;
  v1::JobSpec spec;
  MachineView machine;
  std::optional<int64_t> free_disk_bytes = int64_t{1} << 40;
  PreflightContext context;
};

// The first finding of that rule, or null.
inline const v1::Finding* FindingOf(const v1::PreflightReport& report, const std::string& rule) {
  for (const v1::Finding& finding : report.findings()) {
    if (finding.rule() == rule) return &finding;
  }
  return nullptr;
}

inline v1::TrainSpec* Train(GoodJob* job) { return job->spec.mutable_train(); }
inline v1::DataSpec* Data(GoodJob* job) { return job->spec.mutable_data(); }

// Two sources of text in place of data.path.
inline void Mix(GoodJob* job, double first, double second) {
  Data(job)->clear_source();
  Data(job)->clear_path();
  for (const auto& [name, weight] : {std::pair("train", first), std::pair("more", second)}) {
    const std::string file = absl::StrCat(name, ".txt");
    job->Write(file, std::string(4 << 20, name[0]));
    v1::MixSource* const mix = Data(job)->add_mix();
    mix->set_name(name);
    mix->set_source(v1::DATA_SOURCE_TEXT);
    mix->add_path(job->PathOf(file));
    mix->set_weight(weight);
  }
}

}  // namespace nsa
