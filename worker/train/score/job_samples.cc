#include "worker/train/score/job_samples.h"

#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clean_text.h"
#include "common/base/status.h"
#include "common/estimate/sampling.h"
#include "common/job/data/conversations.h"
#include "worker/train/data/random.h"
#include "worker/train/score/sample.h"
#include "worker/train/score/text_model.h"
#include "worker/train/score/utf8.h"

namespace nsa::train {
namespace {

// A text ends after so many bytes at the latest: a token may have hundreds.
constexpr int64_t kMostBytes = 64 << 10;

}  // namespace

JobSamples::JobSamples(JobSamplesOptions options)
    : options_(std::move(options)),
      most_time_(kSampleShareOfTimeout *
                 absl::Seconds(options_.spec->restart().hang_timeout_seconds())) {}

std::vector<v1::SampleRecord> JobSamples::Write(int64_t step) {
  const absl::Duration end = options_.clock->Monotonic() + most_time_;
  const absl::Status opened = OpenTokenizer();
  std::vector<v1::SampleRecord> records;
  for (int i = 0; i < options_.spec->sample().prompts_size(); ++i) {
    v1::SampleRecord& record = records.emplace_back();
    record.set_step(step);
    record.set_prompt(options_.spec->sample().prompts(i));
    const absl::Duration begin = options_.clock->Monotonic();
    const absl::StatusOr<std::string> text =
        opened.ok() ? WriteText(i, end, &record) : absl::StatusOr<std::string>(opened);
    record.set_seconds(absl::ToDoubleSeconds(options_.clock->Monotonic() - begin));
    if (text.ok()) {
      record.set_text(ValidUtf8(*text));
    } else {
      record.set_error(CleanLine(std::string(text.status().message())));
    }
  }
  return records;
}

absl::Status JobSamples::OpenTokenizer() {
  if (tokenizer_ != nullptr) return absl::OkStatus();
  NSA_ASSIGN_OR_RETURN(tokenizer_, TokenizerOf(*options_.spec));
  return absl::OkStatus();
}

absl::StatusOr<std::string> JobSamples::WriteText(int index, absl::Duration end,
                                                  v1::SampleRecord* record) {
  NSA_RETURN_IF_ERROR(CheckTime(end));
  const v1::SampleSpec& sample = options_.spec->sample();
  const auto seed = static_cast<uint64_t>(options_.spec->train().seed());
  const SampleOptions how = {
      .prompt = record->prompt(),
      .bytes = kMostBytes,
      .tokens = sample.tokens(),
      .ends = AnswerEnds(options_.spec->data()),
      .draw = {.temperature = sample.temperature()},
      .seed = static_cast<int64_t>(
          Mix(seed, static_cast<uint64_t>(record->step()), static_cast<uint64_t>(index)))};
  const TextModel model = {.spec = options_.spec,
                           .tokenizer = tokenizer_.get(),
                           .parameters = options_.parameters,
                           .exec = options_.exec};
  return Sample(model, how, [&](std::string_view) {
    record->set_tokens(record->tokens() + 1);
    if (options_.on_token) options_.on_token(record->tokens());
    return record->tokens() < sample.tokens() ? CheckTime(end) : absl::OkStatus();
  });
}

absl::Status JobSamples::CheckTime(absl::Duration end) const {
  if (options_.clock->Monotonic() <= end) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("sample.prompts: more than ", absl::FormatDuration(most_time_),
                   " for the texts of a validation (a quarter of restart.hang_timeout_seconds); "
                   "choose fewer prompts or tokens"));
}

}  // namespace nsa::train
