// Finds the tokens in a token file: what the file is, and where in it the tokens are.
//
// Formats, all little-endian:
//   raw       uint16 from the first byte to the last, no header.
//   NumPy     a .npy array, version 1.0, 2.0 or 3.0, of one dimension, dtype <u2, <u4, <i4 or <i8.
//   llm.c     also of modded-nanogpt: a header of 256 int32 (magic 20240520, version 1, number of
//             tokens, zeros), then uint16; or, of Llama 3's tokens, with magic 20240801 and version
//             7, then uint32.
//   Megatron  NAME.bin with its index NAME.idx (MMIDIDX, version 1) beside it; uint8, uint16,
//             int16, int32 or int64 tokens. The index divides them into documents.
//
// A header must describe exactly the bytes that the file has. Otherwise, and for a file that is
// recognised as something else (file_kind.h), FindTokens() returns an error that names the file,
// the byte (of a header) and the reason: InvalidArgument, or DataLoss for a file that was cut off.
// Memory: 16 bytes per sequence of a Megatron index; for the other formats, one header of at most
// 64 KiB.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/job/data/byte_file.h"

namespace nsa {

struct TokenLayout {
  int64_t offset = 0;      // byte of the first token
  int64_t count = 0;       // tokens
  int width = 2;           // bytes per token: 1, 2, 4 or 8
  bool is_signed = false;  // two's complement
  // Only of formats that know their documents, in order: the index of the token after the
  // document's last one. The documents cover all tokens; a document may be empty.
  std::optional<std::vector<int64_t>> document_ends;
};

// Whether the layout of a Megatron file has its documents. Without them only the header of the
// index is read and checked.
enum class FindDocuments { kNo, kYes };

// The name that the index of a Megatron file has, which lies beside it; nothing for another file.
std::optional<std::filesystem::path> IndexNameOf(const std::filesystem::path& path);

// `index` is open on IndexNameOf(); null if there is no such file.
absl::StatusOr<TokenLayout> FindTokens(const ByteFile& file, const ByteFile* index,
                                       FindDocuments documents);

// The token at the beginning of `bytes`, which may be any number of its width.
int64_t TokenAt(std::string_view bytes, const TokenLayout& layout);

// InvalidArgument, naming the file and the place, for a token that is not in [0, kMostTokens).
absl::Status CheckToken(const ByteFile& file, const TokenLayout& layout, int64_t position,
                        int64_t token);

// The parts of FindTokens() for one format each. `head` has the file's first bytes
// (kFileHeadBytes).
absl::StatusOr<TokenLayout> NumpyLayout(const ByteFile& file);
absl::StatusOr<TokenLayout> LlmCLayout(const ByteFile& file, std::string_view head);
absl::StatusOr<TokenLayout> MegatronLayout(const ByteFile& file, const ByteFile& index,
                                           FindDocuments documents = FindDocuments::kYes);

}  // namespace nsa
