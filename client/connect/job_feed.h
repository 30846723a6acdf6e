// The current state of one job, read by a background thread that survives restarts of the
// coordinator.
#pragma once

#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "client/connect/client.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace nsa::client {

// For one reader. The thread ends when the job has ended, on Ctrl-C, and on an error other than an
// unreachable coordinator.
class JobFeed {
 public:
  struct Batch {
    std::vector<v1::Job> jobs;               // every state delivered since the last call, in order
    bool connected = true;                   // false while the coordinator cannot be reached
    absl::Duration silence;                  // how long it has been unreachable
    bool done = false;                       // nothing more will come
    absl::Status status = absl::OkStatus();  // with done: OK when the job ended, else the error
  };

  // The arguments outlive the feed. `id` is a job's id: a name could come to mean a newer job.
  JobFeed(Client* client, Interrupt* interrupt, const Clock* clock, std::string id);
  // Waits for the thread, which ends after `done` or Ctrl-C.
  ~JobFeed();

  // Waits until there is something new, or for `patience`.
  Batch Wait(absl::Duration patience);

 private:
  void Run();
  absl::Status ReadOneStream(bool* ended);
  void Lost();

  Client* const client_;
  Interrupt* const interrupt_;
  const Clock* const clock_;
  const std::string id_;

  Mutex mutex_;
  CondVar changed_;
  Batch pending_ ABSL_GUARDED_BY(mutex_);
  absl::Duration lost_since_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace nsa::client
