#include "server/decide/queue/start.h"

#include <cstdint>
#include <set>
#include <string_view>
#include <utility>

#include "common/estimate/fewer_ranks.h"

namespace nsa::server {

bool HasFewerRanks(const v1::StoredJob& job) {
  return nsa::HasFewerRanks(job.job().spec(), job.placements_size());
}

v1::JobSpec SpecOfStart(const v1::StoredJob& job) {
  v1::JobSpec spec = job.job().spec();
  spec.clear_after();
  spec.clear_not_before();
  spec.clear_alerts();
  if (!HasFewerRanks(job)) return spec;
  std::set<std::string_view> machines;
  for (const v1::RankPlacement& place : job.placements()) machines.insert(place.node());
  return WithFewerRanks(std::move(spec), job.placements_size(),
                        static_cast<int32_t>(machines.size()));
}

}  // namespace nsa::server
