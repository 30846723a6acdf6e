// Whether a run is healthy, judged by the step records of its rank 0. The only place that decides:
// nsactl, the page and the metrics show what HealthOf() says. Pure.
//
// A rule fires when its condition has held for some steps in a row, and ends at the first step
// where it does not hold. Its limits are below.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "nsa/v1/job.pb.h"
#include "nsa/v1/job_health.pb.h"
#include "nsa/v1/job_status.pb.h"
#include "nsa/v1/telemetry.pb.h"

namespace nsa {

enum class HealthRule : uint8_t {
  kDiverged,     // DIVERGED: loss more than 5 % above a uniform guess and above the first loss
  kNonfinite,    // NONFINITE: loss or gradient not finite in the last step
  kHadDiverged,  // HAD_DIVERGED: all steps are done, 100 or more of them between bad ones
  kPlateau,  // PLATEAU: smoothed loss not 0.1 % below its best for more than 1,000 steps, and 5 %
             // of the run; with validations, none of the last ten was the best
  kUnsteadySpeed,  // UNSTEADY_SPEED: smoothed speed over 10 % below this start's median
  kMemoryCreep,    // MEMORY_CREEP: memory 5 % (and 64 MiB) above that of the first 200 steps
  kGateEntropy,    // GATE_ENTROPY: a layer's mean entropy is under 0.5 nats
  kGateDominant,   // GATE_DOMINANT: a layer's largest share is over 0.9 in the mean of its tokens
  kGateSaturated,  // GATE_SATURATED: over 10 % of a layer's tokens are at one branch, or at none
};

struct HealthRuleInfo {
  HealthRule rule;
  std::string_view word;
  // LEVEL_HEALTHY: worth a note; nobody need look at the run.
  v1::JobHealth::Level level;
  // What it finds is also shown for a job that no longer runs.
  bool lasts;
};

// All rules, the worst first.
std::span<const HealthRuleInfo> HealthRules();

inline constexpr double kDivergedSlack = 1.05;
inline constexpr int64_t kDivergedSteps = 3;
inline constexpr int64_t kHadDivergedSteps = 100;
inline constexpr int64_t kPlateauSteps = 1000;
inline constexpr double kPlateauOfRun = 0.05;
inline constexpr int64_t kPlateauValidations = 10;
inline constexpr double kPlateauShare = 0.001;
inline constexpr double kSpeedShare = 0.1;
inline constexpr int64_t kSpeedWarmUp = 20;    // steps of a start that are not judged
inline constexpr int64_t kSpeedSamples = 100;  // before the median counts
inline constexpr int64_t kUnsteadySteps = 50;
inline constexpr int64_t kMemorySteps = 200;
inline constexpr double kMemoryShare = 0.05;
inline constexpr int64_t kMemorySlackBytes = int64_t{64} << 20;
inline constexpr double kLowEntropy = 0.5;  // nats
inline constexpr double kDominantShare = 0.9;
inline constexpr double kSaturatedRatio = 0.1;
inline constexpr int64_t kGateSteps = 50;

// Adds one record of rank 0 to what is remembered of the run.
void RememberHealth(const v1::WorkerRecord& record, const v1::JobSpec& spec,
                    v1::HealthMemory* memory);

// What the gates of a step did; nothing is set in a model without a gate.
v1::GateSummary SummaryOfGates(const v1::StepRecord& step);

// Whether the run is healthy, from `progress` with its health_memory. LEVEL_UNSPECIFIED before the
// first step.
v1::JobHealth HealthOf(const v1::JobProgress& progress);

// The same of a job. While it does not run, only problems that last are listed, and without one the
// level is LEVEL_UNSPECIFIED: how fast a job was is not why it failed.
v1::JobHealth HealthOf(const v1::Job& job);

// What a rule found. `text` has the figure and its limit, `since_step` is the step with which it
// began; 0 if that is not known.
struct HealthFinding {
  const HealthRuleInfo* rule = nullptr;
  std::string text;
  int64_t since_step = 0;
};

// Every rule that has fired, the worst first: those that HealthOf(job) names.
std::vector<HealthFinding> HealthFindings(const v1::Job& job);

// The worst of Job.problems that is neither muted nor a note; null if there is none.
const v1::Problem* WorstProblem(const v1::Job& job);

// How long a job that has ended needs somebody.
inline constexpr absl::Duration kFresh = absl::Hours(24);

// Whether the job has such a problem and, if it has ended, did so in the last 24 hours.
bool NeedsYou(const v1::Job& job, absl::Time now);

// Adds the loss of a step to a mean of about 50 steps. `step` counts from 1, and the first mean is
// that loss.
double RecentMean(double before, double loss, int64_t step);

}  // namespace nsa
