// A job's curves, as the coordinator keeps them (GetCurves): from its first step to its last,
// thinned as the page shows them. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/show/draw/chart.h"
#include "common/record/quantities.h"
#include "nsa/v1/coordinator.pb.h"

namespace nsa::client {

using Metric = record::Quantity;

// What may be drawn of a job: the quantities that have a curve, and the validations.
const std::vector<const Metric*>& Metrics();
// Those that are shown unasked, the most important first, and their names.
const std::vector<const Metric*>& MetricsShown();
const std::vector<std::string_view>& NamesShown();

// Those of JobCurves::RecentLoss(), MedianSpeed() and PeakMemory().
inline constexpr std::string_view kLoss = "loss", kSpeed = "tokens_per_second",
                                  kMemory = "memory_bytes";

// By its name; null when there is none of this name.
const Metric* FindMetric(std::string_view name);
// "loss, learning_rate, …".
std::string MetricNames();

// Over what curves are drawn.
enum class Across { kSteps, kTokens, kTime };
// "steps", "tokens", "time".
std::optional<Across> FindAcross(std::string_view name);

// A request for these metrics of a job (id or name) and the columns that JobCurves needs besides.
v1::GetCurvesRequest CurvesRequest(const std::string& job,
                                   const std::vector<std::string_view>& metrics);

// The curves of rank 0 of one job. Steps that were repeated after a restart are in them once.
class JobCurves {
 public:
  struct Evaluation {
    int64_t step = 0;
    double loss = 0;  // NaN or infinite if it was
  };

  JobCurves() = default;  // of a job that has not done a step
  explicit JobCurves(v1::GetCurvesResponse curves);

  // The request for what has come since these were read, of the same columns; without points for
  // all of them.
  v1::GetCurvesRequest RequestForMore(v1::GetCurvesRequest request) const;
  // Adds its answer. False, and nothing is changed, when the points are others now, as after a
  // restart or when the coordinator has thinned them: then all must be read again.
  bool Add(const v1::GetCurvesResponse& more);

  // The values of a metric; layers and GPUs are combined by Quantity::keep. They are over steps,
  // tokens, or seconds of training, which leave out the time between the end of a start and the
  // first step of the next. What was not measured is left out; a value that is not finite leaves a
  // gap and is counted.
  Curve CurveOf(const Metric& metric, Across across) const;

  // How many points there are; not more than steps.
  size_t points() const { return static_cast<size_t>(curves_.steps().last_step_size()); }
  // The last step of them; 0 without one.
  int64_t last_step() const { return points() == 0 ? 0 : *curves_.steps().last_step().rbegin(); }
  // The newest validation, and the one with the lowest finite loss; none without one.
  std::optional<Evaluation> Newest() const;
  std::optional<Evaluation> Best() const;
  // Of the last 50 steps or, in a long run, of the last points that hold as many; nothing without a
  // step.
  struct Recent {
    double loss = 0;    // mean of the finite values; NaN when none is
    int64_t steps = 0;  // of how many steps, the others included
  };
  std::optional<Recent> RecentLoss() const;
  // Median of the points; NaN without any.
  double MedianSpeed() const;
  // The most that any step had; 0 without one.
  int64_t PeakMemory() const;
  // With GetCurvesRequest.marks: what the newest start reported, the texts that the job wrote after
  // its newest validation, and checkpoints that failed, the oldest first.
  v1::WorkerStarted Started() const;
  std::vector<v1::SampleRecord> Samples() const;
  std::vector<v1::WorkerRecord> FailedCheckpoints() const;

 private:
  void CountSeconds();
  // Where a step lies.
  double PlaceOf(int64_t step, Across across) const;
  double SecondsBefore(int point) const;

  v1::GetCurvesResponse curves_;
  std::vector<double> seconds_;  // of training until the end of each point of `steps`
};

// A chart that compares one metric across jobs, each in its colour. With one job, the chart of
// `loss` also has its validations.
struct NamedCurves {
  std::string name;
  const JobCurves* curves = nullptr;
};
Chart ChartOf(const Metric& metric, Across across, const std::vector<NamedCurves>& jobs);

}  // namespace nsa::client
