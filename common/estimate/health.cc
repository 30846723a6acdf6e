#include "common/estimate/health.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/count.h"
#include "common/estimate/estimate.h"

namespace nsa {
namespace {

constexpr double kLossWeight = 0.01;    // of the newest step, in means over about 100 steps
constexpr double kRecentWeight = 0.04;  // over about 50 steps

// Tokens per second; beyond, all are taken for these, so that there are at most 3,500 groups.
constexpr double kSlowest = 1e-3;
constexpr double kFastest = 1e12;

constexpr HealthRuleInfo kRules[] = {
    {HealthRule::kDiverged, "DIVERGED", v1::JobHealth::LEVEL_BAD, true},
    {HealthRule::kNonfinite, "NONFINITE", v1::JobHealth::LEVEL_BAD, true},
    {HealthRule::kHadDiverged, "HAD_DIVERGED", v1::JobHealth::LEVEL_WARNING, true},
    {HealthRule::kMemoryCreep, "MEMORY_CREEP", v1::JobHealth::LEVEL_WARNING, false},
    {HealthRule::kGateEntropy, "GATE_ENTROPY", v1::JobHealth::LEVEL_WARNING, false},
    {HealthRule::kGateDominant, "GATE_DOMINANT", v1::JobHealth::LEVEL_WARNING, false},
    {HealthRule::kGateSaturated, "GATE_SATURATED", v1::JobHealth::LEVEL_WARNING, false},
    {HealthRule::kPlateau, "PLATEAU", v1::JobHealth::LEVEL_HEALTHY, false},
    {HealthRule::kUnsteadySpeed, "UNSTEADY_SPEED", v1::JobHealth::LEVEL_HEALTHY, false},
};

int64_t Count(bool holds, int64_t before) { return holds ? before + 1 : 0; }

// The group of a speed: a group is one percent wide.
int32_t GroupOf(double speed) {
  const double possible = std::clamp(speed, kSlowest, kFastest);
  return static_cast<int32_t>(std::lround(std::log(possible) / std::log(1.01)));
}
double SpeedOf(int32_t group) { return std::pow(1.01, group); }

// "2,800".
std::string SpeedText(double speed) { return Grouped(std::llround(std::min(speed, kFastest))); }

int64_t Samples(const v1::HealthMemory& memory) {
  int64_t samples = 0;
  for (const auto& [group, count] : memory.speeds()) samples += count;
  return samples;
}

// The median speed, exact up to half a percent; 0 while there are too few.
double MedianSpeed(const v1::HealthMemory& memory) {
  const int64_t samples = Samples(memory);
  if (samples < kSpeedSamples) return 0;
  const std::map<int32_t, int64_t> groups(memory.speeds().begin(), memory.speeds().end());
  int64_t below = 0;
  for (const auto& [group, count] : groups) {
    below += count;
    if (2 * below >= samples) return SpeedOf(group);
  }
  return 0;
}

bool HasGate(const v1::LayerStats& layer) {
  double shares = 0;
  for (const double share : layer.gate().branch_share()) shares += share;
  return shares > 0.5;  // they sum to 1, or there is no gate
}

void RememberLoss(const v1::StepRecord& step, v1::HealthMemory* memory) {
  const double loss = step.loss();
  const bool finite = std::isfinite(loss) && !step.skipped_nonfinite();
  memory->set_nonfinite_steps(Count(!finite, memory->nonfinite_steps()));
  if (step.step() == 1 && finite) memory->set_first_loss(loss);
  const double limit = kDivergedSlack * std::max(memory->uniform_loss(), memory->first_loss());
  memory->set_diverged_steps(Count(!(loss <= limit), memory->diverged_steps()));
  if (memory->diverged_steps() >= kDivergedSteps) {
    memory->set_last_diverged_step(step.step());
    if (memory->first_diverged_step() == 0) {
      memory->set_first_diverged_step(step.step() - kDivergedSteps + 1);
    }
  }
  if (!finite) return;
  const double before = memory->smooth_loss();
  memory->set_smooth_loss(before > 0 ? before + kLossWeight * (loss - before) : loss);
  const double best = memory->best_smooth_loss();
  if (best > 0 && memory->smooth_loss() > best * (1 - kPlateauShare)) return;
  memory->set_best_smooth_loss(memory->smooth_loss());
  memory->set_best_step(step.step());
}

void RememberValidation(const v1::EvalRecord& eval, v1::HealthMemory* memory) {
  const bool first = memory->validations() == memory->validations_since_best();
  memory->set_validations(memory->validations() + 1);
  if (std::isfinite(eval.loss()) && (first || eval.loss() < memory->best_val_loss())) {
    memory->set_best_val_loss(eval.loss());
    memory->set_validations_since_best(0);
  } else {
    memory->set_validations_since_best(memory->validations_since_best() + 1);
  }
}

void RememberSpeed(const v1::StepRecord& step, v1::HealthMemory* memory) {
  const double speed = step.tokens_per_second();
  if (memory->steps() <= kSpeedWarmUp || !std::isfinite(speed) || speed <= 0) return;
  ++(*memory->mutable_speeds())[GroupOf(speed)];
  const double before = memory->smooth_tokens_per_second();
  // A mean of logarithms, like the groups: one very short or long step moves it little.
  memory->set_smooth_tokens_per_second(before > 0 ? before * std::pow(speed / before, kRecentWeight)
                                                  : speed);
  const double median = MedianSpeed(*memory);
  const bool slower = memory->smooth_tokens_per_second() < median * (1 - kSpeedShare);
  memory->set_unsteady_steps(Count(slower, memory->unsteady_steps()));
}

void RememberMemory(const v1::StepRecord& step, v1::HealthMemory* memory) {
  const int64_t bytes = step.memory_allocated_bytes();
  if (memory->steps() <= kMemorySteps) {
    memory->set_first_memory_bytes(std::max(memory->first_memory_bytes(), bytes));
    memory->set_smooth_memory_bytes(static_cast<double>(bytes));
    return;
  }
  const double before = memory->smooth_memory_bytes();
  memory->set_smooth_memory_bytes(before + kRecentWeight * (static_cast<double>(bytes) - before));
}

void RememberGates(const v1::StepRecord& step, v1::HealthMemory* memory) {
  bool low = false, dominant = false, saturated = false;
  for (const v1::LayerStats& layer : step.layers()) {
    if (!HasGate(layer)) continue;
    low = low || layer.gate().entropy_mean() < kLowEntropy;
    dominant = dominant || layer.gate().max_gate_mean() > kDominantShare;
    saturated = saturated || layer.gate().collapse_ratio() > kSaturatedRatio;
  }
  memory->set_low_entropy_steps(Count(low, memory->low_entropy_steps()));
  memory->set_dominant_steps(Count(dominant, memory->dominant_steps()));
  memory->set_saturated_steps(Count(saturated, memory->saturated_steps()));
}

// Another process may run on another machine, and repeats the steps after its checkpoint.
void BeginAgain(const v1::WorkerStarted& started, v1::HealthMemory* memory) {
  memory->set_steps(0);
  memory->clear_speeds();
  memory->set_smooth_tokens_per_second(0);
  memory->set_unsteady_steps(0);
  memory->set_first_memory_bytes(0);
  memory->set_best_step(std::min(memory->best_step(), started.resumed_step()));
  const int64_t resumed = started.resumed_step();
  memory->set_last_diverged_step(std::min(memory->last_diverged_step(), resumed));
  if (memory->first_diverged_step() <= resumed) return;
  memory->set_first_diverged_step(0);
  memory->set_last_diverged_step(0);
}

std::string SaysHadDiverged(const v1::JobProgress& progress) {
  const v1::HealthMemory& memory = progress.health_memory();
  const int64_t first = memory.first_diverged_step();
  const int64_t last = memory.last_diverged_step();
  const bool done = progress.total_steps() > 0 && progress.step() >= progress.total_steps();
  if (!done || memory.diverged_steps() >= kDivergedSteps || first == 0 ||
      last - first + 1 < kHadDivergedSteps) {
    return "";
  }
  return absl::StrFormat("the run had diverged, from step %s to %s (a uniform guess has %.4g)",
                         Grouped(first), Grouped(last), memory.uniform_loss());
}

std::string SaysPlateau(const v1::JobProgress& progress) {
  const v1::HealthMemory& memory = progress.health_memory();
  const int64_t flat = progress.step() - memory.best_step();
  const double window = std::max(static_cast<double>(kPlateauSteps),
                                 kPlateauOfRun * static_cast<double>(progress.total_steps()));
  if (static_cast<double>(flat) <= window) return "";
  if (memory.validations() > 0 && memory.validations_since_best() < kPlateauValidations) return "";
  return absl::StrFormat("the loss has not improved for %s steps", Grouped(flat));
}

// What a rule says about the run; empty if it has not fired.
std::string Says(HealthRule rule, const v1::JobProgress& progress) {
  const v1::HealthMemory& memory = progress.health_memory();
  switch (rule) {
    case HealthRule::kDiverged:
      if (memory.diverged_steps() < kDivergedSteps) return "";
      return absl::StrFormat("the run has diverged: loss %.4g (a uniform guess has %.4g)",
                             progress.loss(), memory.uniform_loss());
    case HealthRule::kNonfinite:
      if (memory.nonfinite_steps() == 0) return "";
      return "the loss or the gradient of the last step is not finite";
    case HealthRule::kHadDiverged:
      return SaysHadDiverged(progress);
    case HealthRule::kPlateau:
      return SaysPlateau(progress);
    case HealthRule::kUnsteadySpeed:
      if (memory.unsteady_steps() < kUnsteadySteps) return "";
      return absl::StrFormat("%s tokens a second (median %s; expected at least 90 %% of that)",
                             SpeedText(memory.smooth_tokens_per_second()),
                             SpeedText(MedianSpeed(memory)));
    case HealthRule::kMemoryCreep: {
      const auto first = static_cast<double>(memory.first_memory_bytes());
      const double grown = memory.smooth_memory_bytes() - first;
      if (memory.steps() <= kMemorySteps || grown <= kMemoryShare * first ||
          grown <= static_cast<double>(kMemorySlackBytes)) {
        return "";
      }
      return absl::StrFormat("memory has grown by %.0f MiB to %.0f MiB since the first %d steps",
                             grown / (1 << 20), memory.smooth_memory_bytes() / (1 << 20),
                             kMemorySteps);
    }
    case HealthRule::kGateEntropy:
      if (memory.low_entropy_steps() < kGateSteps) return "";
      return absl::StrFormat("the gate of layer %d has an entropy of %.2f (at least %.1f)",
                             progress.gates().lowest_entropy_layer(),
                             progress.gates().lowest_entropy(), kLowEntropy);
    case HealthRule::kGateDominant:
      if (memory.dominant_steps() < kGateSteps) return "";
      return absl::StrFormat("one branch takes over %.1f of a layer's gate on average",
                             kDominantShare);
    case HealthRule::kGateSaturated:
      if (memory.saturated_steps() < kGateSteps) return "";
      return absl::StrFormat(
          "%.0f %% of a layer's tokens use one branch alone or none (at most "
          "%.0f %%)",
          100 * progress.gates().largest_collapse_ratio(), 100 * kSaturatedRatio);
  }
  return "";
}

// The step with which it began to hold.
int64_t Since(HealthRule rule, const v1::JobProgress& progress) {
  const v1::HealthMemory& memory = progress.health_memory();
  const auto ago = [&](int64_t steps) { return std::max<int64_t>(progress.step() - steps + 1, 1); };
  switch (rule) {
    case HealthRule::kDiverged:
      return ago(memory.diverged_steps());
    case HealthRule::kNonfinite:
      return ago(memory.nonfinite_steps());
    case HealthRule::kHadDiverged:
      return memory.first_diverged_step();
    case HealthRule::kPlateau:
      return memory.best_step();
    case HealthRule::kUnsteadySpeed:
      return ago(memory.unsteady_steps());
    case HealthRule::kMemoryCreep:
      return 0;
    case HealthRule::kGateEntropy:
      return ago(memory.low_entropy_steps());
    case HealthRule::kGateDominant:
      return ago(memory.dominant_steps());
    case HealthRule::kGateSaturated:
      return ago(memory.saturated_steps());
  }
  return 0;
}

std::vector<HealthFinding> Found(const v1::JobProgress& progress, bool only_lasting) {
  std::vector<HealthFinding> found;
  if (progress.health_memory().steps() == 0) return found;
  for (const HealthRuleInfo& rule : kRules) {
    if (only_lasting && !rule.lasts) continue;
    std::string text = Says(rule.rule, progress);
    if (text.empty()) continue;
    found.push_back(
        {.rule = &rule, .text = std::move(text), .since_step = Since(rule.rule, progress)});
  }
  return found;
}

bool Runs(const v1::Job& job) {
  return job.state() == v1::Job::STATE_RUNNING || job.state() == v1::Job::STATE_STOPPING;
}

v1::JobHealth Judge(const v1::JobProgress& progress, bool only_lasting) {
  v1::JobHealth health;
  if (progress.health_memory().steps() == 0) return health;
  health.set_level(v1::JobHealth::LEVEL_HEALTHY);
  std::vector<std::string> words;
  for (HealthFinding& found : Found(progress, only_lasting)) {
    words.push_back(std::move(found.text));
    health.add_problems(std::string(found.rule->word));
    health.set_level(std::max(health.level(), found.rule->level));
  }
  health.set_words(words.empty() ? "healthy" : absl::StrJoin(words, "; "));
  return health;
}

}  // namespace

std::span<const HealthRuleInfo> HealthRules() { return kRules; }

void RememberHealth(const v1::WorkerRecord& record, const v1::JobSpec& spec,
                    v1::HealthMemory* memory) {
  if (record.has_started()) BeginAgain(record.started(), memory);
  if (record.has_eval()) RememberValidation(record.eval(), memory);
  if (!record.has_step()) return;
  memory->set_uniform_loss(std::log(static_cast<double>(std::max(VocabOf(spec), 2))));
  memory->set_steps(memory->steps() + 1);
  RememberLoss(record.step(), memory);
  RememberSpeed(record.step(), memory);
  RememberMemory(record.step(), memory);
  RememberGates(record.step(), memory);
}

v1::GateSummary SummaryOfGates(const v1::StepRecord& step) {
  v1::GateSummary summary;
  int layers = 0;
  double shares[3] = {};
  for (const v1::LayerStats& layer : step.layers()) {
    if (!HasGate(layer)) continue;
    const double entropy = layer.gate().entropy_mean();
    if (layers == 0 || entropy < summary.lowest_entropy()) {
      summary.set_lowest_entropy(entropy);
      summary.set_lowest_entropy_layer(layer.layer());
    }
    summary.set_largest_collapse_ratio(
        std::max(summary.largest_collapse_ratio(), layer.gate().collapse_ratio()));
    for (int i = 0; i < std::min(3, layer.gate().branch_share_size()); ++i) {
      shares[i] += layer.gate().branch_share(i);
    }
    ++layers;
  }
  if (layers == 0) return summary;
  for (const double share : shares) summary.add_branch_share(share / layers);
  return summary;
}

v1::JobHealth HealthOf(const v1::JobProgress& progress) { return Judge(progress, false); }

v1::JobHealth HealthOf(const v1::Job& job) {
  v1::JobHealth health = Judge(job.progress(), !Runs(job));
  if (!Runs(job) && health.problems().empty()) health.Clear();
  return health;
}

std::vector<HealthFinding> HealthFindings(const v1::Job& job) {
  return Found(job.progress(), !Runs(job));
}

const v1::Problem* WorstProblem(const v1::Job& job) {
  for (const v1::Problem& problem : job.problems()) {
    if (problem.level() > v1::JobHealth::LEVEL_HEALTHY && !problem.muted()) return &problem;
  }
  return nullptr;
}

bool NeedsYou(const v1::Job& job, absl::Time now) {
  if (WorstProblem(job) == nullptr) return false;
  return job.end_unix_nanos() == 0 || absl::FromUnixNanos(job.end_unix_nanos()) >= now - kFresh;
}

double RecentMean(double before, double loss, int64_t step) {
  const double weight =
      std::max(kRecentWeight, 1.0 / static_cast<double>(std::max<int64_t>(step, 1)));
  return before + weight * (loss - before);
}

}  // namespace nsa
