#include "common/checkpoint/checkpoint_info.h"

namespace nsa {

v1::CheckpointInfo CheckpointInfoOf(const CheckpointEntry& entry) {
  v1::CheckpointInfo info;
  info.set_step(entry.step);
  info.set_path(entry.path.string());
  std::error_code error;
  info.set_pinned(
      std::filesystem::exists(std::filesystem::symlink_status(entry.path / kPinnedFile, error)));
  const absl::StatusOr<v1::CheckpointState> state = ReadCheckpointState(entry.path);
  if (!state.ok()) {
    info.set_error(std::string(state.status().message()));
    return info;
  }
  for (const v1::CheckpointFile& file : state->files()) info.set_bytes(info.bytes() + file.bytes());
  info.set_unix_nanos(state->unix_nanos());
  info.set_val_loss(ValLossAt(*state).value_or(0));
  info.set_world_size(state->world_size());
  return info;
}

std::vector<CheckpointEntry> EntriesOf(const v1::ListCheckpointsResponse& response) {
  std::vector<CheckpointEntry> entries;
  for (const v1::CheckpointInfo& info : response.checkpoints()) {
    entries.push_back({info.step(), info.path()});
  }
  return entries;
}

}  // namespace nsa
