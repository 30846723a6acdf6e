// Any bytes as state.json of a checkpoint, and any state with a right hash: the coordinator, the
// worker and nsactl read what users may have written there.
#include "common/checkpoint/checkpoint_dir.h"
#include "common/checkpoint/checkpoint_info.h"
#include "google/protobuf/util/json_util.h"
#include "google/protobuf/util/message_differencer.h"
#include "tests/fuzz/fuzz.h"

using nsa::fuzz::Input;
using nsa::fuzz::Require;
using nsa::fuzz::RequireRefusal;

namespace {

// The folder of a checkpoint with this manifest.
std::filesystem::path Checkpoint(std::string_view manifest) {
  std::filesystem::create_directories(nsa::fuzz::Folder() / "checkpoints/step-00000001");
  nsa::fuzz::File("checkpoints/step-00000001/state.json", manifest);
  return nsa::fuzz::Folder() / "checkpoints/step-00000001";
}

// The text with the hash that belongs to it; nothing if it is no state.
std::string WithItsHash(std::string_view json) {
  nsa::v1::CheckpointState state;
  if (!google::protobuf::util::JsonStringToMessage(
           google::protobuf::StringPiece(json.data(), json.size()), &state)
           .ok()) {
    return "";
  }
  const auto text = nsa::SerializeCheckpointState(state);
  RequireRefusal(text.status());
  return text.value_or("");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  const bool with_hash = input.Byte() % 2 == 1;
  const std::string json = with_hash ? WithItsHash(input.Rest()) : std::string(input.Rest());
  const std::filesystem::path folder = Checkpoint(json);
  const auto state = nsa::ReadCheckpointState(folder);
  RequireRefusal(state.status());
  if (with_hash && !json.empty()) Require(state.ok(), state.status().ToString());
  // What a reply carries.
  nsa::v1::CheckpointInfo received;
  Require(received.ParseFromString(
              nsa::CheckpointInfoOf({.step = 1, .path = folder}).SerializeAsString()),
          "a reply that nobody can read");
  for (const std::string& problem : nsa::VerifyCheckpoint(folder)) {
    received.set_error(problem);
    Require(received.ParseFromString(received.SerializeAsString()), "a problem that is no text");
  }
  RequireRefusal(nsa::FindNewestGood(nsa::fuzz::Folder()).status());
  if (!state.ok()) return 0;
  nsa::ValLossAt(*state);
  const auto again = nsa::SerializeCheckpointState(*state);
  RequireRefusal(again.status());
  if (again.ok()) RequireRefusal(nsa::ReadCheckpointState(Checkpoint(*again)).status());
  return 0;
}
