#include "worker/train/data/remote/remote.h"

#include <fnmatch.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/job/data/data_files.h"
#include "common/job/data/url.h"

namespace nsa::train {
namespace {

constexpr size_t kLongestPage = 16 << 20;
constexpr absl::Duration kLook = absl::Milliseconds(50);  // between looks at the progress

// For requests of the thread that reads.
Fetcher::Watch WatchOf(ReadProgress* progress) {
  return {.cancelled = &progress->cancelled,
          .bytes = &progress->bytes,
          .sleep = [progress](absl::Duration time) {
            for (; time > absl::ZeroDuration() && !progress->cancelled; time -= kLook) {
              absl::SleepFor(std::min(time, kLook));
            }
            return !progress->cancelled;
          }};
}

}  // namespace

Remote::Remote(RemoteOptions options)
    : options_(std::move(options)),
      cache_(std::make_shared<BlockCache>(options_.cache, options_.cache_bytes)),
      commits_(options_.hub_commits) {}

absl::Status Remote::Check(const std::string& url) const {
  const bool model = options_.models && IsHubModelUrl(url);
  NSA_RETURN_IF_ERROR(model ? ParseHubModelUrl(url).status() : CheckDataUrl(url));
  if (options_.policy.Allows(url)) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      url, ": is not among the coordinator's allowed_urls; copy the file, or ask an operator"));
}

absl::StatusOr<HubPath> Remote::ParseHub(const std::string& url) const {
  const bool model = options_.models && IsHubModelUrl(url);
  return model ? ParseHubModelUrl(url) : ParseHubUrl(url);
}

// The same path with a commit in the place of a branch or tag.
absl::StatusOr<HubPath> Remote::AtCommit(const std::string& url, HubPath hub,
                                         ReadProgress* progress) {
  if (hub.pinned()) return hub;
  const std::string key = hub.key();
  {
    const MutexLock lock(&mutex_);
    if (const auto known = commits_.find(key); known != commits_.end()) {
      hub.revision = known->second;
      return hub;
    }
  }
  Fetcher fetcher(options_, url, HubRevisionUrl(options_.endpoint, hub), WatchOf(progress));
  const absl::StatusOr<Fetcher::Page> page = fetcher.Get(kLongestPage);
  // A revision that is not there has no files either, and a mirror that does not know this question
  // may have them.
  if (!absl::IsNotFound(page.status())) {
    NSA_RETURN_IF_ERROR(page.status());
    const absl::StatusOr<std::string> commit = ParseHubCommit(page->body);
    NSA_RETURN_IF_ERROR(Annotate(commit.status(), url));
    hub.revision = *commit;
  }
  const MutexLock lock(&mutex_);
  hub.revision = commits_.emplace(key, hub.revision).first->second;
  return hub;
}

absl::StatusOr<std::string> Remote::Commit(const std::string& url, ReadProgress* progress) {
  NSA_RETURN_IF_ERROR(Check(url));
  NSA_ASSIGN_OR_RETURN(HubPath hub, ParseHub(url));
  NSA_ASSIGN_OR_RETURN(hub, AtCommit(url, hub, progress));
  return hub.pinned() ? hub.revision : "";
}

absl::StatusOr<std::string> Remote::PlaceOf(const std::string& url, ReadProgress* progress) {
  if (IsS3Url(url)) {
    if (!options_.s3.ok()) return Annotate(options_.s3.status(), url);
    NSA_ASSIGN_OR_RETURN(const S3Path path, ParseS3Url(url));
    return S3HttpUrl(*options_.s3, path);
  }
  absl::StatusOr<HubPath> hub = ParseHub(url);
  if (!hub.ok()) return url;
  NSA_ASSIGN_OR_RETURN(hub, AtCommit(url, *hub, progress));
  return HubFileUrl(options_.endpoint, *hub);
}

absl::StatusOr<FileVersion> Remote::Look(const std::string& url, ReadProgress* progress) {
  {
    const MutexLock lock(&mutex_);
    if (const auto known = versions_.find(url); known != versions_.end()) return known->second;
  }
  NSA_RETURN_IF_ERROR(Check(url));
  NSA_ASSIGN_OR_RETURN(const std::string place, PlaceOf(url, progress));
  Fetcher fetcher(options_, url, place, WatchOf(progress));
  NSA_ASSIGN_OR_RETURN(FileVersion version, fetcher.Look());
  const MutexLock lock(&mutex_);
  return versions_.emplace(url, std::move(version)).first->second;
}

