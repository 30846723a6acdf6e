#include "worker/agent/run_folder.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/run/atomic_file.h"
#include "common/run/file_lock.h"
#include "common/run/process.h"
#include "common/run/rank_address.h"
#include "common/run/run_file.h"
#include "spdlog/spdlog.h"
#include "worker/agent/rank/exit.h"

namespace nsa::agent {
namespace {

namespace fs = std::filesystem;

// Ranks are started by threads of their own, and removing the last folder of a gang removes those
// above it.
constinit Mutex folders_mutex;

constexpr mode_t kPassThrough = 0711;
constexpr mode_t kClosed = 0700;

absl::Status Errno(const fs::path& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat("run folder: ", path.string()));
}

// 3 for "gen-000003" with prefix "gen-"; nothing for names of any other form.
std::optional<int64_t> NumberBehind(const std::string& name, absl::string_view prefix) {
  absl::string_view rest = name;
  int64_t number = 0;
  if (!absl::ConsumePrefix(&rest, prefix) || !absl::SimpleAtoi(rest, &number)) return std::nullopt;
  return number;
}

std::vector<fs::path> FoldersIn(const fs::path& path) {
  std::vector<fs::path> folders;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path, error)) {
    if (entry.is_directory(error) && !entry.is_symlink(error)) folders.push_back(entry.path());
  }
  return folders;
}

absl::Status MakeFolder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (!error) return absl::OkStatus();
  return absl::ErrnoToStatus(error.value(), absl::StrCat("run folder: ", path.string()));
}

absl::Status SetMode(const fs::path& path, mode_t mode) {
  return chmod(path.c_str(), mode) == 0 ? absl::OkStatus() : Errno(path);
}

absl::Status Give(const fs::path& path, const UnixUser& user) {
  return lchown(path.c_str(), user.uid, user.gid) == 0 ? absl::OkStatus() : Errno(path);
}

// Makes the folder in which the ranks of this start meet; the first rank here hands it over.
absl::Status MakeRendezvous(const RunDir& dir, int64_t generation, const UnixUser* user) {
  if (user != nullptr && mkdir(dir.rendezvous().c_str(), kClosed) != 0) {
    if (errno != EEXIST) return Errno(dir.rendezvous());
    NSA_ASSIGN_OR_RETURN(const FileOwner owner, OwnerOfFolder(dir.rendezvous()));
    if (owner.uid == user->uid) return absl::OkStatus();
  }
  const fs::path meeting = MeetingFolder(dir.rendezvous(), generation);
  NSA_RETURN_IF_ERROR(MakeFolder(meeting));
  if (user == nullptr) return absl::OkStatus();
  NSA_RETURN_IF_ERROR(SetMode(meeting, kClosed));
  NSA_RETURN_IF_ERROR(Give(meeting, *user));
  return Give(dir.rendezvous(), *user);
}

