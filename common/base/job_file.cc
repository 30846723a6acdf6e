#include "common/base/job_file.h"

#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/beneath.h"
#include "common/base/status.h"

namespace nsa {

namespace fs = std::filesystem;

struct JobFileScope::State {
  std::vector<fs::path> roots;  // empty: no limit
  std::string user;             // empty: no limit
  std::function<bool()> over;   // null: no limit
  // Of that user. A user who is not known here owns nothing and is in no group.
  std::optional<uid_t> uid;
  std::vector<gid_t> groups;
  // Whether that user may enter a folder and all that lead to it, and the folder as it was then: a
  // job may have 100,000 files in it. Used by the thread of the scope only.
  struct Entry {
    struct stat folder {};
    bool may_enter = false;
  };
  mutable std::unordered_map<std::string, Entry> entries;
};

namespace {

using State = JobFileScope::State;

// Of a mode.
constexpr mode_t kRead = 4;
constexpr mode_t kEnter = 1;

// Never the id of a user or group.
constexpr uid_t kNobody = static_cast<uid_t>(-1);

thread_local const State* scope = nullptr;

State& OfProcess() {
  static auto* const state = new State;
  return *state;
}

const State& Limits() { return scope != nullptr ? *scope : OfProcess(); }

std::vector<fs::path> LimitingRoots(std::vector<fs::path> roots) {
  if (std::ranges::find(roots, fs::path("/")) != roots.end()) roots.clear();
  return roots;
}

void FindUser(State* state) {
  std::vector<char> buffer(1 << 16);
  passwd entry{};
  passwd* found = nullptr;
  const int error = getpwnam_r(state->user.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (error != 0 || found == nullptr) return;
  state->uid = entry.pw_uid;
  int count = 64;
  state->groups.resize(static_cast<size_t>(count));
  if (getgrouplist(entry.pw_name, entry.pw_gid, state->groups.data(), &count) < 0) {
    state->groups.resize(static_cast<size_t>(count));
    getgrouplist(entry.pw_name, entry.pw_gid, state->groups.data(), &count);
  }
  state->groups.resize(static_cast<size_t>(std::max(count, 0)));
}

// An entry of an ACL; see acl(5) and the kernel's posix_acl_xattr.h.
struct AclEntry {
  uint16_t tag;
  uint16_t rights;
  uint32_t id;
};
constexpr uint16_t kAclUser = 2;
constexpr uint16_t kAclOwningGroup = 4;
constexpr uint16_t kAclGroup = 8;

std::vector<AclEntry> EntriesOf(const std::string& acl) {
  constexpr size_t kVersionBytes = 4;
  if (acl.size() <= kVersionBytes) return {};
  std::vector<AclEntry> entries((acl.size() - kVersionBytes) / sizeof(AclEntry));
  std::memcpy(entries.data(), acl.data() + kVersionBytes, entries.size() * sizeof(AclEntry));
  return entries;
}

// The rights of what `get` reads the attributes of.
template <typename Get>
bool UserMay(const State& limits, const struct stat& info, mode_t bits, Get get) {
  FileRights rights = {info.st_uid, info.st_gid, info.st_mode, std::string(4096, '\0')};
  const ssize_t bytes = get("system.posix_acl_access", rights.acl.data(), rights.acl.size());
  rights.acl.resize(bytes < 0 ? 0 : static_cast<size_t>(bytes));
  if (bytes < 0 && errno == ERANGE) return false;
  return MayUse(limits.uid.value_or(kNobody), limits.groups, rights, bits);
}

absl::Status Denied(const fs::path& path, const State& limits) {
  return absl::PermissionDeniedError(
      absl::StrCat(path.string(), ": Permission denied for the Unix user ", limits.user));
}

absl::Status Outside(const fs::path& path) {
  return absl::FailedPreconditionError(
      absl::StrCat(path.string(),
                   ": is not beneath allowed_roots, or leads through a symbolic link; put the file "
                   "itself there"));
}

bool MayEnterAll(const State& limits, fs::path folder) {
  struct stat info {};
  for (;; folder = folder.parent_path()) {
    const auto get = [&](const char* name, char* to, size_t most) {
      return getxattr(folder.c_str(), name, to, most);
    };
    if (stat(folder.c_str(), &info) != 0 || !UserMay(limits, info, kEnter, get)) return false;
    if (folder == folder.root_path()) return true;
  }
}

// The same folder with the same rights. The time of change covers its ACL, and ticks in
// milliseconds.
bool IsSame(const struct stat& a, const struct stat& b) {
  const auto key = [](const struct stat& info) {
    return std::tuple(info.st_dev, info.st_ino, info.st_mode, info.st_uid, info.st_gid,
                      info.st_ctim.tv_sec, info.st_ctim.tv_nsec);
  };
  return key(a) == key(b);
}

bool MayEnter(const State& limits, const fs::path& folder) {
  struct stat info {};
  if (stat(folder.c_str(), &info) != 0) return false;
  const auto known = limits.entries.find(folder.string());
  if (known != limits.entries.end() && IsSame(known->second.folder, info)) {
    return known->second.may_enter;
  }
  const bool may_enter = MayEnterAll(limits, folder);
  limits.entries.insert_or_assign(folder.string(), State::Entry{info, may_enter});
  return may_enter;
}

struct Opened {
  Fd fd;
  struct stat info {};
};

// Whether the user may read the open file, and enter every folder that leads to it, where it really
// lies.
absl::Status CheckUser(const Opened& file, const fs::path& path, const State& limits) {
  if (limits.user.empty()) return absl::OkStatus();
  std::error_code error;
  const fs::path real = fs::read_symlink(absl::StrCat("/proc/self/fd/", file.fd.get()), error);
  const auto get = [&](const char* name, char* to, size_t most) {
    return fgetxattr(file.fd.get(), name, to, most);
  };
  if (error || !real.is_absolute() || !UserMay(limits, file.info, kRead, get) ||
      !MayEnter(limits, real.parent_path())) {
    return Denied(path, limits);
  }
  return absl::OkStatus();
}

// The last folder on the way to a file that is not there, also behind links that lead to nothing.
fs::path LastFolder(fs::path path) {
  constexpr int kMostLinks = 40;  // as the system's
  std::error_code error;
  for (int i = 0; i < kMostLinks; ++i) {
    fs::path there = path, rest;
    while (there.has_relative_path() && !fs::exists(there, error) &&
           !fs::is_symlink(there, error)) {
      rest = rest.empty() ? there.filename() : there.filename() / rest;
      there = there.parent_path();
    }
    if (fs::exists(there, error)) return fs::canonical(there, error);
    path = there.parent_path() / fs::read_symlink(there, error);
    if (!rest.empty()) path /= rest;
  }
  return fs::path();
}

// The error for a file that is not there: the same as for one that is, if the user may not look
// into the folder.
absl::Status Absent(const State& limits, const fs::path& path, const absl::Status& absent) {
  if (limits.user.empty()) return absent;
  const fs::path folder = LastFolder(path);
  return folder.empty() || !MayEnter(limits, folder) ? Denied(path, limits) : absent;
}

// A folder that this process holds open, by which some of its own files are named.
std::optional<fs::path> HeldFolder(const fs::path& path) {
  constexpr std::string_view kHeld = "/proc/self/fd/";
  const std::string text = path.string();
  if (!text.starts_with(kHeld)) return std::nullopt;
  return text.substr(0, text.find('/', kHeld.size()));
}

// The part of `path` below `root`; nothing if it is not below it.
std::optional<fs::path> Below(const fs::path& root, const fs::path& path) {
  fs::path inner = path.lexically_relative(root);
  if (inner.empty() || *inner.begin() == "..") return std::nullopt;
  return inner;
}

std::vector<fs::path> RootsOf(const State& limits, const fs::path& path) {
  std::vector<fs::path> roots = limits.roots;
  if (auto held = HeldFolder(path)) roots.push_back(*std::move(held));
  return roots;
}

fs::path FolderOf(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// Opens it by the rules about roots and links.
absl::StatusOr<Fd> OpenWithin(const State& limits, const fs::path& path, int flags) {
  flags |= O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  if (limits.roots.empty()) {
    if ((flags & O_NOFOLLOW) != 0) return OpenBeneath(FolderOf(path), path.filename(), flags);
    Fd fd(open(path.c_str(), flags));
    // ENXIO: a socket, or a device that is not there.
    if (!fd.valid() && errno == ENXIO) {
      return absl::InvalidArgumentError(absl::StrCat(path.string(), ": is not a regular file"));
    }
    if (!fd.valid()) {
      const int error = errno;
      return absl::ErrnoToStatus(error, path.string());
    }
    return fd;
  }
  const fs::path normal = path.lexically_normal();
  absl::Status refused = Outside(path);
  for (const fs::path& root : RootsOf(limits, normal)) {
    const std::optional<fs::path> inner = Below(root, normal);
    if (!inner.has_value()) continue;
    absl::StatusOr<Fd> fd = OpenBeneath(root, *inner, flags);
    if (fd.ok() || !absl::IsFailedPrecondition(fd.status())) return fd;
    // A link, behind which another root may begin, or no regular file: which of them it is, the
    // user needs to know.
    if (ResolvesBeneath(root, *inner)) {
      refused = absl::InvalidArgumentError(absl::StrCat(path.string(), ": is not a regular file"));
    }
  }
  return refused;
}

// Opens it by all rules; it may be anything that can be opened.
absl::StatusOr<Opened> OpenFor(const State& limits, const fs::path& path, int flags) {
  if (limits.over && limits.over()) {
    return absl::CancelledError(absl::StrCat(path.string(), ": nobody needs it any more"));
  }
  absl::StatusOr<Fd> fd = OpenWithin(limits, path, flags);
  if (absl::IsNotFound(fd.status())) return Absent(limits, path, fd.status());
  if (!fd.ok()) return fd.status();
  Opened opened{*std::move(fd)};
  if (fstat(opened.fd.get(), &opened.info) != 0) return absl::ErrnoToStatus(errno, path.string());
  NSA_RETURN_IF_ERROR(CheckUser(opened, path, limits));
  return opened;
}

absl::StatusOr<Opened> OpenRegular(const fs::path& path, int flags) {
  NSA_ASSIGN_OR_RETURN(Opened opened, OpenFor(Limits(), path, flags));
  const mode_t mode = opened.info.st_mode;
  if (S_ISREG(mode)) return opened;
  return absl::InvalidArgumentError(absl::StrCat(
      path.string(), S_ISDIR(mode) ? ": is a folder (must be a file)" : ": is not a regular file"));
}

}  // namespace

JobFileScope::JobFileScope(const JobFileLimits& limits)
    : state_(new State{.roots = LimitingRoots(limits.roots),
                       .user = limits.unix_user,
                       .over = limits.over,
                       .uid = std::nullopt,
                       .groups = {},
                       .entries = {}}),
      outer_(scope) {
  if (!state_->user.empty()) FindUser(state_.get());
  scope = state_.get();
}

JobFileScope::~JobFileScope() { scope = outer_; }

void LimitJobFiles(std::vector<fs::path> roots) {
  OfProcess().roots = LimitingRoots(std::move(roots));
}

bool JobFilesAreLimited() { return !Limits().roots.empty(); }

bool JobFilesAreOver() { return Limits().over && Limits().over(); }

absl::StatusOr<Fd> OpenJobFile(const fs::path& path, int flags) {
  NSA_ASSIGN_OR_RETURN(Opened opened, OpenRegular(path, flags));
  return std::move(opened.fd);
}

absl::StatusOr<Fd> OpenJobFolder(const fs::path& path) {
  NSA_ASSIGN_OR_RETURN(Opened opened, OpenFor(Limits(), path, O_DIRECTORY));
  return std::move(opened.fd);
}

absl::StatusOr<std::string> ReadJobFile(const fs::path& path, int64_t most) {
  NSA_ASSIGN_OR_RETURN(const Opened opened, OpenRegular(path, 0));
  const int64_t bytes = opened.info.st_size;
  if (bytes > most) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %d bytes (at most %d)", path.string(), bytes, most));
  }
  std::string text = ReadSome(opened.fd.get(), 0, bytes);
  if (std::ssize(text) == bytes) return text;
  return absl::DataLossError(
      absl::StrFormat("%s: %d of %d bytes could be read", path.string(), text.size(), bytes));
}

std::string ReadSome(int fd, int64_t at, int64_t most) {
  std::string text(static_cast<size_t>(most), '\0');
  size_t got = 0;
  while (got < text.size()) {
    const ssize_t count =
        pread(fd, text.data() + got, text.size() - got, at + static_cast<off_t>(got));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    got += static_cast<size_t>(count);
  }
  text.resize(got);
  return text;
}

bool JobPathExists(const std::filesystem::path& path) {
  const State& limits = Limits();
  std::error_code error;
  if (!limits.user.empty()) {
    // As written, and where links lead: the folders above are others there.
    const fs::path folder = FolderOf(path), real = fs::canonical(folder, error);
    if (error || !MayEnter(limits, folder) || !MayEnter(limits, real)) return false;
  }
  return fs::symlink_status(path, error).type() != fs::file_type::not_found;
}

std::optional<int64_t> JobFileBytes(const fs::path& path) {
  const absl::StatusOr<Opened> opened = OpenRegular(path, 0);
  if (!opened.ok()) return std::nullopt;
  return opened->info.st_size;
}

absl::Status CheckJobPath(const fs::path& path) {
  const State& limits = Limits();
  if (limits.roots.empty()) return absl::OkStatus();
  const fs::path normal = path.lexically_normal();
  for (const fs::path& root : RootsOf(limits, normal)) {
    const std::optional<fs::path> inner = Below(root, normal);
    if (!inner.has_value()) continue;
    if (ResolvesBeneath(root, *inner == "." ? fs::path() : *inner)) return absl::OkStatus();
  }
  return Outside(path);
}

bool MayUse(uid_t user, const std::vector<gid_t>& groups, const FileRights& file, mode_t bits) {
  const auto member = [&](gid_t group) { return std::ranges::find(groups, group) != groups.end(); };
  const auto allows = [bits](mode_t rights) { return (rights & bits) == bits; };
  if (user == file.owner) return allows(file.mode >> 6);
  const std::vector<AclEntry> acl = EntriesOf(file.acl);
  if (acl.empty()) return allows(member(file.group) ? file.mode >> 3 : file.mode);
  // With an ACL the group's bits of the mode are its mask.
  const mode_t mask = file.mode >> 3;
  bool of_group = false;
  for (const AclEntry& entry : acl) {
    if (entry.tag == kAclUser && entry.id == user) return allows(entry.rights & mask);
  }
  for (const AclEntry& entry : acl) {
    const bool mine = (entry.tag == kAclOwningGroup && member(file.group)) ||
                      (entry.tag == kAclGroup && member(entry.id));
    if (mine && allows(entry.rights & mask)) return true;
    of_group = of_group || mine;
  }
  return !of_group && allows(file.mode);
}

}  // namespace nsa
