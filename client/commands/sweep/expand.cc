#include "client/commands/sweep/expand.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "client/connect/job_source.h"
#include "common/base/count.h"
#include "common/base/status.h"
#include "common/job/assignment.h"
#include "common/job/data/tokenizer_files.h"
#include "common/job/load.h"

namespace nsa::client {
namespace {

constexpr absl::string_view kRange = "..";
constexpr int kMostDraws = 100'000;
constexpr int64_t kMostCombinations = int64_t{1} << 40;

absl::Status BadAxis(const std::string& text, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("--sweep ", text, ": ", what));
}

// Splits at commas that stand outside quotes and brackets. These count where a value begins, and
// within brackets: "a{b" is a text.
std::vector<std::string> SplitValues(absl::string_view text) {
  std::vector<std::string> values(1);
  int depth = 0;
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool yaml = depth > 0 || absl::StripAsciiWhitespace(values.back()).empty();
    const absl::string_view pair = text.substr(i, 2);
    if ((quote == '"' && c == '\\' && pair.size() == 2) || (quote == '\'' && pair == "''")) {
      absl::StrAppend(&values.back(), pair);
      ++i;
      continue;
    }
    if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (yaml && (c == '"' || c == '\'')) {
      quote = c;
    } else if (yaml && (c == '[' || c == '{')) {
      ++depth;
    } else if (depth > 0 && (c == ']' || c == '}')) {
      --depth;
    } else if (c == ',' && depth == 0) {
      values.emplace_back();
      continue;
    }
    values.back() += c;
  }
  for (std::string& value : values) absl::StripAsciiWhitespace(&value);
  return values;
}

// "1e-4..1e-2" into the axis; false if the text is no range.
bool ReadRange(absl::string_view text, SweepAxis* axis) {
  const size_t dots = text.find(kRange);
  if (dots == absl::string_view::npos) return false;
  const absl::string_view low = text.substr(0, dots);
  const absl::string_view high = text.substr(dots + kRange.size());
  int64_t whole = 0;
  axis->whole = absl::SimpleAtoi(low, &whole) && absl::SimpleAtoi(high, &whole);
  return absl::SimpleAtod(low, &axis->low) && absl::SimpleAtod(high, &axis->high) &&
         std::isfinite(axis->low) && std::isfinite(axis->high);
}

// Whether one end of a range is missing: "1..".
bool IsHalfRange(absl::string_view text) {
  double end = 0;
  return (absl::ConsumeSuffix(&text, kRange) || absl::ConsumePrefix(&text, kRange)) &&
         absl::SimpleAtod(text, &end);
}

bool AnyRange(const std::vector<SweepAxis>& axes) {
  return std::ranges::any_of(axes, [](const SweepAxis& axis) { return axis.values.empty(); });
}

absl::Status CheckCount(int64_t count) {
  if (count >= 2 && count <= kLargestSweep) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("--sweep: %s (from 2 to %d); change the values",
                                                    Count(count, "job"), kLargestSweep));
}

// Number of combinations, at most kMostCombinations.
int64_t GridSize(const std::vector<SweepAxis>& axes) {
  int64_t size = 1;
  for (const SweepAxis& axis : axes) {
    size = std::min(size * static_cast<int64_t>(axis.values.size()), kMostCombinations);
  }
  return size;
}

// The point of the grid with this number.
SweepPoint PointOf(const std::vector<SweepAxis>& axes, int64_t number) {
  SweepPoint point(axes.size());
  for (size_t i = axes.size(); i-- > 0;) {
    const auto values = static_cast<int64_t>(axes[i].values.size());
    point[i] = axes[i].values[number % values];
    number /= values;
  }
  return point;
}

// In [0, 1). The standard library's distributions differ between implementations.
double Uniform(std::mt19937_64& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }

