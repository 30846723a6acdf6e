// A job's records as numbers: one row for each step, with the validations. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/show/draw/chart.h"
#include "nsa/v1/coordinator.pb.h"

namespace nsa::client {

// What may be drawn of a job. `value` is NaN where a step does not have it; null for the
// validation loss, which is not a value of steps.
struct Metric {
  const char* name;   // for --metric
  const char* title;  // "training loss"
  const char* note;   // "nats a token"
  Unit unit;
  double (*value)(const v1::StepRecord& step);
};
inline constexpr size_t kMetrics = 14;
extern const std::array<Metric, kMetrics> kMetricTable;

// By its name; null when there is none of this name.
const Metric* FindMetric(std::string_view name);
// "loss, val_loss, …".
std::string MetricNames();

// Over what curves are drawn.
enum class Across { kSteps, kTokens, kTime };
// "steps", "tokens", "time".
std::optional<Across> FindAcross(std::string_view name);

// The records of rank 0 of one job, in the order of their positions. When a job goes back to a
// checkpoint, the steps that it repeats replace those before.
class History {
 public:
  struct Evaluation {
    int64_t step = 0;
    double loss = 0;
    double seconds = 0;  // how long it took
  };

  void Add(const v1::WatchRecordsResponse& record);

  // The values of a metric over steps, tokens, or seconds of training, which leave out the time
  // between the end of a start and the first step of the next. A step that does not have the metric
  // is left out; a value that is not finite leaves a gap.
  Curve CurveOf(const Metric& metric, Across across) const;

  size_t steps() const { return rows_.size(); }
  const std::vector<Evaluation>& evaluations() const { return evaluations_; }
  // The validation with the lowest loss; none without one.
  std::optional<Evaluation> Best() const;
  // Of the last 50 steps, the finite ones; NaN without any.
  double RecentLoss() const;
  // Median over the steps; NaN without a step.
  double MedianSpeed() const;
  // The most that any step had; 0 without one.
  int64_t PeakMemory() const;
  // What the newest start reported; default values before the first one.
  const v1::WorkerStarted& started() const { return started_; }
  // The texts that the job wrote after its newest validation.
  const std::vector<v1::SampleRecord>& samples() const { return samples_; }
  // Failed checkpoints and warnings and errors of workers: as lines, the oldest first.
  const std::vector<v1::WatchRecordsResponse>& faults() const { return faults_; }

 private:
  struct Row {
    int64_t step = 0;
    double tokens = 0;
    double seconds = 0;  // of training, since the first step
    int64_t generation = 0;
    int64_t unix_nanos = 0;
    std::array<double, kMetrics> values;
  };

  void AddStep(const v1::WatchRecordsResponse& record);
  // Forgets what is at or after a step that is done again.
  void GoBackTo(int64_t step);
  double PlaceOf(const Row& row, Across across) const;

  std::vector<Row> rows_;
  std::vector<Evaluation> evaluations_;
  std::vector<v1::SampleRecord> samples_;
  std::vector<v1::WatchRecordsResponse> faults_;
  v1::WorkerStarted started_;
};

// A chart that compares one metric across jobs, each in its colour. With one job, the chart of
// `loss` also has its validations.
struct NamedHistory {
  std::string name;
  const History* history = nullptr;
};
Chart ChartOf(const Metric& metric, Across across, const std::vector<NamedHistory>& jobs);

}  // namespace nsa::client
