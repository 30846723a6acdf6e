// Any bytes as a token file: raw, NumPy, llm.c, or Megatron with its index. What is accepted has
// exactly the tokens that it promises.
#include <optional>

#include "tests/fuzz/fuzz.h"
#include "worker/train/data/read/documents.h"
#include "worker/train/data/read/token_reader.h"

using nsa::fuzz::Input;
using nsa::fuzz::Require;
using nsa::fuzz::RequireRefusal;

namespace {

void ReadTokens(const std::filesystem::path& path) {
  nsa::train::ReadProgress progress;
  const auto reader = nsa::train::TokenReader::Open(path, &progress);
  RequireRefusal(reader.status());
  if (!reader.ok()) return;
  const nsa::TokenLayout& layout = (*reader)->layout();
  int64_t end = 0;
  for (const int64_t document : layout.document_ends.value_or(std::vector<int64_t>{layout.count})) {
    Require(document >= end && document <= layout.count, "documents out of order");
    end = document;
  }
  Require(end == layout.count, "tokens of no document");
  while (true) {
    const auto ahead = (*reader)->Ahead();
    RequireRefusal(ahead.status());
    if (!ahead.ok()) return;
    if (ahead->empty()) break;
    (*reader)->Skip(static_cast<int64_t>(ahead->size()));
  }
  Require((*reader)->position() == layout.count, "another number of tokens than promised");
}

void ReadDocuments(const std::filesystem::path& path, std::optional<int32_t> separator,
                   size_t passage_bytes) {
  nsa::train::ReadProgress progress;
  nsa::train::DocumentReader reader({.source = nsa::v1::DATA_SOURCE_TOKENS,
                                     .files = {path},
                                     .separator = separator,
                                     .passage_bytes = passage_bytes},
                                    &progress);
  nsa::train::Document document;
  while (true) {
    const absl::StatusOr<bool> next = reader.Next(&document);
    RequireRefusal(next.status());
    if (!next.ok() || !*next) return;
    Require(!document.tokens.empty(), "an empty document");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  const uint8_t kind = input.Byte();
  std::filesystem::remove(nsa::fuzz::Folder() / "a.idx");
  if (kind % 2 == 1) nsa::fuzz::File("a.idx", input.Text());
  const std::filesystem::path path =
      nsa::fuzz::File(kind / 2 % 2 == 0 ? "a.bin" : "a.npy", input.Rest());
  ReadTokens(path);
  std::optional<int32_t> separator;
  if (kind / 4 % 4 == 1) separator = nsa::kNoSeparator;
  if (kind / 4 % 4 > 1) separator = kind;
  ReadDocuments(path, separator, kind / 16 % 2 == 0 ? 0 : 8);
  return 0;
}
