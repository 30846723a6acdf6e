#include "client/connect/job_feed.h"

#include "client/connect/follow.h"
#include "client/show/job_text.h"
#include "common/base/thread_name.h"

namespace nsa::client {

JobFeed::JobFeed(Client* client, Interrupt* interrupt, const Clock* clock, std::string id)
    : client_(client), interrupt_(interrupt), clock_(clock), id_(std::move(id)) {
  thread_ = std::thread([this] { Run(); });
}

JobFeed::~JobFeed() { thread_.join(); }

JobFeed::Batch JobFeed::Wait(absl::Duration patience) {
  const absl::Duration deadline = clock_->Monotonic() + patience;
  MutexLock lock(&mutex_);
  while (pending_.jobs.empty() && !pending_.done) {
    const absl::Duration left = deadline - clock_->Monotonic();
    if (left <= absl::ZeroDuration()) break;
    changed_.WaitFor(&mutex_, left);
  }
  Batch batch;
  batch.jobs.swap(pending_.jobs);
  batch.connected = pending_.connected;
  batch.silence = batch.connected ? absl::ZeroDuration() : clock_->Monotonic() - lost_since_;
  batch.done = pending_.done;
  batch.status = pending_.status;
  return batch;
}

absl::Status JobFeed::ReadOneStream(bool* ended) {
  v1::WatchJobRequest request;
  request.set_job(id_);
  return client_->Stream<v1::WatchJobResponse>(request, [&](const v1::WatchJobResponse& response) {
    MutexLock lock(&mutex_);
    pending_.jobs.push_back(response.job());
    pending_.connected = true;
    changed_.Signal();
    *ended = HasEnded(response.job());
    return !*ended;
  });
}

void JobFeed::Lost() {
  MutexLock lock(&mutex_);
  if (pending_.connected) lost_since_ = clock_->Monotonic();
  pending_.connected = false;
}

void JobFeed::Run() {
  NameThread("feed");
  Backoff backoff;
  bool ended = false;
  absl::Status status;
  while (true) {
    status = ReadOneStream(&ended);
    if (ended || (!status.ok() && !absl::IsUnavailable(status))) break;
    // A stream that ends before its job means that the coordinator is shutting down.
    Lost();
    if (!backoff.Wait(interrupt_)) {
      status = absl::CancelledError("interrupted");
      break;
    }
  }
  MutexLock lock(&mutex_);
  pending_.done = true;
  pending_.status = ended ? absl::OkStatus() : status;
  changed_.Signal();
}

}  // namespace nsa::client
