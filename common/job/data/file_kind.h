// Recognises files that are something else than the job says, by their first bytes.
//
// Recognised: pointers of Git LFS and web pages, which stand where a file should; gzip, Zstandard,
// bzip2, xz and lz4 archives; zip archives (with .npz and torch.save files), Parquet, Arrow, HDF5,
// safetensors, Python pickle, SQLite, PNG, JPEG, GIF, PDF, MP3, RIFF and ELF files; NumPy .npy,
// llm.c .bin (of GPT-2 and of Llama 3 tokens) and Megatron .idx files; and text.
//
// A file of uint16 tokens without a header has no mark of its own, so its first tokens could be
// taken for a mark. All marks are at least three bytes long, and those shorter than four bytes are
// checked together with other parts of the file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "nsa/v1/job.pb.h"

namespace nsa {

// As many first bytes as RecogniseFile() looks at.
inline constexpr int64_t kFileHeadBytes = 1024;

enum class FileKind {
  kUnknown,  // no known mark: perhaps raw tokens
  kGzip,     // a gzip archive
  kZstd,     // a Zstandard archive
  kNumpy,    // a .npy array
  kLlmC,     // a .bin of llm.c or modded-nanogpt
  kText,     // UTF-8 text without control characters; at least 64 bytes. Text is never another kind
  kPointer,  // a pointer of Git LFS in the place of the file
  kWebPage,  // a web page, which stands in the place of the file unless its name says so
  kOther,    // another kind, which a data.source of binary files reads, or none
};

struct FileKindInfo {
  FileKind kind = FileKind::kUnknown;
  std::string_view name;    // "a gzip archive"; empty for kUnknown
  std::string_view remedy;  // what to do when it is listed as a token file
  // The source that reads files of this kind; none for text, whose name says what it is.
  v1::DataSource source = v1::DATA_SOURCE_UNSPECIFIED;
};

// What a file of `size` bytes is whose first min(size, kFileHeadBytes) bytes are `head`. A larger
// `size` than the true one is allowed; some kinds are then recognised with less certainty.
FileKindInfo RecogniseFile(std::string_view head, int64_t size);

// What the first bytes of a file, and its last ones if they are given, lack of the mark of the
// files of this source: "does not begin with PAR1, as a Parquet file does". Nothing if they have no
// mark that all of them share.
std::optional<std::string> FaultOfMark(v1::DataSource source, std::string_view head,
                                       std::optional<std::string_view> tail = std::nullopt);

// Whether a file of this kind is text, or may be. A web page is, if it is wanted: FindStranger().
bool IsReadAsText(FileKind kind);

// What stands in the place of the file of this name or URL that begins with `head`: a pointer of
// Git LFS, or a web page whose name does not end in .html, .htm or .xhtml.
std::optional<FileKindInfo> FindStranger(std::string_view path, std::string_view head);

// The same as an InvalidArgument that names the file and what to do.
absl::Status CheckIsNoStranger(std::string_view path, std::string_view head);

struct TextFault {
  std::string what;    // "UTF-16 text"
  std::string remedy;  // "convert it: …"
};

// Why the first bytes of a file are not those of UTF-8 text that a model could learn: a byte-order
// mark of UTF-16 or UTF-32, or 16 bytes of 0 that are one in a hundred. Not whether it is valid
// UTF-8.
std::optional<TextFault> FaultOfText(std::string_view head);

// The share of the bytes from 0x80 on that are not part of a character in UTF-8: near 1 in text of
// another encoding, such as Latin-1; 0 without such bytes. `sample` is any part of a text.
double ShareNotUtf8(std::string_view sample);

// More than this is another encoding. A few damaged characters are in every large corpus.
inline constexpr double kMostNotUtf8 = 0.1;
inline constexpr std::string_view kConvertToUtf8 =
    "convert it, for example: iconv -f LATIN1 -t UTF-8 FILE > NEW";

}  // namespace nsa
