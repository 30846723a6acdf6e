#include "worker/agent/rank/memory_kill.h"

#include <signal.h>
#include <sys/sysinfo.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/control_groups.h"
#include "common/run/atomic_file.h"
#include "common/run/out_of_memory.h"

namespace nsa::agent {

std::string OutOfMemoryText(const RankExit& exit, const MemoryEvidence& evidence) {
  if (exit.machine_restarted || !exit.start_error.empty()) return "";
  const bool killed = exit.signal == SIGKILL;
  const bool unknown = exit.signal == 0 && exit.code < 0;
  const bool own = evidence.own_kills > 0 && (killed || unknown);
  const bool recent = evidence.recent_kills > 0 && killed && !exit.killed_by_agent;
  const bool refused = exit.code == kExitOutOfMemory && exit.signal == 0;
  if (!own && !recent && !refused) return "";
  if (evidence.limit_bytes <= 0) return "of unknown size";
  return absl::StrFormat(
      "%.2f GiB (%s)", static_cast<double>(evidence.limit_bytes) / (1 << 30),
      evidence.limit_file.empty() ? "the memory of the machine" : evidence.limit_file);
}

int64_t KillsIn(const std::string& text) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    int64_t count = 0;
    if (absl::ConsumePrefix(&line, "oom_kill ") && absl::SimpleAtoi(line, &count)) return count;
  }
  return 0;
}

void FindMemoryLimit(const std::filesystem::path& cgroup, MemoryEvidence* evidence,
                     const std::filesystem::path& mount) {
  struct sysinfo info {};
  if (sysinfo(&info) == 0) {
    evidence->limit_bytes = static_cast<int64_t>(info.totalram) * info.mem_unit;
  }
  const auto groups = cgroup.empty() ? ControlGroups("memory")
                                     : GroupsOnTheWay(mount, cgroup.lexically_relative(mount));
  for (const std::filesystem::path& group : groups) {
    const auto limit = MemoryLimit(group);
    if (!limit.has_value()) continue;
    if (evidence->limit_bytes != 0 && limit->bytes >= evidence->limit_bytes) continue;
    evidence->limit_bytes = limit->bytes;
    evidence->limit_file = limit->file.string();
  }
}

void RecentKills::Look(absl::Duration now) {
  if (!any_ || now - looked_ >= absl::Seconds(1)) LookAgain(now);
}

void RecentKills::LookAgain(absl::Duration now) {
  const int64_t total = KillsIn(ReadWholeFile(file_).value_or(""));
  looked_ = now;
  if (!any_) {
    any_ = true;
    since_ = now;
    before_ = middle_ = total;
  } else if (now - since_ >= kRecent / 2) {
    since_ = now;
    before_ = std::exchange(middle_, latest_);
  }
  latest_ = total;
}

}  // namespace nsa::agent
