// The index of a Megatron data set (NAME.idx, beside NAME.bin):
//   bytes 0–8    MMIDIDX\0\0         9–16   uint64 version: 1      17   uint8 code of the dtype
//   bytes 18–25  uint64 sequences S  26–33  uint64 document bounds D
//   then         int32 length of each sequence [S], int64 byte in NAME.bin of each sequence [S],
//                int64 index of each document's first sequence and, last, S [D]; int8 mode of each
//                sequence [S], only of multimodal data
// NAME.bin must hold the sequences in order and without gaps, as Megatron's preprocessing writes
// them.
#include <algorithm>
#include <string>

#include "absl/strings/str_format.h"
#include "common/base/little_endian.h"
#include "common/base/status.h"
#include "common/job/data/token_layout.h"

namespace nsa {
namespace {

using std::string_view_literals::operator""sv;

constexpr std::string_view kMagic = "MMIDIDX\0\0"sv;
constexpr int64_t kHeader = 34;

struct IndexHeader {
  int width = 0;
  bool is_signed = true;
  int64_t sequences = 0;
  int64_t bounds = 0;

  int64_t pointers_at() const { return kHeader + 4 * sequences; }
  int64_t bounds_at() const { return pointers_at() + 8 * sequences; }
  int64_t end() const { return bounds_at() + 8 * bounds; }
};

absl::Status Damaged(const ByteFile& index, int64_t byte, std::string_view what) {
  return absl::DataLossError(absl::StrFormat(
      "%s: byte %d: %s; the index is damaged or is not that of the .bin file, copy both again",
      index.name(), byte, what));
}

absl::Status SetDtype(const ByteFile& index, int code, IndexHeader* header) {
  switch (code) {
    case 1:
      header->width = 1;
      header->is_signed = false;
      return absl::OkStatus();
    case 3:
      header->width = 2;
      return absl::OkStatus();
    case 4:
      header->width = 4;
      return absl::OkStatus();
    case 5:
      header->width = 8;
      return absl::OkStatus();
    case 8:
      header->width = 2;
      header->is_signed = false;
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: byte 17: dtype code %d (1 uint8, 8 uint16, 3 int16, 4 int32 or 5 int64); write the "
          "data set with one of these",
          index.name(), code));
  }
}

absl::StatusOr<IndexHeader> ReadHeader(const ByteFile& index) {
  NSA_ASSIGN_OR_RETURN(const std::string bytes, index.Head(kHeader));
  const std::string_view head = bytes;
  if (!head.starts_with(kMagic)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: does not begin with MMIDIDX, as the Megatron index of a .bin file does; if that file "
        "is no Megatron data set, move the .idx file away",
        index.name()));
  }
  if (head.size() < kHeader) return Damaged(index, index.size(), "ends within the header");
  const auto version = LittleEndian<uint64_t>(head.substr(9));
  if (version != 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: byte 9: Megatron index version %d (must be 1); write the data set again with "
        "version 1",
        index.name(), version));
  }
  IndexHeader header;
  NSA_RETURN_IF_ERROR(SetDtype(index, static_cast<unsigned char>(head[17]), &header));
  // Neither number can be larger than the file, so the sums below do not overflow.
  const auto limit = static_cast<uint64_t>(index.size());
  const auto sequences = LittleEndian<uint64_t>(head.substr(18));
  const auto bounds = LittleEndian<uint64_t>(head.substr(26));
  if (sequences > limit / 12 || bounds > limit / 8) {
    return Damaged(index, 18,
                   absl::StrFormat("%d sequences and %d document bounds (in a file of %d bytes)",
                                   sequences, bounds, index.size()));
  }
  header.sequences = static_cast<int64_t>(sequences);
  header.bounds = static_cast<int64_t>(bounds);
  if (index.size() != header.end() && index.size() != header.end() + header.sequences) {
    return Damaged(index, 18,
                   absl::StrFormat("%d sequences and %d document bounds take %d bytes (the file "
                                   "has %d)",
                                   sequences, bounds, header.end(), index.size()));
  }
  return header;
}

