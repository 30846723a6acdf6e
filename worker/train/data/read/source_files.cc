#include "worker/train/data/read/source_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/job/data/file_kind.h"
#include "common/job/data/url.h"
#include "common/job/data_source.h"
#include "worker/train/data/read/data_file.h"
#include "worker/train/data/remote/remote.h"

namespace nsa::train {

size_t PassageBytesFor(const v1::DataSpec& data) {
  return data.val_path().empty() && data.val_fraction() > 0 ? kPassageBytes : 0;
}

absl::Duration LoaderTimeout(const v1::DataSpec& data) {
  const double seconds = data.loader_timeout_seconds();
  return seconds > 0 ? absl::Seconds(seconds) : absl::Seconds(60);
}

absl::StatusOr<std::shared_ptr<Remote>> RemoteFor(const v1::DataSpec& data,
                                                  const std::vector<std::string>& allowed_urls,
                                                  const HubCommits& hub_commits) {
  const bool named = std::ranges::any_of(AllDataFiles(data), [](const DataFiles& files) {
    return std::ranges::any_of(files.paths, [](const std::string& path) { return IsUrl(path); });
  });
  if (!named) return nullptr;
  NSA_ASSIGN_OR_RETURN(RemoteOptions remote, RemoteOptionsFor(allowed_urls, LoaderTimeout(data)));
  remote.hub_commits = hub_commits;
  return std::make_shared<Remote>(std::move(remote));
}

absl::Status SourceFiles::CheckFiles(const v1::DataSpec& data) const {
  for (const DataFiles& files : AllDataFiles(data)) NSA_RETURN_IF_ERROR(CheckSet(files));
  return absl::OkStatus();
}

// Some files of a set may be empty, as shards without rows are, but not all.
absl::Status SourceFiles::CheckSet(const DataFiles& files) const {
  absl::Status empty;
  bool filled = false;
  for (size_t i = 0; i < files.paths.size(); ++i) {
    absl::StatusOr<std::string> found = std::string();
    if (IsUrl(files.paths[i])) {
      found = CheckUrl(files.paths[i], files.source);
    } else if (absl::Status here = CheckLocal(files.paths[i], files.source); !here.ok()) {
      found = std::move(here);
    }
    NSA_RETURN_IF_ERROR(Annotate(found.status(), files.FieldOf(i)));
    filled = filled || found->empty();
    if (!empty.ok() || found->empty()) continue;
    empty = absl::InvalidArgumentError(
        absl::StrCat(files.FieldOf(i), ": ", *found, ": is empty; give a file that has data"));
  }
  return filled ? absl::OkStatus() : empty;
}

// A file that is there is not opened: its tokens may be kept, and a reader of a pipe waits for its
// first byte. Only prepared data is a folder.
absl::Status SourceFiles::CheckLocal(const std::string& path, v1::DataSource source) {
  NSA_ASSIGN_OR_RETURN(const std::vector<std::string> paths, ExpandPath(path));
  const std::string& first = paths.front();
  std::error_code error;
  const bool may_be_folder = DataSourceInfoOf(source).format == DocumentFormat::kTokens;
  const std::filesystem::file_status status = std::filesystem::status(first, error);
  const bool here = exists(status) && (may_be_folder || !is_directory(status));
  return here ? absl::OkStatus() : OpenDataFile(first).status();
}

// An empty name, or if all files of the URL are empty the first of them.
absl::StatusOr<std::string> SourceFiles::CheckUrl(const std::string& url,
                                                  v1::DataSource source) const {
  NSA_ASSIGN_OR_RETURN(const std::vector<std::string> paths, ExpandOne(url));
  const std::string* filled = nullptr;
  for (const std::string& path : paths) {
    NSA_ASSIGN_OR_RETURN(const int64_t size, SizeOf(path));
    if (size > 0 && filled == nullptr) filled = &path;
  }
  if (filled == nullptr) return paths.front();
  if (DataSourceInfoOf(source).format == DocumentFormat::kRows) {
    NSA_RETURN_IF_ERROR(CheckMark(*filled, source));
  }
  return std::string();
}

// Of a pattern, the first file that is not empty stands for all: a request for each may take
// minutes.
absl::Status SourceFiles::CheckMark(const std::string& url, v1::DataSource source) const {
  if (progress_->remote == nullptr) return absl::OkStatus();  // opening it is an error
  NSA_ASSIGN_OR_RETURN(const std::string head,
                       progress_->remote->Head(url, kFileHeadBytes, progress_));
  const std::optional<std::string> fault = FaultOfMark(source, head);
  if (!fault) return absl::OkStatus();
  NSA_RETURN_IF_ERROR(CheckIsNoStranger(url, head));
  return absl::InvalidArgumentError(
      absl::StrCat(url, ": ", *fault, "; set data.source to what the file holds"));
}

absl::StatusOr<std::vector<std::string>> SourceFiles::ExpandOne(const std::string& path) const {
  if (IsUrl(path) && progress_->remote != nullptr) {
    return progress_->remote->Expand(path, progress_);
  }
  return ExpandPath(path);
}

absl::StatusOr<std::vector<std::string>> SourceFiles::Expand(const DataFiles& files) const {
  std::vector<std::string> all;
  for (size_t i = 0; i < files.paths.size(); ++i) {
    const auto paths = ExpandOne(files.paths[i]);
    if (!paths.ok()) return Annotate(paths.status(), files.FieldOf(i));
    all.insert(all.end(), paths->begin(), paths->end());
  }
  return all;
}

absl::StatusOr<int64_t> SourceFiles::SizeOf(const std::string& path) const {
  if (IsUrl(path) && progress_->remote != nullptr) return progress_->remote->Size(path, progress_);
  std::error_code ignored;
  return static_cast<int64_t>(std::filesystem::file_size(path, ignored));
}

std::string SourceFiles::KnownEtag(const std::string& path) const {
  if (!IsUrl(path) || progress_->remote == nullptr) return "";
  std::string etag = progress_->remote->KnownEtag(path);
  return etag.starts_with('"') ? etag : "";  // W/ marks a weak one
}

absl::StatusOr<v1::PreparedSource> SourceFiles::Describe(const std::string& path) const {
  v1::PreparedSource source;
  source.set_path(std::string(WithoutQuery(path)));
  NSA_ASSIGN_OR_RETURN(const int64_t size, SizeOf(path));
  source.set_bytes(size);
  if (IsUrl(path)) {
    if (progress_->remote == nullptr) return source;
    NSA_ASSIGN_OR_RETURN(const FileVersion version, progress_->remote->Version(path, progress_));
    source.set_version(version.etag.empty() ? version.last_modified : version.etag);
    if (ParseHubUrl(path).ok()) {
      NSA_ASSIGN_OR_RETURN(*source.mutable_commit(), progress_->remote->Commit(path, progress_));
    }
    return source;
  }
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return absl::ErrnoToStatus(errno, path);
  source.set_version(
      absl::StrCat(int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec));
  return source;
}

}  // namespace nsa::train
