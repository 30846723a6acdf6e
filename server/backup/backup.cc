#include "server/backup/backup.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/clean_text.h"
#include "common/base/durable_folder.h"
#include "common/base/fd.h"
#include "common/base/json_shape.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/base/write.h"
#include "common/job/data/sha256.h"
#include "common/job/text_check.h"
#include "common/run/atomic_file.h"
#include "common/run/new_folder.h"
#include "nlohmann/json.hpp"
#include "server/store/job_store.h"
#include "server/store/sqlite.h"
#include "server/store/state_lock.h"

namespace nsa::server {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr auto& kStore = JobStore::kFileName;
constexpr char kManifest[] = "backup.json";
constexpr char kLastBackup[] = "last-backup";
constexpr char kReplaced[] = "replaced-";
constexpr char kArriving[] = "restoring";
constexpr int kFormat = 1;
constexpr int64_t kMostManifestBytes = 64 << 20;
constexpr size_t kPiece = 1 << 20;

struct File {
  std::string path;  // in the state folder
  int64_t bytes = 0;
  std::string sha256;
};

// Whether an entry of the state folder belongs to the store, which is copied by the database
// itself.
bool IsOfStore(const std::string& name) {
  return name == kStore || absl::StartsWith(name, absl::StrCat(kStore, "-"));
}

// Whether an entry of the state folder is the coordinator's and outlives its processes. The folder
// may be the home of its user, too, with a data cache and passwords of a mail program in it.
bool IsOfCoordinator(const std::string& name) {
  return IsOfStore(name) || name == "access" || name == "token" || name == "cordons.pb" ||
         name == "notices.pb" || name == "logs" || name == "dumps" ||
         absl::StartsWith(name, "audit.log") || absl::StartsWith(name, "audit-refused.log");
}

// The names in the state folder that a backup is about.
absl::StatusOr<std::vector<std::string>> Entries(const fs::path& state_dir) {
  std::error_code error;
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(state_dir, error)) {
    const std::string name = entry.path().filename();
    const fs::file_type type = entry.symlink_status(error).type();
    const bool kept = type == fs::file_type::regular || type == fs::file_type::directory;
    if (kept && IsOfCoordinator(name) && !absl::EndsWith(name, ".tmp")) names.push_back(name);
  }
  if (error) return absl::InternalError(absl::StrCat(state_dir.string(), ": ", error.message()));
  std::ranges::sort(names);
  return names;
}

// Reads `from` as long as it is now, hashes it and, with a `to`, writes it there durably. NotFound
// if the file is not there.
absl::StatusOr<File> CopyFile(const fs::path& from, const fs::path& to) {
  const Fd in(open(from.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW));
  if (!in.valid()) return absl::ErrnoToStatus(errno, from.string());
  struct stat status {};
  if (fstat(in.get(), &status) != 0) return absl::ErrnoToStatus(errno, from.string());
  if (!S_ISREG(status.st_mode)) return absl::NotFoundError(from.string());
  Fd out;
  if (!to.empty()) {
    NSA_RETURN_IF_ERROR(MakeDurableFolder(to.parent_path()));
    out = Fd(open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!out.valid()) return absl::ErrnoToStatus(errno, to.string());
  }
  File file;
  Sha256Sum sum;
  std::string piece(kPiece, '\0');
  while (file.bytes < status.st_size) {
    const auto wanted = std::min<int64_t>(kPiece, status.st_size - file.bytes);
    const ssize_t got = read(in.get(), piece.data(), static_cast<size_t>(wanted));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, from.string());
    if (got == 0) break;
    const std::string_view bytes(piece.data(), static_cast<size_t>(got));
    sum.Add(bytes);
    if (out.valid() && !WriteAll(out.get(), bytes)) {
      return absl::ErrnoToStatus(errno, to.string());
    }
    file.bytes += got;
  }
  file.sha256 = sum.Hex();
  if (!out.valid()) return file;
  if (fsync(out.get()) != 0) return absl::ErrnoToStatus(errno, to.string());
  NSA_RETURN_IF_ERROR(out.Close());
  return file;
}

