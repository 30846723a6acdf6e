// The replies to what the page reads. Every reply is bounded.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/watch/http.h"
#include "server/web/json.h"
#include "server/web/selection.h"
#include "server/web/web.h"

namespace nsa::server {

// The loss curves of the rows of the list: at most 48 points each. Those of jobs that train are
// read again every ten seconds, those of jobs that have ended never. Keeps at most kMostSparks.
// Thread-safe.
class SparkCache {
 public:
  static constexpr size_t kMostSparks = 2'000;  // about 2 KB each

  explicit SparkCache(JobStore& store, const Clock& clock) : store_(store), clock_(clock) {}
  // {spark, best_val}: the shape of the loss and the lowest validation loss, null without one. What
  // is not known is read, which takes up to 5 ms, if any time is `left`, and takes of it; without,
  // there is only `spark`, which is null.
  Json Of(const v1::Job& job, absl::Duration* left);
  void Forget(const std::string& job_id);

 private:
  struct Spark {
    int64_t step = 0;
    absl::Duration made;  // monotonic
    Json row;
  };
  JobStore& store_;
  const Clock& clock_;
  Mutex mutex_;
  std::map<std::string, Spark> sparks_ ABSL_GUARDED_BY(mutex_);
};

// The jobs that the query chooses (selection.h), from ?offset= on, with machines, counts by state
// and the latest events. Loss curves that are not known are read for 25 ms at most; `spark` of
// later rows is null then, and the next request finds more of them.
absl::StatusOr<Json> FleetView(const Web::Parts& parts, const HttpRequest& request,
                               SparkCache* sparks);

// Runs `work` with the folder's path on a thread that may read users' files, within the limits of
// the job. Unavailable when there is none or it takes more than 5 s: it then ends at the next file
// (JobFilesAreOver()), as when the coordinator goes down. All such work of the page together leaves
// a thread for others.
absl::Status InFolder(const Web::Parts& parts, JobFolder folder,
                      std::function<absl::Status(const std::string& out_dir)> work);

// Everything about a job except its curves; `parent` is {id, name, step} of the checkpoint that it
// was forked from, or null.
absl::StatusOr<Json> JobView(const Web::Parts& parts, const std::string& job);

// ?from=STEP: only buckets from this one on; ?points=N: at most N buckets; ?width=STEPS: of at
// least so many steps, so that buckets from STEP on continue those that were sent before. The
// curves are text: StepsText with evals, val_sets and marks.
absl::StatusOr<std::string> CurvesView(const Web::Parts& parts, const std::string& job,
                                       const HttpRequest& request);
absl::StatusOr<Json> LayersView(const Web::Parts& parts, const std::string& job,
                                const HttpRequest& request);

// What was measured of the job's GPUs, by steps: GpusText.
absl::StatusOr<std::string> GpusView(const Web::Parts& parts, const std::string& job,
                                     const HttpRequest& request);

// What the job wrote after its newest validation, or after the one at or before ?step=.
absl::StatusOr<Json> SamplesView(const Web::Parts& parts, const std::string& job,
                                 const HttpRequest& request);

// The last 500 events of a job.
absl::StatusOr<Json> EventsView(const Web::Parts& parts, const std::string& job);

// Reads the job's out_dir, on the threads for files; Unavailable when that takes over 5 s.
absl::StatusOr<Json> CheckpointsView(const Web::Parts& parts, const std::string& job);

// The stacks that were saved of a job, and one of them as text.
absl::StatusOr<Json> StacksView(const Web::Parts& parts, const std::string& job);
absl::StatusOr<std::string> StackText(const Web::Parts& parts, const std::string& job, int64_t id);

// A job's row, and the job in full, as they are now.
Json RowNow(const Web::Parts& parts, const JobPtr& stored);
Json JobNow(const Web::Parts& parts, const JobPtr& stored);
// The verdict of the fleet with its worst jobs, and the jobs that are folded into one row.
Json VerdictNow(const Web::Parts& parts, const FleetVerdict& verdict);
Json GroupsJson(const std::vector<JobGroup>& groups);
// Jobs by state, whatever the list shows.
Json CountsNow(const Web::Parts& parts);
// What each state is called.
Json TitlesJson();
Json NodesNow(const Web::Parts& parts);
// An event with the name of its job, which the list need not show; of a deleted job its id.
Json EventNow(const Web::Parts& parts, const v1::JobEvent& event);

}  // namespace nsa::server
