#include "worker/train/data/read/documents.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/job/data/json_line.h"
#include "worker/train/data/read/source_files.h"

namespace nsa::train {

DocumentOptions ReadingOfSet(const DataFiles& files, const std::vector<std::string>& paths) {
  return {.source = files.source,
          .files = {paths.begin(), paths.end()},
          .text_field = files.text_field,
          .conversations = files.conversations,
          .filter = files.filter};
}

DocumentReader::DocumentReader(DocumentOptions options, ReadProgress* progress)
    : options_(std::move(options)),
      source_(DataSourceInfoOf(options_.source)),
      progress_(progress) {}

DocumentReader::~DocumentReader() = default;

absl::StatusOr<bool> DocumentReader::Next(Document* document) {
  while (file_ < options_.files.size()) {
    if (!open_) NSA_RETURN_IF_ERROR(OpenFile());
    NSA_ASSIGN_OR_RETURN(const bool found, NextOfFile(document));
    if (!found) {
      open_ = false;
      lines_.reset();
      passages_.reset();
      tokens_.reset();
      nulls_ = nulls();
      rows_.reset();
      conversations_.reset();
      row_filter_.reset();
      ++file_;
    } else if (!document->text.empty() || !document->tokens.empty()) {
      if (file_ > 0 || document->index >= skip_to_) return true;
    }
  }
  return false;
}

absl::Status DocumentReader::OpenFile() {
  const std::filesystem::path& path = options_.files[file_];
  next_index_ = 0;
  NSA_ASSIGN_OR_RETURN(const int64_t size, SourceFiles(progress_).SizeOf(path.string()));
  if (size == 0) ++empty_files_;
  if (size == 0 && source_.has_text()) {
    open_ = true;
    return absl::OkStatus();
  }
  if (source_.format == DocumentFormat::kTokens) {
    NSA_RETURN_IF_ERROR(OpenTokens(path));
  } else if (source_.format == DocumentFormat::kRows) {
    NSA_RETURN_IF_ERROR(OpenRows(path));
  } else {
    NSA_RETURN_IF_ERROR(OpenText(path));
  }
  open_ = true;
  return file_ == 0 && skip_to_ > 0 ? Skip() : absl::OkStatus();
}

absl::Status DocumentReader::OpenTokens(const std::filesystem::path& path) {
  NSA_ASSIGN_OR_RETURN(tokens_, TokenReader::Open(path, progress_));
  if (options_.separator || tokens_->layout().document_ends) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      path.string(), ": does not say where its documents begin, and data.separator is not set; ",
      std::string(kSetSeparator)));
}

absl::Status DocumentReader::OpenRows(const std::filesystem::path& path) {
  if (options_.conversations) {
    NSA_ASSIGN_OR_RETURN(conversations_,
                         parquet::ConversationReader::Open(path, options_.text_field, progress_));
  } else {
    NSA_ASSIGN_OR_RETURN(rows_, parquet::ColumnReader::Open(path, options_.text_field, progress_));
  }
  if (options_.filter == nullptr) return absl::OkStatus();
  NSA_ASSIGN_OR_RETURN(row_filter_, parquet::RowFilter::Open(path, options_.filter, progress_));
  return absl::OkStatus();
}

// What is left to pass of the file, Next() passes.
absl::Status DocumentReader::Skip() {
  if (rows_ != nullptr) rows_->SkipGroups(skip_to_);
  if (rows_ != nullptr && row_filter_ != nullptr) row_filter_->SkipGroups(skip_to_);
  std::string_view line;
  while (lines_ != nullptr && lines_->line_number() < skip_to_) {
    NSA_ASSIGN_OR_RETURN(const bool found, lines_->Next(&line));
    if (!found) break;
  }
  if (tokens_ != nullptr && tokens_->layout().document_ends) {
    const std::vector<int64_t>& ends = *tokens_->layout().document_ends;
    next_index_ = std::min(skip_to_, std::ssize(ends));
    if (next_index_ > 0) tokens_->Seek(ends[static_cast<size_t>(next_index_ - 1)]);
  }
  return absl::OkStatus();
}

