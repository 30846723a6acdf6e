// Runs a job's ranks as threads of this process, where an agent would start processes, and reads
// their journals.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/run/journal.h"
#include "tests/testing/temp_dir.h"
#include "worker/train/step/trainer.h"

namespace nsa::train {

// One rank's journal.
struct RankResult {
  v1::WorkerFinished finished;
  v1::WorkerStarted started;
  std::vector<v1::StepRecord> steps;
  std::vector<v1::EvalRecord> evals;
  std::vector<v1::SampleRecord> samples;
  std::vector<v1::CheckpointRecord> checkpoints;
  std::vector<v1::WorkerEvent> events;

  bool HasEvent(const std::string& reason) const {
    for (const v1::WorkerEvent& event : events) {
      if (event.reason() == reason) return true;
    }
    return false;
  }
};

struct RunOptions {
  int world = 1;
  int64_t generation = 1;
  std::string job_id = "job-1";
  // Called for each trainer before it runs, e.g. to ask it to stop.
  std::function<void(int rank, Trainer*)> before = [](int, Trainer*) {};
  // Changes a rank's launch, e.g. adds a stop request.
  std::function<void(v1::WorkerLaunch*)> launch = [](v1::WorkerLaunch*) {};
  LastSavePatience last_save = {};
  const Clock* clock = nullptr;  // null: the real clock
};

inline RankResult ReadJournal(const std::filesystem::path& path) {
  RankResult result;
  JournalReader reader(path);
  while (true) {
    const auto record = reader.Next();
    EXPECT_TRUE(record.ok()) << record.status();
    if (!record.ok() || !record->has_value()) return result;
    const v1::WorkerRecord& r = **record;
    if (r.has_started()) result.started = r.started();
    if (r.has_step()) result.steps.push_back(r.step());
    if (r.has_eval()) result.evals.push_back(r.eval());
    if (r.has_sample()) result.samples.push_back(r.sample());
    if (r.has_checkpoint()) result.checkpoints.push_back(r.checkpoint());
    if (r.has_event()) result.events.push_back(r.event());
    if (r.has_finished()) result.finished = r.finished();
  }
}

// The run folder of a rank below `dir`. Each generation has different ones.
inline std::filesystem::path RunFolder(const TempDir& dir, const RunOptions& options, int rank) {
  return dir / ("gen-" + std::to_string(options.generation)) / std::to_string(rank);
}

inline std::vector<RankResult> RunJob(const TempDir& dir, const v1::JobSpec& spec,
                                      const RunOptions& options = {}) {
  const RealClock clock;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.world; ++rank) {
    threads.emplace_back([&, rank] {
      TrainerOptions trainer_options{.run_dir = RunDir{RunFolder(dir, options, rank)},
                                     .clock = options.clock == nullptr ? &clock : options.clock,
                                     .last_save = options.last_save};
      std::filesystem::create_directories(trainer_options.run_dir->path);
      v1::WorkerLaunch& launch = trainer_options.launch;
      *launch.mutable_spec() = spec;
      launch.set_job_id(options.job_id);
      launch.set_generation(options.generation);
      launch.set_rank(rank);
      launch.set_world_size(options.world);
      launch.set_rendezvous_dir(dir / "rendezvous");
      launch.set_cpu_threads(1);
      options.launch(&launch);
      Trainer trainer(std::move(trainer_options));
      options.before(rank, &trainer);
      trainer.Run();
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<RankResult> results;
  for (int rank = 0; rank < options.world; ++rank) {
    results.push_back(ReadJournal(RunFolder(dir, options, rank) / "journal"));
  }
  return results;
}

}  // namespace nsa::train
