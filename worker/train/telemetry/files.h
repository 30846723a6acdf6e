// The files of out_dir that a rank keeps (README of worker/train lists them). Records come in order
// from one thread, the reporter's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nsa/v1/telemetry.pb.h"
#include "worker/train/telemetry/append_file.h"
#include "worker/train/telemetry/reporter.h"
#include "worker/train/telemetry/tensorboard.h"

namespace nsa {

class TelemetryFiles {
 public:
  // How a write went. `file` is empty for one that is written too seldom to wait for its next row.
  struct Written {
    std::string file;
    absl::Status status;
  };

  // Opens the files, removes rows of steps above options.resumed_step, and writes env.json.
  static absl::StatusOr<std::unique_ptr<TelemetryFiles>> Open(const ReporterOptions& options);

  // Writes a record into every file that it belongs to; those that something was written to.
  std::vector<Written> Write(const v1::WorkerRecord& record);

  // Replaces metrics.json: what the run has come to so far. `dropped` as in Reporter::dropped().
  absl::Status WriteMetrics(int64_t dropped);

  // FailedPrecondition when out_dir or a file in it has been exchanged for something else.
  absl::Status CheckInPlace() const;

 private:
  // What metrics.json says.
  struct Summary {
    v1::WorkerStarted started;
    v1::StepRecord first;
    v1::StepRecord last;
    v1::EvalRecord best;
    v1::EvalRecord eval;
    v1::WorkerFinished finished;
    int64_t tokens_here = 0;  // of this process
    double seconds_here = 0;
  };

  explicit TelemetryFiles(const ReporterOptions& options) : options_(options) {}
  absl::Status OpenForRankZero();
  absl::Status OpenLines(const std::string& name, const char* header,
                         std::unique_ptr<AppendFile>* file);
  bool IsLogged(int64_t step) const;
  int64_t LastStep() const;
  void Summarise(const v1::WorkerRecord& record);
  void WriteHeartbeat(const v1::WorkerRecord& record, std::vector<Written>* written);
  void WriteStep(const v1::StepRecord& step, double unix_seconds, std::vector<Written>* written);
  void WriteEval(const v1::EvalRecord& eval, double unix_seconds, std::vector<Written>* written);

  const ReporterOptions options_;
  Summary summary_;
  int64_t last_heartbeat_nanos_ = 0;
  std::unique_ptr<AppendFile> heartbeat_;
  std::unique_ptr<AppendFile> training_, val_, fallbacks_, selection_;  // rank 0
  std::unique_ptr<TensorBoardFile> tensorboard_;                        // rank 0
};

}  // namespace nsa
