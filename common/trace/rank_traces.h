// The traces of a job's ranks as they arrive, in files that have no name and vanish with this
// program: a trace may have 64 MiB, and a job many ranks.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/fd.h"
#include "nsa/v1/coordinator.pb.h"

namespace nsa {

// A new file in `folder`, for reading and writing, that has no name. An error begins with the
// folder.
absl::StatusOr<Fd> NamelessFile(const std::string& folder);

// Writes all of `data` at the end. ResourceExhausted when the disk is full.
absl::Status AppendTo(const Fd& file, std::string_view data);

struct RankTrace {
  std::string node;
  std::string error;  // why there is no trace
  int64_t size = 0;
  int64_t received = 0;
  Fd file;

  bool complete() const { return error.empty() && size > 0 && received == size; }
};

class RankTraces {
 public:
  // The files are in `folder` and have at most `most_bytes` together.
  explicit RankTraces(std::string folder, int64_t most_bytes = std::numeric_limits<int64_t>::max())
      : folder_(std::move(folder)), most_bytes_(most_bytes) {}

  // Takes the next part. DataLoss when it does not continue what is there, ResourceExhausted when
  // the disk is full or the traces are larger than `most_bytes`.
  absl::Status Take(const v1::ProfileJobResponse& part);

  // By rank.
  const std::map<int32_t, RankTrace>& ranks() const { return ranks_; }

  // What is wrong with some ranks, as "rank 1: …"; empty when all are complete.
  std::vector<std::string> Problems() const;

 private:
  std::string folder_;
  int64_t most_bytes_;
  int64_t bytes_ = 0;
  std::map<int32_t, RankTrace> ranks_;
};

}  // namespace nsa
