// The steps of a run as they were recorded, and the first in which two runs differ. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "nsa/v1/coordinator.pb.h"

namespace nsa::client {

// The step records of one rank. When a job goes back to a checkpoint, the steps that it repeats
// replace those before.
class StepLog {
 public:
  void Add(const v1::WatchRecordsResponse& record);
  const std::map<int64_t, v1::StepRecord>& steps() const { return steps_; }

 private:
  std::map<int64_t, v1::StepRecord> steps_;
};

// The first step that both runs have and in which a value has other bits.
struct StepParting {
  int64_t compared = 0;  // steps that both have, up to and with `step`
  int64_t equal_to = 0;  // the last step before it that both have; 0: none
  int64_t step = 0;      // 0: the runs do not differ
  std::string value;     // tokens, learning_rate, loss or grad_norm: the first that differs
  double a = 0, b = 0;   // its values
  std::string meaning;   // for people: what differs, judged by the value
};
StepParting FindStepParting(const StepLog& a, const StepLog& b);

}  // namespace nsa::client
