// A small job whose losses can be compared bit by bit, and the steps that its ranks reported.
#pragma once

#include <bit>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "gtest/gtest.h"
#include "nsa/v1/job.pb.h"
#include "tests/testing/service_fixture.h"
#include "tests/testing/small_model.h"
#include "tests/testing/waive_length.h"

namespace nsa {

constexpr int64_t kSteps = 60;
constexpr int kRanks = 2;

// A small job of two ranks that checkpoints every five steps.
inline v1::JobSpec SmallJob(const std::filesystem::path& out_dir) {
  v1::JobSpec spec = SmallModel();
  spec.set_name("kill-test");
  (*spec.mutable_labels())["fake.step_ms"] = "20";
  v1::NsaSpec* nsa = spec.mutable_nsa();
  nsa->set_l(16);
  nsa->set_d(8);
  nsa->set_l_sel(32);
  nsa->set_n_sel(4);
  nsa->set_w(64);
  spec.mutable_data()->set_source(v1::DATA_SOURCE_SYNTHETIC);
  spec.mutable_runtime()->set_device(v1::DEVICE_CPU);
  v1::TrainSpec* train = spec.mutable_train();
  train->set_steps(kSteps);
  train->set_seq_len(256);
  train->set_batch_size(4);
  train->set_save_every(5);
  train->set_eval_every(20);
  train->set_eval_batches(1);
  train->set_out_dir(out_dir.string());
  spec.mutable_resources()->set_gpus(kRanks);
  spec.mutable_restart()->set_backoff_seconds(0.1);
  return spec;
}

// The bits of a step's loss and gradient norm.
struct StepBits {
  uint64_t loss = 0;
  uint64_t grad_norm = 0;
  bool operator==(const StepBits&) const = default;
};

struct Reported {
  std::map<int64_t, StepBits> steps;
  std::map<int64_t, uint64_t> evals;
  std::map<int64_t, int64_t> records_of_generation;
};

// What one rank reported. Fails when a step was reported twice with different bits, or when a
// generation's sequence numbers have a gap or a double.
inline Reported Collect(ServiceFixture* service, const std::string& id, int rank) {
  Reported run;
  std::map<int64_t, int64_t> last;
  for (const v1::WatchRecordsResponse& response : service->Records(id, rank)) {
    const v1::WorkerRecord& record = response.record();
    EXPECT_EQ(record.sequence(), ++last[response.generation()]);
    if (record.has_step()) {
      const StepBits bits = {std::bit_cast<uint64_t>(record.step().loss()),
                             std::bit_cast<uint64_t>(record.step().grad_norm())};
      const auto [it, is_new] = run.steps.try_emplace(record.step().step(), bits);
      EXPECT_EQ(it->second, bits) << "step " << record.step().step() << " done again differs";
      ++run.records_of_generation[response.generation()];
    }
    if (record.has_eval()) {
      const auto bits = std::bit_cast<uint64_t>(record.eval().loss());
      const auto [it, is_new] = run.evals.try_emplace(record.eval().step(), bits);
      EXPECT_EQ(it->second, bits) << "validation after step " << record.eval().step();
    }
  }
  return run;
}

}  // namespace nsa
