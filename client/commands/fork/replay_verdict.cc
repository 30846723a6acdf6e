#include "client/commands/fork/replay_verdict.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/show/job_text.h"
#include "common/base/count.h"

namespace nsa::client {
namespace {

std::string NamesOfRanks(const std::vector<int32_t>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "));
}

// "rank 1 (on node-a)", for a single rank whose machine the coordinator still knows.
std::string PlacedRanksText(const v1::Job& job, const std::vector<int32_t>& ranks) {
  std::string text = NamesOfRanks(ranks);
  if (ranks.size() != 1) return text;
  for (const v1::RankStatus& status : job.ranks()) {
    if (status.rank() == ranks.front() && !status.node().empty()) {
      absl::StrAppend(&text, " (on ", status.node(), ")");
    }
  }
  return text;
}

// The first and last step that both logs have; 0 if there is none.
std::pair<int64_t, int64_t> CommonSteps(const StepLog& a, const StepLog& b) {
  std::pair<int64_t, int64_t> common;
  for (const auto& [step, record] : a.steps()) {
    if (!b.steps().contains(step)) continue;
    if (common.first == 0) common.first = step;
    common.second = step;
  }
  return common;
}

// The ranks that have a hash in this step, by hash.
std::map<uint64_t, std::vector<int32_t>> HashesIn(const RankLogs& logs, int64_t step) {
  std::map<uint64_t, std::vector<int32_t>> ranks_with;
  for (const auto& [rank, log] : logs) {
    const auto found = log.steps().find(step);
    if (found == log.steps().end() || !found->second.has_parameters_hash()) continue;
    ranks_with[found->second.parameters_hash()].push_back(rank);
  }
  return ranks_with;
}

void FindSplit(const RankLogs& original, ReplayVerdict* verdict) {
  if (original.empty() || verdict->first == 0) return;
  const auto& steps = original.begin()->second.steps();
  for (auto at = steps.lower_bound(verdict->first); at != steps.end(); ++at) {
    const auto ranks_with = HashesIn(original, at->first);
    if (ranks_with.size() < 2) continue;
    verdict->split_step = at->first;
    size_t most = 0, all = 0;
    for (const auto& [hash, ranks] : ranks_with) {
      most = std::max(most, ranks.size());
      all += ranks.size();
    }
    if (2 * most <= all) return;
    for (const auto& [hash, ranks] : ranks_with) {
      if (ranks.size() == most) continue;
      verdict->odd_ranks.insert(verdict->odd_ranks.end(), ranks.begin(), ranks.end());
    }
    std::ranges::sort(verdict->odd_ranks);
    return;
  }
}

// What the original's own hashes add to a difference that all ranks have in common.
std::string SplitText(const Replay& replay, const ReplayVerdict& verdict) {
  if (verdict.split_step == 0) return "";
  if (!verdict.odd_ranks.empty()) {
    return absl::StrFormat(
        "step %d of the original: the parameters of %s differ from those of most ranks\n",
        verdict.split_step, PlacedRanksText(replay.original, verdict.odd_ranks));
  }
  return absl::StrFormat(
      "step %d of the original: the ranks have different parameters; their hashes do not say which "
      "rank is wrong\n",
      verdict.split_step);
}

std::string EqualText(const ReplayVerdict& verdict, size_t ranks) {
  std::string text = absl::StrFormat(
      "steps %d to %d: %s of %s repeated: loss and gradient norm have the same bits", verdict.first,
      verdict.last, Count(verdict.steps, "step"), Count(static_cast<int64_t>(ranks), "rank"));
  if (verdict.hashes == 0) {
    return absl::StrCat(text, "\nparameters: not compared: no step has a hash in both runs\n");
  }
  return absl::StrCat(text, ", and so have all parameters (",
                      verdict.hashes == 1 ? "1 hash" : absl::StrCat(verdict.hashes, " hashes"),
                      ")\n");
}

std::string DifferenceText(const Replay& replay, const ReplayVerdict& verdict) {
  const StepParting& parting = verdict.parting;
  std::string text = absl::StrFormat(
      "steps: %s\nstep %d, %s: %s is %s, in the replay %s: %s\n",
      parting.equal_to == 0 ? "none is equal" : absl::StrCat("equal up to ", parting.equal_to),
      parting.step, PlacedRanksText(replay.original, verdict.ranks), parting.value, parting.a_text,
      parting.b_text, parting.meaning);
  if (!verdict.equal_ranks.empty()) {
    absl::StrAppend(&text, "step ", parting.step, ", ", NamesOfRanks(verdict.equal_ranks),
                    ": the same bits\n");
  } else {
    if (verdict.ranks.size() > 1 && parting.value != "parameters_hash") {
      absl::StrAppend(&text,
                      "loss and gradient norm are sums over all ranks, so they do not say "
                      "which rank is wrong\n");
    }
    absl::StrAppend(&text, SplitText(replay, verdict));
  }
  return absl::StrCat(text,
                      "One of the two runs computed wrongly. Replay again, on another machine "
                      "if there is one: two replays\nthat agree convict the original.\n");
}

nlohmann::ordered_json ValueOf(const StepParting& parting, double number, const std::string& text) {
  if (parting.value == "parameters_hash") return text;
  return number;
}

// The start in which a step was made last; 0 if no rank has the step.
int64_t GenerationOf(const RankLogs& logs, int64_t step) {
  int64_t newest = 0;
  for (const auto& [rank, log] : logs) newest = std::max(newest, log.GenerationOf(step));
  return newest;
}

int64_t RanksIn(const RankLogs& logs, int64_t generation) {
  return std::ranges::count_if(
      logs, [generation](const auto& rank) { return rank.second.WasIn(generation); });
}

}  // namespace

RankLogs RanksOfStep(const RankLogs& logs, int64_t step) {
  const int64_t generation = GenerationOf(logs, step);
  RankLogs those = logs;
  std::erase_if(those, [generation](const auto& rank) { return !rank.second.WasIn(generation); });
  return those;
}

int64_t FirstWithSameRanks(const RankLogs& logs, int64_t checkpoint, int64_t step) {
  const int64_t ranks = RanksIn(logs, GenerationOf(logs, step));
  int64_t first = step;
  while (first > checkpoint + 1) {
    const int64_t generation = GenerationOf(logs, first - 1);
    // Without a record nothing is known of it.
    if (generation != 0 && RanksIn(logs, generation) != ranks) return first;
    --first;
  }
  return first;
}

ReplayVerdict JudgeReplay(const RankLogs& original, const RankLogs& replay) {
  ReplayVerdict verdict;
  std::map<int32_t, StepParting> partings;
  std::set<int64_t> last_of_ranks;
  for (const auto& [rank, log] : original) {
    const auto again = replay.find(rank);
    const auto [first, last] =
        again == replay.end() ? std::pair<int64_t, int64_t>() : CommonSteps(log, again->second);
    last_of_ranks.insert(last);
    if (first == 0) continue;
    const StepParting& found = partings[rank] = FindStepParting(log, again->second);
    verdict.steps = std::max(verdict.steps, found.compared);
    verdict.hashes += found.hashes;
    verdict.first = verdict.first == 0 ? first : std::min(verdict.first, first);
    const bool earliest =
        verdict.parting.step == 0 || (found.step != 0 && found.step < verdict.parting.step);
    if (earliest) verdict.parting = found;
  }
  if (!last_of_ranks.empty()) verdict.last = *last_of_ranks.begin();
  if (verdict.parting.step == 0) verdict.parting = {};
  for (const auto& [rank, parting] : partings) {
    if (verdict.parting.step == 0) break;
    const bool differs = parting.step == verdict.parting.step;
    const bool equal = parting.equal_to >= verdict.parting.step;
    if (differs) verdict.ranks.push_back(rank);
    if (equal) verdict.equal_ranks.push_back(rank);
  }
  FindSplit(original, &verdict);
  return verdict;
}

std::string VerdictText(const Replay& replay, const ReplayVerdict& verdict) {
  if (verdict.steps == 0) return "steps: none that both runs have\n";
  if (verdict.parting.step != 0) return DifferenceText(replay, verdict);
  return absl::StrCat(EqualText(verdict, replay.ranks), SplitText(replay, verdict));
}

nlohmann::ordered_json VerdictDocument(const Replay& replay, const ReplayVerdict& verdict) {
  nlohmann::ordered_json document = {{"job", replay.original.id()},
                                     {"replay", replay.replay.id()},
                                     {"checkpoint_step", replay.checkpoint_step},
                                     {"step", replay.step},
                                     {"compared",
                                      {{"steps", verdict.steps},
                                       {"first", verdict.first},
                                       {"last", verdict.last},
                                       {"hashes", verdict.hashes}}},
                                     {"equal", verdict.steps > 0 && verdict.parting.step == 0}};
  if (verdict.parting.step != 0) {
    const StepParting& parting = verdict.parting;
    document["first"] = {{"step", parting.step},
                         {"ranks", verdict.ranks},
                         {"equal_ranks", verdict.equal_ranks},
                         {"value", parting.value},
                         {"original", ValueOf(parting, parting.a, parting.a_text)},
                         {"replay", ValueOf(parting, parting.b, parting.b_text)}};
  }
  if (verdict.split_step != 0) {
    document["ranks_differ"] = {{"step", verdict.split_step}, {"odd_ranks", verdict.odd_ranks}};
  }
  return document;
}

}  // namespace nsa::client
