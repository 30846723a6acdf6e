// Jobs for the tests of the trainer, and helpers to read their results.
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "common/checkpoint/checkpoint_dir.h"
#include "common/run/control_socket.h"
#include "tests/worker/train/run_job.h"
#include "tests/worker/train/tiny_job.h"

namespace nsa::train {

inline v1::JobSpec Job(const TempDir& dir, const std::string& out = "out") {
  v1::JobSpec spec = TinyJob();
  spec.mutable_model()->set_vocab(64);
  spec.mutable_data()->set_source(v1::DATA_SOURCE_SYNTHETIC);
  spec.mutable_train()->set_batch_size(4);
  spec.mutable_train()->set_steps(12);
  spec.mutable_train()->set_warmup_steps(3);
  spec.mutable_train()->set_eval_every(4);
  spec.mutable_train()->set_eval_batches(2);
  spec.mutable_train()->set_save_every(5);
  spec.mutable_train()->set_out_dir(dir / out);
  return spec;
}

inline RunOptions StopAt(int64_t step, int asked_rank, int world = 1) {
  return {.world = world, .before = [=](int rank, Trainer* trainer) {
            if (rank != asked_rank) return;
            v1::StopRequest stop;
            stop.set_mode(v1::STOP_MODE_AT_STEP);
            stop.set_at_step(step);
            EXPECT_TRUE(trainer->RequestStop(stop).ok());
          }};
}

// Sends a graceful stop as soon as the worker's control socket accepts it.
inline void AskToStop(const std::filesystem::path& socket) {
  v1::ControlRequest request;
  request.mutable_stop()->set_mode(v1::STOP_MODE_GRACEFUL);
  for (int attempt = 0; attempt < 3000; ++attempt) {
    const auto reply = ControlCall(socket, request, absl::Seconds(1));
    if (reply.ok()) {
      EXPECT_EQ(reply->error(), "");
      return;
    }
    absl::SleepFor(absl::Milliseconds(20));
  }
  FAIL() << "nobody listened";
}

inline std::vector<double> Losses(const RankResult& result) {
  std::vector<double> losses;
  for (const v1::StepRecord& step : result.steps) losses.push_back(step.loss());
  return losses;
}

// The texts of a run's events with this reason.
inline std::vector<std::string> EventTexts(const RankResult& result, const std::string& reason) {
  std::vector<std::string> texts;
  for (const v1::WorkerEvent& event : result.events) {
    if (event.reason() == reason) texts.push_back(event.text());
  }
  return texts;
}

inline std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::string Weights(const std::filesystem::path& out_dir, int64_t step) {
  return ReadFile(CheckpointsDir(out_dir) / CheckpointName(step) / "model.safetensors");
}

// A run into the folder `out` that goes on from a checkpoint of another job. `change` edits its
// job.
inline RankResult GoOnFrom(const std::string& checkpoint, const TempDir& dir,
                           const std::string& out,
                           const std::function<void(v1::JobSpec*)>& change) {
  v1::JobSpec spec = Job(dir, out);
  spec.mutable_restart()->set_resume(checkpoint);
  change(&spec);
  const TempDir runs;
  return RunJob(runs, spec, {.job_id = out})[0];
}

// Options of a run whose launch contains this stop, on one rank or (-1) on all ranks.
inline RunOptions LaunchedWith(v1::StopMode mode, int64_t step, RunOptions options = {},
                               int rank = -1) {
  options.launch = [=](v1::WorkerLaunch* launch) {
    if (rank >= 0 && launch->rank() != rank) return;
    launch->mutable_stop()->set_mode(mode);
    launch->mutable_stop()->set_at_step(step);
  };
  return options;
}

}  // namespace nsa::train
