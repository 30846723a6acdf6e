// What nsa-worker needle and write-needles do, and nsactl needle and nsactl data needle with
// it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "kernels/exec.h"
#include "worker/train/needle/measure.h"

namespace nsa::train {

// Where the cells go besides standard output.
struct NeedleFiles {
  std::string csv;   // also there; empty: nowhere
  std::string json;  // there as one JSON object instead of the table; empty: the table
};

// Measures on the device of `backend`. Prints a line when a length has been measured, on standard
// error if the cells go into a JSON file, and the table at the end. `filler` is a text file; empty:
// the sentences of the paper. The errors of TrainedModel::Load(), Filler::FromText() and
// MeasureNeedles(); of files, with their names.
absl::Status NeedleCommand(const std::string& checkpoint, Backend backend,
                           const std::string& filler, const NeedleOptions& options,
                           const NeedleFiles& files);

struct NeedleDocuments {
  NeedleTask task = NeedleTask::kKey;
  int64_t documents = 10'000;
  int64_t bytes = 0;   // of each document
  std::string filler;  // text file; empty: the sentences of the paper
  int64_t seed = 1;
};

inline constexpr int64_t kMostNeedleDocuments = 100'000'000;
inline constexpr int64_t kMostNeedleBytes = 16 << 20;

// Writes documents of the task (task.h) as JSON lines, to train on. Their depths are uniform.
// `path` appears when all of them are written. InvalidArgument for options outside their ranges;
// errors of files, with their names.
absl::Status WriteNeedles(const std::string& path, const NeedleDocuments& options);

}  // namespace nsa::train
