// Successive halving of a sweep (Jamieson and Talwalkar, "Non-stochastic Best Arm Identification
// and Hyperparameter Optimization", AISTATS 2016): which jobs go on after each step of
// SweepSpec.halve_at. Pure; act/sweep/advance.h carries it out.
//
// The decision follows from the stored jobs alone, so it is the same after a restart, also when
// only a part of it was carried out before.
#pragma once

#include <string>
#include <vector>

#include "nsa/v1/store.pb.h"

namespace nsa::server {

// A job that is resumed.
struct SweepPromotion {
  std::string job_id;
  int64_t next_stop = 0;  // the step at which it stops next; 0: it runs to its last step
  std::string why;        // human-readable
};

// A job that stays stopped.
struct SweepDrop {
  std::string job_id;
  std::string why;  // human-readable
};

// To be carried out in this order: all promotions, then all drops.
struct SweepDecision {
  std::vector<SweepPromotion> promotions;
  std::vector<SweepDrop> drops;
};

// `jobs` are all stored jobs of one sweep, in any order. Empty while there is nothing to decide:
// not all jobs are submitted (the one with the highest index is missing), or a job still trains
// towards the step.
//
// At the k-th step (from 1), ⌈jobs / 2^k⌉ jobs go on, at least one: those with the lowest
// validation loss, the lower index first among equals. A job without a finite validation loss at
// that step never goes on. A job that ended otherwise (failed, stopped by a user) takes no part.
SweepDecision DecideSweep(const std::vector<const v1::StoredJob*>& jobs);

// A job that stopped at a step of halve_at and whose sweep has not decided yet whether it goes on.
bool IsPaused(const v1::StoredJob& stored);

// The step at which a new job of this sweep stops first; 0: none.
int64_t FirstSweepStop(const v1::SweepSpec& sweep);

}  // namespace nsa::server
