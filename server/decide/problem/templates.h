// What can be wrong with a job, as a table: what it is called, which settings lead to it, and what
// helps. The page, notices, `nsactl describe`, `watch` and `top` all show it in these words. Pure.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nsa/v1/job_health.pb.h"
#include "nsa/v1/job_status.pb.h"

namespace nsa::server {

// What can help. RemedyFor() says it for a job.
enum class Help : uint8_t {
  kNone,
  kStop,
  kStopNow,
  kResume,
  kLowerRate,   // the same again with half the learning rate
  kLessMemory,  // the same again with smaller micro-batches
  kAgain,       // the same again from the beginning
  kLog,
  kStacks,
  kCheckpoints,
  kNodes,
  kEvents,
};

struct ProblemTemplate {
  // The words of rules (common/estimate/health.h) and reasons (common/base/reason.h) that it is
  // for, separated by blanks.
  std::string_view words;
  // A few words: "The run has diverged".
  std::string_view cause;
  // Keys of the job file that lead to it, separated by blanks.
  std::string_view keys;
  // What helps, the best first, before the job's end and after it.
  std::array<Help, 3> before_end;
  std::array<Help, 3> after_end;
};

std::span<const ProblemTemplate> ProblemTemplates();

// The row for a word; null for one that is not in the table. Every alert of a job (ALERT_2) is a
// problem of its own, in the words of one row.
const ProblemTemplate* TemplateOf(std::string_view word);

// The words that an event may have for a reason: those of common/base/reason.h, and the codes of
// errors that workers report without a reason.
bool IsReasonWord(std::string_view word);
std::vector<std::string> ReasonWords();

// The words of the row that has `word`: a mute of one of them silences the events of all.
// {`word`} for one that is not in the table.
std::vector<std::string> SameProblem(std::string_view word);

// Nothing when it cannot be done: a smaller micro-batch than one sequence, a stop of a job that has
// ended. `since_step` as in Problem: a checkpoint before it is continued from.
std::optional<v1::Remedy> RemedyFor(Help help, const v1::Job& job, int64_t since_step);

// "train.lr: 0.01"; empty for a key that is not set or unknown. `keys` as in ProblemTemplate.
std::vector<std::string> SettingsOf(const v1::JobSpec& spec, std::string_view keys);

}  // namespace nsa::server
