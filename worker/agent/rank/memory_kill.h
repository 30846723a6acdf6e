// Whether the kernel ended a rank because memory ran out. It says so in two places: memory.events
// of the rank's cgroup, if that has the memory controller, and the counter oom_kill of
// /proc/vmstat, which counts for the whole machine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "worker/agent/rank/exit.h"

namespace nsa::agent {

struct MemoryEvidence {
  int64_t own_kills = 0;     // processes of the rank that the kernel ended (OutOfMemoryKills())
  int64_t recent_kills = 0;  // of the machine, in the seconds before the rank ended
  int64_t limit_bytes = 0;   // what the rank could use at most; 0: not known
  std::string limit_file;    // the file that says so; empty: the memory of the machine
};

// "2.00 GiB (/sys/fs/cgroup/…/memory.max)": the limit at which memory ran out, human-readable.
// Empty unless SIGKILL ended the rank and the kernel says that it ended one of its processes, or it
// ended a process of the machine just then and the agent did not send the signal. Of a rank that
// the agent adopted the signal is not known; then its own kills decide. Pure.
std::string OutOfMemoryText(const RankExit& exit, const MemoryEvidence& evidence);

// Processes of this machine that the kernel has ended for want of memory, since `text` is
// /proc/vmstat; 0 if it does not say.
int64_t KillsIn(const std::string& text);

// The least limit of the cgroup and those above it, up to `mount`; else the machine's memory.
// `cgroup` may be empty: the rank is in those of this process.
void FindMemoryLimit(const std::filesystem::path& cgroup, MemoryEvidence* evidence,
                     const std::filesystem::path& mount = "/sys/fs/cgroup");

// Counts the kills of the last seconds. For one thread.
class RecentKills {
 public:
  // Kills older than this do not count, those within half of it do.
  static constexpr absl::Duration kRecent = absl::Seconds(20);

  explicit RecentKills(std::filesystem::path file = "/proc/vmstat") : file_(std::move(file)) {}
  // To be called often, with the monotonic time. Reads the file once a second.
  void Look(absl::Duration now);
  // Reads it at once.
  void LookAgain(absl::Duration now);
  // As of the last look.
  int64_t count() const { return latest_ - before_; }

 private:
  const std::filesystem::path file_;
  bool any_ = false;
  absl::Duration looked_;
  absl::Duration since_;
  int64_t before_ = 0;  // kRecent / 2 to kRecent ago
  int64_t middle_ = 0;  // up to kRecent / 2 ago
  int64_t latest_ = 0;
};

}  // namespace nsa::agent
