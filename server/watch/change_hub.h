// Notifies the followers of a job that something has changed. A notification has no content:
// followers read the store, so a slow one costs no memory.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "common/base/mutex.h"

namespace nsa::server {

// Thread-safe.
class ChangeHub {
 public:
  // Called on the publisher's thread without a lock, with the job, or empty when all may have
  // changed. Must be quick. A Publish() in progress may call it once more after the subscription
  // has ended.
  using Callback = std::function<void(const std::string& job_id)>;

  // Its destructor ends the subscription. Must not outlive the hub.
  class Subscription {
   public:
    Subscription() = default;
    Subscription(ChangeHub* hub, int64_t id) : hub_(hub), id_(id) {}
    Subscription(Subscription&& other) noexcept;
    Subscription& operator=(Subscription&& other) noexcept;
    ~Subscription();

   private:
    ChangeHub* hub_ = nullptr;
    int64_t id_ = 0;
  };

  // Subscribes to changes of one job, or (empty id) of all.
  Subscription Subscribe(const std::string& job_id, Callback callback);
  void Publish(const std::string& job_id);
  // Notifies all subscribers.
  void PublishAll();

 private:
  struct Subscriber {
    std::string job_id;
    std::shared_ptr<const Callback> callback;
  };
  void Unsubscribe(int64_t id);
  // Notifies the subscribers of one job, or (null) all.
  void Notify(const std::string* job_id);

  Mutex mutex_;
  int64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<int64_t, Subscriber> subscribers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nsa::server