// Copies the store as it is at one moment, whatever a coordinator commits meanwhile.
absl::StatusOr<File> CopyStore(const fs::path& state_dir, const fs::path& target) {
  std::error_code error;
  if (!fs::is_regular_file(state_dir / kStore, error)) {
    return absl::NotFoundError(absl::StrCat("state_dir: ", state_dir.string(), " has no ", kStore,
                                            "; name the state folder of a coordinator"));
  }
  {
    NSA_ASSIGN_OR_RETURN(const auto database, Database::Open(state_dir / kStore));
    // So that the copy can shrink, also if the store is of an earlier version. This changes nothing
    // in a store that cannot, and would write into one that can.
    NSA_ASSIGN_OR_RETURN(const int64_t mode, database->QueryInt("PRAGMA auto_vacuum"));
    if (mode == 0) NSA_RETURN_IF_ERROR(database->Execute("PRAGMA auto_vacuum=INCREMENTAL"));
    NSA_ASSIGN_OR_RETURN(Statement copy, database->Prepare("VACUUM INTO ?1"));
    copy.Bind(1, (target / kStore).string());
    NSA_RETURN_IF_ERROR(copy.Run());
  }
  if (chmod((target / kStore).c_str(), 0600) != 0) {
    return absl::ErrnoToStatus(errno, (target / kStore).string());
  }
  const Fd file(open((target / kStore).c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid() || fsync(file.get()) != 0) {
    return absl::ErrnoToStatus(errno, (target / kStore).string());
  }
  NSA_ASSIGN_OR_RETURN(File copied, CopyFile(target / kStore, ""));
  copied.path = kStore;
  return copied;
}

// Adds the files of an entry of `folder`, by their paths in it. What is removed meanwhile is left
// out.
void AddFiles(const fs::path& folder, const fs::path& entry, std::vector<std::string>* paths) {
  std::error_code error;
  const fs::file_type type = fs::symlink_status(folder / entry, error).type();
  if (absl::EndsWith(entry.string(), ".tmp")) return;
  if (type == fs::file_type::regular) paths->push_back(entry);
  if (type != fs::file_type::directory) return;
  std::vector<fs::path> names;
  for (fs::directory_iterator at(folder / entry, error), end; !error && at != end;
       at.increment(error)) {
    names.push_back(at->path().filename());
  }
  std::ranges::sort(names);
  for (const fs::path& name : names) AddFiles(folder, entry / name, paths);
}

Json ManifestOf(const std::vector<File>& files, absl::Time now) {
  Json list = Json::array();
  for (const File& file : files) {
    list.push_back({{"path", file.path}, {"bytes", file.bytes}, {"sha256", file.sha256}});
  }
  return Json({{"format", kFormat},
               {"version", std::string(kVersion)},
               {"revision", std::string(kRevision)},
               {"unix_nanos", absl::ToUnixNanos(now)},
               {"files", list}});
}

std::string TextOf(const Json& object, const char* key) {
  const Json value = object.value(key, Json());
  return value.is_string() ? value.get<std::string>() : "unknown";
}

absl::Status NoBackup(const fs::path& backup, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("backup: ", backup.string(), " ", why,
                                                 "; name a folder that `nsactl admin backup` has "
                                                 "written"));
}

// Whether a path of a manifest stays in its folder and is one that a backup has.
bool IsPlain(const std::string& path) {
  const fs::path parsed = path;
  if (path.empty() || parsed.is_absolute() || path.find('\0') != std::string::npos) return false;
  for (const fs::path& part : parsed) {
    if (part.empty() || part == "." || part == "..") return false;
  }
  return !IsOfStore(*parsed.begin()) || path == kStore;
}

// What SQLite's header calls user_version; see https://www.sqlite.org/fileformat.html. Opening the
// backup would change it.
absl::StatusOr<int64_t> SchemaVersion(const fs::path& store) {
  constexpr size_t kAt = 60;
  const Fd file(open(store.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW));
  uint8_t big_endian[4];
  if (!file.valid() || pread(file.get(), big_endian, sizeof(big_endian), kAt) != 4) {
    return absl::DataLossError(
        absl::StrCat("backup: ", store.string(), " cannot be read; use another backup"));
  }
  int64_t version = 0;
  for (const uint8_t byte : big_endian) version = version << 8 | byte;
  return version;
}

// A newer store would be put into place, and refused by the coordinator that starts then.
absl::Status CheckSchema(const fs::path& backup, const std::string& writer) {
  NSA_ASSIGN_OR_RETURN(const int64_t version, SchemaVersion(backup / kStore));
  if (version <= kSchemaVersion) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("backup: ", backup.string(), " has a store of version ", version, " (at most ",
                   kSchemaVersion, "); restore it with nsa-coordinator ", writer, " or newer"));
}

struct Manifest {
  std::string writer;  // the version of the program that wrote the backup
  absl::Time time;
  std::vector<File> files;
};

