#include "worker/train/data/prepared/folders.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/job/data/conversations.h"
#include "common/job/data/data_files.h"
#include "common/job/data/tokenizer_files.h"
#include "common/job/data_source.h"
#include "worker/train/data/read/source_files.h"

namespace nsa::train {
namespace {

absl::Status CheckSeparator(const PreparedFolder& folder, int32_t separator) {
  if (folder.manifest().separator() == separator) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: its documents begin with token %d (%d, as those of the job); prepare all data with one "
      "tokenizer, and do not set data.separator",
      folder.path().string(), folder.manifest().separator(), separator));
}

absl::Status CheckTokenizerFiles(const PreparedFolder& folder, const v1::DataSpec& data) {
  const std::string& prepared_with = folder.manifest().tokenizer_sha256();
  if (prepared_with.empty() || data.tokenizer_path().empty()) return absl::OkStatus();
  const absl::StatusOr<std::string> here = TokenizerSha256(data);
  if (absl::IsNotFound(here.status())) return absl::OkStatus();
  NSA_RETURN_IF_ERROR(here.status());
  if (*here == prepared_with) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: was prepared with other files of the tokenizer than those of data.tokenizer_path, %s; "
      "restore them, or prepare the data again",
      folder.path().string(), data.tokenizer_path()));
}

// A text file is one document, or each of its passages is one.
absl::Status CheckPassages(const PreparedFolder& folder, const v1::DataSpec& data) {
  const v1::PreparedManifest& manifest = folder.manifest();
  const auto wanted = static_cast<int64_t>(PassageBytesFor(data));
  if (!HasPassages(manifest.source(), manifest.separator())) return absl::OkStatus();
  if (manifest.passage_bytes() == wanted) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: its texts were divided into passages of %d bytes (%d for this job; 0 is not at all); "
      "prepare the data again, or set val_path and val_fraction as they were",
      folder.path().string(), manifest.passage_bytes(), wanted));
}

// The job generates in the format of the tokenizer's files, if they are here.
absl::Status CheckChatFormat(const PreparedFolder& folder, const v1::DataSpec& data) {
  if (!folder.manifest().has_conversations()) return absl::OkStatus();
  const std::string& prepared = folder.manifest().conversations().chat_format();
  if (HasTokenizerFiles(data.tokenizer()) && data.tokenizer_path().empty()) return absl::OkStatus();
  if (absl::IsNotFound(TokenizerSha256(data).status())) return absl::OkStatus();
  NSA_ASSIGN_OR_RETURN(const ChatFormat format, ChatFormatOf(data));
  if (ChatFormatId(format) == prepared) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: its conversations are in the chat format %s (that of "
                      "data.tokenizer_path is %s); restore "
                      "tokenizer_config.json, or prepare the data again",
                      folder.path().string(), prepared, ChatFormatId(format)));
}

}  // namespace

absl::StatusOr<PreparedFolders> PreparedFolders::Open(const v1::DataSpec& data,
                                                      ReadProgress* progress) {
  PreparedFolders all;
  for (const DataFiles& files : AllDataFiles(data)) {
    if (DataSourceInfoOf(files.source).format != DocumentFormat::kTokens) continue;
    for (size_t i = 0; i < files.paths.size(); ++i) {
      const std::string& path = files.paths[i];
      if (!IsPreparedFolder(path) || all.Find(path) != nullptr) continue;
      absl::StatusOr<PreparedFolder> folder = PreparedFolder::Open(path, progress);
      if (!folder.ok()) return Annotate(folder.status(), files.FieldOf(i));
      all.folders_.emplace(path, *std::move(folder));
    }
  }
  return all;
}

const PreparedFolder* PreparedFolders::Find(const std::string& path) const {
  const auto found = folders_.find(path);
  return found == folders_.end() ? nullptr : &found->second;
}

std::optional<int32_t> PreparedFolders::separator() const {
  if (folders_.empty()) return std::nullopt;
  return folders_.begin()->second.manifest().separator();
}

absl::Status PreparedFolders::Check(const v1::DataSpec& data, int32_t vocab,
                                    int32_t separator) const {
  for (const auto& [path, folder] : folders_) {
    NSA_RETURN_IF_ERROR(CheckPreparedFor(path, folder.manifest(), data, vocab));
    NSA_RETURN_IF_ERROR(CheckSeparator(folder, separator));
    NSA_RETURN_IF_ERROR(CheckTokenizerFiles(folder, data));
    NSA_RETURN_IF_ERROR(CheckPassages(folder, data));
    NSA_RETURN_IF_ERROR(CheckChatFormat(folder, data));
  }
  return absl::OkStatus();
}

absl::Status PreparedFolders::VerifyToTrain() const {
  constexpr int64_t kMostBytes = int64_t{4} << 30;
  for (const auto& [path, folder] : folders_) {
    const int64_t bytes = folder.manifest().tokens() * folder.manifest().token_bytes();
    NSA_RETURN_IF_ERROR(bytes <= kMostBytes ? folder.Verify() : folder.VerifyIndexes());
  }
  return absl::OkStatus();
}

absl::Status PreparedFolders::Verify() const {
  for (const auto& [path, folder] : folders_) NSA_RETURN_IF_ERROR(folder.Verify());
  return absl::OkStatus();
}

}  // namespace nsa::train
