#include "server/checkpoints.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/checkpoint_dir.h"
#include "common/status.h"

namespace nsa::server {
namespace {

v1::CheckpointInfo InfoOf(const CheckpointEntry& entry) {
  v1::CheckpointInfo info;
  info.set_step(entry.step);
  info.set_path(entry.path.string());
  std::error_code error;
  info.set_pinned(std::filesystem::exists(entry.path / "PINNED", error));
  const auto state = ReadCheckpointState(entry.path);
  if (!state.ok()) {
    info.set_error(std::string(state.status().message()));
    return info;
  }
  int64_t bytes = 0;
  for (const v1::CheckpointFile& file : state->files()) bytes += file.bytes();
  info.set_bytes(bytes);
  info.set_unix_nanos(state->unix_nanos());
  info.set_val_loss(ValLossAt(*state).value_or(0));
  info.set_world_size(state->world_size());
  return info;
}

}  // namespace

absl::StatusOr<v1::ListCheckpointsResponse> CheckpointsOf(const std::string& out_dir) {
  NSA_ASSIGN_OR_RETURN(const auto entries, ListCheckpoints(out_dir));
  v1::ListCheckpointsResponse response;
  for (const CheckpointEntry& entry : entries) *response.add_checkpoints() = InfoOf(entry);
  return response;
}

absl::StatusOr<v1::VerifyCheckpointResponse> Verify(const std::string& out_dir, int64_t step) {
  NSA_ASSIGN_OR_RETURN(const auto entries, ListCheckpoints(out_dir));
  const auto found = step == 0 ? (entries.empty() ? entries.end() : std::prev(entries.end()))
                               : std::ranges::find(entries, step, &CheckpointEntry::step);
  if (found == entries.end()) {
    return absl::NotFoundError(
        absl::StrCat("checkpoint: ", step == 0 ? "none" : absl::StrCat("none of step ", step),
                     " in ", out_dir, "; `nsactl checkpoint list` shows what there is"));
  }
  v1::VerifyCheckpointResponse response;
  *response.mutable_checkpoint() = InfoOf(*found);
  for (const std::string& problem : VerifyCheckpoint(found->path)) response.add_problems(problem);
  return response;
}

}  // namespace nsa::server
