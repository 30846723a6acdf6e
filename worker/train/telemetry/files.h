// The telemetry files that a rank writes in out_dir (listed in worker/train/README.md). One thread,
// the reporter's, calls this class with the records in order.
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

namespace nsa::train {

class TelemetryFiles {
 public:
  // The result of a write. `file` is empty for a file that is written too rarely to wait for its
  // next row as a sign that writing works again.
  struct Written {
    std::string file;
    absl::Status status;
  };

  // Opens the files, removes rows of steps above options.resumed_step, and writes env.json.
  static absl::StatusOr<std::unique_ptr<TelemetryFiles>> Open(const ReporterOptions& options);

  // Writes a record to every file that it belongs to. Returns one result per write.
  std::vector<Written> Write(const v1::WorkerRecord& record);

  // Replaces metrics.json, the results of the run so far. `dropped`: see Reporter::dropped(). Does
  // nothing on ranks other than 0.
  absl::Status WriteMetrics(int64_t dropped);

  // FailedPrecondition when out_dir or a file in it has been replaced by something else.
  absl::Status CheckInPlace() const;

 private:
  // Data for metrics.json.
  struct Summary {
    v1::WorkerStarted started;
    v1::StepRecord first;
    v1::StepRecord last;
    v1::EvalRecord best;
    v1::EvalRecord eval;
    v1::WorkerFinished finished;
    int64_t tokens_here = 0;  // trained by this process
    double seconds_here = 0;
  };

  explicit TelemetryFiles(const ReporterOptions& options) : options_(options) {}
  absl::Status OpenForRankZero();
  absl::Status OpenLines(const std::string& name, const std::string& header,
                         std::unique_ptr<AppendFile>* file);
  absl::StatusOr<std::unique_ptr<AppendFile>> OpenJsonLines(const std::string& name) const;
  bool IsLogged(int64_t step) const;
  int64_t LastStep() const;
  void Summarise(const v1::WorkerRecord& record);
  void WriteHeartbeat(const v1::WorkerRecord& record, std::vector<Written>* written);
  void WriteStep(const v1::StepRecord& step, double unix_seconds, std::vector<Written>* written);
  void WriteAudit(const v1::StepRecord& step, double unix_seconds, std::vector<Written>* written);
  void WriteEval(const v1::EvalRecord& eval, double unix_seconds, std::vector<Written>* written);

  const ReporterOptions options_;
  Summary summary_;
  int64_t last_heartbeat_nanos_ = 0;
  std::unique_ptr<AppendFile> heartbeat_;
  std::unique_ptr<AppendFile> training_, val_, fallbacks_, selection_, audit_;  // rank 0
  std::unique_ptr<AppendFile> sources_, val_sets_, samples_;  // rank 0, if the job has such
  std::unique_ptr<TensorBoardFile> tensorboard_;              // rank 0
};

}  // namespace nsa::train
