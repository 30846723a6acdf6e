#include "server/act/checkpoints.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/beneath.h"
#include "common/base/job_file.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "common/checkpoint/checkpoint_info.h"
#include "nlohmann/json.hpp"

namespace nsa::server {
namespace {

constexpr int kLargestPage = 1'000;
constexpr int kMostProblems = 1'000;

}  // namespace

absl::StatusOr<v1::ListCheckpointsResponse> CheckpointsOf(
    const std::string& out_dir, const v1::ListCheckpointsRequest& request) {
  if (request.page_size() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_size: ", request.page_size(), " (at least 0); use 0 for the default"));
  }
  int64_t after = -1;
  if (!request.page_token().empty() && !absl::SimpleAtoi(request.page_token(), &after)) {
    return absl::InvalidArgumentError(
        "page_token: does not come from an earlier reply; leave it empty");
  }
  const int limit =
      request.page_size() == 0 ? kLargestPage : std::min(request.page_size(), kLargestPage);
  NSA_ASSIGN_OR_RETURN(const auto entries, ListCheckpoints(out_dir));
  v1::ListCheckpointsResponse response;
  size_t bytes = 0;
  for (const CheckpointEntry& entry : entries) {
    if (entry.step <= after) continue;
    if (response.checkpoints_size() == limit || bytes > limits::kPageBytes) {
      response.set_next_page_token(absl::StrCat(response.checkpoints().rbegin()->step()));
      break;
    }
    if (JobFilesAreOver()) return absl::CancelledError("the caller no longer waits");
    *response.add_checkpoints() = CheckpointInfoOf(entry);
    bytes += response.checkpoints().rbegin()->ByteSizeLong();
  }
  return response;
}

absl::StatusOr<std::vector<v1::CheckpointInfo>> NewestCheckpoints(const std::string& out_dir,
                                                                  size_t most) {
  NSA_ASSIGN_OR_RETURN(const auto entries, ListCheckpoints(out_dir));
  std::vector<v1::CheckpointInfo> newest;
  size_t bytes = 0;
  for (auto entry = entries.rbegin(); entry != entries.rend() && newest.size() < most; ++entry) {
    if (JobFilesAreOver()) return absl::CancelledError("the caller no longer waits");
    newest.push_back(CheckpointInfoOf(*entry));
    bytes += newest.back().ByteSizeLong();
    if (bytes > limits::kPageBytes) break;
  }
  std::ranges::reverse(newest);
  return newest;
}

absl::StatusOr<v1::VerifyCheckpointResponse> Verify(const std::string& out_dir, int64_t step,
                                                    const std::function<bool()>& abandoned) {
  NSA_ASSIGN_OR_RETURN(const auto entries, ListCheckpoints(out_dir));
  const auto found = step == 0 ? (entries.empty() ? entries.end() : std::prev(entries.end()))
                               : std::ranges::find(entries, step, &CheckpointEntry::step);
  if (found == entries.end()) {
    return absl::NotFoundError(
        absl::StrCat("checkpoint: ", step == 0 ? "none" : absl::StrCat("none of step ", step),
                     " in ", out_dir, "; `nsactl checkpoint list` shows what there is"));
  }
  v1::VerifyCheckpointResponse response;
  *response.mutable_checkpoint() = CheckpointInfoOf(*found);
  const std::vector<std::string> problems = VerifyCheckpoint(found->path, abandoned);
  for (const std::string& problem : problems) {
    if (response.problems_size() == kMostProblems) {
      response.add_problems(absl::StrCat("and ", problems.size() - kMostProblems, " more"));
      break;
    }
    response.add_problems(problem);
  }
  if (abandoned())
    return absl::CancelledError("verification was cancelled: the client no longer waits");
  return response;
}

absl::Status ReleaseOutDir(const std::string& out_dir, const std::string& job_id) {
  const absl::StatusOr<Fd> file = OpenBeneath(out_dir, "owner.json", O_RDONLY | O_CLOEXEC);
  if (absl::IsNotFound(file.status())) return absl::OkStatus();
  NSA_RETURN_IF_ERROR(file.status());
  std::array<char, 4096> text;
  const ssize_t bytes = pread(file->get(), text.data(), text.size(), 0);
  if (bytes < 0) return absl::ErrnoToStatus(errno, absl::StrCat(out_dir, "/owner.json"));
  const auto owner = nlohmann::json::parse(text.begin(), text.begin() + bytes, nullptr,
                                           /*allow_exceptions=*/false);
  const auto id = owner.find("job_id");
  if (id == owner.end() || !id->is_string() || id->get<std::string>() != job_id) {
    return absl::OkStatus();
  }
  return RemoveBeneath(out_dir, "owner.json");
}

}  // namespace nsa::server