absl::StatusOr<Manifest> ReadManifest(const fs::path& backup) {
  std::error_code error;
  const auto size = fs::file_size(backup / kManifest, error);
  if (error) return NoBackup(backup, absl::StrCat("has no ", kManifest));
  if (size > kMostManifestBytes) return NoBackup(backup, "has a manifest of more than 64 MiB");
  NSA_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(backup / kManifest));
  const Json manifest =
      IsShallow(text) ? Json::parse(text, nullptr, /*allow_exceptions=*/false) : Json();
  const std::string wrong = absl::StrCat("has a ", kManifest, " that cannot be read");
  if (!manifest.is_object() || !manifest.contains("format")) return NoBackup(backup, wrong);
  if (manifest["format"] != kFormat) {
    return NoBackup(backup, absl::StrCat("has format ", manifest["format"].dump(), " (must be ",
                                         kFormat, "), of a later version"));
  }
  std::vector<File> files;
  const Json list = manifest.value("files", Json());
  for (const Json& entry : list) {
    if (!entry.is_object() || !entry.value("path", Json()).is_string() ||
        !entry.value("bytes", Json()).is_number_integer() ||
        !entry.value("sha256", Json()).is_string() || !IsPlain(entry["path"])) {
      return NoBackup(backup, wrong);
    }
    files.push_back({entry["path"], entry["bytes"], entry["sha256"]});
  }
  const bool has_store =
      std::ranges::any_of(files, [](const File& file) { return file.path == kStore; });
  if (!list.is_array() || !has_store) return NoBackup(backup, wrong);
  // Version 0.1.0 also copied what it did not know.
  std::erase_if(files,
                [](const File& file) { return !IsOfCoordinator(*fs::path(file.path).begin()); });
  const Json nanos = manifest.value("unix_nanos", Json());
  return Manifest{FullVersion(TextOf(manifest, "version"), TextOf(manifest, "revision")),
                  absl::FromUnixNanos(nanos.is_number_integer() ? nanos.get<int64_t>() : 0),
                  std::move(files)};
}

// Copies the files of a backup into `to`; without a `to` it only compares them.
absl::Status TakeFiles(const fs::path& backup, const std::vector<File>& files, const fs::path& to) {
  for (const File& file : files) {
    const fs::path path = backup / file.path;
    const auto copied = CopyFile(path, to.empty() ? fs::path() : to / file.path);
    if (absl::IsNotFound(copied.status())) {
      return absl::DataLossError(
          absl::StrCat("backup: ", path.string(), " is missing; use another backup"));
    }
    NSA_RETURN_IF_ERROR(copied.status());
    if (copied->bytes != file.bytes || copied->sha256 != file.sha256) {
      return absl::DataLossError(absl::StrCat(
          "backup: ", path.string(), " has ", copied->bytes, " bytes and SHA-256 ", copied->sha256,
          " (", file.bytes, ", ", file.sha256, "): damaged; use another backup"));
    }
  }
  return absl::OkStatus();
}

absl::Status Move(const fs::path& from, const fs::path& to) {
  if (rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat(from.string(), " to ", to.string()));
}

// Moves what is in the state folder to a folder in it, whose path it returns; empty if there was
// nothing.
absl::StatusOr<fs::path> PutAside(const fs::path& state_dir, absl::Time now) {
  NSA_ASSIGN_OR_RETURN(const std::vector<std::string> names, Entries(state_dir));
  if (names.empty()) return fs::path();
  const std::string stem =
      absl::StrCat(kReplaced, absl::FormatTime("%Y%m%d-%H%M%S", now, absl::UTCTimeZone()));
  fs::path aside = state_dir / stem;
  std::error_code error;
  for (int number = 2; fs::exists(aside, error); ++number) {
    aside = state_dir / absl::StrCat(stem, "-", number);
  }
  NSA_RETURN_IF_ERROR(MakeDurableFolder(aside));
  fs::permissions(aside, fs::perms::owner_all, error);
  for (const std::string& name : names) {
    NSA_RETURN_IF_ERROR(Move(state_dir / name, aside / name));
  }
  NSA_RETURN_IF_ERROR(SyncFolder(aside));
  return aside;
}

BackupSize SizeOf(const std::vector<File>& files) {
  BackupSize size{.files = std::ssize(files)};
  for (const File& file : files) size.bytes += file.bytes;
  return size;
}

// A folder without any file of a coordinator is more likely a wrong one: the state_dir of another
// user, or of a command without the unit's environment.
absl::Status CheckIsStateFolder(const fs::path& state_dir) {
  std::error_code error;
  if (fs::exists(state_dir / kArriving, error)) return absl::OkStatus();
  if (fs::exists(state_dir, error)) {
    NSA_ASSIGN_OR_RETURN(const std::vector<std::string> names, Entries(state_dir));
    if (!names.empty()) return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "state_dir: ", state_dir.string(), " has never been a coordinator's state folder; name that ",
      "folder with --state-dir, or say with --new that this one is to become it"));
}

bool LiesIn(const fs::path& path, const fs::path& folder) {
  std::error_code error;
  const fs::path relative =
      fs::weakly_canonical(path, error).lexically_relative(fs::weakly_canonical(folder, error));
  return !relative.empty() && *relative.begin() != "..";
}

}  // namespace

