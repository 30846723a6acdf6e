// What a replay of some steps of a job says about the job: where its bits differ first, and on
// which ranks. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "client/commands/view/step_log.h"
#include "nlohmann/json.hpp"

namespace nsa::client {

using RankLogs = std::map<int32_t, StepLog>;  // the steps of each rank

// What was compared.
struct Replay {
  v1::Job original, replay;
  int64_t checkpoint_step = 0;  // the replay began after it
  int64_t step = 0;             // the last step that was asked for
  size_t ranks = 1;             // that made these steps
};

struct ReplayVerdict {
  int64_t steps = 0;   // steps compared, of the rank that has most of them
  int64_t first = 0;   // the first of these
  int64_t last = 0;    // the last that was compared on every rank; 0: one has none
  int64_t hashes = 0;  // hashes of the parameters compared, of all ranks

  // The first step in which a value has other bits, its values on the first of `ranks`, and the
  // ranks on which it does. Loss and gradient norm are sums over the ranks, so they differ on all
  // of them, whichever computed wrongly. parting.step 0: everything is equal.
  StepParting parting;
  std::vector<int32_t> ranks;
  std::vector<int32_t> equal_ranks;  // those that are equal in that step

  // The first step, of all that the original has from `first` on, in which its own ranks have
  // different parameters, and the ranks whose hash fewer than half of all have. split_step 0: there
  // is none. No odd_ranks: no hash is that of more than half.
  int64_t split_step = 0;
  std::vector<int32_t> odd_ranks;
};

// The ranks of the start in which `step` was made last. A job that has gone on with fewer ranks
// (restart.min_ranks) keeps the older steps of the others, which are left out.
RankLogs RanksOfStep(const RankLogs& logs, int64_t step);

// The first step after `checkpoint` of those up to `step` from which on all were made with as many
// ranks as `step`: checkpoint + 1 if all were. Sums over another number of ranks have other bits.
int64_t FirstWithSameRanks(const RankLogs& logs, int64_t checkpoint, int64_t step);

ReplayVerdict JudgeReplay(const RankLogs& original, const RankLogs& replay);

// As several human-readable lines, and as a document.
std::string VerdictText(const Replay& replay, const ReplayVerdict& verdict);
nlohmann::ordered_json VerdictDocument(const Replay& replay, const ReplayVerdict& verdict);

}  // namespace nsa::client