// Makes the folders of a rank that runs as another user. The rank's own is closed and still the
// agent's.
absl::Status MakeFoldersFor(const RunDir& dir) {
  const fs::path gang = dir.path.parent_path();
  NSA_RETURN_IF_ERROR(MakeFolder(gang));
  for (const fs::path& path : {gang, gang.parent_path(), gang.parent_path().parent_path()}) {
    NSA_RETURN_IF_ERROR(SetMode(path, kPassThrough));
  }
  std::error_code error;
  for (const fs::path& path : {dir.path, dir.notes}) {
    fs::remove_all(path, error);
    if (mkdir(path.c_str(), kClosed) != 0) return Errno(path);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Fd> MakeRunFolder(const RunDir& dir, const v1::WorkerLaunch& launch,
                                 const UnixUser* user) {
  const MutexLock lock(&folders_mutex);
  NSA_RETURN_IF_ERROR(user == nullptr ? MakeFolder(dir.path) : MakeFoldersFor(dir));
  NSA_RETURN_IF_ERROR(MakeRendezvous(dir, launch.generation(), user));
  NSA_RETURN_IF_ERROR(WriteFileAtomically(dir.launch(), launch.SerializeAsString()));
  Fd log(open(dir.log().c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!log.valid()) return Errno(dir.log());
  if (user == nullptr) return log;
  // The folder comes last: until then nobody else can exchange what is in it.
  for (const fs::path& path : {dir.launch(), dir.log(), dir.path}) {
    NSA_RETURN_IF_ERROR(Give(path, *user));
  }
  return log;
}

absl::Status WriteNextAddress(const RunDir& dir, const RankKey& key, int next_rank,
                              const std::string& address) {
  const fs::path meeting = MeetingFolder(dir.rendezvous(), key.generation);
  const Fd folder(open(meeting.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat info {};
  if (!folder.valid() || fstat(folder.get(), &info) != 0) return Errno(meeting);
  const fs::path file = RankAddressFile(meeting, next_rank);
  // Written where only the agent writes, and moved when it belongs to the right user.
  const fs::path made = dir.Notes() / absl::StrCat("next-", file.filename().string());
  NSA_RETURN_IF_ERROR(WriteFileAtomically(made, address));
  const bool ours = info.st_uid == geteuid();
  if (!ours && lchown(made.c_str(), info.st_uid, info.st_gid) != 0) return Errno(made);
  if (renameat(AT_FDCWD, made.c_str(), folder.get(), file.filename().c_str()) != 0) {
    return Errno(file);
  }
  return absl::OkStatus();
}

std::vector<RunFolder> FindRunFolders(const fs::path& state_dir) {
  std::vector<RunFolder> found;
  for (const fs::path& job : FoldersIn(state_dir / "jobs")) {
    for (const fs::path& gang : FoldersIn(job)) {
      const auto generation = NumberBehind(gang.filename().string(), "gen-");
      for (const fs::path& path : FoldersIn(gang)) {
        const auto rank = NumberBehind(path.filename().string(), "rank-");
        if (!generation.has_value() || !rank.has_value()) continue;
        const RankKey key = {job.filename().string(), *generation, static_cast<int>(*rank)};
        RunDir dir = RunDir::OfAnother(state_dir, key.job_id, key.generation, key.rank);
        std::error_code error;
        // Only the agent can make this folder.
        if (!fs::is_directory(dir.notes, error)) dir.notes.clear();
        dir.path = path;
        found.push_back({key, std::move(dir)});
      }
    }
  }
  return found;
}

void DisownCopies(const fs::path& state_dir, const fs::path& lock) {
  const LockOrigin origin = OriginOfLock(lock);
  if (!origin.copied) return;
  std::error_code error;
  const bool gone = !fs::exists(origin.folder / lock.filename(), error);
  for (const RunFolder& folder : FindRunFolders(state_dir)) {
    const absl::StatusOr<ProcessIdentity> worker = ReadIdentity(folder.dir.identity());
    if (!worker.ok() || !IsAlive(*worker)) continue;
    spdlog::warn(
        "{}: process {} runs for {} (this state folder is a copy of it): {}", folder.key.ToString(),
        worker->pid, origin.folder.string(),
        gone ? "asked to end with a checkpoint, because the original is gone" : "left alone");
    if (gone) SignalProcess(*worker, SIGTERM).IgnoreError();
    const absl::Status noted = SaveExit(folder.dir.exit(), {});
    if (!noted.ok()) spdlog::error("{}: {}", folder.key.ToString(), noted.ToString());
  }
}

void RemoveRunFolder(const RunDir& dir) {
  const MutexLock lock(&folders_mutex);
  std::error_code error;
  fs::remove_all(dir.path, error);
  if (error) spdlog::warn("remove {}: {}", dir.path.string(), error.message());
  if (!dir.notes.empty()) fs::remove_all(dir.notes, error);
  const fs::path gang = dir.path.parent_path();
  for (const fs::path& other : FoldersIn(gang)) {
    if (other.filename() != "rendezvous") return;
  }
  fs::remove_all(gang, error);
  fs::remove(gang.parent_path(), error);  // Fails while it holds another generation.
}

}  // namespace nsa::agent
