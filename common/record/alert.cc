#include "common/record/alert.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/base/clean_text.h"
#include "common/base/parse_duration.h"

namespace nsa::record {
namespace {

using Operator = AlertRule::Operator;

constexpr struct {
  std::string_view text;
  Operator compares;
} kOperators[] = {{">", Operator::kAbove},   {">=", Operator::kAtLeast}, {"<", Operator::kBelow},
                  {"<=", Operator::kAtMost}, {"==", Operator::kIs},      {"!=", Operator::kIsNot}};

constexpr double kLongestSeconds = 168 * 3600;
constexpr int64_t kMostSteps = 1'000'000'000;

absl::Status Refused(std::string_view value, std::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("'", CleanLine(CutText(std::string(value), 64)), "' ", std::string(why)));
}

absl::Status ParseFor(const std::string& amount, AlertRule* rule) {
  const std::optional<absl::Duration> duration = ParseDuration(amount);
  const double seconds = duration.has_value() ? absl::ToDoubleSeconds(*duration) : 0;
  if (!(seconds > 0 && seconds <= kLongestSeconds)) {
    return Refused(amount,
                   "(a duration above 0 and at most 168h); write e.g. 'for 10m' or 'for 100 "
                   "steps'");
  }
  rule->for_seconds = seconds;
  return absl::OkStatus();
}

absl::Status ParseSteps(const std::string& amount, AlertRule* rule) {
  if (absl::SimpleAtoi(amount, &rule->for_steps) && rule->for_steps >= 1 &&
      rule->for_steps <= kMostSteps) {
    return absl::OkStatus();
  }
  return Refused(amount, "(steps, from 1 to 1000000000); write e.g. 'for 100 steps'");
}

const Quantity* FindNumber(const std::string& name) {
  const auto* const found = std::ranges::find_if(
      kQuantities, [&](const Quantity& quantity) { return quantity.name == name; });
  return found == std::end(kQuantities) || found->word != nullptr ? nullptr : found;
}

}  // namespace

bool AlertRule::Holds(double value) const {
  const bool above = value > limit || std::isnan(value);
  switch (compares) {
    case Operator::kAbove:
      return above;
    case Operator::kAtLeast:
      return above || value == limit;
    case Operator::kBelow:
      return value < limit;
    case Operator::kAtMost:
      return value <= limit;
    case Operator::kIs:
      return value == limit;
    case Operator::kIsNot:
      return value != limit;
  }
  return false;
}

absl::StatusOr<AlertRule> ParseAlert(std::string_view when) {
  if (when.size() > kLongestAlert) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d bytes (at most %d); shorten it", when.size(), kLongestAlert));
  }
  // Its text is shown in events, tables and messages.
  if (!std::ranges::all_of(when, [](unsigned char c) { return c >= ' ' && c < 0x7F; })) {
    return Refused(when, "(letters, digits and signs of ASCII); write e.g. 'val_loss > 3'");
  }
  const std::vector<std::string> words =
      absl::StrSplit(absl::string_view(when.data(), when.size()), ' ', absl::SkipEmpty());
  const bool of_steps = words.size() == 6 && (words[5] == "steps" || words[5] == "step");
  if (words.size() != 3 && words.size() != 5 && !of_steps) {
    return Refused(when,
                   "(QUANTITY OPERATOR NUMBER, then 'for DURATION', 'for N steps' or nothing); "
                   "write e.g. 'val_loss > 3 for 10m'");
  }
  AlertRule rule;
  rule.quantity = FindNumber(words[0]);
  if (rule.quantity == nullptr) {
    return Refused(
        words[0],
        "is not a quantity with a number; name one of docs/job_file.md (Alerts), such as "
        "loss, val_loss or tokens_per_second");
  }
  const auto* const known = std::ranges::find(kOperators, std::string_view(words[1]),
                                              [](const auto& row) { return row.text; });
  if (known == std::end(kOperators)) {
    return Refused(words[1], "is not an operator; choose one of > >= < <= == !=");
  }
  rule.compares = known->compares;
  if (!absl::SimpleAtod(words[2], &rule.limit) || !std::isfinite(rule.limit)) {
    return Refused(words[2], "(a finite number); write e.g. 3 or 1.5e-3");
  }
  if (words.size() == 3) return rule;
  if (words[3] != "for") return Refused(words[3], "(for); write e.g. 'for 10m'");
  const absl::Status held = of_steps ? ParseSteps(words[4], &rule) : ParseFor(words[4], &rule);
  if (!held.ok()) return held;
  return rule;
}

Value Measured(const Quantity& quantity, const v1::WorkerRecord& record,
               std::span<const v1::GpuInfo> gpus) {
  Kept kept(quantity.keep);
  switch (quantity.of()) {
    case Of::kStep:
      if (record.has_step()) return quantity.step(record.step());
      break;
    case Of::kValidation:
      if (record.has_eval()) return quantity.validation(record.eval());
      break;
    case Of::kLayer:
      for (const v1::LayerStats& layer : record.step().layers()) {
        if (const Value value = MeasuredValueOf(quantity, layer)) kept.Add(*value);
      }
      break;
    case Of::kGpu:
      if (!record.has_step()) break;
      for (const v1::GpuInfo& gpu : gpus) {
        if (const Value value = quantity.gpu(gpu)) kept.Add(*value);
      }
      break;
  }
  return kept.Result();
}

}  // namespace nsa::record
