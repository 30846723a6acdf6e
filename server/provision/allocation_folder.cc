#include "server/provision/allocation_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/clean_text.h"
#include "common/base/status.h"
#include "common/run/atomic_file.h"

namespace nsa::server {
namespace {

namespace fs = std::filesystem;

constexpr std::streamoff kTail = 600;
constexpr size_t kLastLines = 3;

// As RandomId("a") makes them: whatever else lies in the shared folder is not touched.
bool IsAllocationId(const std::string& name) {
  return name.size() == 13 && name.front() == 'a' && std::ranges::all_of(name, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '2' && c <= '7');
         });
}

absl::Status MakeFolder(const fs::path& path) {
  if (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, path.string());
}

std::string TailOf(const fs::path& file) {
  std::ifstream in(file, std::ios::ate | std::ios::binary);
  if (!in) return "";
  const std::streamoff size = in.tellg();
  in.seekg(std::max<std::streamoff>(0, size - kTail));
  std::string text(static_cast<size_t>(std::min(size, kTail)), '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipWhitespace());
  if (lines.size() > kLastLines) lines.erase(lines.begin(), lines.end() - kLastLines);
  return CleanLine(absl::StrJoin(lines, " | "));
}

}  // namespace

absl::StatusOr<FileLock> TakeSharedFolder(const fs::path& shared) {
  std::error_code error;
  fs::create_directories(shared.parent_path(), error);
  NSA_RETURN_IF_ERROR(Annotate(MakeFolder(shared), "shared_dir"));
  struct stat info {};
  if (lstat(shared.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return absl::PermissionDeniedError(
        absl::StrCat("shared_dir: ", shared.string(), " is not a folder; choose another"));
  }
  if (info.st_uid != geteuid() || (info.st_mode & 077) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("shared_dir: ", shared.string(),
                     " can be opened by others (mode 0700, owned by the coordinator's user: join "
                     "tokens lie in it); chmod 700 it, or choose another"));
  }
  absl::StatusOr<FileLock> lock = FileLock::Take(shared / "lock");
  if (!absl::IsAlreadyExists(lock.status())) return lock;
  return absl::AlreadyExistsError(absl::StrCat("shared_dir: ", shared.string(),
                                               " is in use by another coordinator (",
                                               lock.status().message(), "); choose another"));
}

absl::StatusOr<std::vector<std::string>> ListAllocations(const fs::path& shared) {
  std::vector<std::string> ids;
  std::error_code error;
  for (fs::directory_iterator it(shared, error), end; !error && it != end; it.increment(error)) {
    std::error_code unknown;
    const std::string name = it->path().filename().string();
    if (IsAllocationId(name) && it->is_directory(unknown)) ids.push_back(name);
  }
  if (error) return absl::ErrnoToStatus(error.value(), shared.string());
  std::ranges::sort(ids);
  return ids;
}

fs::path AllocationFolder::token(int machine) const {
  return path_ / absl::StrCat("agent-", machine, ".token");
}

absl::Status AllocationFolder::Make(const AllocationOwner& owner) const {
  NSA_RETURN_IF_ERROR(MakeFolder(path_));
  return Write("owner", absl::StrCat(owner.job_id, " ", owner.machines, "\n"));
}

absl::StatusOr<AllocationOwner> AllocationFolder::Owner() const {
  NSA_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path_ / "owner"));
  const std::vector<std::string> words =
      absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  AllocationOwner owner;
  if (words.size() != 2 || !absl::SimpleAtoi(words[1], &owner.machines)) {
    return absl::NotFoundError(absl::StrCat(path_.string(), "/owner names no job"));
  }
  owner.job_id = words[0];
  return owner;
}

absl::Status AllocationFolder::Write(const std::string& name, const std::string& content) const {
  return WriteFileAtomically(path_ / name, content);
}

absl::Duration AllocationFolder::TokenAge(int machine) const {
  struct stat info {};
  if (stat(token(machine).c_str(), &info) != 0) return absl::InfiniteDuration();
  return absl::Now() - absl::TimeFromTimespec(info.st_mtim);
}

void AllocationFolder::RemoveToken(int machine) const {
  std::error_code error;
  fs::remove(token(machine), error);
}

std::string AllocationFolder::LastWords() const {
  std::vector<std::string> words;
  for (const char* name : {"allocation.log", "agent-0.log"}) {
    if (std::string tail = TailOf(path_ / name); !tail.empty()) words.push_back(std::move(tail));
  }
  return absl::StrJoin(words, " | ");
}

absl::Status AllocationFolder::Remove() const {
  std::error_code error;
  fs::remove_all(path_, error);
  return error ? absl::ErrnoToStatus(error.value(), path_.string()) : absl::OkStatus();
}

}  // namespace nsa::server
