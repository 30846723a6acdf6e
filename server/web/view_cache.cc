#include "server/web/view_cache.h"

#include "server/decide/lifecycle.h"

namespace nsa::server {

ViewCache::ViewCache(const JobControl& control, ChangeHub* hub, const Clock& clock)
    : control_(control), clock_(clock) {
  subscription_ = hub->Subscribe("", [shared = shared_](const std::string& job_id) {
    const MutexLock lock(&shared->mutex);
    const auto forget = [](Known* known) {
      ++known->version;
      known->stored = nullptr;
    };
    if (job_id.empty()) {
      for (auto& [id, known] : shared->known) forget(&known);
    } else if (const auto known = shared->known.find(job_id); known != shared->known.end()) {
      forget(&known->second);
    }
  });
}

std::shared_ptr<const v1::Job> ViewCache::Of(const JobPtr& stored) {
  const std::string& id = stored->job().id();
  const bool keep = !IsTerminal(stored->job().state());
  const absl::Duration now = clock_.Monotonic();
  int64_t version = 0;
  {
    const MutexLock lock(&shared_->mutex);
    if (!keep) {
      shared_->known.erase(id);
    } else {
      if (shared_->known.size() >= kMostViews) shared_->known.clear();
      const Known& known = shared_->known[id];
      if (known.stored == stored && now - known.made < kOldest) return known.view;
      version = known.version;
    }
  }
  auto view = std::make_shared<const v1::Job>(control_.View(*stored));
  const MutexLock lock(&shared_->mutex);
  ++shared_->made;
  const auto known = shared_->known.find(id);
  // What has changed meanwhile may not be in it.
  if (known == shared_->known.end() || known->second.version != version) return view;
  known->second = {.version = version, .stored = stored, .view = view, .made = now};
  return view;
}

int64_t ViewCache::made() const {
  const MutexLock lock(&shared_->mutex);
  return shared_->made;
}

}  // namespace nsa::server
