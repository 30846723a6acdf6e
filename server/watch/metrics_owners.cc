// Metrics of the owners of jobs.
#include <algorithm>
#include <tuple>
#include <vector>

#include "server/watch/metrics.h"

namespace nsa::server {

void Metrics::ObserveOwners(const v1::ListUseResponse& use) {
  MutexLock lock(&mutex_);
  std::vector<const v1::OwnerUse*> shown;
  for (const v1::OwnerUse& owner : use.owners()) shown.push_back(&owner);
  std::ranges::stable_sort(shown, [](const v1::OwnerUse* a, const v1::OwnerUse* b) {
    return std::tuple(a->jobs(), a->gpu_seconds()) > std::tuple(b->jobs(), b->gpu_seconds());
  });
  shown.resize(std::min(shown.size(), kMostOwners));
  std::set<Labels> owners;
  std::set<Labels> quotas;
  for (const v1::OwnerUse* one : shown) {
    const Labels& labels = *owners.insert({{"owner", one->owner()}}).first;
    families_.Gauge("nsa_owner_jobs", labels).Set(one->jobs());
    families_.Gauge("nsa_owner_ranks", labels).Set(one->ranks());
    families_.Gauge("nsa_owner_gpu_seconds", labels).Set(one->gpu_seconds());
    const auto show = [&](const char* quota, bool has, double used, double most) {
      if (!has) return;
      const Labels& of = *quotas.insert({{"owner", one->owner()}, {"quota", quota}}).first;
      families_.Gauge("nsa_owner_quota_used_ratio", of).Set(most > 0 ? used / most : 1);
    };
    const v1::QuotaConfig& quota = one->quota();
    show("jobs", quota.has_jobs(), one->jobs(), quota.jobs());
    show("ranks", quota.has_ranks(), one->ranks(), quota.ranks());
    show("gpu_time", quota.has_gpu_time(), one->gpu_seconds(), quota.gpu_time().hours() * 3'600);
  }
  for (const GaugeFamily family : {GaugeFamily("nsa_owner_jobs"), GaugeFamily("nsa_owner_ranks"),
                                   GaugeFamily("nsa_owner_gpu_seconds")}) {
    Retire(family, owners, owners_);
  }
  Retire("nsa_owner_quota_used_ratio", quotas, quotas_);
  owners_ = std::move(owners);
  quotas_ = std::move(quotas);
}

}  // namespace nsa::server
