// Recognises files that are something else than the job says, by their first bytes.
//
// Recognised: gzip, Zstandard, bzip2, xz and lz4 archives; zip archives (with .npz and torch.save
// files), Parquet, Arrow, HDF5, safetensors, Python pickle, SQLite, PNG, JPEG, PDF and ELF files;
// NumPy .npy, llm.c .bin (of GPT-2 and of Llama 3 tokens) and Megatron .idx files; and text.
//
// A file of uint16 tokens without a header has no mark of its own, so its first tokens could be
// taken for a mark. All marks are at least three bytes long, and those shorter than four bytes are
// checked together with other parts of the file.
#pragma once

#include <cstdint>
#include <string_view>

namespace nsa::train {

// As many first bytes as RecogniseFile() looks at.
inline constexpr int64_t kFileHeadBytes = 1024;

enum class FileKind {
  kUnknown,  // no known mark: perhaps raw tokens
  kGzip,     // a gzip archive
  kZstd,     // a Zstandard archive
  kNumpy,    // a .npy array
  kLlmC,     // a .bin of llm.c or modded-nanogpt
  kParquet,  // a Parquet file
  kText,     // UTF-8 text without control characters; at least 64 bytes. Text is never another kind
  kOther,    // a kind of file that this program does not read
};

struct FileKindInfo {
  FileKind kind = FileKind::kUnknown;
  std::string_view name;    // "a gzip archive"; empty for kUnknown
  std::string_view remedy;  // what to do when it is listed as a token file
};

// What a file of `size` bytes is whose first min(size, kFileHeadBytes) bytes are `head`. A larger
// `size` than the true one is allowed; some kinds are then recognised with less certainty.
FileKindInfo RecogniseFile(std::string_view head, int64_t size);

}  // namespace nsa::train
