#include "server/notice/mail.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/clean_text.h"
#include "common/run/command.h"

namespace nsa::server {
namespace {

Outcome Again(const std::string& said) { return {.kind = Outcome::kAgain, .said = said}; }

}  // namespace

Outcome SendMail(const std::filesystem::path& program, std::string_view message,
                 absl::Duration limit, const std::atomic<bool>& cancelled) {
  const auto end = RunCommand({.argv = {program.string(), "-t", "-i"},
                               .environment = FilterEnvironment({"PATH", "HOME", "USER", "LOGNAME",
                                                                 "LANG", "LC_ALL", "TZ", "TMPDIR"}),
                               .input = std::string(message),
                               .limit = limit},
                              cancelled);
  if (!end.ok()) return Again(CleanLine(std::string(end.status().message())));
  if (!end->exit.has_value()) {
    return Again(absl::StrCat(cancelled ? "cancelled" : "not done after ",
                              cancelled ? "" : absl::FormatDuration(limit),
                              end->immortal ? "; it cannot be killed" : "; killed"));
  }
  if (end->exit->signal != 0) return Again(absl::StrCat("ended by signal ", end->exit->signal));
  return JudgeExit(end->exit->code, end->output + end->errors);
}

}  // namespace nsa::server
