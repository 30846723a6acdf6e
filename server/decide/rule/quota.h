// Limits for the jobs of one owner (quotas in coordinator.yaml). Pure.
//
// At a submit or resume: the number of jobs that have not ended, the highest priority, and GPU time
// that is used up refuse the job, as do more ranks than may run at a time. In the queue: ranks that
// run at a time, and GPU time that is used up, make the owner's jobs wait. Among these nobody
// overtakes, and they hold no job of others back. What runs goes on. Jobs with machines of a
// cluster manager are checked at a submit only: they take no slot from others.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "nsa/v1/config.pb.h"
#include "nsa/v1/store.pb.h"
#include "server/decide/rule/gpu_time.h"

namespace nsa::server {

class Quotas {
 public:
  Quotas() = default;  // none
  // InvalidArgument, naming the entry and the key.
  static absl::StatusOr<Quotas> Make(
      const google::protobuf::RepeatedPtrField<v1::QuotaConfig>& config);

  // With its defaults filled in; null: nothing is limited.
  const v1::QuotaConfig* Of(const std::string& owner) const;
  bool empty() const { return by_owner_.empty(); }

 private:
  std::map<std::string, v1::QuotaConfig, std::less<>> by_owner_;
};

// The window of a quota's GPU time; that of the default without one.
absl::Duration WindowOf(const v1::QuotaConfig* quota);

// What the jobs of one owner take.
struct Taken {
  int64_t jobs = 0;   // that have not ended
  int64_t ranks = 0;  // that are placed on slots of the machines
  GpuHours gpu_hours;
};

// By owner, without what was stored of GPU time.
std::map<std::string, Taken> TakenBy(
    const std::vector<std::shared_ptr<const v1::StoredJob>>& active, absl::Time now);

// Whether the owner may submit this job, or resume it. FailedPrecondition (kOverQuota): who, how
// much and until when.
absl::Status CheckQuota(const v1::QuotaConfig& quota, const std::string& owner, const Taken& taken,
                        const v1::JobSpec& spec, absl::Time now);

// The queued jobs of `active` that wait for the quota of their owner, by id, with the reason. A job
// that something else keeps out of the queue is not in `active`: others do not wait behind it.
// `stored` returns an owner's GPU time as it is stored.
std::map<std::string, std::string> HeldByQuota(
    const std::vector<std::shared_ptr<const v1::StoredJob>>& active, const Quotas& quotas,
    const std::function<GpuHours(const std::string& owner)>& stored, absl::Time now);

}  // namespace nsa::server
