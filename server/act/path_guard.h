// Checks the paths and URLs that a job names: paths must be absolute and beneath one of the
// configured roots, and must not lead through a symbolic link; URLs must be allowed.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/job_file.h"
#include "common/job/data/data_files.h"
#include "common/job/data/url_policy.h"
#include "nsa/v1/job.pb.h"

namespace nsa::server {

class PathGuard {
 public:
  // Roots are absolute; The root "/" allows every absolute path and follows symbolic links. No
  // out_dir may overlap with `state_dir` (empty: there is none). `urls` says which URLs data may
  // come from.
  explicit PathGuard(std::vector<std::filesystem::path> roots,
                     const std::filesystem::path& state_dir = {}, UrlPolicy urls = UrlPolicy());

  // InvalidArgument when the path is not allowed. The path need not exist; the part that exists is
  // resolved by ResolvesBeneath() (common/base/beneath.h).
  absl::Status Check(const std::string& field, const std::string& path) const;

  // out_dir, data and validation files (of a pattern its folder and all files that match; URLs
  // must be allowed ones), the tokenizer's folder, and the checkpoints to resume from or to take
  // the weights from. Cancelled when nobody needs the job's files any more (JobFilesAreOver()).
  absl::Status CheckSpec(const v1::JobSpec& spec) const;

  // What the coordinator may open for a job: beneath the roots, and only what its Unix user may
  // read (empty: it has none), until `over` (may be null) returns true.
  JobFileLimits FilesOf(const std::string& unix_user, std::function<bool()> over = nullptr) const {
    return {roots_, unix_user, std::move(over)};
  }

  // An out_dir with its symbolic links resolved, whether it exists or not: two spellings of one
  // folder have one result. InvalidArgument when it leads through a link to nothing, cannot be
  // resolved, or lies in or around the state folder. Reads the disk.
  absl::StatusOr<std::string> RealOutDir(const std::string& out_dir) const;

 private:
  absl::Status CheckUrl(const std::string& field, const std::string& url) const;
  // `paths` and `*files`, those that were checked, are of the whole job.
  absl::Status CheckDataPath(const std::string& field, const std::string& path, PathExpander& paths,
                             size_t* files) const;

  const std::vector<std::filesystem::path> roots_;
  const std::string state_dir_;  // with its links resolved
  const UrlPolicy urls_;
};

}  // namespace nsa::server
