#include "client/show/job_query.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "client/show/job_text.h"
#include "common/estimate/run_time.h"
#include "common/estimate/state_title.h"

namespace nsa::client {
namespace {

constexpr double kNoFigure = std::numeric_limits<double>::quiet_NaN();

struct Figure {
  std::string_view name;
  double (*of)(const v1::Job& job, absl::Time now);  // NaN without one
};

constexpr Figure kFigures[] = {
    {"loss",
     [](const v1::Job& job, absl::Time) {
       return job.progress().step() > 0 ? job.progress().loss() : kNoFigure;
     }},
    {"val",
     [](const v1::Job& job, absl::Time) {
       return job.progress().val_step() > 0 ? job.progress().val_loss() : kNoFigure;
     }},
    {"step",
     [](const v1::Job& job, absl::Time) { return static_cast<double>(job.progress().step()); }},
    {"steps", [](const v1::Job& job,
                 absl::Time) { return static_cast<double>(job.progress().total_steps()); }},
    {"progress", [](const v1::Job& job, absl::Time) { return ShareDone(job.progress()); }},
    {"speed", [](const v1::Job& job, absl::Time) { return job.progress().tokens_per_second(); }},
    {"tokens", [](const v1::Job& job,
                  absl::Time) { return static_cast<double>(job.progress().total_tokens()); }},
    {"left",
     [](const v1::Job& job, absl::Time) {
       return job.progress().eta_seconds() >= 0 ? job.progress().eta_seconds() : kNoFigure;
     }},
    {"ran",
     [](const v1::Job& job, absl::Time now) {
       const double seconds = RunSeconds(job, now);
       return seconds >= 0 ? seconds : kNoFigure;
     }},
    {"restarts",
     [](const v1::Job& job, absl::Time) { return static_cast<double>(job.restarts()); }},
    {"ranks", [](const v1::Job& job,
                 absl::Time) { return static_cast<double>(job.spec().resources().gpus()); }},
};

bool Compare(double actual, std::string_view relation, double wanted) {
  if (relation == "<") return actual < wanted;
  if (relation == "<=") return actual <= wanted;
  if (relation == ">") return actual > wanted;
  if (relation == ">=") return actual >= wanted;
  return (actual == wanted) == (relation == "=");
}

bool IsPart(const std::string& word, const std::string& text) {
  return absl::StrContains(absl::AsciiStrToLower(text), absl::AsciiStrToLower(word));
}

// Whether a text is the wanted one or, because it is being typed, begins with it.
bool IsText(const std::string& actual, std::string_view relation, const std::string& wanted) {
  const bool begins = absl::StartsWithIgnoreCase(actual, wanted);
  return relation == "!=" ? !begins : relation == "=" && begins;
}

}  // namespace

JobQuery::JobQuery(const std::string& text) {
  for (const std::string& term :
       std::vector<std::string>(absl::StrSplit(text, ' ', absl::SkipEmpty()))) {
    const size_t from = term.find_first_of("=<>!");
    if (from == std::string::npos || from == 0) {
      conditions_.push_back({.value = term});
      continue;
    }
    const size_t end = std::min(term.find_first_not_of("=<>!", from), term.size());
    if (end == term.size()) continue;  // it is being typed
    conditions_.push_back({.key = term.substr(0, from),
                           .relation = term.substr(from, end - from),
                           .value = term.substr(end)});
  }
}

bool JobQuery::Holds(const v1::Job& job, absl::Time now) const {
  return std::ranges::all_of(conditions_, [&](const Condition& one) {
    if (one.key.empty()) return IsPart(one.value, job.name()) || IsPart(one.value, job.id());
    if (one.key == "state") {
      const bool not_it = one.relation == "!=";
      const auto is = [&](const std::string& word) { return IsText(word, "=", one.value); };
      return (is(StateTitle(job)) || is(StateName(job.state()))) != not_it;
    }
    if (one.key == "owner") return IsText(job.owner(), one.relation, one.value);
    const auto* figure = std::ranges::find(kFigures, one.key, &Figure::name);
    double wanted = 0;
    if (figure != std::end(kFigures) && absl::SimpleAtod(one.value, &wanted)) {
      const double actual = figure->of(job, now);
      return !std::isnan(actual) && Compare(actual, one.relation, wanted);
    }
    const auto label = job.spec().labels().find(one.key);
    const std::string value = label == job.spec().labels().end() ? "" : label->second;
    return IsText(value, one.relation, one.value);
  });
}

}  // namespace nsa::client
