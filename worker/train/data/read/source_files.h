// The files that a job's data names, here and on web servers: which there are, and what they are
// known by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/job/data/data_files.h"
#include "common/job/data/held_out.h"
#include "common/job/data/url.h"
#include "nsa/v1/data.pb.h"
#include "worker/train/data/remote/progress.h"

namespace nsa::train {

// The least size of the passages that a job divides texts into, so that some of them can be held
// out; 0: it does not divide them.
size_t PassageBytesFor(const v1::DataSpec& data);

// How long the data may make no progress.
absl::Duration LoaderTimeout(const v1::DataSpec& data);

// What reads the URLs of the data, as far as `allowed_urls` (common/job/data/url_policy.h) say so,
// branches of the Hub at `hub_commits`; null if it names none. The errors of RemoteOptionsFor().
absl::StatusOr<std::shared_ptr<Remote>> RemoteFor(const v1::DataSpec& data,
                                                  const std::vector<std::string>& allowed_urls,
                                                  const HubCommits& hub_commits = {});

class SourceFiles {
 public:
  // `progress` must outlive the object.
  explicit SourceFiles(ReadProgress* progress) : progress_(progress) {}

  // Looks for all files of a job before anything is read, in the words of preflight; asks the
  // servers about all URLs. Each error names the field and the file: InvalidArgument if all URLs of
  // a set are empty or one lacks the mark of its format; the errors of Remote, of ExpandPath() and
  // of OpenDataFile().
  absl::Status CheckFiles(const v1::DataSpec& data) const;

  // The files that the paths of a set stand for, in order. Each error names the field.
  absl::StatusOr<std::vector<std::string>> Expand(const DataFiles& files) const;

  // Bytes of a file; of a local one that cannot be read −1.
  absl::StatusOr<int64_t> SizeOf(const std::string& path) const;

  // The ETag of a URL, if the server was asked for the file already and has a strong one; otherwise
  // empty.
  std::string KnownEtag(const std::string& path) const;

  // What a file is known by later: path, size, version, and of one on the Hub the commit.
  absl::StatusOr<v1::PreparedSource> Describe(const std::string& path) const;

 private:
  absl::Status CheckSet(const DataFiles& files) const;
  static absl::Status CheckLocal(const std::string& path, v1::DataSource source);
  absl::StatusOr<std::string> CheckUrl(const std::string& url, v1::DataSource source) const;
  absl::Status CheckMark(const std::string& url, v1::DataSource source) const;
  absl::StatusOr<std::vector<std::string>> ExpandOne(const std::string& path) const;

  ReadProgress* const progress_;
};

}  // namespace nsa::train
