#include "common/job/data/file_kind.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "common/base/characters/utf8.h"
#include "common/base/little_endian.h"
#include "common/job/data/url.h"
#include "common/job/text_check.h"

namespace nsa {
namespace {

using std::string_view_literals::operator""sv;

constexpr std::string_view kDecompress =
    "decompress it, and list the token file; compressed text is for data.source: jsonl";
constexpr std::string_view kExport =
    "export its tokens as a NumPy .npy array, or as little-endian uint16";
constexpr std::string_view kSetTokens = "set data.source to tokens";
constexpr std::string_view kNotData = "list the token files in data.path";
constexpr std::string_view kPull =
    "run `git lfs pull` in its clone, or name the address that has the file itself (with /resolve/ "
    "on the Hugging Face Hub, /raw/ elsewhere)";
constexpr std::string_view kRawAddress =
    "download the file itself, from the address with /resolve/ (Hugging Face Hub) or /raw/ "
    "(GitHub, "
    "GitLab), and look whether a login page was saved";

struct Mark {
  std::string_view bytes;
  FileKindInfo info;
  bool at_both_ends = false;  // of every file that info.source reads
};

// Files that begin with fixed bytes.
constexpr Mark kMarks[] = {
    {"\x93NUMPY"sv, {FileKind::kNumpy, "a NumPy .npy array", kSetTokens, v1::DATA_SOURCE_TOKENS}},
    {"\x88\xd8\x34\x01"sv,  // 20240520
     {FileKind::kLlmC, "an llm.c token file", kSetTokens, v1::DATA_SOURCE_TOKENS}},
    {"\xa1\xd9\x34\x01"sv,  // 20240801
     {FileKind::kLlmC, "an llm.c token file", kSetTokens, v1::DATA_SOURCE_TOKENS}},
    {"MMIDIDX\0\0"sv,
     {FileKind::kOther, "a Megatron index", "list the .bin file beside it in data.path"}},
    {"\x28\xb5\x2f\xfd"sv, {FileKind::kZstd, "a Zstandard archive", kDecompress}},
    {"BZh91AY&SY"sv, {FileKind::kOther, "a bzip2 archive", kDecompress}},
    {"\xfd\x37zXZ\0"sv, {FileKind::kOther, "an xz archive", kDecompress}},
    {"\x04\x22\x4d\x18"sv, {FileKind::kOther, "an lz4 archive", kDecompress}},
    {"PK\x03\x04"sv, {FileKind::kOther, "a zip archive (also .npz, or of torch.save)", kExport}},
    {"PAR1"sv,
     {FileKind::kOther, "a Parquet file", "set data.source to parquet", v1::DATA_SOURCE_PARQUET},
     /*at_both_ends=*/true},
    {"ARROW1\0\0"sv, {FileKind::kOther, "an Arrow file", kExport}},
    {"\x89HDF\r\n\x1a\n"sv, {FileKind::kOther, "an HDF5 file", kExport}},
    {"SQLite format 3\0"sv, {FileKind::kOther, "an SQLite database", kExport}},
    {"\x89PNG\r\n\x1a\n"sv, {FileKind::kOther, "a PNG image", kNotData}},
    {"\xff\xd8\xff\xe0\0\x10JFIF"sv, {FileKind::kOther, "a JPEG image", kNotData}},
    {"%PDF-"sv, {FileKind::kOther, "a PDF document", kNotData}},
    {"GIF8"sv, {FileKind::kOther, "a GIF image", kNotData}},
    {"ID3\x03"sv, {FileKind::kOther, "an MP3 file", kNotData}},
    {"RIFF"sv, {FileKind::kOther, "a WAV, AVI or WebP file", kNotData}},
    {"\x7f"
     "ELF"sv,
     {FileKind::kOther, "a program", kNotData}},
};

absl::string_view Abseil(std::string_view text) { return {text.data(), text.size()}; }

// Files that somebody else put into the place of the data.
std::optional<FileKindInfo> Stranger(std::string_view head) {
  if (head.starts_with("version https://git-lfs.github.com/spec/")) {
    return FileKindInfo{FileKind::kPointer, "a pointer of Git LFS, not the file itself", kPull};
  }
  const size_t begin = head.find_first_not_of(" \t\r\n\f\xEF\xBB\xBF");
  if (begin == std::string_view::npos) return std::nullopt;
  for (const std::string_view tag : {"<!doctype html", "<html", "<head>", "<script"}) {
    if (absl::StartsWithIgnoreCase(Abseil(head.substr(begin)), Abseil(tag))) {
      return FileKindInfo{FileKind::kWebPage, "a web page", kRawAddress};
    }
  }
  return std::nullopt;
}

unsigned char At(std::string_view head, size_t i) { return static_cast<unsigned char>(head[i]); }

// Magic, method deflate, and no reserved flag.
bool IsGzip(std::string_view head) {
  return head.starts_with("\x1f\x8b\x08") && head.size() >= 10 && (At(head, 3) & 0xe0) == 0;
}

// The length of the JSON header in 8 bytes, and the header's beginning.
bool IsSafetensors(std::string_view head, int64_t size) {
  if (head.size() < 10 || head.substr(8, 2) != "{\"") return false;
  return LittleEndian<uint64_t>(head) <= static_cast<uint64_t>(size - 8);
}

// Protocol 4 or 5 with the length of its first frame, or protocol 2 or 3 with torch.save's number
// or with the beginning of a list, a dictionary or a NumPy array.
bool IsPickle(std::string_view head, int64_t size) {
  if (head.size() < 11 || At(head, 0) != 0x80) return false;
  const unsigned char protocol = At(head, 1);
  if (protocol == 4 || protocol == 5) {
    return At(head, 2) == 0x95 &&
           LittleEndian<uint64_t>(head.substr(3)) <= static_cast<uint64_t>(size - 11);
  }
  if (protocol != 2 && protocol != 3) return false;
  const std::string_view body = head.substr(2);
  constexpr std::string_view kBodies[] = {"\x8a\x0al\xfc\x9c", "]q\0"sv, "}q\0"sv, "cnumpy"};
  return std::any_of(std::begin(kBodies), std::end(kBodies),
                     [&](std::string_view begin) { return body.starts_with(begin); });
}

bool IsText(std::string_view head) {
  constexpr size_t kShortest = 64;
  if (head.size() < kShortest) return false;
  // The head may end within a character.
  size_t end = head.size();
  while (end + 4 > head.size() && (At(head, end - 1) & 0xc0) == 0x80) --end;
  if (At(head, end - 1) >= 0xc0) --end;
  std::string_view text = head.substr(0, end);
  return !CheckText(&text).has_value();
}

}  // namespace

FileKindInfo RecogniseFile(std::string_view head, int64_t size) {
  if (const auto stranger = Stranger(head)) return *stranger;
  if (IsText(head)) {
    return {FileKind::kText, "text", "set data.source to text, or to jsonl for JSON lines"};
  }
  for (const Mark& mark : kMarks) {
    if (head.starts_with(mark.bytes)) return mark.info;
  }
  if (IsGzip(head)) return {FileKind::kGzip, "a gzip archive", kDecompress};
  if (IsSafetensors(head, size)) return {FileKind::kOther, "a safetensors file", kExport};
  if (IsPickle(head, size)) return {FileKind::kOther, "a Python pickle", kExport};
  return {};
}

namespace {

// Whether a file of this name or URL may be a web page on purpose.
bool IsNamedAsPage(std::string_view path) {
  const std::string_view name = WithoutQuery(path);
  for (const std::string_view ending : {".html", ".htm", ".xhtml"}) {
    if (absl::EndsWithIgnoreCase(Abseil(name), Abseil(ending))) return true;
  }
  return false;
}

std::string Convert(std::string_view encoding) {
  return absl::StrCat("convert it: iconv -f ", Abseil(encoding), " -t UTF-8 FILE > NEW");
}

}  // namespace

std::optional<std::string> FaultOfMark(v1::DataSource source, std::string_view head,
                                       std::optional<std::string_view> tail) {
  for (const Mark& mark : kMarks) {
    if (!mark.at_both_ends || mark.info.source != source) continue;
    const absl::string_view bytes = Abseil(mark.bytes);
    if (!head.starts_with(mark.bytes)) {
      return absl::StrCat("does not begin with ", bytes, ", as ", Abseil(mark.info.name), " does");
    }
    if (tail && !tail->ends_with(mark.bytes)) {
      return absl::StrCat("does not end with ", bytes, ": the file was cut off");
    }
  }
  return std::nullopt;
}

bool IsReadAsText(FileKind kind) {
  return kind == FileKind::kUnknown || kind == FileKind::kText || kind == FileKind::kWebPage;
}

std::optional<FileKindInfo> FindStranger(std::string_view path, std::string_view head) {
  std::optional<FileKindInfo> stranger = Stranger(head);
  if (stranger && stranger->kind == FileKind::kWebPage && IsNamedAsPage(path)) return std::nullopt;
  return stranger;
}

absl::Status CheckIsNoStranger(std::string_view path, std::string_view head) {
  const std::optional<FileKindInfo> stranger = FindStranger(path, head);
  if (!stranger) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(Abseil(path), ": is ", Abseil(stranger->name), "; ", Abseil(stranger->remedy)));
}

