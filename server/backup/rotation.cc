#include "server/backup/rotation.h"

#include <algorithm>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace nsa::server {
namespace {

namespace fs = std::filesystem;

constexpr char kForm[] = "nsa-%Y%m%dT%H%M%SZ";

// Whether a name has the form of kForm, digit for digit.
bool IsName(const std::string& name) {
  constexpr std::string_view kPattern = "nsa-00000000T000000Z";
  return name.size() == kPattern.size() &&
         std::ranges::equal(name, kPattern, [](char c, char wanted) {
           return wanted == '0' ? absl::ascii_isdigit(c) : c == wanted;
         });
}

// The names of the backups in a folder, the oldest first.
absl::StatusOr<std::vector<std::string>> BackupsIn(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename();
    std::error_code unknown;
    const bool real = fs::symlink_status(at->path(), unknown).type() == fs::file_type::directory;
    if (real && IsName(name) && IsBackup(at->path())) names.push_back(name);
  }
  if (error) return absl::UnavailableError(absl::StrCat(folder.string(), ": ", error.message()));
  std::ranges::sort(names);
  return names;
}

}  // namespace

absl::StatusOr<Rotated> BackUpAndRotate(const fs::path& state_dir, const fs::path& folder, int keep,
                                        absl::Time now) {
  if (keep < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("keep: ", keep, " (at least 1); say how many backups to keep"));
  }
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    return absl::NotFoundError(absl::StrCat("backup: ", folder.string(),
                                            " is no folder; make it, best on another disk, for the "
                                            "coordinator's user alone (mode 0700)"));
  }
  Rotated rotated{.backup = folder / absl::FormatTime(kForm, now, absl::UTCTimeZone())};
  NSA_ASSIGN_OR_RETURN(rotated.size, BackUp(state_dir, rotated.backup, now));
  NSA_ASSIGN_OR_RETURN(std::vector<std::string> names, BackupsIn(folder));
  if (std::ssize(names) <= keep) return rotated;
  names.resize(names.size() - static_cast<size_t>(keep));
  for (const std::string& name : names) {
    fs::remove_all(folder / name, error);
    if (error) {
      return absl::UnavailableError(absl::StrCat("backup: ", (folder / name).string(),
                                                 " cannot be removed: ", error.message()));
    }
    rotated.removed.push_back(name);
  }
  return rotated;
}

}  // namespace nsa::server
