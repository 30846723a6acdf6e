// Rules about starts with fewer ranks (restart.min_ranks).
#include "absl/strings/str_format.h"
#include "common/estimate/fewer_ranks.h"
#include "common/estimate/memory/memory.h"
#include "common/preflight/rules.h"

namespace nsa {
namespace {

Problems MinRanksNotDivisible(const PreflightFacts& facts) {
  const v1::JobSpec& spec = facts.spec;
  const bool fewer = spec.restart().has_min_ranks() && spec.restart().min_ranks() < facts.ranks() &&
                     spec.resources().provisioner().empty();
  if (!fewer || !FewerRanks(spec).empty()) return {};
  const int64_t largest = NextFewer(spec, facts.ranks());
  return {
      {"restart.min_ranks",
       absl::StrFormat("%d (no number of ranks from there to %d shares a batch of %d sequences)",
                       spec.restart().min_ranks(), facts.ranks() - 1, spec.train().batch_size()),
       largest > 0 ? absl::StrFormat("set it to %d, or remove it", largest)
                   : "remove it, or change train.batch_size"}};
}

// The job with this many of its ranks, on as many machines as it asks for.
v1::JobSpec With(const v1::JobSpec& spec, int32_t ranks) {
  return WithFewerRanks(spec, ranks, std::min(ranks, std::max(spec.resources().nodes(), 1)));
}

// The same data is held by each of fewer ranks.
PreflightFacts FactsOf(const v1::JobSpec& spec, const PreflightFacts& facts) {
  return {spec,        facts.context,      facts.start,        facts.policy,
          facts.paths, facts.line_samples, facts.corpus_memory};
}

bool FitsMemory(const PreflightFacts& facts, const v1::JobSpec& spec) {
  const PreflightFacts fewer = FactsOf(spec, facts);
  const int64_t memory = MemoryOfRank(fewer);
  return memory == 0 || TotalBytes(RankMemory(fewer)) <= memory;
}

Problems FewerRanksMemory(const PreflightFacts& facts) {
  // Before a launch the numbers are those of the start.
  if (facts.machine() == nullptr || !facts.context.job_id.empty()) return {};
  const std::vector<int32_t> counts = FewerRanks(facts.spec);
  if (counts.empty()) return {};
  const v1::JobSpec least = With(facts.spec, counts.back());
  if (FitsMemory(facts, least)) return {};
  const PreflightFacts fewest = FactsOf(least, facts);
  int32_t fits = facts.spec.resources().gpus();
  for (const int32_t ranks : counts) {
    if (!FitsMemory(facts, With(facts.spec, ranks))) break;
    fits = ranks;
  }
  return {{"restart.min_ranks",
           absl::StrFormat("%d: each of %d ranks would need about %s (at most %s)",
                           facts.spec.restart().min_ranks(), counts.back(),
                           Bytes(static_cast<double>(TotalBytes(RankMemory(fewest)))),
                           Bytes(static_cast<double>(MemoryOfRank(fewest)))),
           absl::StrFormat("set it to %d, or make the job smaller", fits)}};
}

constexpr PreflightRule kFewerRules[] = {
    {"MIN_RANKS_NOT_DIVISIBLE", "no number of ranks from min_ranks on shares the batch", kError,
     kError, false, kSizes, MinRanksNotDivisible},
    {"MIN_RANKS_MEMORY", "the estimate of a start with the fewest ranks exceeds the memory", kError,
     kError, true, kSizes, FewerRanksMemory},
};

}  // namespace

std::span<const PreflightRule> FewerRules() { return kFewerRules; }

int64_t PreflightFacts::least_ranks_on_machine() const {
  if (!context.job_id.empty()) return ranks_on_machine();
  const std::vector<int32_t> counts = FewerRanks(spec);
  const int64_t least = counts.empty() ? ranks() : counts.back();
  return (least + machines() - 1) / machines();
}

}  // namespace nsa
