// Which of a list of jobs somebody wants to see, as typed into `nsactl top`; the page's filter has
// the same words. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "nsa/v1/job_status.pb.h"

namespace nsa::client {

class JobQuery {
 public:
  // A word is a part of a name or an id, `state=training` a state as the page or `nsactl list`
  // names it, `team=lm` a label that begins so, and `val<1.7` a figure: loss, val, step, steps,
  // progress, speed, tokens, left, ran, restarts, ranks. All must hold. An unfinished condition
  // holds.
  explicit JobQuery(const std::string& text);

  bool Holds(const v1::Job& job, absl::Time now) const;

 private:
  struct Condition {
    std::string key;  // empty: `value` is a word
    std::string relation;
    std::string value;
  };
  std::vector<Condition> conditions_;
};

}  // namespace nsa::client
