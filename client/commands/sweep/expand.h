// The jobs of a sweep: one job file, several values for some of its fields. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nsa/v1/job.pb.h"

namespace nsa::client {

inline constexpr int64_t kLargestSweep = 1000;

// A field that is swept.
struct SweepAxis {
  std::string field;                // as in --set: "train.lr"
  std::vector<std::string> values;  // YAML; empty for a range
  double low = 0;                   // of a range
  double high = 0;
  bool whole = false;  // a range of whole numbers
};

// Parses "FIELD=VALUE,VALUE,…" or "FIELD=LOW..HIGH". Commas within brackets, braces and quotes do
// not separate. InvalidArgument.
absl::StatusOr<SweepAxis> ParseSweepAxis(const std::string& text);

// One value for each axis, as YAML.
using SweepPoint = std::vector<std::string>;

// All combinations; the last axis changes first. InvalidArgument for a range, for fewer than two
// combinations and for more than kLargestSweep.
absl::StatusOr<std::vector<SweepPoint>> SweepGrid(const std::vector<SweepAxis>& axes);

// `count` points, drawn with this seed, the same on every machine. Without ranges they are
// different points of the grid, in its order. A list's value is drawn uniformly; a range's too if
// its low end is 0 or negative, else its logarithm is. InvalidArgument for a `count` below 2, above
// kLargestSweep, or above the size of the grid.
absl::StatusOr<std::vector<SweepPoint>> DrawSweep(const std::vector<SweepAxis>& axes, int64_t count,
                                                  uint64_t seed);

// How a sweep is made out of a job.
struct SweepPlan {
  std::string name;  // of the sweep; jobs are called NAME-1, NAME-2, …
  std::vector<SweepAxis> axes;
  std::vector<SweepPoint> points;
  std::vector<int64_t> halve_at;  // empty: every job runs to its end
};

// One job for each point: `base` with the values, a name, an out_dir (that of the base with "-1",
// "-2", … behind it), the labels sweep=NAME and FIELD=VALUE, and SweepSpec. InvalidArgument for a
// value that its field does not take, and for a sweep of the fields name, train.out_dir or sweep.
absl::StatusOr<std::vector<v1::JobSpec>> SweepJobs(const v1::JobSpec& base, const SweepPlan& plan);

// The steps for `--stop-worst`: 1/2, 1/4, … of the job's steps, as many as halve `jobs` down to
// one, each moved to the nearest step with a validation. InvalidArgument when the job has no
// validation before its end.
absl::StatusOr<std::vector<int64_t>> DefaultHalving(const v1::JobSpec& base, int64_t jobs);

// "train.lr=3e-4 nsa.gate=softmax".
std::string PointText(const std::vector<SweepAxis>& axes, const SweepPoint& point);

}  // namespace nsa::client
