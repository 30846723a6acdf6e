#include "client/commands/view/step_log.h"

#include <bit>

#include "absl/strings/str_cat.h"

namespace nsa::client {
namespace {

// The values of a step, in the order in which a step computes them.
struct Value {
  const char* name;
  double (*of)(const v1::StepRecord& step);
};
constexpr Value kValues[] = {
    {"tokens", [](const v1::StepRecord& step) { return static_cast<double>(step.tokens()); }},
    {"learning_rate", [](const v1::StepRecord& step) { return step.learning_rate(); }},
    {"loss", [](const v1::StepRecord& step) { return step.loss(); }},
    {"grad_norm", [](const v1::StepRecord& step) { return step.grad_norm(); }},
};

bool SameBits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

std::string MeaningOf(const std::string& value, int64_t step) {
  if (value == "tokens") return "the batches have other sizes";
  if (value == "learning_rate") return "the schedules differ";
  if (value == "loss") {
    return absl::StrCat("the parameters after step ", step - 1, " or the batch of step ", step,
                        " differ");
  }
  return absl::StrCat("forward of step ", step, " was equal, its backward differs");
}

}  // namespace

void StepLog::Add(const v1::WatchRecordsResponse& record) {
  if (!record.record().has_step()) return;
  const v1::StepRecord& step = record.record().step();
  steps_.erase(steps_.lower_bound(step.step()), steps_.end());
  steps_[step.step()] = step;
}

StepParting FindStepParting(const StepLog& a, const StepLog& b) {
  StepParting parting;
  for (const auto& [step, in_a] : a.steps()) {
    const auto in_b = b.steps().find(step);
    if (in_b == b.steps().end()) continue;
    ++parting.compared;
    for (const Value& value : kValues) {
      const double of_a = value.of(in_a), of_b = value.of(in_b->second);
      if (SameBits(of_a, of_b)) continue;
      parting.step = step;
      parting.value = value.name;
      parting.a = of_a;
      parting.b = of_b;
      parting.meaning = MeaningOf(value.name, step);
      return parting;
    }
    parting.equal_to = step;
  }
  return parting;
}

}  // namespace nsa::client
