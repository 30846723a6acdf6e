// Notifies those who follow a job that something has changed. Carries no content: they read the
// store, so a slow reader costs no memory.
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
  // Called on the publisher's thread without a lock; must be quick, and safe to call after the
  // subscription has ended (once more, from a Publish() that had begun).
  using Callback = std::function<void()>;

  // Ends when destroyed. Must not outlive the hub.
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

  // Changes of one job, or (empty id) of all.
  Subscription Subscribe(const std::string& job_id, Callback callback);
  void Publish(const std::string& job_id);
  // Wakes everybody.
  void PublishAll();

 private:
  struct Subscriber {
    std::string job_id;
    std::shared_ptr<const Callback> callback;
  };
  void Unsubscribe(int64_t id);
  // Those of one job, or (null) everybody.
  void Notify(const std::string* job_id);

  Mutex mutex_;
  int64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<int64_t, Subscriber> subscribers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nsa::server
