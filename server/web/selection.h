// Which jobs the list of the page shows, and in which order.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/store/job_store.h"
#include "server/watch/http.h"
#include "server/web/web.h"

namespace nsa::server {

// Rows of the list in one reply or stream: so many unless more are asked for, and never more.
inline constexpr size_t kRows = 200;
inline constexpr size_t kMostRows = 1'000;

// The part of a request's query that chooses jobs; empty members choose all.
struct Selection {
  std::string state;  // a state, "active", "ended" or "look": what needs a look; in any case
  std::string name;   // part of the name, in any case, or of the id
  std::string label;  // NAME=VALUE, or part of it
  size_t rows = kRows;

  // From ?state=&name=&label=&rows=. InvalidArgument for other rows than 0 to kMostRows.
  static absl::StatusOr<Selection> Of(const HttpRequest& request);
};

struct Selected {
  std::vector<JobPtr> jobs;
  size_t matching = 0;  // how many there are in all
  size_t look = 0;      // how many jobs need a look, whatever is wanted
};

// At most `wanted.rows` jobs after the first `offset`. What needs a look comes first: runs that are
// bad, jobs that failed in the last 24 hours, and jobs of which something is wrong. Then come those
// that hold slots, those that wait for some and those that have ended. The newest come first each
// time, and of jobs that have ended only the newest kMostRows can need a look. Reads memory only.
Selected Select(const Web::Parts& parts, const Selection& wanted, size_t offset);

// The number in a request's query, or `otherwise` without one. InvalidArgument for what is no
// number in 0 to `most`.
absl::StatusOr<int64_t> NumberIn(const HttpRequest& request, const std::string& name,
                                 int64_t otherwise, int64_t most);

}  // namespace nsa::server
