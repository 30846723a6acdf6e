// Several jobs side by side: their final figures, and the keys in which they differ. Pure.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/show/curves.h"
#include "client/show/table.h"
#include "nlohmann/json_fwd.hpp"
#include "nsa/v1/job_status.pb.h"

namespace nsa::client {

struct ComparedJob {
  v1::Job job;
  JobCurves curves;
};

// What the jobs are called beside each other: the name, with the id where two have the same name.
// On one line, cleaned.
std::vector<std::string> ShortNames(const std::vector<ComparedJob>& jobs);

// One key of the job file with its value in each job.
struct KeyValues {
  std::string key;                  // "train.lr"
  std::vector<std::string> values;  // "-" where a job does not have the key
  bool Differs() const;
};

// All keys of the jobs' specs, with every default filled in, by name. Lists are one value.
std::vector<KeyValues> SpecKeys(const std::vector<ComparedJob>& jobs);

// How a job ended, or where it is.
struct Figures {
  std::string state;
  int64_t step = 0;
  int64_t tokens = 0;
  std::optional<double> loss;      // mean of the last 50 steps
  std::optional<double> val_loss;  // of the newest validation
  double best_val_loss = 0;        // NaN without one
  int64_t best_val_step = 0;
  // The newest loss of each set of data.val, by its name; none before its first validation.
  std::map<std::string, std::optional<double>> val_sets;
  double tokens_per_second = 0;  // median of the steps; NaN without a step
  int64_t memory_bytes = 0;      // the most of any step
  double hours = 0;              // the run time until now; negative before the first start
  int restarts = 0;
};
Figures FiguresOf(const ComparedJob& job, absl::Time now);

// One row for each job, with a column for each validation set that any of them has. The best of
// each figure is green.
Table FiguresTable(const std::vector<ComparedJob>& jobs, absl::Time now);

// One row for each of `keys`; a value longer than `width` columns is cut.
Table KeysTable(const std::vector<ComparedJob>& jobs, const std::vector<KeyValues>& keys,
                int width);

// {"jobs": [{"id", "name", "state", "step", …}], "configuration": [{"key", "values"}]}; a figure
// that there is not is null, one that is not finite "NaN" or "Infinity". "val_sets" has the losses
// of the job's own sets by their names.
nlohmann::ordered_json ComparisonDocument(const std::vector<ComparedJob>& jobs,
                                          const std::vector<KeyValues>& keys, absl::Time now);

}  // namespace nsa::client
