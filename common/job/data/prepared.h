// Prepared data: folders of token shards that `nsactl data prepare` writes once and training maps
// into memory. A job names one as a file of data.source: tokens. docs/formats.md describes them.
//
//   NAME.tokens/manifest.json       PreparedManifest, written last
//   NAME.tokens/tokens-00000.bin    the tokens: a Megatron data set with its index
//   NAME.tokens/tokens-00000.idx
//   NAME.tokens/tokens-00000.hash   16 bytes for each document: XXH3-128 of what it was made of
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nsa/v1/data.pb.h"

namespace nsa {

inline constexpr char kPreparedManifest[] = "manifest.json";
// Of the folder that `nsactl data prepare` writes, with such folders and the job that trains on
// them. Written last. Its presence says that the folder may be replaced, and that relative paths of
// `data` in job files beside it start there (PlaceJob()).
inline constexpr char kPreparedJob[] = "prepared.json";
// The ending of the folders' names. Sets of data.val, and files of data.val_path beside data.mix,
// are recognised by it.
inline constexpr std::string_view kPreparedEnding = ".tokens";
// Bytes of a manifest, which has about 300 for each file that was read and for each shard.
inline constexpr int64_t kLargestPreparedManifest = 64 << 20;
// Of a document in a .hash file.
inline constexpr int64_t kDocumentHashBytes = 16;

// Whether a path of data.source: tokens is such a folder, or at least a folder.
bool IsPreparedFolder(const std::filesystem::path& path);

// "tokens-00007".
std::string ShardName(int64_t index);

// Whether documents of this source depend on whether they were divided into passages.
bool HasPassages(v1::DataSource source, int32_t separator);

// The text of manifest.json, with format_version and its own hash filled in.
absl::StatusOr<std::string> SerializePrepared(v1::PreparedManifest manifest);

// Reads manifest.json of a folder. InvalidArgument if there is none; DataLoss if it cannot be
// parsed, its own hash is wrong, it contradicts itself, or it is larger than
// kLargestPreparedManifest; FailedPrecondition for another format_version. Each names the folder.
absl::StatusOr<v1::PreparedManifest> ReadPrepared(const std::filesystem::path& folder);

// Files of 0 bytes among those that were read.
int64_t EmptyFilesOf(const v1::PreparedManifest& manifest);

// Whether every file of the shards is there with its length. DataLoss, naming the first that is
// not.
absl::Status CheckPreparedFiles(const std::filesystem::path& folder,
                                const v1::PreparedManifest& manifest);

// Whether a job can train on a folder: the tokenizer that it names, if any, is the one of the
// folder, and no token is at or above `vocab`. InvalidArgument, naming the folder.
absl::Status CheckPreparedFor(const std::filesystem::path& folder,
                              const v1::PreparedManifest& manifest, const v1::DataSpec& data,
                              int32_t vocab);

// The SHA-256 of the files of the tokenizer that a job names; empty for bytes, or if it names none.
// NotFound or InvalidArgument, naming the file.
absl::StatusOr<std::string> TokenizerSha256(const v1::DataSpec& data);

}  // namespace nsa