std::string DrawValue(const SweepAxis& axis, std::mt19937_64& random) {
  const double u = Uniform(random);
  if (!axis.values.empty()) {
    return axis.values[static_cast<size_t>(u * static_cast<double>(axis.values.size()))];
  }
  const double value = axis.low > 0 ? axis.low * std::pow(axis.high / axis.low, u)
                                    : axis.low + (axis.high - axis.low) * u;
  return axis.whole ? absl::StrFormat("%.0f", value) : absl::StrFormat("%.4g", value);
}

// `count` of the numbers 0 … size - 1, ascending (Floyd's sampling).
std::set<int64_t> DrawNumbers(int64_t size, int64_t count, std::mt19937_64& random) {
  std::set<int64_t> numbers;
  for (int64_t last = size - count; last < size; ++last) {
    const auto drawn = static_cast<int64_t>(Uniform(random) * static_cast<double>(last + 1));
    if (!numbers.insert(drawn).second) numbers.insert(last);
  }
  return numbers;
}

absl::Status CheckFields(const SweepPlan& plan) {
  std::set<std::vector<std::string>> seen;
  for (const SweepAxis& axis : plan.axes) {
    NSA_ASSIGN_OR_RETURN(const Assignment assignment, ParseAssignment(axis.field + "="));
    const std::vector<std::string>& path = assignment.path;
    const std::string field = absl::StrJoin(path, ".");
    if (field == "name" || field == "train.out_dir" || path.front() == "sweep") {
      return BadAxis(axis.field, "every job of a sweep gets its own; sweep another field");
    }
    if (!seen.insert(path).second) {
      return BadAxis(axis.field, "is given twice; write all its values after one =");
    }
  }
  return absl::OkStatus();
}

// Whether model.vocab is that of the tokenizer's file, as PlaceJob() sets it.
bool HasVocabOfTokenizer(const v1::JobSpec& spec) {
  const v1::DataSpec& data = spec.data();
  if (data.tokenizer() != v1::TOKENIZER_BPE || data.tokenizer_path().empty()) return false;
  const auto facts =
      ReadTokenizerFacts(TokenizerFilesOf(data.tokenizer(), data.tokenizer_path()).front());
  return facts.ok() && facts->tokens == spec.model().vocab();
}

}  // namespace

absl::StatusOr<SweepAxis> ParseSweepAxis(const std::string& text) {
  const absl::StatusOr<Assignment> assignment = ParseAssignment(text);
  if (!assignment.ok()) return BadAxis(text, assignment.status().message());
  SweepAxis axis{.field = assignment->field};
  const std::string& values = assignment->value;
  if (ReadRange(values, &axis)) {
    if (axis.low < axis.high) return axis;
    return BadAxis(text, "the range is empty (LOW..HIGH, LOW below HIGH); swap its ends");
  }
  if (IsHalfRange(values)) {
    return BadAxis(text, "one end of the range is missing (LOW..HIGH); write both");
  }
  axis.values = SplitValues(values);
  if (std::ranges::any_of(axis.values, &std::string::empty)) {
    return BadAxis(text, "a value is empty; write e.g. --sweep train.lr=1e-4,3e-4,6e-4");
  }
  return axis;
}

absl::StatusOr<std::vector<SweepPoint>> SweepGrid(const std::vector<SweepAxis>& axes) {
  if (AnyRange(axes)) {
    return absl::InvalidArgumentError(
        "--sweep: a range has no list of values; say with --draw N how many jobs to draw");
  }
  const int64_t size = GridSize(axes);
  NSA_RETURN_IF_ERROR(CheckCount(size));
  std::vector<SweepPoint> points;
  for (int64_t number = 0; number < size; ++number) points.push_back(PointOf(axes, number));
  return points;
}

