#include "server/watch/store_health.h"

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

namespace nsa::server {
namespace {

constexpr absl::Duration kLogEvery = absl::Minutes(1);

std::string Seconds(absl::Duration duration) {
  return absl::StrCat(absl::ToInt64Seconds(duration), " s");
}

}  // namespace

void StoreHealth::Committed() {
  if (!failing_) return;
  MutexLock lock(&mutex_);
  if (failures_ == 0) return;
  spdlog::info("the store can be written again after {}; {} operations had failed",
               Seconds(clock_.Monotonic() - since_), failures_);
  failures_ = 0;
  failing_ = false;
}

void StoreHealth::Failed(const std::string& operation, const absl::Status& status) {
  MutexLock lock(&mutex_);
  const absl::Duration now = clock_.Monotonic();
  const bool first = failures_++ == 0;
  if (first) since_ = now;
  why_ = absl::StrCat(operation, ": ", status.message());
  failing_ = true;
  if (!first && now - logged_ < kLogEvery) return;
  logged_ = now;
  spdlog::error("{}; nothing is acknowledged that is not stored, and agents keep their records",
                Text());
}

std::string StoreHealth::problem() const {
  if (!failing_) return "";
  MutexLock lock(&mutex_);
  return failures_ == 0 ? "" : Text();
}

std::string StoreHealth::Text() const {
  return absl::StrCat("the store in ", state_dir_.string(), " has failed for ",
                      Seconds(clock_.Monotonic() - since_), ", ", failures_,
                      failures_ == 1 ? " time: " : " times: ", why_,
                      "; free space there, or see docs/runbook.md, NsaStoreFailing");
}

}  // namespace nsa::server
