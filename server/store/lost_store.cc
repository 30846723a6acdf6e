#include "server/store/lost_store.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "server/store/job_store.h"

namespace nsa::server {
namespace {

namespace fs = std::filesystem;

constexpr auto& kStore = JobStore::kFileName;
constexpr char kWal[] = "jobs.sqlite-wal";
constexpr char kRestoring[] = "restoring";  // server/backup/backup.cc

bool IsFilled(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error))
    return fs::directory_iterator(path, error) != end(fs::directory_iterator());
  return fs::is_regular_file(path, error) && fs::file_size(path, error) > 0;
}

// Something that only a coordinator with a store has written; empty if there is nothing.
std::string FindTrace(const fs::path& state_dir) {
  for (const char* name :
       {"logs", "dumps", "access", "audit.log", "cordons.pb", "notices.pb", kRestoring}) {
    if (IsFilled(state_dir / name)) return name;
  }
  return HasNoStore(state_dir) && IsFilled(state_dir / kWal) ? kWal : "";
}

}  // namespace

bool HasNoStore(const fs::path& state_dir) { return !IsFilled(state_dir / kStore); }

absl::Status CheckMayBeNew(const fs::path& state_dir) {
  const std::string trace = FindTrace(state_dir);
  if (trace.empty()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "job store: ", (state_dir / kStore).string(), " is missing or empty, but ", trace,
      " shows that there was one; put it back, or a backup with `nsactl admin restore`. To start "
      "with an empty store, which knows no job: nsa-coordinator --new-store"));
}

absl::Status CheckRestored(const fs::path& state_dir) {
  const fs::path arriving = state_dir / kRestoring;
  if (!IsFilled(arriving)) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("state_dir: ", arriving.string(),
                   " shows that a restore was interrupted; run `nsactl admin restore` again"));
}

absl::Status CheckHasNoStore(const fs::path& state_dir) {
  for (const char* name : {kStore, kWal}) {
    if (!IsFilled(state_dir / name)) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "job store: ", (state_dir / name).string(),
        " is there; move it away first, and the files whose names begin with ", kStore));
  }
  return absl::OkStatus();
}

}  // namespace nsa::server
