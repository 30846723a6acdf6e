#include "worker/agent/user/cgroup.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/base/status.h"
#include "common/rpc/secret.h"
#include "common/run/atomic_file.h"
#include "common/run/process.h"
#include "worker/agent/user/exec_as.h"

namespace nsa::agent {
namespace {

namespace fs = std::filesystem;

constexpr char kMount[] = "/sys/fs/cgroup";
constexpr absl::Duration kEndPatience = absl::Seconds(2);
constexpr absl::Duration kPause = absl::Milliseconds(10);

bool IsCgroup2(const fs::path& folder) {
  struct statfs info {};
  return statfs(folder.c_str(), &info) == 0 && info.f_type == CGROUP2_SUPER_MAGIC;
}

// "0::/system.slice/nsa-agent.service" is the line of version 2.
absl::StatusOr<fs::path> OwnCgroup() {
  NSA_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile("/proc/self/cgroup"));
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, "0::/")) continue;
    for (const fs::path& mount : {fs::path(kMount), fs::path(kMount) / "unified"}) {
      if (!IsCgroup2(mount)) continue;
      fs::path own = line.empty() ? mount : mount / std::string(line);
      // Only the first cgroup of the machine has no type. It belongs to no service.
      std::error_code error;
      if (fs::exists(own / "cgroup.type", error)) return own;
      return absl::FailedPreconditionError("the agent is in the machine's first cgroup");
    }
  }
  return absl::NotFoundError("there is no cgroup of version 2");
}

// Starts a process in a cgroup in `home`.
absl::Status Try(const CgroupHome& home, const fs::path& agent_program) {
  const fs::path cgroup = home.folder / absl::StrCat(home.prefix, "try-", getpid());
  NSA_RETURN_IF_ERROR(MakeCgroup(cgroup));
  const auto process = SpawnAs({.agent_program = agent_program, .cgroup = cgroup},
                               {.argv = {agent_program.string(), "--version"},
                                .environment = FilterEnvironment({"LD_LIBRARY_PATH"})});
  while (process.ok()) {
    const auto exit = TryReap(process->pid);
    if (!exit.ok() || exit->has_value()) break;
    absl::SleepFor(absl::Milliseconds(1));
  }
  EndCgroup(cgroup);
  return process.status();
}

absl::Status CheckPath(const fs::path& path) {
  const bool below = path.is_absolute() && path.lexically_normal() == path &&
                     path.string().starts_with(std::string(kMount) + "/");
  if (!below) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker_cgroup: '", absl::CHexEscape(path.string().substr(0, 200)),
                     "' (auto, none, or a path below ", kMount, "); set one of these"));
  }
  if (mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker_cgroup: ", path.string(), " cannot be made (", std::strerror(errno),
                     "); make it, give it to the agent's user, or set auto"));
  }
  if (IsCgroup2(path)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "worker_cgroup: ", path.string(), " is no cgroup of version 2; name one, or set auto"));
}

std::vector<pid_t> ProcessesIn(const fs::path& cgroup) {
  std::vector<pid_t> pids;
  const absl::StatusOr<std::string> text = ReadWholeFile(cgroup / "cgroup.procs");
  if (!text.ok()) return pids;
  for (const absl::string_view line : absl::StrSplit(*text, '\n', absl::SkipEmpty())) {
    pid_t pid = 0;
    if (absl::SimpleAtoi(line, &pid) && pid > 0) pids.push_back(pid);
  }
  return pids;
}

}  // namespace

fs::path CgroupHome::Of(const RankKey& key) const {
  if (folder.empty()) return {};
  return folder / absl::StrFormat("%s%s-g%d-r%d", prefix, key.job_id, key.generation, key.rank);
}

std::vector<fs::path> CgroupHome::All() const {
  std::vector<fs::path> all;
  if (folder.empty()) return all;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().filename().string().starts_with(prefix)) all.push_back(entry.path());
  }
  return all;
}

absl::StatusOr<CgroupHome> FindCgroupHome(const std::string& setting, const fs::path& state_dir,
                                          const fs::path& agent_program) {
  CgroupHome home;
  const std::string hash = absl::BytesToHexString(Sha256(state_dir.string()));
  home.prefix = absl::StrCat("nsa-", hash.substr(0, 12), "-");
  if (setting == "none") {
    home.why_not = "worker_cgroup is none";
    return home;
  }
  if (!setting.empty() && setting != "auto") {
    home.folder = setting;
    NSA_RETURN_IF_ERROR(CheckPath(home.folder));
    const absl::Status tried = Try(home, agent_program);
    if (tried.ok()) return home;
    return absl::InvalidArgumentError(absl::StrCat("worker_cgroup: ", setting, " cannot be used (",
                                                   std::string(tried.message()),
                                                   "); give it to the agent's user, or set auto"));
  }
  const absl::StatusOr<fs::path> own = OwnCgroup();
  absl::Status usable = own.status();
  if (own.ok()) {
    home.folder = *own;
    usable = Try(home, agent_program);
  }
  if (usable.ok()) return home;
  home.folder.clear();
  home.why_not = std::string(usable.message());
  return home;
}

absl::Status MakeCgroup(const fs::path& cgroup) {
  if (mkdir(cgroup.c_str(), 0755) == 0) return absl::OkStatus();
  if (errno == EEXIST && EndCgroup(cgroup) && mkdir(cgroup.c_str(), 0755) == 0) {
    return absl::OkStatus();
  }
  return absl::ErrnoToStatus(errno, absl::StrCat("worker_cgroup: ", cgroup.string()));
}

void KillCgroup(const fs::path& cgroup) {
  const fs::path file = cgroup / "cgroup.kill";
  const Fd fd(open(file.c_str(), O_WRONLY | O_CLOEXEC));
  if (fd.valid() && write(fd.get(), "1", 1) == 1) return;
  // Before Linux 5.14, or a process has begun meanwhile: EndCgroup() comes again.
  for (const pid_t pid : ProcessesIn(cgroup)) {
    const absl::StatusOr<ProcessIdentity> process = IdentityOf(pid);
    if (process.ok()) SignalProcess(*process, SIGKILL).IgnoreError();
  }
}

bool EndCgroup(const fs::path& cgroup) {
  const absl::Duration deadline = RealClock().Monotonic() + kEndPatience;
  while (rmdir(cgroup.c_str()) != 0 && errno != ENOENT) {
    if (RealClock().Monotonic() > deadline) return false;
    KillCgroup(cgroup);
    absl::SleepFor(kPause);
  }
  return true;
}

int64_t OutOfMemoryKills(const fs::path& cgroup) {
  const std::string text = ReadWholeFile(cgroup / "memory.events").value_or("");
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    int64_t count = 0;
    if (absl::ConsumePrefix(&line, "oom_kill ") && absl::SimpleAtoi(line, &count)) return count;
  }
  return 0;
}

}  // namespace nsa::agent