// Calls `visit(i, value)` for the `count` integers of type T from byte `at` on.
template <typename T, typename Visit>
absl::Status ForEach(const ByteFile& index, int64_t at, int64_t count, Visit visit) {
  constexpr int64_t kAtATime = 1 << 16;
  std::string buffer;
  for (int64_t first = 0; first < count; first += kAtATime) {
    const int64_t here = std::min(kAtATime, count - first);
    buffer.resize(static_cast<size_t>(here) * sizeof(T));
    NSA_RETURN_IF_ERROR(index.ReadAt(at + first * static_cast<int64_t>(sizeof(T)), buffer));
    for (int64_t i = 0; i < here; ++i) {
      const std::string_view bytes = std::string_view(buffer).substr(i * sizeof(T), sizeof(T));
      NSA_RETURN_IF_ERROR(visit(first + i, LittleEndian<T>(bytes)));
    }
  }
  return absl::OkStatus();
}

// For each sequence, the index of the token after its last one.
absl::StatusOr<std::vector<int64_t>> SequenceEnds(const ByteFile& index, const IndexHeader& header,
                                                  int64_t tokens) {
  std::vector<int64_t> ends(static_cast<size_t>(header.sequences));
  int64_t total = 0;
  NSA_RETURN_IF_ERROR(ForEach<int32_t>(
      index, kHeader, header.sequences, [&](int64_t i, int32_t length) -> absl::Status {
        total += length;
        ends[static_cast<size_t>(i)] = total;
        if (length >= 0 && total <= tokens) return absl::OkStatus();
        return Damaged(index, kHeader + 4 * i,
                       absl::StrFormat("sequence %d has %d tokens and would end at token %d (the "
                                       ".bin file has %d)",
                                       i, length, total, tokens));
      }));
  NSA_RETURN_IF_ERROR(ForEach<int64_t>(
      index, header.pointers_at(), header.sequences, [&](int64_t i, int64_t byte) -> absl::Status {
        const int64_t begin = i == 0 ? 0 : ends[static_cast<size_t>(i - 1)] * header.width;
        if (byte == begin) return absl::OkStatus();
        return Damaged(index, header.pointers_at() + 8 * i,
                       absl::StrFormat("sequence %d begins at byte %d of the .bin file (%d, where "
                                       "the one before ends)",
                                       i, byte, begin));
      }));
  if (total != tokens) {
    return Damaged(
        index, kHeader,
        absl::StrFormat("the sequences have %d tokens (the .bin file has %d)", total, tokens));
  }
  return ends;
}

}  // namespace

absl::StatusOr<TokenLayout> MegatronLayout(const ByteFile& file, const ByteFile& index,
                                           FindDocuments documents) {
  NSA_ASSIGN_OR_RETURN(const IndexHeader header, ReadHeader(index));
  TokenLayout layout;
  layout.width = header.width;
  layout.is_signed = header.is_signed;
  layout.count = file.size() / header.width;
  if (file.size() % header.width != 0) {
    return absl::DataLossError(
        absl::StrFormat("%s: %d bytes (must be a multiple of %d, by its index); the file was cut "
                        "off, copy it again",
                        file.name(), file.size(), header.width));
  }
  if (documents == FindDocuments::kNo) return layout;
  NSA_ASSIGN_OR_RETURN(const std::vector<int64_t> sequences,
                       SequenceEnds(index, header, layout.count));
  std::vector<int64_t>& ends = layout.document_ends.emplace();
  int64_t before = 0;
  NSA_RETURN_IF_ERROR(ForEach<int64_t>(
      index, header.bounds_at(), header.bounds, [&](int64_t i, int64_t bound) -> absl::Status {
        const bool first_is_wrong = i == 0 && bound != 0;
        const bool last_is_wrong = i == header.bounds - 1 && bound != header.sequences;
        if (bound < before || bound > header.sequences || first_is_wrong || last_is_wrong) {
          return Damaged(index, header.bounds_at() + 8 * i,
                         absl::StrFormat("document bound %d is %d (from 0 up to %d, in order)", i,
                                         bound, header.sequences));
        }
        if (i > 0) ends.push_back(bound == 0 ? 0 : sequences[static_cast<size_t>(bound - 1)]);
        before = bound;
        return absl::OkStatus();
      }));
  if (header.bounds == 0 && header.sequences > 0) {
    return Damaged(index, 26, "no document bounds, but sequences");
  }
  return layout;
}

}  // namespace nsa
