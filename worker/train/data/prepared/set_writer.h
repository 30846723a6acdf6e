// Writes one list of documents as a folder of prepared data (common/job/data/prepared.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/job/data/data_files.h"
#include "nsa/v1/data.pb.h"
#include "worker/train/data/encoder.h"
#include "worker/train/data/prepared/shard_writer.h"
#include "worker/train/data/read/documents.h"
#include "worker/train/data/read/source_files.h"
#include "worker/train/data/remote/progress.h"

namespace nsa::train {

struct SetOptions {
  DataFiles files;                 // what the files hold, and the field that names them
  std::vector<std::string> paths;  // the files themselves, without patterns
  int32_t vocab = 0;
  v1::Tokenizer tokenizer = v1::TOKENIZER_UNSPECIFIED;
  std::string tokenizer_sha256;  // TokenizerSha256(); empty if nothing is tokenized
  std::string chat_format;       // DocumentEncoder::chat_format()
  size_t passage_bytes = 0;      // PassageBytesFor()

  int token_bytes() const { return TokenBytes(vocab, files.conversations); }

  // Where a shard ends; see ShardWriter::Options.
  int64_t shard_bytes = int64_t{1} << 30;
  int64_t shard_documents = 1 << 20;
  // Called after each document with what was written so far. An error ends the writing. May be
  // empty.
  std::function<absl::Status(const v1::PreparedManifest&)> on_document;
};

// For one folder. One thread.
class SetWriter {
 public:
  // `encoder` and `progress` must outlive the object.
  SetWriter(SetOptions options, const DocumentEncoder& encoder, ReadProgress* progress)
      : options_(std::move(options)), encoder_(encoder), progress_(progress), sources_(progress) {}

  // Creates the folder and writes shards and manifest into it, all of them synced. Memory: the
  // largest document, 20 bytes for each document of a shard, and what reading takes
  // (read/documents.h). On an error the folder is incomplete, and the caller removes it.
  //
  // Errors: those of DocumentReader, DocumentEncoder::Encode() and HashedFile (ResourceExhausted:
  // the disk is full); InvalidArgument for a folder among the files, or without a document; Aborted
  // if a file changes while it is read; Cancelled.
  absl::StatusOr<v1::PreparedManifest> Write(const std::filesystem::path& folder);

  // Whether the error of Write() was one of writing the folder rather than of reading the files.
  bool folder_failed() const { return folder_failed_; }

 private:
  void BeginManifest();
  absl::Status DescribeFiles();
  absl::Status WriteDocuments(ShardWriter* writer);
  absl::Status WriteDocument(const Document& document, ShardWriter* writer);
  void Count(const Document& document, const DocumentEncoder::Encoded& encoded);
  absl::Status CheckUnchanged() const;
  absl::Status Complete(const std::filesystem::path& folder, ShardWriter* writer);
  absl::Status OfFolder(absl::Status status);

  const SetOptions options_;
  const DocumentEncoder& encoder_;
  ReadProgress* const progress_;
  const SourceFiles sources_;
  v1::PreparedManifest manifest_;
  FilterTally tally_;
  bool folder_failed_ = false;
};

}  // namespace nsa::train
