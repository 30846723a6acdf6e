#include "server/decide/queue/start.h"

#include <set>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/base/count.h"
#include "common/estimate/fewer_ranks.h"
#include "common/estimate/passes.h"

namespace nsa::server {

bool HasFewerRanks(const v1::StoredJob& job) {
  return !job.placements().empty() && job.placements_size() < RanksOf(job.job().spec());
}

std::string RanksText(const v1::JobSpec& spec, int64_t ranks) {
  const int64_t all = RanksOf(spec);
  return ranks < all ? absl::StrCat(ranks, " of ", Count(all, "rank")) : Count(ranks, "rank");
}

v1::JobSpec SpecOfStart(const v1::StoredJob& job) {
  if (!HasFewerRanks(job)) return job.job().spec();
  std::set<std::string_view> machines;
  for (const v1::RankPlacement& place : job.placements()) machines.insert(place.node());
  return WithFewerRanks(job.job().spec(), job.placements_size(),
                        static_cast<int32_t>(machines.size()));
}

}  // namespace nsa::server
