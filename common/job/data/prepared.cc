#include "common/job/data/prepared.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/fd.h"
#include "common/base/job_file.h"
#include "common/base/json_shape.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/job/data/sha256.h"
#include "common/job/data/tokenizer_files.h"
#include "common/job/data_source.h"
#include "common/job/enum_words.h"
#include "google/protobuf/util/json_util.h"

namespace nsa {
namespace {

namespace fs = std::filesystem;

// Of a manifest: 1, and 2 with conversations, whose tokens have marks.
int32_t FormatVersionOf(const v1::PreparedManifest& manifest) {
  return manifest.has_conversations() ? 2 : 1;
}
constexpr size_t kHashDigits = 64;
constexpr std::string_view kHashKeys[] = {"\"manifest_sha256\""};
constexpr std::string_view kAgain = "; prepare the data again";

absl::Status Damaged(const fs::path& folder, std::string_view what) {
  return absl::DataLossError(absl::StrCat((folder / kPreparedManifest).string(), ": ",
                                          absl::string_view(what.data(), what.size()),
                                          std::string(kAgain)));
}

std::string HashOfText(std::string_view text, size_t place) {
  Sha256Sum sum;
  sum.Add(text.substr(0, place));
  sum.Add(std::string(kHashDigits, '0'));
  sum.Add(text.substr(place + kHashDigits));
  return sum.Hex();
}

bool IsSha256(const std::string& text) {
  return text.size() == kHashDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

bool InRange(int64_t value, int64_t least, int64_t most) { return value >= least && value <= most; }

// Why the shards do not fit the sums of the manifest; empty if they do.
std::string ShardFault(const v1::PreparedManifest& manifest) {
  constexpr int64_t kMost = int64_t{1} << 40;  // of a shard, so that no sum overflows
  int64_t documents = 0;
  int64_t tokens = 0;
  for (int i = 0; i < manifest.shards_size(); ++i) {
    const v1::PreparedShard& shard = manifest.shards(i);
    if (shard.name() != ShardName(i)) {
      return absl::StrFormat("shard %d has another name (%s)", i, ShardName(i));
    }
    if (!InRange(shard.documents(), 1, kMost) || !InRange(shard.tokens(), 1, kMost) ||
        !InRange(shard.index_bytes(), 0, kMost)) {
      return absl::StrFormat("%s: %d documents, %d tokens", shard.name(), shard.documents(),
                             shard.tokens());
    }
    if (!IsSha256(shard.bin_sha256()) || !IsSha256(shard.idx_sha256()) ||
        !IsSha256(shard.hash_sha256())) {
      return absl::StrCat(shard.name(), ": not a hash");
    }
    documents += shard.documents();
    tokens += shard.tokens();
  }
  if (documents == manifest.documents() && tokens == manifest.tokens()) return "";
  return absl::StrFormat("the shards have %d documents and %d tokens (%d and %d in all)", documents,
                         tokens, manifest.documents(), manifest.tokens());
}

// What a manifest with a right hash cannot say; empty if it is one that this program writes.
std::string Contradiction(const v1::PreparedManifest& manifest) {
  constexpr int64_t kMost = int64_t{1} << 58;
  const int64_t vocab = manifest.vocab();
  const int32_t width = manifest.token_bytes();
  if (!v1::Tokenizer_IsValid(manifest.tokenizer())) return "a tokenizer that is not known";
  if (!v1::DataSource_IsValid(manifest.source())) return "a source that is not known";
  if (width != 1 && width != 2 && width != 4) {
    return absl::StrFormat("token_bytes %d (1, 2 or 4)", width);
  }
  if (manifest.has_conversations() && width != 4) {
    return absl::StrFormat("token_bytes %d (4 with conversations)", width);
  }
  if (!InRange(manifest.separator(), -1, vocab - 1)) {
    return absl::StrFormat("separator %d (from -1 to %d)", manifest.separator(), vocab - 1);
  }
  if (!InRange(manifest.largest_token(), 0, vocab - 1)) {
    return absl::StrFormat("largest_token %d (below vocab, %d)", manifest.largest_token(), vocab);
  }
  for (const int64_t count :
       {manifest.text_bytes(), manifest.null_rows(), manifest.inner_separators(),
        manifest.conversations().answer_tokens()}) {
    if (!InRange(count, 0, kMost)) return absl::StrFormat("a count of %d (at least 0)", count);
  }
  return ShardFault(manifest);
}

absl::Status CheckLength(const fs::path& file, int64_t wanted) {
  const absl::StatusOr<Fd> fd = OpenJobFile(file);
  if (!fd.ok()) {
    return absl::DataLossError(absl::StrCat(fd.status().message(), std::string(kAgain)));
  }
  struct stat info {};
  if (fstat(fd->get(), &info) != 0) return absl::ErrnoToStatus(errno, file.string());
  const int64_t bytes = info.st_size;
  if (bytes == wanted) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat("%s: %d bytes (the manifest says %d)%s", file.string(),
                                             bytes, wanted, std::string(kAgain)));
}

std::string TokenizerWord(v1::Tokenizer tokenizer) {
  if (tokenizer == v1::TOKENIZER_UNSPECIFIED) return "none";
  return EnumWord(*v1::Tokenizer_descriptor()->FindValueByNumber(tokenizer));
}

}  // namespace

bool IsPreparedFolder(const fs::path& path) {
  std::error_code error;
  if (!JobPathExists(path)) return false;
  const fs::path real = fs::canonical(path, error);
  return !error && JobPathExists(real) && fs::is_directory(real, error);
}

std::string ShardName(int64_t index) { return absl::StrFormat("tokens-%05d", index); }

bool HasPassages(v1::DataSource source, int32_t separator) {
  return source == v1::DATA_SOURCE_TEXT ||
         (source == v1::DATA_SOURCE_TOKENS && separator == kNoSeparator);
}

absl::StatusOr<std::string> SerializePrepared(v1::PreparedManifest manifest) {
  manifest.set_format_version(FormatVersionOf(manifest));
  manifest.set_manifest_sha256(std::string(kHashDigits, '0'));
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  const auto printed = google::protobuf::util::MessageToJsonString(manifest, &text, options);
  if (!printed.ok()) return absl::InternalError(absl::StrCat("manifest: ", printed.ToString()));
  const size_t place = SelfHashPlace(text, kHashKeys, kHashDigits);
  if (place == std::string::npos) return absl::InternalError("manifest: its own hash is missing");
  return text.replace(place, kHashDigits, HashOfText(text, place));
}

int64_t EmptyFilesOf(const v1::PreparedManifest& manifest) {
  return std::ranges::count(manifest.sources(), 0, &v1::PreparedSource::bytes);
}

absl::StatusOr<v1::PreparedManifest> ReadPrepared(const fs::path& folder) {
  const absl::StatusOr<std::string> text =
      ReadJobFile(folder / kPreparedManifest, kLargestPreparedManifest);
  if (absl::IsNotFound(text.status())) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder.string(), ": is a folder without a ", kPreparedManifest,
                     " (must be a folder that `nsactl data prepare` wrote); prepare the data, or "
                     "list token files"));
  }
  if (!text.ok()) return Damaged(folder, std::string(text.status().message()));
  if (!IsAsLargeAsItLooks(*text)) return Damaged(folder, "more values than bytes for them");
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;  // a newer format is detected by its version below
  v1::PreparedManifest manifest;
  const auto parsed = google::protobuf::util::JsonStringToMessage(*text, &manifest, options);
  // The parser's own text quotes the file, which need not be what its name says.
  if (!parsed.ok()) return Damaged(folder, "is not JSON of a manifest");
  const size_t place = SelfHashPlace(*text, kHashKeys, kHashDigits);
  if (place == std::string::npos) return Damaged(folder, "its own hash is missing");
  if (HashOfText(*text, place) != manifest.manifest_sha256()) {
    return Damaged(folder, "its hash is not that of its content");
  }
  if (manifest.format_version() != FormatVersionOf(manifest)) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s: format_version %d (this program reads 1, and 2 of conversations); use a newer "
        "nsa-worker",
        (folder / kPreparedManifest).string(), manifest.format_version()));
  }
  const std::string fault = Contradiction(manifest);
  if (!fault.empty()) return Damaged(folder, fault);
  return manifest;
}

