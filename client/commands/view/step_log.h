// The steps of a run as they were recorded, and the first in which two runs differ. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "nsa/v1/coordinator.pb.h"

namespace nsa::client {

// The step records of one rank. When a job goes back to a checkpoint, the steps that it repeats
// replace those before.
class StepLog {
 public:
  void Add(const v1::WatchRecordsResponse& record);
  const std::map<int64_t, v1::StepRecord>& steps() const { return steps_; }

  // The start of the job in which a step of steps() was made; 0 for another step.
  int64_t GenerationOf(int64_t step) const;
  // Whether the rank has made a step in this start, also if it was repeated later.
  bool WasIn(int64_t generation) const { return generations_.contains(generation); }

 private:
  std::map<int64_t, v1::StepRecord> steps_;
  std::map<int64_t, int64_t> generation_of_;  // by step, as steps_
  std::set<int64_t> generations_;
};

// A hash of the parameters as 16 digits.
std::string HashText(uint64_t hash);

// The first step that both runs have and in which a value has other bits. Hashes of the parameters
// are compared where both records have one.
struct StepParting {
  int64_t compared = 0;  // steps that both have, up to and with `step`
  int64_t equal_to = 0;  // the last step before it that both have; 0: none
  int64_t step = 0;      // 0: the runs do not differ
  int64_t hashes = 0;    // hashes of the parameters that were compared
  // the first that differs: a quantity that has a place in Quantity::computed, or parameters_hash
  std::string value;
  double a = 0, b = 0;         // its values; 0 for a hash
  std::string a_text, b_text;  // the same as text, a hash as 16 digits
  std::string meaning;         // human-readable: what differs, judged by the value
};
StepParting FindStepParting(const StepLog& a, const StepLog& b);

}  // namespace nsa::client
