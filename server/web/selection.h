// Which jobs the list of the page shows, in which order, and how the fleet is in one sentence.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "server/store/job_store.h"
#include "server/watch/http.h"
#include "server/web/web.h"

namespace nsa::server {

// Rows of the list in one reply or stream: so many unless more are asked for, and never more.
inline constexpr size_t kRows = 200;
inline constexpr size_t kMostRows = 1'000;

// The part of a request's query that chooses jobs; empty members choose all.
struct Selection {
  // A state or its title (RUNNING, training), "active", "ended" or "look": what needs a look; in
  // any case.
  std::string state;
  std::string name;   // part of the name, in any case, or of the id
  std::string label;  // NAME=VALUE, or part of it
  size_t rows = kRows;

  // From ?state=&name=&label=&rows=. InvalidArgument for other rows than 0 to kMostRows.
  static absl::StatusOr<Selection> Of(const HttpRequest& request);
};

// The order of the list.
enum class Place { kBad, kFailed, kWarning, kTraining, kWaiting, kEnded };

// How bad jobs are that have ended, which does not change until they are resumed or edited. One
// serves all streams. Thread-safe.
class PlaceCache {
 public:
  // kFailed, kWarning or kEnded: by what is wrong with it, whenever it ended. Works it out once for
  // each version of the job.
  Place OfEnded(const JobPtr& job);
  void Forget(const std::string& job_id);

 private:
  struct Known {
    JobPtr job;
    Place place = Place::kEnded;
  };
  Mutex mutex_;
  std::map<std::string, Known> known_ ABSL_GUARDED_BY(mutex_);  // by id
};

// Jobs that the page folds into one row: those of a sweep, or those that wait for the same.
struct JobGroup {
  bool of_sweep = false;
  std::string name;  // of the sweep; "each needs 2 GPUs"
  size_t jobs = 0;   // of those that match
  size_t need = 0;   // of these need somebody
  std::map<v1::Job::State, size_t> states;
  std::vector<std::string> ids;  // of those that are sent, in the order of the list
  JobPtr best;                   // has the lowest validation loss
};

// How the whole fleet is, whatever is wanted.
struct FleetVerdict {
  size_t need = 0;     // jobs that need somebody
  size_t running = 0;  // jobs that hold slots
  size_t fine = 0;     // of these need nobody
  size_t waiting = 0;
  size_t muted = 0;           // jobs that have not ended, need nobody and have a muted problem
  std::vector<JobPtr> worst;  // at most kMostCards, the worst first
  JobPtr next_end;            // of the jobs that train the one that ends first
};
// The page shows three. It leaves out those that were looked at in its browser, so it gets more.
inline constexpr size_t kMostCards = 12;
// Fewer jobs that wait for the same are not folded; of a sweep two are.
inline constexpr size_t kLeastWaiting = 3;

struct Selected {
  std::vector<JobPtr> jobs;
  size_t matching = 0;  // how many there are in all
  FleetVerdict verdict;
  std::vector<JobGroup> groups;
};

// "3 need you. 2 of 5 are fine."
std::string VerdictWords(const FleetVerdict& verdict);

// At most `wanted.rows` jobs after the first `offset`. Jobs that need a look come first: bad runs,
// jobs that failed in the last 24 hours, and jobs with a problem. Then come jobs that hold slots,
// jobs that wait for some and jobs that have ended, the newest first in each group. Only the newest
// kMostRows ended jobs can need a look, and muted problems need none. Reads memory only.
Selected Select(const Web::Parts& parts, const Selection& wanted, size_t offset);

// The number in a request's query, or `otherwise` without one. InvalidArgument for what is no
// number in 0 to `most`.
absl::StatusOr<int64_t> NumberIn(const HttpRequest& request, const std::string& name,
                                 int64_t otherwise, int64_t most);

}  // namespace nsa::server
