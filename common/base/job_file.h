// Opens the files that a job names. Whoever submits a job, or can write to its folders, may put a
// pipe, a device, a link or somebody else's file in the place of any of them, at any moment. So
// preflight, the coordinator and the worker open them only here.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/fd.h"

namespace nsa {

struct JobFileLimits {
  // allowed_roots: absolute, normal paths. Files must lie beneath one of them, and no part of the
  // path below it may be a symbolic link. Empty, or with "/": files may lie anywhere, and links are
  // followed.
  std::vector<std::filesystem::path> roots;
  // Only what this user may read (Job.unix_user), besides what this process may. A user whom this
  // machine does not know may read what others may. Empty: only the process counts.
  std::string unix_user;
  // Returns true once nobody needs the files any more: nothing is opened then. Null: somebody does.
  std::function<bool()> over = nullptr;
};

// Sets the limits of this thread for as long as it lives. The innermost one counts.
class JobFileScope {
 public:
  explicit JobFileScope(const JobFileLimits& limits);
  ~JobFileScope();
  JobFileScope(const JobFileScope&) = delete;
  JobFileScope& operator=(const JobFileScope&) = delete;

  struct State;

 private:
  std::unique_ptr<State> state_;
  const State* const outer_;
};

// Sets the roots of all threads that are in no JobFileScope, for good. For a process that works for
// one job; before it starts threads.
void LimitJobFiles(std::vector<std::filesystem::path> roots);

// Whether files may lie beneath some roots only.
bool JobFilesAreLimited();

// Whether nobody needs the files of this thread's scope any more.
bool JobFilesAreOver();

// Opens a file for reading. Never blocks where the file system answers: a pipe or a device is an
// InvalidArgument, as a folder is. NotFound if there is none; PermissionDenied if the process or
// the user may not read it, or not enter a folder on the way; FailedPrecondition if it is not
// beneath the roots or leads through a link; Cancelled when nobody needs it. Errors begin with the
// path and never quote content.
// With O_NOFOLLOW the last part of the path may be no link, whatever the roots.
absl::StatusOr<Fd> OpenJobFile(const std::filesystem::path& path, int flags = 0);

// Opens a folder for reading its names, by the same rules.
absl::StatusOr<Fd> OpenJobFolder(const std::filesystem::path& path);

// The whole content of a file of at most `most` bytes, whose size is checked before anything is
// read. The errors of OpenJobFile(); InvalidArgument if it is larger.
absl::StatusOr<std::string> ReadJobFile(const std::filesystem::path& path, int64_t most);

// Whether there is a file, folder or link, as far as the user may know: one may not look into a
// folder that one may not enter.
bool JobPathExists(const std::filesystem::path& path);

// The size of a file that OpenJobFile() opens; nothing for another.
std::optional<int64_t> JobFileBytes(const std::filesystem::path& path);

// Up to `most` bytes of an open file from `at` on: fewer where it ends or cannot be read.
std::string ReadSome(int fd, int64_t at, int64_t most);

// Whether a path may be opened, or made, by the rules about roots and links. What does not exist
// yet cannot be a link. FailedPrecondition if not.
absl::Status CheckJobPath(const std::filesystem::path& path);

// Whether a user may use a file with this owner, group, mode and ACL, the value of the attribute
// system.posix_acl_access; empty: it has none. `bits`: 4 read, 1 enter.
struct FileRights {
  uid_t owner = 0;
  gid_t group = 0;
  mode_t mode = 0;
  std::string acl;
};
bool MayUse(uid_t user, const std::vector<gid_t>& groups, const FileRights& file, mode_t bits);

}  // namespace nsa
