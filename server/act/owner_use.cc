#include "server/act/owner_use.h"

#include <algorithm>
#include <map>
#include <utility>

namespace nsa::server {
namespace {

constexpr size_t kMostOwners = 1'000;

v1::OwnerUse UseOf(const std::string& owner, const Taken& taken, const v1::QuotaConfig* quota,
                   absl::Time now) {
  const absl::Duration window = WindowOf(quota);
  v1::OwnerUse use;
  use.set_owner(owner);
  use.set_jobs(static_cast<int32_t>(taken.jobs));
  use.set_ranks(static_cast<int32_t>(taken.ranks));
  use.set_gpu_seconds(absl::ToDoubleSeconds(GpuTimeIn(taken.gpu_hours, window, now)));
  use.set_window_days(absl::ToDoubleHours(window) / 24);
  if (quota == nullptr) return use;
  *use.mutable_quota() = *quota;
  if (!quota->has_gpu_time()) return use;
  const absl::Time free =
      WhenBelow(absl::Hours(quota->gpu_time().hours()), taken.gpu_hours, window, now);
  if (free > now) use.set_free_unix_nanos(absl::ToUnixNanos(free));
  return use;
}

}  // namespace

Taken TakenOf(const JobStore& store, const std::string& owner, absl::Time now) {
  std::vector<JobPtr> active = store.Active();
  std::erase_if(active, [&](const JobPtr& job) { return job->job().owner() != owner; });
  Taken taken = std::move(TakenBy(active, now)[owner]);
  AddHours(store.GpuHoursOf(owner), &taken.gpu_hours);
  return taken;
}

v1::ListUseResponse UseOfOwners(const JobStore& store, const Quotas& quotas,
                                const std::string& only, absl::Time now) {
  std::map<std::string, Taken> owners = TakenBy(store.Active(), now);
  for (const std::string& owner : store.GpuOwners()) {
    AddHours(store.GpuHoursOf(owner), &owners[owner].gpu_hours);
  }
  std::vector<v1::OwnerUse> uses;
  for (const auto& [owner, taken] : owners) {
    if (owner.empty() || (!only.empty() && owner != only)) continue;
    uses.push_back(UseOf(owner, taken, quotas.Of(owner), now));
  }
  std::ranges::stable_sort(uses, std::ranges::greater(), &v1::OwnerUse::gpu_seconds);
  uses.resize(std::min(uses.size(), kMostOwners));
  std::ranges::sort(uses, {}, &v1::OwnerUse::owner);
  v1::ListUseResponse response;
  response.mutable_owners()->Add(uses.begin(), uses.end());
  return response;
}

}  // namespace nsa::server
