#include "worker/train/data/stream/plan.h"

#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/job/data/prepared.h"
#include "common/job/data/token_layout.h"
#include "common/job/data/url.h"

namespace nsa::train {
namespace {

// "1234 bytes of 1764000000.123456789"; empty for a URL.
absl::StatusOr<std::string> StateOf(const std::string& path) {
  if (IsUrl(path)) return std::string();
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return absl::ErrnoToStatus(errno, path);
  return absl::StrFormat("%d bytes of %d.%09d", int64_t{info.st_size}, int64_t{info.st_mtim.tv_sec},
                         int64_t{info.st_mtim.tv_nsec});
}

// Of a file of tokens, that of the index beside it too, which says where its documents begin.
absl::StatusOr<std::string> StateWithIndex(const std::string& path) {
  NSA_ASSIGN_OR_RETURN(std::string state, StateOf(path));
  const std::optional<std::filesystem::path> index = IndexNameOf(path);
  if (IsUrl(path) || !index.has_value()) return state;
  const absl::StatusOr<std::string> of_index = StateOf(*index);
  if (absl::IsNotFound(of_index.status())) return state;
  NSA_RETURN_IF_ERROR(of_index.status());
  return absl::StrCat(state, ", index ", *of_index);
}

}  // namespace

StreamPlan::Fate StreamPlan::FateOf(const DocumentHash& hash) const {
  if (validation.count(hash) > 0) return Fate::kDropped;
  return IsHeldOut(hash, val_fraction) ? Fate::kHeldOut : Fate::kTrains;
}

DocumentOptions StreamPlan::OptionsFor(const StreamSource& source, const StreamFile& file) const {
  DocumentOptions options = ReadingOfSet(source.files, {file.path});
  options.separator = encoder->separator();
  options.passage_bytes = kPassageBytes;
  return options;
}

absl::StatusOr<StreamPlan> PlanStream(const v1::DataSpec& data, const SourceFiles& files,
                                      Fingerprint* fingerprint) {
  StreamPlan plan;
  plan.val_fraction = data.val_path().empty() ? data.val_fraction() : 0;
  fingerprint->AddStream(data.shuffle_window());
  for (DataFiles& one : TrainingFiles(data)) {
    if (one.filter != nullptr) fingerprint->AddFilter(*one.filter);
    NSA_ASSIGN_OR_RETURN(const std::vector<std::string> paths, files.Expand(one));
    StreamSource source = {.files = std::move(one)};
    for (const std::string& path : paths) {
      if (IsPreparedFolder(path)) {
        return absl::InvalidArgumentError(absl::StrCat(
            path,
            ": is prepared data (data.stream reads files); remove data.stream: prepared data "
            "is mapped, and a start takes a second"));
      }
      NSA_ASSIGN_OR_RETURN(const int64_t size, files.SizeOf(path));
      NSA_ASSIGN_OR_RETURN(std::string state, StateWithIndex(path));
      fingerprint->AddFile(path, size, path, files.KnownEtag(path));
      source.listed.push_back({path, std::move(state)});
    }
    plan.sources.push_back(std::move(source));
  }
  return plan;
}

absl::Status CheckUnchanged(const StreamFile& file) {
  NSA_ASSIGN_OR_RETURN(const std::string state, StateWithIndex(file.path));
  if (state == file.state) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("%s: changed while it was streamed: %s (%s when the worker started); do not "
                      "change data files during a run",
                      file.path, state, file.state));
}

}  // namespace nsa::train
