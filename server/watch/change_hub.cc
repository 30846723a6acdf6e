#include "server/watch/change_hub.h"

#include <utility>
#include <vector>

namespace nsa::server {

ChangeHub::Subscription::Subscription(Subscription&& other) noexcept
    : hub_(std::exchange(other.hub_, nullptr)), id_(other.id_) {}

ChangeHub::Subscription& ChangeHub::Subscription::operator=(Subscription&& other) noexcept {
  std::swap(hub_, other.hub_);
  std::swap(id_, other.id_);
  return *this;
}

ChangeHub::Subscription::~Subscription() {
  if (hub_ != nullptr) hub_->Unsubscribe(id_);
}

ChangeHub::Subscription ChangeHub::Subscribe(const std::string& job_id, Callback callback) {
  MutexLock lock(&mutex_);
  const int64_t id = next_id_++;
  subscribers_[id] = {job_id, std::make_shared<const Callback>(std::move(callback))};
  return Subscription(this, id);
}

void ChangeHub::Publish(const std::string& job_id) { Notify(&job_id); }

void ChangeHub::PublishAll() { Notify(nullptr); }

void ChangeHub::Notify(const std::string* job_id) {
  std::vector<std::shared_ptr<const Callback>> callbacks;
  {
    MutexLock lock(&mutex_);
    for (const auto& [id, subscriber] : subscribers_) {
      if (job_id == nullptr || subscriber.job_id.empty() || subscriber.job_id == *job_id) {
        callbacks.push_back(subscriber.callback);
      }
    }
  }
  static const std::string kAll;
  for (const auto& callback : callbacks) (*callback)(job_id == nullptr ? kAll : *job_id);
}

void ChangeHub::Unsubscribe(int64_t id) {
  MutexLock lock(&mutex_);
  subscribers_.erase(id);
}

}  // namespace nsa::server
