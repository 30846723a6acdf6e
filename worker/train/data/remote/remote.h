// Files on web servers and on the Hugging Face Hub, for those who read data files.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "worker/train/data/remote/block_cache.h"
#include "worker/train/data/remote/fetch.h"
#include "worker/train/data/remote/hub.h"
#include "worker/train/data/remote/options.h"
#include "worker/train/data/remote/progress.h"
#include "worker/train/data/remote/remote_file.h"

namespace nsa::train {

// What is known about the files of one job. Thread-safe. All errors name the URL as the job wrote
// it, and are those of Fetcher (fetch.h) or CheckDataUrl(); PermissionDenied for a URL that
// RemoteOptions.policy does not allow.
class Remote {
 public:
  explicit Remote(RemoteOptions options);

  // Where hf:// URLs lead.
  const std::string& endpoint() const { return options_.endpoint; }

  // The commit at which all files of the branch or tag in a URL of the Hub are read: the one that
  // RemoteOptions names, else where the branch was when it was first asked for. Empty if the Hub
  // does not know it.
  absl::StatusOr<std::string> Commit(const std::string& url, ReadProgress* progress);

  // The files that a URL stands for: itself, or, of a pattern of the Hub, those of its folder that
  // match, in the order of their names. NotFound if none matches; InvalidArgument for more than
  // kMostMatches.
  absl::StatusOr<std::vector<std::string>> Expand(const std::string& url, ReadProgress* progress);

  // The files in the folder that a URL of the Hub is in, or directly in a model.
  absl::StatusOr<std::vector<HubFile>> Folder(const std::string& url, ReadProgress* progress);

  // Bytes of a file. Asks the server, or takes what the Hub's list said.
  absl::StatusOr<int64_t> Size(const std::string& url, ReadProgress* progress);

  // What a file was when it was first asked for.
  absl::StatusOr<FileVersion> Version(const std::string& url, ReadProgress* progress) {
    return Look(url, progress);
  }

  // The ETag of a file that was asked for before; otherwise empty.
  std::string KnownEtag(const std::string& url);

  // The first `count` bytes of a file, or all of a shorter one.
  absl::StatusOr<std::string> Head(const std::string& url, int64_t count, ReadProgress* progress);

  // Opens a file for reading. Its version is that of the first time: a change in between is an
  // error of the first read. `progress` and this object must outlive the file.
  absl::StatusOr<std::unique_ptr<RemoteFile>> Open(const std::string& url, ReadProgress* progress);

 private:
  absl::Status Check(const std::string& url) const;
  absl::StatusOr<HubPath> ParseHub(const std::string& url) const;
  absl::StatusOr<HubPath> AtCommit(const std::string& url, HubPath hub, ReadProgress* progress);
  absl::StatusOr<std::string> PlaceOf(const std::string& url, ReadProgress* progress);
  absl::StatusOr<FileVersion> Look(const std::string& url, ReadProgress* progress);
  absl::StatusOr<std::vector<HubFile>> List(const std::string& url, const HubPath& hub,
                                            ReadProgress* progress) const;

  const RemoteOptions options_;
  const std::shared_ptr<BlockCache> cache_;
  Mutex mutex_;
  HubCommits commits_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, FileVersion> versions_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int64_t> listed_ ABSL_GUARDED_BY(mutex_);  // sizes
};

}  // namespace nsa::train
