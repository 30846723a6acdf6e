#include "server/decide/queue/start.h"

#include <cstdint>
#include <set>
#include <string_view>

#include "common/estimate/fewer_ranks.h"

namespace nsa::server {

bool HasFewerRanks(const v1::StoredJob& job) {
  return nsa::HasFewerRanks(job.job().spec(), job.placements_size());
}

v1::JobSpec SpecOfStart(const v1::StoredJob& job) {
  if (!HasFewerRanks(job)) return job.job().spec();
  std::set<std::string_view> machines;
  for (const v1::RankPlacement& place : job.placements()) machines.insert(place.node());
  return WithFewerRanks(job.job().spec(), job.placements_size(),
                        static_cast<int32_t>(machines.size()));
}

}  // namespace nsa::server
