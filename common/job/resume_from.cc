#include "common/job/resume_from.h"

namespace nsa {

bool NamesCheckpoint(const v1::RestartSpec& restart) {
  const std::string& resume = restart.resume();
  return !resume.empty() && resume != "auto" && resume != "never";
}

ResumeFrom ResumeFromOf(const v1::RestartSpec& restart, bool restarted, bool has_own_checkpoints) {
  if (restarted && has_own_checkpoints) return ResumeFrom::kOwn;
  if (NamesCheckpoint(restart)) return ResumeFrom::kNamed;
  return restart.resume() == "never" ? ResumeFrom::kNever : ResumeFrom::kOwn;
}

}  // namespace nsa