absl::Status DocumentReader::OpenText(const std::filesystem::path& path) {
  NSA_ASSIGN_OR_RETURN(auto stream, ByteStream::Open(path, progress_));
  if (source_.format == DocumentFormat::kLines) {
    lines_ = std::make_unique<LineReader>(std::move(stream), path.string());
  } else {
    const bool compressed = ByteStream::IsCompressed(path);
    passages_ = std::make_unique<PassageReader>(
        std::move(stream), path.string(), options_.passage_bytes,
        compressed ? options_.largest_decompressed : std::numeric_limits<size_t>::max());
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> DocumentReader::NextOfFile(Document* document) {
  document->text.clear();
  document->messages.clear();
  document->tokens.clear();
  if (!lines_ && !passages_ && !tokens_ && !rows_ && !conversations_)
    return false;  // an empty file
  switch (source_.format) {
    case DocumentFormat::kLines:
      return NextLine(document);
    case DocumentFormat::kTokens:
      return NextTokens(document);
    case DocumentFormat::kRows:
      return NextPassingRow(document);
    default:
      return NextPassage(document);
  }
}

absl::StatusOr<bool> DocumentReader::NextLine(Document* document) {
  std::string_view line;
  while (true) {
    NSA_ASSIGN_OR_RETURN(const bool found, lines_->Next(&line));
    if (!found) return false;
    if (IsBlankJsonLine(line)) continue;
    document->place =
        absl::StrFormat("%s:%d", options_.files[file_].string(), lines_->line_number());
    document->line = lines_->line_number();
    document->index = document->line - 1;
    bool passes = true;
    const absl::StatusOr<bool> has_text = ReadLine(line, document, &passes);
    NSA_RETURN_IF_ERROR(Annotate(has_text.status(), document->place));
    if (*has_text) return true;
    nulls_ += passes ? 1 : 0;
  }
}

// False if the line does not pass the filter, or has no text.
absl::StatusOr<bool> DocumentReader::ReadLine(std::string_view line, Document* document,
                                              bool* passes) {
  NSA_ASSIGN_OR_RETURN(JsonLine record, JsonLine::Parse(line, options_.conversations));
  *passes = record.Passes(options_.filter.get(), &tally_);
  if (!*passes) return false;
  if (!options_.conversations) {
    NSA_ASSIGN_OR_RETURN(std::optional<std::string> text, record.TakeText(options_.text_field));
    if (!text) return false;
    document->text = *std::move(text);
    return true;
  }
  NSA_ASSIGN_OR_RETURN(std::optional<std::vector<ChatMessage>> messages,
                       record.TakeMessages(options_.text_field));
  if (!messages) return false;
  document->messages = *std::move(messages);
  document->text = TextOfMessages(document->messages);
  return true;
}

absl::StatusOr<bool> DocumentReader::NextPassingRow(Document* document) {
  while (true) {
    document->messages.clear();
    NSA_ASSIGN_OR_RETURN(const bool found,
                         options_.conversations ? NextConversation(document) : NextRow(document));
    if (!found || row_filter_ == nullptr) return found;
    NSA_ASSIGN_OR_RETURN(const bool passes, row_filter_->Passes(document->line, &tally_));
    if (passes) return true;
  }
}

absl::StatusOr<bool> DocumentReader::NextRow(Document* document) {
  std::string_view text;
  NSA_ASSIGN_OR_RETURN(const bool found, rows_->Next(&text));
  if (!found) return false;
  document->text.assign(text);
  document->line = rows_->row();
  document->index = document->line - 1;
  document->place = absl::StrFormat("%s: row %d", options_.files[file_].string(), rows_->row());
  return true;
}

absl::StatusOr<bool> DocumentReader::NextConversation(Document* document) {
  NSA_ASSIGN_OR_RETURN(const bool found, conversations_->Next(&document->messages));
  if (!found) return false;
  document->text = TextOfMessages(document->messages);
  document->line = conversations_->row();
  document->index = document->line - 1;
  document->place = absl::StrFormat("%s: row %d", options_.files[file_].string(), document->line);
  return true;
}

int64_t DocumentReader::nulls() const {
  return nulls_ + (rows_ ? rows_->nulls() : 0) + (conversations_ ? conversations_->nulls() : 0);
}

absl::StatusOr<bool> DocumentReader::NextPassage(Document* document) {
  NSA_ASSIGN_OR_RETURN(const bool found, passages_->Next(&document->text));
  document->place =
      absl::StrFormat("%s at byte %d", options_.files[file_].string(), passages_->begin());
  document->index = next_index_++;
  return found;
}

absl::StatusOr<bool> DocumentReader::NextTokens(Document* document) {
  const TokenLayout& layout = tokens_->layout();
  document->file = options_.files[file_].string();
  document->first_token = tokens_->position();
  document->place = absl::StrFormat("%s: token %d", document->file, document->first_token);
  if (!layout.document_ends) {
    if (tokens_->position() == layout.count) return false;
    const bool whole = *options_.separator != kNoSeparator || options_.passage_bytes == 0;
    const auto passage = static_cast<int64_t>(options_.passage_bytes / 2);
    const int64_t end =
        whole ? layout.count : std::min(layout.count, tokens_->position() + passage);
    document->index = next_index_++;
    NSA_RETURN_IF_ERROR(AppendTokens(end, *options_.separator, document));
    return true;
  }
  if (next_index_ == std::ssize(*layout.document_ends)) return false;
  document->index = next_index_++;
  NSA_RETURN_IF_ERROR(AppendTokens((*layout.document_ends)[static_cast<size_t>(document->index)],
                                   kNoSeparator, document));
  std::vector<Token>& tokens = document->tokens;
  if (!tokens.empty() && tokens.back() == options_.separator) tokens.pop_back();
  if (!tokens.empty() && tokens.front() == options_.separator) {
    tokens.erase(tokens.begin());
    ++document->first_token;
  }
  return true;
}

// Reads up to token `end`, or up to and including the next separator, which is not appended.
absl::Status DocumentReader::AppendTokens(int64_t end, int32_t separator, Document* document) {
  if (separator == kNoSeparator) {
    document->tokens.reserve(static_cast<size_t>(end - tokens_->position()));
  }
  while (tokens_->position() < end) {
    NSA_ASSIGN_OR_RETURN(std::span<const Token> ahead, tokens_->Ahead());
    const int64_t left = end - tokens_->position();
    ahead = ahead.first(static_cast<size_t>(std::min<int64_t>(left, std::ssize(ahead))));
    const auto stop = std::find(ahead.begin(), ahead.end(), separator);
    document->tokens.insert(document->tokens.end(), ahead.begin(), stop);
    const bool found = stop != ahead.end();
    tokens_->Skip((stop - ahead.begin()) + (found ? 1 : 0));
    if (found) break;
  }
  return absl::OkStatus();
}

}  // namespace nsa::train
