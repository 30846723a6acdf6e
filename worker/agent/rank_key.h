// Identifies a worker.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_format.h"

namespace nsa::agent {

// A key is never used again.
struct RankKey {
  std::string job_id;
  int64_t generation = 0;
  int rank = 0;
  auto operator<=>(const RankKey&) const = default;
  // "job j3k generation 2 rank 0"
  std::string ToString() const {
    return absl::StrFormat("job %s generation %d rank %d", job_id, generation, rank);
  }
};

}  // namespace nsa::agent
