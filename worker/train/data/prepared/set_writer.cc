#include "worker/train/data/prepared/set_writer.h"

#include <algorithm>
#include <span>

#include "absl/strings/str_cat.h"
#include "common/base/durable_folder.h"
#include "common/base/status.h"
#include "common/job/data/prepared.h"
#include "common/job/data_source.h"
#include "worker/train/data/prepared/hashed_file.h"
#include "worker/train/data/read/document_hash.h"

namespace nsa::train {

namespace fs = std::filesystem;

absl::StatusOr<v1::PreparedManifest> SetWriter::Write(const fs::path& folder) {
  NSA_RETURN_IF_ERROR(OfFolder(MakeDurableFolder(folder)));
  BeginManifest();
  NSA_RETURN_IF_ERROR(DescribeFiles());
  ShardWriter writer({.folder = folder,
                      .token_bytes = manifest_.token_bytes(),
                      .shard_bytes = options_.shard_bytes,
                      .shard_documents = options_.shard_documents});
  NSA_RETURN_IF_ERROR(WriteDocuments(&writer));
  NSA_RETURN_IF_ERROR(CheckUnchanged());
  if (manifest_.documents() == 0) {
    NSA_RETURN_IF_ERROR(CheckFilter(options_.files, tally_));
    return absl::InvalidArgumentError(
        absl::StrCat(options_.files.field, ": no document; are the files empty?"));
  }
  NSA_RETURN_IF_ERROR(OfFolder(Complete(folder, &writer)));
  return std::move(manifest_);
}

// Remembers where an error comes from.
absl::Status SetWriter::OfFolder(absl::Status status) {
  folder_failed_ = folder_failed_ || !status.ok();
  return status;
}

void SetWriter::BeginManifest() {
  const v1::DataSource source = options_.files.source;
  manifest_.set_source(source);
  manifest_.set_tokenizer(options_.tokenizer);
  if (DataSourceInfoOf(source).has_text()) {
    manifest_.set_tokenizer_sha256(options_.tokenizer_sha256);
  }
  manifest_.set_vocab(options_.vocab);
  manifest_.set_separator(encoder_.separator_or_none());
  manifest_.set_token_bytes(options_.token_bytes());
  if (options_.files.conversations) {
    manifest_.mutable_conversations()->set_chat_format(options_.chat_format);
  }
  if (options_.files.filter != nullptr) {
    options_.files.filter->Describe(manifest_.mutable_filter());
  }
  if (HasPassages(source, encoder_.separator_or_none())) {
    manifest_.set_passage_bytes(static_cast<int64_t>(options_.passage_bytes));
  }
}

absl::Status SetWriter::DescribeFiles() {
  for (const std::string& path : options_.paths) {
    if (IsPreparedFolder(path)) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": is a folder (must be files); data that is prepared already needs nothing more"));
    }
    NSA_ASSIGN_OR_RETURN(*manifest_.add_sources(), sources_.Describe(path));
  }
  return absl::OkStatus();
}

absl::Status SetWriter::WriteDocuments(ShardWriter* writer) {
  DocumentOptions reading = ReadingOfSet(options_.files, options_.paths);
  reading.separator = encoder_.separator();
  reading.passage_bytes = options_.passage_bytes;
  DocumentReader reader(std::move(reading), progress_);
  Document document;
  while (true) {
    NSA_ASSIGN_OR_RETURN(const bool found, reader.Next(&document));
    if (!found) break;
    NSA_RETURN_IF_ERROR(WriteDocument(document, writer));
    if (options_.on_document) NSA_RETURN_IF_ERROR(options_.on_document(manifest_));
  }
  manifest_.set_null_rows(reader.nulls());
  tally_ = reader.tally();
  if (manifest_.has_filter()) {
    manifest_.mutable_filter()->set_left_out(tally_.records - tally_.passed);
    for (v1::DataWarning& warning : FilterWarnings(options_.files, tally_)) {
      *manifest_.mutable_filter()->add_warnings() = std::move(warning);
    }
  }
  return absl::OkStatus();
}

absl::Status SetWriter::WriteDocument(const Document& document, ShardWriter* writer) {
  const auto append = [&](std::span<const Token> tokens) {
    progress_->bytes += std::ssize(tokens);
    return OfFolder(writer->Append(tokens));
  };
  NSA_ASSIGN_OR_RETURN(const DocumentEncoder::Encoded encoded,
                       encoder_.Encode(document, append, progress_));
  Count(document, encoded);
  return OfFolder(writer->EndDocument(HashOf(document)));
}

void SetWriter::Count(const Document& document, const DocumentEncoder::Encoded& encoded) {
  manifest_.set_documents(manifest_.documents() + 1);
  manifest_.set_tokens(manifest_.tokens() + encoded.tokens);
  manifest_.set_text_bytes(manifest_.text_bytes() + std::ssize(document.text));
  manifest_.set_inner_separators(manifest_.inner_separators() + encoded.inner_separators);
  if (manifest_.has_conversations()) {
    v1::PreparedConversations& conversations = *manifest_.mutable_conversations();
    conversations.set_answer_tokens(conversations.answer_tokens() + encoded.answer_tokens);
  }
  manifest_.set_largest_token(std::max(manifest_.largest_token(), encoded.largest_token));
}

// A file on a web server that changes is an error of reading it.
absl::Status SetWriter::CheckUnchanged() const {
  for (int i = 0; i < manifest_.sources_size(); ++i) {
    const std::string& path = options_.paths[static_cast<size_t>(i)];
    NSA_ASSIGN_OR_RETURN(const v1::PreparedSource now, sources_.Describe(path));
    const v1::PreparedSource& before = manifest_.sources(i);
    if (now.bytes() == before.bytes() && now.version() == before.version()) continue;
    return absl::AbortedError(
        absl::StrCat(path, ": changed while it was read; prepare again when nobody writes to it"));
  }
  return absl::OkStatus();
}

absl::Status SetWriter::Complete(const fs::path& folder, ShardWriter* writer) {
  NSA_ASSIGN_OR_RETURN(const std::vector<v1::PreparedShard> shards, writer->Finish());
  manifest_.mutable_shards()->Add(shards.begin(), shards.end());
  NSA_ASSIGN_OR_RETURN(const std::string text, SerializePrepared(manifest_));
  NSA_RETURN_IF_ERROR(WriteHashedFile(folder / kPreparedManifest, text).status());
  return SyncFolder(folder);
}

}  // namespace nsa::train
