#include "common/estimate/fewer_ranks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/count.h"
#include "common/estimate/passes.h"

namespace nsa {
namespace {

constexpr int32_t kMostRanks = 65536;  // the limit of resources.gpus

}  // namespace

bool SharesBatch(const v1::JobSpec& spec, int64_t ranks) {
  const int64_t context = ContextOf(spec);
  return ranks > 0 && ranks % context == 0 && spec.train().batch_size() % (ranks / context) == 0;
}

int64_t NextFewer(const v1::JobSpec& spec, int64_t below) {
  const int64_t context = ContextOf(spec);
  // Clamped for a spec that preflight has not seen.
  int64_t ranks = (std::min<int64_t>(below, kMostRanks) - 1) / context * context;
  while (ranks > 0 && !SharesBatch(spec, ranks)) ranks -= context;
  return std::max<int64_t>(ranks, 0);
}

bool HasFewerRanks(const v1::JobSpec& spec, int64_t ranks) {
  return ranks > 0 && ranks < RanksOf(spec);
}

std::string RankCount(const v1::JobSpec& spec, int64_t ranks) {
  return HasFewerRanks(spec, ranks) ? absl::StrCat(ranks, " of ", RanksOf(spec))
                                    : absl::StrCat(ranks);
}

std::string RanksText(const v1::JobSpec& spec, int64_t ranks) {
  return HasFewerRanks(spec, ranks) ? absl::StrCat(ranks, " of ", Count(RanksOf(spec), "rank"))
                                    : Count(ranks, "rank");
}

std::vector<int32_t> FewerRanks(const v1::JobSpec& spec) {
  std::vector<int32_t> counts;
  if (!spec.restart().has_min_ranks() || !spec.resources().provisioner().empty()) return counts;
  const int64_t least = std::max(spec.restart().min_ranks(), 1);
  for (int64_t ranks = NextFewer(spec, RanksOf(spec)); ranks >= least;
       ranks = NextFewer(spec, ranks)) {
    counts.push_back(static_cast<int32_t>(ranks));
  }
  return counts;
}

v1::JobSpec WithFewerRanks(v1::JobSpec spec, int32_t ranks, int32_t machines) {
  const double share = static_cast<double>(ranks) / RanksOf(spec);
  if (spec.guard().has_min_tokens_per_second()) {
    spec.mutable_guard()->set_min_tokens_per_second(spec.guard().min_tokens_per_second() * share);
  }
  spec.mutable_resources()->set_gpus(ranks);
  spec.mutable_resources()->set_nodes(machines);
  spec.mutable_restart()->clear_min_ranks();
  return spec;
}

}  // namespace nsa