std::optional<TextFault> FaultOfText(std::string_view head) {
  if (const std::string_view encoding = WideEncoding(head); !encoding.empty()) {
    return TextFault{absl::StrCat(Abseil(encoding), " text"), Convert(encoding)};
  }
  const auto zeros = std::ranges::count(head, '\0');
  constexpr int64_t kFew = 16;
  if (zeros < kFew || 100 * zeros < std::ssize(head)) return std::nullopt;
  const std::string what =
      absl::StrFormat("not text: %d of its first %d bytes are 0", zeros, head.size());
  if (4 * zeros < std::ssize(head)) return TextFault{what, "give a file of UTF-8 text"};
  return TextFault{what, absl::StrCat("if it is UTF-16, ", Convert("UTF-16"))};
}

double ShareNotUtf8(std::string_view sample) {
  // The sample may begin and end within a character.
  constexpr size_t kLongestCharacter = 4;
  int64_t high = 0;
  int64_t wrong = 0;
  size_t begin = 0;
  while (begin < kLongestCharacter && begin < sample.size() && (At(sample, begin) & 0xc0) == 0x80) {
    ++begin;
  }
  for (size_t i = begin; i < sample.size();) {
    const size_t length = FirstUtf8(sample.substr(i)).bytes;
    if (length == 0 && i + kLongestCharacter > sample.size()) break;
    if (At(sample, i) >= 0x80) high += static_cast<int64_t>(std::max<size_t>(length, 1));
    if (length == 0) ++wrong;
    i += std::max<size_t>(length, 1);
  }
  return high == 0 ? 0 : static_cast<double>(wrong) / static_cast<double>(high);
}

}  // namespace nsa
