// The traces of a job's ranks as they arrive, in files that have no name and vanish with this
// program: a trace may have 64 MiB, and a job many ranks.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "common/base/fd.h"
#include "nsa/v1/coordinator.pb.h"

namespace nsa::client {

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
  // Takes the next part. DataLoss when it does not continue what is there, ResourceExhausted when
  // the folder for temporary files (TMPDIR) is full.
  absl::Status Take(const v1::ProfileJobResponse& part);

  // By rank.
  const std::map<int32_t, RankTrace>& ranks() const { return ranks_; }

 private:
  std::map<int32_t, RankTrace> ranks_;
};

}  // namespace nsa::client
