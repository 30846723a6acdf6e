// Any bytes as a folder of prepared data: its manifest, also with its right hash, and its files.
// What is accepted has the documents and tokens that it promises.
#include "common/job/data/prepared.h"
#include "google/protobuf/util/json_util.h"
#include "tests/fuzz/fuzz.h"
#include "worker/train/data/prepared/folder.h"

using nsa::fuzz::Input;
using nsa::fuzz::Require;
using nsa::fuzz::RequireRefusal;

namespace {

// The text with the hash that belongs to it; nothing if it is no manifest.
std::string WithItsHash(std::string_view json) {
  nsa::v1::PreparedManifest manifest;
  if (!google::protobuf::util::JsonStringToMessage(
           google::protobuf::StringPiece(json.data(), json.size()), &manifest)
           .ok()) {
    return "";
  }
  const auto text = nsa::SerializePrepared(manifest);
  RequireRefusal(text.status());
  return text.value_or("");
}

void ReadFolder(const nsa::train::PreparedFolder& folder) {
  int64_t documents = 0;
  int64_t tokens = 0;
  const absl::Status read = folder.ForEach([&](const nsa::train::ShardDocument& document) {
    Require(document.begin <= document.end && document.end <= document.shard->size(),
            "a document outside its shard");
    ++documents;
    std::vector<int32_t> copy(static_cast<size_t>(document.end - document.begin));
    tokens += std::ssize(copy);
    return document.shard->Copy(document.begin, copy);
  });
  RequireRefusal(read);
  RequireRefusal(folder.Verify());
  if (!read.ok()) return;
  Require(documents == folder.manifest().documents(), "another number of documents than promised");
  Require(tokens == folder.manifest().tokens(), "another number of tokens than promised");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  const bool with_hash = input.Byte() % 2 == 1;
  nsa::fuzz::File("tokens-00000.bin", input.Text());
  nsa::fuzz::File("tokens-00000.idx", input.Text());
  nsa::fuzz::File("tokens-00000.hash", input.Text());
  const std::string json = with_hash ? WithItsHash(input.Rest()) : std::string(input.Rest());
  nsa::fuzz::File(nsa::kPreparedManifest, json);
  const auto manifest = nsa::ReadPrepared(nsa::fuzz::Folder());
  RequireRefusal(manifest.status());
  nsa::train::ReadProgress progress;
  const auto folder = nsa::train::PreparedFolder::Open(nsa::fuzz::Folder(), &progress);
  RequireRefusal(folder.status());
  if (folder.ok()) ReadFolder(*folder);
  if (!manifest.ok()) return 0;
  // What is read is written and read again.
  const auto again = nsa::SerializePrepared(*manifest);
  RequireRefusal(again.status());
  nsa::fuzz::File(nsa::kPreparedManifest, again.value_or(""));
  RequireRefusal(nsa::ReadPrepared(nsa::fuzz::Folder()).status());
  return 0;
}