absl::StatusOr<std::vector<SweepPoint>> DrawSweep(const std::vector<SweepAxis>& axes, int64_t count,
                                                  uint64_t seed) {
  NSA_RETURN_IF_ERROR(CheckCount(count));
  std::mt19937_64 random(seed);
  std::vector<SweepPoint> points;
  if (AnyRange(axes)) {
    std::set<SweepPoint> seen;
    // A point that was drawn before, of whole numbers, is drawn again.
    for (int tries = 0; std::ssize(points) < count; ++tries) {
      if (tries == kMostDraws) {
        return absl::InvalidArgumentError(
            absl::StrFormat("--draw: %d (only %d different combinations were drawn); draw fewer, "
                            "or widen the ranges",
                            count, points.size()));
      }
      SweepPoint point;
      for (const SweepAxis& axis : axes) point.push_back(DrawValue(axis, random));
      if (seen.insert(point).second) points.push_back(std::move(point));
    }
    return points;
  }
  const int64_t size = GridSize(axes);
  if (count > size) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--draw: %d (the fields have %d combinations); draw fewer, or leave it out", count, size));
  }
  for (const int64_t number : DrawNumbers(size, count, random)) {
    points.push_back(PointOf(axes, number));
  }
  return points;
}

absl::StatusOr<std::vector<v1::JobSpec>> SweepJobs(const v1::JobSpec& base, const SweepPlan& plan) {
  NSA_RETURN_IF_ERROR(CheckFields(plan));
  if (base.has_sweep()) {
    return absl::InvalidArgumentError("sweep: is set in the job file already; remove it there");
  }
  const bool own_vocab =
      HasVocabOfTokenizer(base) && std::ranges::any_of(plan.axes, [](const SweepAxis& axis) {
        return absl::StartsWith(axis.field, "data.tokenizer");
      });
  std::vector<v1::JobSpec> jobs;
  for (size_t i = 0; i < plan.points.size(); ++i) {
    v1::JobSpec& spec = jobs.emplace_back(base);
    if (own_vocab) spec.mutable_model()->clear_vocab();  // ApplySets() takes that of the point
    std::vector<std::string> sets;
    for (size_t a = 0; a < plan.axes.size(); ++a) {
      const std::string& value = plan.points[i][a];
      sets.push_back(absl::StrCat(plan.axes[a].field, "=", value));
      (*spec.mutable_labels())[plan.axes[a].field] = value;
    }
    NSA_RETURN_IF_ERROR(ApplySets(sets, &spec, "--sweep"));
    (*spec.mutable_labels())["sweep"] = plan.name;
    spec.set_name(absl::StrCat(plan.name, "-", i + 1));
    spec.mutable_train()->set_out_dir(absl::StrCat(base.train().out_dir(), "-", i + 1));
    v1::SweepSpec& sweep = *spec.mutable_sweep();
    sweep.set_name(plan.name);
    sweep.set_jobs(static_cast<int32_t>(plan.points.size()));
    sweep.set_index(static_cast<int32_t>(i));
    sweep.mutable_halve_at()->Assign(plan.halve_at.begin(), plan.halve_at.end());
  }
  return jobs;
}

absl::StatusOr<std::vector<int64_t>> DefaultHalving(const v1::JobSpec& base, int64_t jobs) {
  v1::JobSpec spec = base;
  ApplyDefaults(&spec);
  const int64_t steps = spec.train().steps();
  const int64_t every = spec.train().eval_every();
  if (every <= 0 || every >= steps) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--stop-worst: train.eval_every is %d (from 1 to %d, so that there is a "
                        "validation before the last step); set it, e.g. --set train.eval_every=%d",
                        every, steps - 1, std::max<int64_t>(1, steps / 16)));
  }
  std::set<int64_t> at;
  for (int64_t left = jobs, part = 2; left > 1; left = (left + 1) / 2, part *= 2) {
    const int64_t nearest = (steps / part + every / 2) / every * every;
    at.insert(std::clamp(nearest, every, (steps - 1) / every * every));
  }
  return std::vector<int64_t>(at.begin(), at.end());
}

std::string PointText(const std::vector<SweepAxis>& axes, const SweepPoint& point) {
  std::string text;
  for (size_t i = 0; i < axes.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : " ", axes[i].field, "=", point[i]);
  }
  return text;
}

}  // namespace nsa::client
