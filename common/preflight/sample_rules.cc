// Rules about the texts that a job writes while it trains (`sample`).
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/count.h"
#include "common/estimate/sampling.h"
#include "common/job/text_check.h"
#include "common/preflight/data/data_facts.h"

namespace nsa {
namespace {

constexpr int kMostPrompts = 8;
constexpr size_t kMostPromptBytes = 1000;
constexpr int kMostTokens = 1024;
constexpr double kHottest = 10;

Problems SampleRange(const PreflightFacts& facts) {
  const v1::SampleSpec& sample = facts.spec.sample();
  Problems problems;
  if (sample.prompts_size() > kMostPrompts) {
    problems.push_back(
        {"sample.prompts",
         absl::StrFormat("%d texts (at most %d)", sample.prompts_size(), kMostPrompts),
         "choose fewer"});
  }
  for (int i = 0; i < sample.prompts_size(); ++i) {
    const std::string& prompt = sample.prompts(i);
    const std::string field = absl::StrFormat("sample.prompts[%d]", i);
    if (prompt.size() > kMostPromptBytes) {
      problems.push_back({field,
                          absl::StrFormat("%d bytes (at most %d)", prompt.size(), kMostPromptBytes),
                          "shorten the text"});
    } else if (!IsUtf8(prompt)) {
      problems.push_back({field, "not valid UTF-8", "write the text in UTF-8"});
    }
  }
  if (sample.has_tokens() && (sample.tokens() < 1 || sample.tokens() > kMostTokens)) {
    problems.push_back({"sample.tokens",
                        absl::StrFormat("%d (from 1 to %d)", sample.tokens(), kMostTokens),
                        "set a value within the limits"});
  }
  const double temperature = sample.temperature();
  if (!(temperature >= 0 && temperature <= kHottest)) {  // also NaN
    problems.push_back({"sample.temperature",
                        absl::StrFormat("%s (from 0 to %s)", Number(temperature), Number(kHottest)),
                        "set a value within the limits"});
  }
  return problems;
}

// Without prompts the other keys would be read as settings that work.
Problems SampleUnused(const PreflightFacts& facts) {
  const v1::SampleSpec& sample = facts.spec.sample();
  if (!sample.prompts().empty()) return {};
  Problems problems;
  for (const auto& [set, field] : {std::pair(sample.has_tokens(), "sample.tokens"),
                                   std::pair(sample.has_temperature(), "sample.temperature")}) {
    if (!set) continue;
    problems.push_back({field, "set, but sample.prompts has no text",
                        "list a text in sample.prompts, or remove the key"});
  }
  return problems;
}

Problems SampleImpossible(const PreflightFacts& facts) {
  if (facts.spec.sample().prompts().empty()) return {};
  const v1::DataSpec& data = facts.spec.data();
  Problems problems;
  if (IsGenerated(data)) {
    problems.push_back({"sample.prompts",
                        "set, but the source generates tokens, which stand for no text",
                        "set data.source and data.path to train on text, or remove sample"});
  } else if (data.tokenizer() == v1::TOKENIZER_UNSPECIFIED) {
    problems.push_back({"sample.prompts",
                        "set, but the job does not say which tokenizer wrote its token files",
                        "set data.tokenizer, or remove sample"});
  }
  if (facts.spec.train().eval_every() == 0) {
    problems.push_back({"sample.prompts",
                        "set, but train.eval_every is 0: texts are written after validations",
                        "set train.eval_every, or remove sample"});
  }
  return problems;
}

Problems SampleSlow(const PreflightFacts& facts) {
  const double seconds = SampleSeconds(facts.spec);
  const double most = kSampleShareOfTimeout * facts.spec.restart().hang_timeout_seconds();
  if (seconds <= most) return {};
  return {{"sample.prompts",
           absl::StrFormat("%s are expected for the texts of a validation (%s, a quarter of "
                           "restart.hang_timeout_seconds): the rest would be left out",
                           Duration(seconds), Duration(most)),
           "choose fewer prompts or tokens, or raise restart.hang_timeout_seconds"}};
}

constexpr PreflightRule kSampleRules[] = {
    {"SAMPLE_RANGE", "a value of `sample` is outside its limits", kError, kError, false, kNothing,
     SampleRange},
    {"SAMPLE_UNUSED", "a key of `sample` has no effect without prompts", kError, kError, false,
     kNothing, SampleUnused},
    {"SAMPLE_IMPOSSIBLE", "`sample.prompts` without a tokenizer or without validations", kError,
     kError, false, kNothing, SampleImpossible},
    {"SAMPLE_SLOW", "the texts of a validation would take longer than ranks may wait", kWarning,
     kWarning, true, kSizes, SampleSlow},
};

}  // namespace

std::span<const PreflightRule> SampleRules() { return kSampleRules; }

}  // namespace nsa
