#include "worker/agent/user/unix_user.h"

#include <grp.h>
#include <linux/capability.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/run/unix_user.h"

namespace nsa::agent {
namespace {

struct Capability {
  int number;
  const char* name;
};

// What the agent does with each: hands folders over, reads what ranks wrote, ends them, becomes
// them.
constexpr Capability kNeeded[] = {
    {CAP_CHOWN, "CAP_CHOWN"},   {CAP_DAC_OVERRIDE, "CAP_DAC_OVERRIDE"},
    {CAP_FOWNER, "CAP_FOWNER"}, {CAP_KILL, "CAP_KILL"},
    {CAP_SETGID, "CAP_SETGID"}, {CAP_SETUID, "CAP_SETUID"}};

absl::StatusOr<std::vector<gid_t>> GroupsOf(const passwd& entry) {
  int count = 64;
  std::vector<gid_t> groups;
  while (true) {
    groups.resize(static_cast<size_t>(count));
    const int room = count;
    if (getgrouplist(entry.pw_name, entry.pw_gid, groups.data(), &count) >= 0) break;
    if (count <= room) {
      return absl::UnavailableError(
          absl::StrCat("unix_user: the groups of ", entry.pw_name, " cannot be read; try again"));
    }
  }
  groups.resize(static_cast<size_t>(count));
  return groups;
}

absl::Status CheckPowers(const UnixUser& user) {
  const bool root = user.uid == 0 || std::ranges::find(user.groups, 0u) != user.groups.end();
  if (!root) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "unix_user: ", user.name, user.uid == 0 ? " has the user id 0" : " is a member of group 0",
      " (neither may run jobs); make a token with another --unix-user"));
}

}  // namespace

absl::StatusOr<UnixUser> FindUnixUser(const std::string& name) {
  if (!IsUnixUser(name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("unix_user: '", absl::CHexEscape(name.substr(0, 80)),
                     "' (1 to 32 of a-z, 0-9, _ and -, and never root); make another token"));
  }
  std::vector<char> buffer(4096);
  passwd entry = {};
  passwd* found = nullptr;
  int error = 0;
  while ((error = getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found)) ==
         ERANGE) {
    buffer.resize(2 * buffer.size());
  }
  if (found == nullptr && (error == 0 || error == ENOENT || error == ESRCH)) {
    return absl::NotFoundError(absl::StrCat(
        "unix_user: ", name,
        " is not on this machine; add the user there, or make a token with another --unix-user"));
  }
  if (found == nullptr) {
    return absl::UnavailableError(absl::StrCat("unix_user: ", name, " cannot be looked up (",
                                               std::strerror(error), "); try again"));
  }
  UnixUser user = {.name = name, .uid = entry.pw_uid, .gid = entry.pw_gid, .home = entry.pw_dir};
  NSA_ASSIGN_OR_RETURN(user.groups, GroupsOf(entry));
  NSA_RETURN_IF_ERROR(CheckPowers(user));
  return user;
}

absl::Status CheckMayStartAsOthers() {
  if (geteuid() != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("unix_users: true, but the agent runs as user ", geteuid(),
                     " (only root may start ranks as other users); start it as root "
                     "(docs/deploy.md), or set unix_users: false"));
  }
  __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct data[2] = {};
  if (syscall(SYS_capget, &header, data) != 0) return absl::ErrnoToStatus(errno, "capget");
  std::vector<std::string> missing;
  for (const Capability& needed : kNeeded) {
    if ((data[0].effective >> needed.number & 1) == 0) missing.emplace_back(needed.name);
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("unix_users: true, but the agent lacks ", absl::StrJoin(missing, " "),
                   "; add them to CapabilityBoundingSet of its unit (docs/deploy.md)"));
}

absl::Status CheckOthersMayPass(const std::filesystem::path& folder) {
  for (std::filesystem::path at = folder.parent_path(); !at.empty(); at = at.parent_path()) {
    struct stat info {};
    if (stat(at.c_str(), &info) != 0) return absl::ErrnoToStatus(errno, at.string());
    if ((info.st_mode & S_IXOTH) == 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          "unix_users: ", at.string(), ", in which ", folder.string(),
          " lies, is closed to other users (ranks must pass through it); run `chmod o+x ",
          at.string(), "`, or choose another state_dir"));
    }
    if (at == at.parent_path()) break;
  }
  return absl::OkStatus();
}

}  // namespace nsa::agent