absl::StatusOr<BackupSize> BackUp(const fs::path& state_dir, const fs::path& target,
                                  absl::Time now) {
  if (LiesIn(target, state_dir)) {
    return absl::FailedPreconditionError(
        absl::StrCat("backup: ", target.string(), " lies in the state folder ", state_dir.string(),
                     "; name a folder elsewhere, best on another disk"));
  }
  NSA_ASSIGN_OR_RETURN(NewFolder folder, NewFolder::Create(target));
  std::error_code error;
  fs::permissions(folder.path(), fs::perms::owner_all, error);
  std::vector<File> files;
  NSA_ASSIGN_OR_RETURN(files.emplace_back(), CopyStore(state_dir, folder.path()));
  NSA_ASSIGN_OR_RETURN(std::vector<std::string> names, Entries(state_dir));
  std::erase_if(names, IsOfStore);
  std::vector<std::string> paths;
  for (const std::string& name : names) AddFiles(state_dir, name, &paths);
  for (const std::string& path : paths) {
    if (!IsUtf8(path)) {
      return absl::FailedPreconditionError(
          absl::StrCat("backup: ", CleanLine((state_dir / path).string()),
                       ": a name that is not UTF-8; rename the file, or remove it"));
    }
    auto copied = CopyFile(state_dir / path, folder.path() / path);
    if (absl::IsNotFound(copied.status())) continue;  // dropped meanwhile
    NSA_RETURN_IF_ERROR(copied.status());
    copied->path = path;
    files.push_back(*std::move(copied));
  }
  NSA_RETURN_IF_ERROR(
      WriteFileAtomically(folder.path() / kManifest, ManifestOf(files, now).dump(1) + "\n"));
  NSA_RETURN_IF_ERROR(TakeFiles(folder.path(), files, ""));
  NSA_RETURN_IF_ERROR(folder.Publish());
  return SizeOf(files);
}

absl::Status NoteBackup(const fs::path& state_dir, absl::Time time) {
  return WriteFileAtomically(state_dir / kLastBackup,
                             absl::StrCat(absl::ToUnixSeconds(time), "\n"));
}

absl::Time LastBackup(const fs::path& state_dir) {
  const absl::StatusOr<std::string> text = ReadWholeFile(state_dir / kLastBackup);
  int64_t seconds = 0;
  if (!text.ok() || !absl::SimpleAtoi(*text, &seconds)) return absl::UnixEpoch();
  return absl::FromUnixSeconds(seconds);
}

bool IsBackup(const fs::path& folder) {
  std::error_code error;
  return fs::is_regular_file(folder / kManifest, error);
}

absl::StatusOr<Verified> Verify(const fs::path& backup) {
  NSA_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(backup));
  NSA_RETURN_IF_ERROR(TakeFiles(backup, manifest.files, ""));
  NSA_RETURN_IF_ERROR(CheckSchema(backup, manifest.writer));
  return Verified{manifest.writer, manifest.time, SizeOf(manifest.files)};
}

absl::StatusOr<Restored> Restore(const fs::path& backup, const fs::path& state_dir, bool make_new,
                                 absl::Time now) {
  NSA_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(backup));
  const std::vector<File>& files = manifest.files;
  if (!make_new) NSA_RETURN_IF_ERROR(CheckIsStateFolder(state_dir));
  NSA_RETURN_IF_ERROR(TakeFiles(backup, files, ""));
  NSA_RETURN_IF_ERROR(CheckSchema(backup, manifest.writer));
  NSA_ASSIGN_OR_RETURN(const FileLock lock, LockStateDir(state_dir));
  const fs::path arriving = state_dir / kArriving;
  std::error_code error;
  // Then the files in place may be of two stores, until a restore has ended.
  const bool interrupted = fs::exists(arriving, error);
  fs::remove_all(arriving, error);
  if (interrupted) NSA_RETURN_IF_ERROR(MakeDurableFolder(arriving));
  // The hashes are compared again while the files are copied.
  if (const absl::Status taken = TakeFiles(backup, files, arriving); !taken.ok()) {
    // Nothing was replaced, so the coordinator may start as before.
    if (!interrupted) fs::remove_all(arriving, error);
    return taken;
  }
  if (LastBackup(state_dir) == absl::UnixEpoch()) {
    NSA_RETURN_IF_ERROR(NoteBackup(state_dir, manifest.time));
  }
  Restored restored{.writer = manifest.writer, .size = SizeOf(files)};
  NSA_ASSIGN_OR_RETURN(restored.replaced, PutAside(state_dir, now));
  for (const fs::directory_entry& entry : fs::directory_iterator(arriving, error)) {
    NSA_RETURN_IF_ERROR(Move(entry.path(), state_dir / entry.path().filename()));
  }
  fs::remove_all(arriving, error);
  NSA_RETURN_IF_ERROR(SyncFolder(state_dir));
  return restored;
}

}  // namespace nsa::server
