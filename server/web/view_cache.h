// How jobs that have not ended look to clients, what is wrong with them included: worked out once
// for each change of a job, and shared by all streams and requests of the page.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "server/act/job_control.h"
#include "server/store/job_store.h"
#include "server/watch/change_hub.h"

namespace nsa::server {

// Thread-safe.
class ViewCache {
 public:
  // What nobody publishes, such as how long a rank has been silent, is at most so old.
  static constexpr absl::Duration kOldest = absl::Seconds(1);
  static constexpr size_t kMostViews = 4'000;

  // All are borrowed.
  ViewCache(const JobControl& control, ChangeHub* hub, const Clock& clock);

  // JobControl::View() of the job. That of a job that has ended is not kept, because there are many
  // and few are asked for twice.
  std::shared_ptr<const v1::Job> Of(const JobPtr& stored);

  // How many views were worked out, for tests.
  int64_t made() const;

 private:
  struct Known {
    int64_t version = 0;  // of what the hub has published
    JobPtr stored;        // null: none since
    std::shared_ptr<const v1::Job> view;
    absl::Duration made;  // monotonic
  };
  // Outlives the cache while the hub still calls.
  struct Shared {
    mutable Mutex mutex;
    std::map<std::string, Known> known ABSL_GUARDED_BY(mutex);  // by id
    int64_t made ABSL_GUARDED_BY(mutex) = 0;
  };

  const JobControl& control_;
  const Clock& clock_;
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  ChangeHub::Subscription subscription_;
};

}  // namespace nsa::server