absl::StatusOr<int64_t> Remote::Size(const std::string& url, ReadProgress* progress) {
  {
    const MutexLock lock(&mutex_);
    const auto listed = listed_.find(url);
    if (listed != listed_.end() && listed->second >= 0) return listed->second;
  }
  NSA_ASSIGN_OR_RETURN(const FileVersion version, Look(url, progress));
  return version.size;
}

std::string Remote::KnownEtag(const std::string& url) {
  const MutexLock lock(&mutex_);
  const auto known = versions_.find(url);
  return known == versions_.end() ? "" : known->second.etag;
}

absl::StatusOr<std::string> Remote::Head(const std::string& url, int64_t count,
                                         ReadProgress* progress) {
  NSA_ASSIGN_OR_RETURN(const FileVersion version, Look(url, progress));
  NSA_ASSIGN_OR_RETURN(const std::string place, PlaceOf(url, progress));
  Fetcher fetcher(options_, url, place, WatchOf(progress));
  std::string head;
  NSA_RETURN_IF_ERROR(fetcher.Read(version, 0, std::min(count, version.size), &head));
  return head;
}

absl::StatusOr<std::unique_ptr<RemoteFile>> Remote::Open(const std::string& url,
                                                         ReadProgress* progress) {
  NSA_ASSIGN_OR_RETURN(FileVersion version, Look(url, progress));
  NSA_ASSIGN_OR_RETURN(const std::string place, PlaceOf(url, progress));
  return std::make_unique<RemoteFile>(options_, cache_, url, place, std::move(version), progress);
}

absl::StatusOr<std::vector<HubFile>> Remote::List(const std::string& url, const HubPath& hub,
                                                  ReadProgress* progress) const {
  std::vector<HubFile> files;
  std::string page_url = HubFolderUrl(options_.endpoint, hub);
  NSA_ASSIGN_OR_RETURN(const Url first, ParseUrl(page_url));
  while (!page_url.empty()) {
    Fetcher fetcher(options_, url, page_url, WatchOf(progress));
    NSA_ASSIGN_OR_RETURN(const Fetcher::Page page, fetcher.Get(kLongestPage));
    NSA_RETURN_IF_ERROR(Annotate(AppendHubFiles(page.body, &files), url));
    if (files.size() > kMostMatches) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: the folder has more than %d files; name the files", url, kMostMatches));
    }
    page_url = page.next;
    if (page_url.empty()) break;
    const absl::StatusOr<Url> next = ParseUrl(page_url);
    if (!next.ok() || next->origin() != first.origin()) {
      return absl::DataLossError(
          absl::StrCat(url, ": the list of files continues on another host; name the files"));
    }
  }
  return files;
}

absl::StatusOr<std::vector<HubFile>> Remote::Folder(const std::string& url,
                                                    ReadProgress* progress) {
  NSA_RETURN_IF_ERROR(Check(url));
  NSA_ASSIGN_OR_RETURN(HubPath hub, ParseHub(url));
  NSA_ASSIGN_OR_RETURN(hub, AtCommit(url, std::move(hub), progress));
  return List(url, hub, progress);
}

absl::StatusOr<std::vector<std::string>> Remote::Expand(const std::string& url,
                                                        ReadProgress* progress) {
  NSA_RETURN_IF_ERROR(Check(url));
  if (!IsPattern(url)) return std::vector<std::string>{url};
  NSA_ASSIGN_OR_RETURN(const HubPath hub, ParseHub(url));
  NSA_ASSIGN_OR_RETURN(const std::vector<HubFile> files, Folder(url, progress));
  const std::string begin = url.substr(0, url.size() - hub.path.size());
  const size_t name = hub.path.rfind('/') + 1;  // 0 without a folder
  std::vector<std::string> found;
  for (const HubFile& file : files) {
    if (file.path == hub.path) return std::vector<std::string>{url};
    if (file.path.compare(0, name, hub.path, 0, name) != 0) continue;
    if (fnmatch(&hub.path[name], &file.path[name], FNM_PERIOD | FNM_PATHNAME) != 0) continue;
    found.push_back(begin + file.path);
    const MutexLock lock(&mutex_);
    listed_[found.back()] = file.size;
  }
  std::sort(found.begin(), found.end());
  if (!found.empty()) return found;
  return absl::NotFoundError(absl::StrCat(url, ": no file matches this pattern (", files.size(),
                                          " files in the folder); correct it"));
}

}  // namespace nsa::train
