// The Unix user as whom the ranks of a job run, and whether this machine allows that.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nsa::agent {

struct UnixUser {
  std::string name;
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;  // all of them, with gid
  std::string home;
};

// Looks a user up as login does (getpwnam, getgrouplist). InvalidArgument if `name` is none that
// IsUnixUser() accepts, NotFound if this machine does not know it, PermissionDenied if it has the
// powers of root (user 0, or a member of group 0): another attempt would end the same way.
// Unavailable if the directory of users does not answer at present.
absl::StatusOr<UnixUser> FindUnixUser(const std::string& name);

// FailedPrecondition, with what to do, unless this process may start others as other users.
absl::Status CheckMayStartAsOthers();

// FailedPrecondition, with what to do, unless every user may pass through the folders above
// `folder`, as ranks have to.
absl::Status CheckOthersMayPass(const std::filesystem::path& folder);

}  // namespace nsa::agent
