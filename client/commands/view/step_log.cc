#include "client/commands/view/step_log.h"

#include <bit>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/record/quantities.h"

namespace nsa::client {
namespace {

constexpr char kParametersHash[] = "parameters_hash";

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
  if (value == kParametersHash) {
    return absl::StrCat("loss and gradient norm of step ", step,
                        " were equal, the parameters after it differ");
  }
  return absl::StrCat("forward of step ", step, " was equal, its backward differs");
}

// What differs in a step of both runs; nothing where its values have the same bits.
std::optional<StepParting> PartingOf(const v1::StepRecord& a, const v1::StepRecord& b) {
  StepParting parting{.step = a.step()};
  for (const record::Quantity* quantity : record::kComputed) {
    parting.a = quantity->step(a), parting.b = quantity->step(b);
    if (SameBits(parting.a, parting.b)) continue;
    parting.value = quantity->name;
    parting.a_text = absl::StrFormat("%.17g", parting.a);
    parting.b_text = absl::StrFormat("%.17g", parting.b);
    parting.meaning = MeaningOf(parting.value, parting.step);
    return parting;
  }
  if (!a.has_parameters_hash() || !b.has_parameters_hash() ||
      a.parameters_hash() == b.parameters_hash()) {
    return std::nullopt;
  }
  return StepParting{.step = a.step(),
                     .value = kParametersHash,
                     .a_text = HashText(a.parameters_hash()),
                     .b_text = HashText(b.parameters_hash()),
                     .meaning = MeaningOf(kParametersHash, a.step())};
}

}  // namespace

void StepLog::Add(const v1::WatchRecordsResponse& record) {
  if (!record.record().has_step()) return;
  const v1::StepRecord& step = record.record().step();
  steps_.erase(steps_.lower_bound(step.step()), steps_.end());
  steps_[step.step()] = step;
  generation_of_[step.step()] = record.generation();
  generations_.insert(record.generation());
}

int64_t StepLog::GenerationOf(int64_t step) const {
  const auto found = generation_of_.find(step);
  return found == generation_of_.end() || !steps_.contains(step) ? 0 : found->second;
}

std::string HashText(uint64_t hash) { return absl::StrFormat("%016x", hash); }

StepParting FindStepParting(const StepLog& a, const StepLog& b) {
  int64_t compared = 0, equal_to = 0, hashes = 0;
  std::optional<StepParting> parting;
  for (const auto& [step, in_a] : a.steps()) {
    const auto in_b = b.steps().find(step);
    if (in_b == b.steps().end()) continue;
    ++compared;
    if (in_a.has_parameters_hash() && in_b->second.has_parameters_hash()) ++hashes;
    parting = PartingOf(in_a, in_b->second);
    if (parting.has_value()) break;
    equal_to = step;
  }
  StepParting found = parting.value_or(StepParting());
  found.compared = compared;
  found.equal_to = equal_to;
  found.hashes = hashes;
  return found;
}

}  // namespace nsa::client
