#include "worker/agent/user/exec_as.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/base/status.h"

namespace nsa::agent {
namespace {

constexpr int kReport = 3;  // descriptor; closed when the program begins
constexpr int kCannotExecute = 126;
constexpr char kNone[] = "-";
constexpr size_t kLongestReport = 4096;
constexpr absl::Duration kExecPatience = absl::Seconds(30);

absl::Status SystemError(const std::string& what) { return absl::ErrnoToStatus(errno, what); }

absl::Status EnterCgroup(const std::string& folder) {
  const std::string file = folder + "/cgroup.procs";
  const Fd fd(open(file.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd.valid() || write(fd.get(), "0", 1) != 1) return SystemError("worker_cgroup: " + file);
  return absl::OkStatus();
}

// The user, group and groups of this process are exactly these, nothing of root is left, and it
// cannot be had again.
absl::Status CheckDropped(uid_t uid, gid_t gid, std::vector<gid_t> groups) {
  uid_t users[3] = {};
  gid_t of_process[3] = {};
  if (getresuid(&users[0], &users[1], &users[2]) != 0 ||
      getresgid(&of_process[0], &of_process[1], &of_process[2]) != 0) {
    return SystemError("getresuid");
  }
  const bool same = std::ranges::all_of(users, [uid](uid_t id) { return id == uid; }) &&
                    std::ranges::all_of(of_process, [gid](gid_t id) { return id == gid; });
  std::vector<gid_t> now(static_cast<size_t>(std::max(0, getgroups(0, nullptr))));
  if (getgroups(static_cast<int>(now.size()), now.data()) < 0) return SystemError("getgroups");
  std::ranges::sort(now);
  std::ranges::sort(groups);
  __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct powers[2] = {};
  if (syscall(SYS_capget, &header, powers) != 0) return SystemError("capget");
  const bool powerless = std::ranges::all_of(
      powers, [](const auto& word) { return word.permitted == 0 && word.effective == 0; });
  const bool back = setresuid(0, 0, 0) == 0 || setresgid(0, 0, 0) == 0;
  if (same && now == groups && powerless && !back) return absl::OkStatus();
  return absl::InternalError("the privileges of root could not be given up; nothing was started");
}

absl::StatusOr<uint32_t> Number(const std::string& text) {
  uint32_t number = 0;
  if (absl::SimpleAtoi(text, &number)) return number;
  return absl::InvalidArgumentError(absl::StrCat("exec-as: '", text, "' is no number"));
}

absl::Status BecomeUser(const std::string& user, const std::string& group,
                        const std::string& list) {
  NSA_ASSIGN_OR_RETURN(const uid_t uid, Number(user));
  NSA_ASSIGN_OR_RETURN(const gid_t gid, Number(group));
  std::vector<gid_t> groups;
  for (const std::string& word : std::vector<std::string>(absl::StrSplit(list, ','))) {
    NSA_ASSIGN_OR_RETURN(groups.emplace_back(), Number(word));
  }
  if (uid == 0 || gid == 0 || std::ranges::find(groups, 0u) != groups.end()) {
    return absl::PermissionDeniedError("exec-as: user or group 0");
  }
  // Files of the user are for others to read, as after a login; folders can be closed.
  umask(022);
  if (setgroups(groups.size(), groups.data()) != 0) return SystemError("setgroups");
  if (setresgid(gid, gid, gid) != 0) return SystemError("setresgid");
  if (setresuid(uid, uid, uid) != 0) return SystemError("setresuid");
  return CheckDropped(uid, gid, std::move(groups));
}

absl::Status Become(char** argv) {
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return SystemError("no_new_privs");
  if (std::string_view(argv[5]) != kNone) NSA_RETURN_IF_ERROR(EnterCgroup(argv[5]));
  if (std::string_view(argv[2]) != kNone) {
    NSA_RETURN_IF_ERROR(BecomeUser(argv[2], argv[3], argv[4]));
  }
  execve(argv[kExecAsArguments], argv + kExecAsArguments, environ);
  return SystemError(absl::StrCat("spawn: ", argv[kExecAsArguments]));
}

// What exec-as says: empty when it has become the program.
absl::StatusOr<std::string> ReadReport(int fd) {
  const absl::Duration deadline = RealClock().Monotonic() + kExecPatience;
  std::string text;
  while (text.size() < kLongestReport) {
    const absl::Duration left = deadline - RealClock().Monotonic();
    if (left <= absl::ZeroDuration()) return absl::DeadlineExceededError("it took too long");
    pollfd ready = {fd, POLLIN, 0};
    if (poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1) <= 0) continue;
    char buffer[512];
    const ssize_t n = read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.append(buffer, static_cast<size_t>(n));
  }
  return text;
}

// Ends and reaps a process that did not become the program.
void End(const ProcessIdentity& process) {
  SignalProcess(process, SIGKILL).IgnoreError();
  while (true) {
    const auto exit = TryReap(process.pid);
    if (!exit.ok() || exit->has_value()) return;
    absl::SleepFor(absl::Milliseconds(1));
  }
}

}  // namespace

absl::StatusOr<ProcessIdentity> SpawnAs(const ExecAs& as, SpawnOptions options) {
  std::vector<std::string> argv = {as.agent_program.string(), kExecAs};
  if (as.user.has_value()) {
    argv.insert(argv.end(), {absl::StrCat(as.user->uid), absl::StrCat(as.user->gid),
                             absl::StrJoin(as.user->groups, ",")});
  } else {
    argv.insert(argv.end(), {kNone, kNone, kNone});
  }
  argv.push_back(as.cgroup.empty() ? kNone : as.cgroup.string());
  argv.insert(argv.end(), options.argv.begin(), options.argv.end());
  options.argv = std::move(argv);
  int ends[2] = {};
  if (pipe2(ends, O_CLOEXEC) != 0) return SystemError("spawn: pipe");
  const Fd reading(ends[0]);
  Fd writing(ends[1]);
  options.extra_fd = writing.get();
  NSA_ASSIGN_OR_RETURN(const ProcessIdentity process, Spawn(options));
  writing.Reset();
  const absl::StatusOr<std::string> report = ReadReport(reading.get());
  if (report.ok() && report->empty()) return process;
  End(process);
  return absl::UnavailableError(report.ok() ? *report : std::string(report.status().message()));
}

int ExecAsMain(int argc, char** argv) {
  const bool reports = fcntl(kReport, F_SETFD, FD_CLOEXEC) == 0;
  const absl::Status status =
      argc > kExecAsArguments
          ? Become(argv)
          : absl::InvalidArgumentError("exec-as: for the agent only; see worker/agent/README.md");
  const std::string text(status.message());
  if (!reports || write(kReport, text.data(), text.size()) < 0) {
    std::fprintf(stderr, "nsa-agent: %s\n", text.c_str());
  }
  return kCannotExecute;
}

}  // namespace nsa::agent
