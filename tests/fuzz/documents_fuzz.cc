// Any bytes as a file of documents: text or JSON lines, plain, gzip or Zstandard. Damaged archives
// are refused; the documents of an archive are those of its content.
#include <zlib.h>
#include <zstd.h>

#include <vector>

#include "tests/fuzz/fuzz.h"
#include "worker/train/data/read/documents.h"

using nsa::fuzz::Input;
using nsa::fuzz::Require;
using nsa::fuzz::RequireRefusal;

namespace {

constexpr size_t kLargest = 1 << 20;

struct Read {
  absl::Status status;
  std::vector<std::string> texts;

  bool operator==(const Read& other) const {
    return status.code() == other.status.code() && texts == other.texts;
  }
};

Read ReadAll(const std::filesystem::path& file, nsa::v1::DataSource source, size_t passage_bytes) {
  nsa::train::ReadProgress progress;
  nsa::train::DocumentReader reader({.source = source,
                                     .files = {file},
                                     .passage_bytes = passage_bytes,
                                     .largest_decompressed = kLargest},
                                    &progress);
  Read read;
  nsa::train::Document document;
  size_t bytes = 0;
  while (true) {
    const absl::StatusOr<bool> next = reader.Next(&document);
    read.status = next.status();
    RequireRefusal(read.status);
    if (!next.ok() || !*next) return read;
    Require(!document.text.empty(), "an empty document");
    bytes += document.text.size();
    if (bytes > 16 * kLargest) return read;  // a bomb, read passage by passage
    read.texts.push_back(document.text);
  }
}

std::string Gzip(std::string_view content) {
  std::string out(compressBound(content.size()) + 64, '\0');
  z_stream stream{};
  deflateInit2(&stream, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
  stream.avail_in = static_cast<uInt>(content.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string Zstd(std::string_view content) {
  std::string out(ZSTD_compressBound(content.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), content.data(), content.size(), 1));
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  const uint8_t kind = input.Byte();
  const bool lines = kind % 2 == 1;
  const size_t passage_bytes = kind / 2 % 4 == 0 ? 0 : size_t{1} << (kind / 2 % 4 * 3);
  const nsa::v1::DataSource source = lines ? nsa::v1::DATA_SOURCE_JSONL : nsa::v1::DATA_SOURCE_TEXT;
  const std::string name = lines ? "a.jsonl" : "a.txt";
  const std::string_view content = input.Rest();
  switch (kind / 8 % 4) {
    case 0:  // an archive, perhaps damaged
      ReadAll(nsa::fuzz::File(name + ".gz", content), source, passage_bytes);
      return 0;
    case 1:
      ReadAll(nsa::fuzz::File(name + ".zst", content), source, passage_bytes);
      return 0;
    default:
      break;
  }
  const Read plain = ReadAll(nsa::fuzz::File(name, content), source, passage_bytes);
  if (!lines && plain.status.ok()) {
    std::string all;
    for (const std::string& text : plain.texts) all += text;
    Require(all == content, "passages that are not the text");
  }
  // Content that is refused as it is may be refused otherwise, or later, inside an archive.
  if (!plain.status.ok()) return 0;
  const bool gzip = kind / 8 % 4 == 2;
  const std::string archive = gzip ? Gzip(content) : Zstd(content);
  const Read unpacked =
      ReadAll(nsa::fuzz::File(name + (gzip ? ".gz" : ".zst"), archive), source, passage_bytes);
  Require(unpacked == plain, "an archive with other documents than its content: " +
                                 unpacked.status.ToString() + ", plain " + plain.status.ToString());
  return 0;
}