absl::Status CheckPreparedFiles(const fs::path& folder, const v1::PreparedManifest& manifest) {
  for (const v1::PreparedShard& shard : manifest.shards()) {
    const fs::path file = folder / shard.name();
    NSA_RETURN_IF_ERROR(
        CheckLength(file.string() + ".bin", shard.tokens() * manifest.token_bytes()));
    NSA_RETURN_IF_ERROR(CheckLength(file.string() + ".idx", shard.index_bytes()));
    NSA_RETURN_IF_ERROR(
        CheckLength(file.string() + ".hash", shard.documents() * kDocumentHashBytes));
  }
  return absl::OkStatus();
}

absl::Status CheckPreparedFor(const fs::path& folder, const v1::PreparedManifest& manifest,
                              const v1::DataSpec& data, int32_t vocab) {
  const bool named = data.tokenizer() != v1::TOKENIZER_UNSPECIFIED;
  if (named && manifest.tokenizer() != v1::TOKENIZER_UNSPECIFIED &&
      data.tokenizer() != manifest.tokenizer()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: was prepared with the tokenizer %s (data.tokenizer is %s); set data.tokenizer: %s, or "
        "prepare the data again",
        folder.string(), TokenizerWord(manifest.tokenizer()), TokenizerWord(data.tokenizer()),
        TokenizerWord(manifest.tokenizer())));
  }
  if (manifest.has_conversations() != LearnsAnswers(data)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: was prepared with data.loss_on: %s (not that of the job); set it so, or prepare the "
        "data again",
        folder.string(), manifest.has_conversations() ? "assistant" : "all"));
  }
  if (manifest.largest_token() < vocab) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: token %d (model.vocab is %d); raise model.vocab or use the matching tokenizer",
      folder.string(), manifest.largest_token(), vocab));
}

absl::StatusOr<std::string> TokenizerSha256(const v1::DataSpec& data) {
  if (!HasTokenizerFiles(data.tokenizer())) return std::string();
  Sha256Sum sum;
  for (const fs::path& file : TokenizerFilesOf(data.tokenizer(), data.tokenizer_path())) {
    NSA_ASSIGN_OR_RETURN(const std::string text, ReadJobFile(file, limits::kVocabularyBytes));
    sum.Add(text);
  }
  return sum.Hex();
}

}  // namespace nsa
