#include "server/act/path_guard.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/beneath.h"
#include "common/base/job_file.h"
#include "common/base/status.h"
#include "common/job/data/data_files.h"
#include "common/job/data/url.h"
#include "common/job/resume_from.h"
#include "server/store/out_dirs.h"

namespace nsa::server {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLongestPath = 4'000;

absl::Status Refuse(const std::string& field, const std::string& problem) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", problem));
}

absl::Status CheckText(const std::string& field, const std::string& path) {
  if (path.size() > kLongestPath) {
    return Refuse(field, absl::StrFormat("%d bytes (at most %d); use a shorter path", path.size(),
                                         kLongestPath));
  }
  if (path.find('\0') != std::string::npos) {
    return Refuse(field, "holds a NUL byte; remove it");
  }
  if (!fs::path(path).is_absolute()) {
    return Refuse(field, path.empty() ? "\"\" (an absolute path); choose one"
                                      : absl::StrCat(path, " is relative; use an absolute path"));
  }
  for (const fs::path& part : fs::path(path)) {
    const std::string name = part.string();
    if (name != "~" && !(name.size() > 1 && name[0] == '$')) continue;
    return Refuse(field, absl::StrCat(path, " contains ", name,
                                      ", which only a shell replaces; write the path itself"));
  }
  const auto up = [](const fs::path& part) { return part == ".."; };
  if (std::ranges::any_of(fs::path(path), up)) {
    return Refuse(field, absl::StrCat(path, " contains ..; use a path without it"));
  }
  return absl::OkStatus();
}

// The path without links, "." and doubled slashes; empty when it cannot be resolved. What does not
// exist yet stays as it is.
std::string Resolved(const fs::path& path) {
  std::error_code error;
  fs::path normal = path.lexically_normal();
  if (!normal.has_filename() && normal.has_relative_path()) normal = normal.parent_path();
  const fs::path real = fs::weakly_canonical(normal, error);
  return error ? "" : real.string();
}

}  // namespace

PathGuard::PathGuard(std::vector<fs::path> roots, const fs::path& state_dir, UrlPolicy urls)
    : roots_(std::move(roots)),
      state_dir_(state_dir.empty() ? "" : Resolved(state_dir)),
      urls_(std::move(urls)) {}

absl::StatusOr<std::string> PathGuard::RealOutDir(const std::string& out_dir) const {
  const std::string field = "train.out_dir";
  NSA_RETURN_IF_ERROR(CheckText(field, out_dir));
  std::error_code error;
  fs::path so_far;
  for (const fs::path& part : fs::path(out_dir).lexically_normal()) {
    so_far /= part;
    if (!fs::is_symlink(so_far, error)) continue;
    std::error_code missing;
    const fs::path target = fs::canonical(so_far, missing);
    if (!missing && JobPathExists(target)) continue;
    return Refuse(field, absl::StrCat(out_dir, " leads through ", so_far.string(),
                                      ", a link to nothing; make its target, or remove the link"));
  }
  const std::string real = Resolved(out_dir);
  if (real.empty()) {
    return Refuse(field, absl::StrCat(out_dir,
                                      " cannot be resolved; can this user read the "
                                      "folders that lead to it?"));
  }
  if (state_dir_.empty() || !Overlap(real, state_dir_)) return real;
  return Refuse(field, absl::StrCat(out_dir, " lies in or around the coordinator's state folder ",
                                    state_dir_, "; choose another folder"));
}

absl::Status PathGuard::Check(const std::string& field, const std::string& path) const {
  NSA_RETURN_IF_ERROR(CheckText(field, path));
  const fs::path wanted = fs::path(path).lexically_normal();
  for (const fs::path& root : roots_) {
    if (root == "/") return absl::OkStatus();
    const fs::path inner = wanted.lexically_relative(root);
    if (inner.empty() || *inner.begin() == "..") continue;
    if (ResolvesBeneath(root, inner == "." ? fs::path() : inner)) return absl::OkStatus();
  }
  return Refuse(field, absl::StrCat(path,
                                    " is not beneath allowed_roots, or leads through a "
                                    "symbolic link; choose a path beneath one of them"));
}

// What no worker could read is left to preflight, which says why.
absl::Status PathGuard::CheckUrl(const std::string& field, const std::string& url) const {
  if (!(CheckDataUrl(url).ok() || ParseS3Url(url, true).ok()) || urls_.Allows(url)) {
    return absl::OkStatus();
  }
  return Refuse(field, absl::StrCat(url,
                                    " is not among the coordinator's allowed_urls; copy the file "
                                    "and name its path, or ask an operator to allow the URL"));
}

// The folder of a pattern is checked first, so that no other folder is ever listed; then what
// matches, because a match may be a link to another place.
absl::Status PathGuard::CheckDataPath(const std::string& field, const std::string& path,
                                      PathExpander& paths, size_t* files) const {
  if (IsUrl(path)) return CheckUrl(field, path);
  if (!IsPattern(path)) return Check(field, path);
  NSA_RETURN_IF_ERROR(Check(field, fs::path(path).parent_path().string()));
  const absl::StatusOr<std::vector<std::string>>& matches = paths.Expand(path);
  if (absl::IsCancelled(matches.status())) return matches.status();
  if (!matches.ok()) return absl::OkStatus();  // preflight says why
  *files += matches->size();
  if (*files > kMostMatches) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": ", path, " is the pattern with which more than ", kMostMatches,
                     " files match; use fewer, larger files"));
  }
  for (const std::string& match : *matches) {
    if (JobFilesAreOver()) return absl::CancelledError(path);
    NSA_RETURN_IF_ERROR(Check(field, match));
  }
  return absl::OkStatus();
}

absl::Status PathGuard::CheckSpec(const v1::JobSpec& spec) const {
  NSA_RETURN_IF_ERROR(Check("train.out_dir", spec.train().out_dir()));
  PathExpander paths(JobFilesAreOver);
  size_t count = 0;
  for (const DataFiles& files : AllDataFiles(spec.data())) {
    for (const std::string& path : files.paths) {
      NSA_RETURN_IF_ERROR(CheckDataPath(files.field, path, paths, &count));
    }
  }
  if (!spec.data().tokenizer_path().empty()) {
    NSA_RETURN_IF_ERROR(Check("data.tokenizer_path", spec.data().tokenizer_path()));
  }
  if (!spec.train().checkpoint_url().empty()) {
    NSA_RETURN_IF_ERROR(CheckUrl("train.checkpoint_url", spec.train().checkpoint_url()));
  }
  if (NamesCheckpoint(spec.restart())) {
    NSA_RETURN_IF_ERROR(Check("restart.resume", spec.restart().resume()));
  }
  if (!spec.restart().init().empty()) {
    NSA_RETURN_IF_ERROR(Check("restart.init", spec.restart().init()));
  }
  return absl::OkStatus();
}

}  // namespace nsa::server
