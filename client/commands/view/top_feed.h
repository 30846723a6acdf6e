// What `nsactl top` shows, read again and again by a thread of its own, so that keys are answered
// also while the coordinator is not there.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "client/commands/view/watch_charts.h"
#include "client/connect/session.h"
#include "client/show/top_view.h"
#include "common/base/mutex.h"

namespace nsa::client {

// Reads jobs and machines. Callers who may not see machines get none.
absl::Status ReadTop(Client* client, const v1::ListJobsRequest& wanted, TopState* state);

// One job with its curves.
struct OpenJob {
  v1::Job job;
  absl::Time received;  // when it was read
  JobCurves curves;
  std::string problem;  // WatchCharts::problem()
};

class TopFeed {
 public:
  struct Picture {
    TopState state;
    absl::Duration read;          // when the state was read, by the session's monotonic clock
    std::optional<OpenJob> open;  // of Open(), once it was read
    std::string news;             // what came of the last Stop()
    absl::Status status;          // an error after which nothing more is read
  };

  // The session and the client outlive it. `first` has been read. `changed` is called from the
  // thread after each picture.
  TopFeed(Session* session, Client* client, v1::ListJobsRequest wanted, TopState first,
          std::function<void()> changed);
  // Waits for the thread, which ends when the session is interrupted.
  ~TopFeed();

  std::shared_ptr<const Picture> picture() const;
  // Shows this job from now on; none for an empty id.
  void Open(const std::string& id);
  // Stops this job after its step in progress.
  void Stop(const v1::Job& job);

 private:
  void Run();
  // What is to be done now; false when the session was interrupted.
  bool Wait(std::string* open, std::optional<v1::Job>* stop);
  void ReadOpen(const std::string& id, Picture* picture);
  void Publish(Picture picture);

  Session& session_;
  Client* const client_;
  const v1::ListJobsRequest wanted_;
  const std::function<void()> changed_;
  std::unique_ptr<WatchCharts> charts_;  // of the open job
  std::string charts_of_;

  mutable Mutex mutex_;
  CondVar asked_;
  std::shared_ptr<const Picture> picture_ ABSL_GUARDED_BY(mutex_);
  std::string open_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::Job> stop_ ABSL_GUARDED_BY(mutex_);
  bool now_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace nsa::client
